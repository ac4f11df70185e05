// SPDX-License-Identifier: Apache-2.0
//
// Element types of the core: the enum that abi/dtypes.def lists, with its size, name and class.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace keirin {

enum class DType : uint8_t {
  kNone = 0,
#define KRN_DTYPE(id, name, bits, dl, cls) k_##name = id,
#include "abi/dtypes.def"
#undef KRN_DTYPE
};

enum class DTypeClass : uint8_t { b, i, f, x };

std::string_view dtype_name(DType dtype);                      // "f32"; "none" for kNone
std::optional<DType> dtype_from_name(std::string_view name);
int64_t dtype_bytes(DType dtype);                              // size of one element
DTypeClass dtype_class(DType dtype);
uint8_t dtype_dl_code(DType dtype);                            // DLPack's DLDataTypeCode
inline bool is_float(DType d) { return dtype_class(d) == DTypeClass::f; }
inline bool is_int(DType d) { return dtype_class(d) == DTypeClass::i; }

// The type in which the scalar formulas of a row run for values stored as `d`: f32 for f16 and bf16, else d.
inline DType compute_dtype(DType d) { return d == DType::k_f16 || d == DType::k_bf16 ? DType::k_f32 : d; }

}  // namespace keirin
