// SPDX-License-Identifier: Apache-2.0
#include "core/ops/promote.h"

#include <algorithm>

namespace keirin {

DType promote(DType a, DType b) {
  if (a == b || b == DType::kNone) return a;
  if (a == DType::kNone) return b;
  DTypeClass ca = dtype_class(a), cb = dtype_class(b);
  if (ca == DTypeClass::x || cb == DTypeClass::x) return DType::kNone;
  if (ca != cb) return static_cast<int>(ca) > static_cast<int>(cb) ? a : b;  // bool < integer < float
  if (ca == DTypeClass::f) {
    bool halves = dtype_bytes(a) == 2 && dtype_bytes(b) == 2;
    return halves ? DType::k_f32 : dtype_bytes(a) > dtype_bytes(b) ? a : b;
  }
  if ((a == DType::k_u8 && b == DType::k_i8) || (a == DType::k_i8 && b == DType::k_u8)) return DType::k_i16;
  return dtype_bytes(a) > dtype_bytes(b) ? a : b;
}

DType Promotion::combine(DType higher, DType lower) {
  if (is_float(higher) || higher == DType::kNone) return higher == DType::kNone ? lower : higher;
  if (higher == DType::k_bool || is_float(lower)) return promote(higher, lower);
  return higher;
}

}  // namespace keirin
