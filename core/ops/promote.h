// SPDX-License-Identifier: Apache-2.0
//
// ATen's type promotion: tensors with axes before 0-d tensors before numbers, and within a class the lattice of dtypes.
#pragma once

#include "core/base/dtype.h"

namespace keirin {

// The least dtype that both fit into; kNone is neutral. Dtypes of class x give kNone unless both are equal.
DType promote(DType a, DType b);

// Collects operands in any order; `result` is what at::result_type answers.
class Promotion {
 public:
  void add_tensor(DType dtype, bool is_zero_dim) { is_zero_dim ? add(zero_dim_, dtype) : add(dim_, dtype); }
  void add_number(DType dtype) { add(number_, is_float(dtype) ? DType::k_f32 : dtype); }  // the default dtype
  DType result() const { return combine(dim_, combine(zero_dim_, number_)); }

 private:
  static void add(DType& slot, DType dtype) { slot = promote(slot, dtype); }
  static DType combine(DType higher, DType lower);

  DType dim_ = DType::kNone;
  DType zero_dim_ = DType::kNone;
  DType number_ = DType::kNone;
};

}  // namespace keirin
