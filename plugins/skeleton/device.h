// SPDX-License-Identifier: Apache-2.0
//
// What the files of the skeleton share: the device, the compiled program, and the two questions about a node.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "plugins/kit/plugin.h"
#include "plugins/kit/tables.h"

namespace skeleton {

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

std::unique_ptr<keirin::kit::Device> make_device(const keirin::kit::Host& host);
// Empty if the plugin can run the node, else the reason it cannot.
std::string why_not(const krn_graph& graph, const krn_gnode& node);
Program compile(const krn_graph& graph);
std::unique_ptr<keirin::kit::Executable> make_executable(Program program);

}  // namespace skeleton
