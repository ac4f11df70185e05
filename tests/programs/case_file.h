// SPDX-License-Identifier: Apache-2.0
//
// A recorded program: what Python's eager module answered for inputs in several memory layouts, call after call.
// Written by record.py; README.md describes the files. Nothing is computed here: what is in the file is the truth.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/services.h"

namespace keirin::programs {

// A tensor of Python's. Complex ones lie as pairs of real numbers, with a last axis of 2.
struct Told {
  TensorRef value;
  double tolerance = 0;  // the largest difference that rounding may make; 0: none may
  bool complex = false;
  std::vector<int64_t> strides;  // of an output: those that an element's place depends on
};

// Two tensors that have an element's byte in common, and how far apart their first elements are. o0: output 0, i0:
// input 0, b:name.
struct Share {
  std::string left, right;
  int64_t bytes = 0;
  bool operator==(const Share&) const = default;
};

struct Call {
  bool raises = false;
  std::string error;  // Python's words
  std::vector<std::optional<Told>> outputs;
  std::vector<Told> storages;  // all of them, afterwards: what is written beside an input is seen
  std::vector<std::pair<std::string, Told>> buffers;
  std::vector<Share> shares;
};

struct Layout {
  size_t storage = 0;
  std::vector<int64_t> sizes, strides;
  int64_t offset = 0;
};

struct Variant {
  std::string name;
  std::vector<Told> storages;
  std::vector<Layout> inputs;
  std::vector<Call> calls;  // in a row, with the same tensors
};

struct Case {
  std::string name, model, source, note;  // `model`: path of the .pt2 file
  std::vector<Variant> variants;          // the first is the one with contiguous inputs
};

Result<Case> read_case(const std::string& folder, const std::string& name, TensorServices& services);

}  // namespace keirin::programs
