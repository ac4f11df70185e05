// SPDX-License-Identifier: Apache-2.0
//
// What the files of the plugin share: the compiled program, and who answers which question about it.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "plugins/kit/plugin.h"
#include "plugins/kit/tables.h"

namespace skeleton_plugin {

// What moves a value to another buffer; no node has it, for opaque ones are never claimed.
constexpr uint32_t kCopy = keirin::kit::kOp_opaque;

// One elementwise op over numbered buffers: inputs, then outputs, then temps.
struct Instruction {
  uint32_t op = 0;
  uint32_t a = 0, b = 0, out = 0;
  int64_t elements = 0;
};

struct Program {
  uint32_t num_inputs = 0, num_outputs = 0;
  std::vector<int64_t> temp_offsets;  // bytes into the workspace
  int64_t workspace_bytes = 0;
  std::vector<Instruction> instructions;
};

// What is compiled for one region, and which region that is.
struct Compiled {
  Program program;
  std::string region;  // its hash, 32 bytes
};

// support.cc
std::unique_ptr<keirin::kit::Device> make_device();
// Contiguous f32.
bool is_plain(const krn_graph& graph, uint32_t value);
// Empty if the plugin can run the node, else the reason it cannot.
std::string why_not(const krn_graph& graph, const krn_gnode& node);

// compile.cc
Program compile(const krn_graph& graph);

// artifact.cc: what the compile child sends to the process that runs, and what the cache keeps.
std::string artifact_token();
std::string save(const Compiled& compiled);
Compiled load(std::string_view body, std::string_view region);

// launch.cc
std::unique_ptr<keirin::kit::Executable> make_executable(Compiled compiled);

}  // namespace skeleton_plugin
