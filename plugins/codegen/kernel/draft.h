// SPDX-License-Identifier: Apache-2.0
//
// A kernel before its axes are ordered: what the emitter builds from tensors, and what shape_kernel turns into a loops.h Kernel.
// Axes here are atoms of the tensors' dims; none has size 1 unless it is pinned.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "plugins/codegen/kernel/loops.h"

namespace keirin::codegen {

inline constexpr int kMaxAxes = 12;

struct Form {
  int64_t offset = 0;
  std::array<int64_t, kMaxAxes> coeff{};
  bool operator==(const Form&) const = default;
};

struct DraftAxis {
  int64_t size = 1;
  bool in_row = false;   // reduced axis
  bool segment = false;  // positions of a CSR row
  bool pinned = false;   // neither split nor merged: the CSR's destination axis
};

struct FormGuard {
  Form form;
  int64_t limit = 0;
  bool operator==(const FormGuard&) const = default;
};

struct DraftAccess {
  int tensor = -1;  // the stored tensor that is read or written
  int buffer = -1;
  uint8_t dtype = 0;
  bool store = false;
  Form index;
  std::vector<Access::Indirect> indirects;
  std::vector<FormGuard> guards;
  double fill = 0;
};

struct DraftReduce {
  int32_t value;
  Monoid monoid;
  Kind accumulator;
};

struct DraftStore {
  int32_t node;
  uint32_t access;
  bool per_row;
};

struct Draft {
  std::vector<DraftAxis> axes;
  std::vector<DraftAccess> accesses;
  Dag dag;
  std::vector<DraftReduce> reduces;
  std::vector<DraftStore> stores;
  bool has_csr = false;
  Csr csr;
  int csr_index = -1;  // the index tensor
};

}  // namespace keirin::codegen
