// SPDX-License-Identifier: Apache-2.0
//
// What the rocm plugin would compile of whole graphs, for a device that is imagined: claims and regions as the host asks for them, every
// kernel once. Products and convolutions are the libraries', as they are where those are installed, and are left out.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "core/ir/graph.h"
#include "plugins/gpu/device.h"
#include "tests/unit/rocm/kernel_texts.h"

namespace keirin::test {

class GraphTexts {
 public:
  // Throws kit::Error for what has no row in target.def.
  explicit GraphTexts(const std::string& arch);
  // The regions of a model, as the host cuts them. Throws std::runtime_error for a graph that does not become regions.
  void add_model(const Graph& graph);
  // All of it as one region, as the sheet's cases are tried; false where it is not claimed as a whole.
  bool add_case(const Graph& graph);
  // What was met since the last call, a few generated kernels to a module.
  std::vector<ModuleText> take();

 private:
  class Backend;
  struct Claimed;
  Claimed claimed(const Graph& graph, Backend& backend) const;
  void add_kernel(const std::string& name, const std::string& text);
  void add_own(const gpu::TextKernel& kernel);

  gpu::Gpu gpu_;
  std::set<std::string> seen_;  // names of generated kernels, texts of the others
  std::vector<ModuleText> modules_;
};

}  // namespace keirin::test
