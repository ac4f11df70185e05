// SPDX-License-Identifier: Apache-2.0
//
// Which products of f32 the libraries under LibTorch compute from their operands as they are, where its settings let them round these to
// TF32: they choose by sizes and strides. Whoever answers in eager's place rounds no more than eager does. Private to core/eager.
#pragma once

#include <ATen/core/stack.h>

#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "core/eager/program/frame.h"
#include "core/eager/program/library_settings.h"

namespace keirin {

class WholeProducts {
 public:
  // `found`: ObservedRun::whole_products; outlives this.
  WholeProducts(const Tf32Settings& allowed, std::set<std::string, std::less<>>& found) : allowed_(allowed), found_(found) {}

  // Whether the operator is a product that may be rounded; asked before it is called.
  bool watches(const OperatorSite& site, const torch::jit::Stack& arguments) const;
  // What it answered: compared with what it answers in f64, and with that of rounded operands. Calls of one form are compared once.
  // Throws nothing where it cannot be told, which finds nothing.
  void look(const OperatorSite& site, const torch::jit::Stack& arguments, const torch::jit::Stack& results);

 private:
  const Tf32Settings allowed_;
  std::set<std::string, std::less<>>& found_;
  std::map<std::string, std::vector<bool>> known_;  // by operator and form of its arguments: by result, whether it is whole
};

}  // namespace keirin
