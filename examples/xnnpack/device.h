// SPDX-License-Identifier: Apache-2.0
//
// What the files of the plugin share. A value lies in memory row by row, or as an image: four axes N, C, H, W in the order N, H, W, C,
// which is the only one that XNNPACK's windows know and what the host calls channels-last.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine.h"
#include "plugins/kit/plugin.h"
#include "plugins/kit/tables.h"

namespace xnnpack_plugin {

enum class Form : uint8_t { kRows, kImage, kOther };

// support.cc
std::unique_ptr<keirin::kit::Device> make_device();
// Of an input that repeats itself along an axis (a stride of 0) there is 1 on that axis; else the value's sizes.
std::vector<int64_t> sizes_in_memory(const krn_graph& graph, uint32_t value);
bool repeats(const krn_graph& graph, uint32_t value);
int64_t elements_of(const krn_graph& graph, uint32_t value);  // in memory
bool is_rows(const krn_graph& graph, uint32_t value);
// An image where both orders are the same memory.
Form form_of(const krn_graph& graph, uint32_t value);
// For each node of the region, in order: empty if the plugin runs it, else the reason it cannot.
std::vector<std::string> why_not(const krn_graph& graph);

// The node that makes the value; null for an input.
const krn_gnode* made_by(const krn_graph& graph, uint32_t value);
// What is broadcast to the value, which may be itself.
uint32_t source_of(const krn_graph& graph, uint32_t value);
// Whether the region says what the value is: one number.
bool is_number(const krn_graph& graph, uint32_t value);

const int64_t* list_of(const krn_graph& graph, const krn_gnode& node, uint32_t key);
int64_t number_of(const krn_graph& graph, const krn_gnode& node, uint32_t key);
// The id for krn.host.consts of an input that never changes, else KRN_NONE.
uint32_t weight_of(const krn_graph& graph, uint32_t value);

// compile.cc

// What a run hands to XNNPACK under one id: a tensor of the host where it lies, or a copy in the workspace.
struct Border {
  uint32_t id = 0;
  uint32_t tensor = 0;       // which input, which output
  bool is_output = false;
  bool reorder = false;      // from rows to an image, or back
  bool always_copy = false;  // an output that an input's memory takes up: written when nobody reads it any more
  std::array<int64_t, 4> sizes{};  // N, C, H, W, if reordered
  uint64_t bytes = 0;
  uint64_t offset = 0;       // of the copy in the workspace
};

// An output that XNNPACK does not write: a copy of an input or of another output.
struct Copy {
  bool from_input = false, is_update = false;  // an update is written into an input, after everything else
  uint32_t from = 0, to = 0;
  uint64_t bytes = 0, offset = 0;              // in the workspace, for updates
};

struct Program {
  ~Program();
  Program() = default;
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  uint32_t num_inputs = 0, num_outputs = 0, num_nodes = 0;
  std::vector<Border> borders;
  std::vector<Copy> copies;
  uint64_t workspace_bytes = 0;
  std::vector<std::vector<float>> filters;  // in XNNPACK's order; it may read them as long as the runtime lives
  std::unique_ptr<pthreadpool> threads;     // of the runtime
  xnn_runtime_t runtime = nullptr;
  std::string region;  // its hash, 32 bytes
};

// Packs the weights. In the compile child, which has none, zeros stand for them: what XNNPACK refuses, it refuses there.
std::unique_ptr<Program> compile(const keirin::kit::Region& region);

// artifact.cc
std::string artifact_token();
std::string save(const Program& program);
void check_artifact(std::string_view body, std::string_view region);

// launch.cc
std::unique_ptr<keirin::kit::Executable> make_executable(std::unique_ptr<Program> program);

}  // namespace xnnpack_plugin
