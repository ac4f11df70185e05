// SPDX-License-Identifier: Apache-2.0
//
// The ids of ops.def and dtypes.def under their names. Nothing else.
#pragma once

#include <cstdint>

namespace keirin::cpu {

enum OpId : uint32_t {
#define KRN_SCALAR(id, name, ...) kOp_##name = id,
#define KRN_REDUCE(id, name, ...) kOp_##name = id,
#define KRN_MOVE(id, name, ...) kOp_##name = id,
#define KRN_FACTORY(id, name, ...) kOp_##name = id,
#define KRN_COMPOSITE(id, name, ...) kOp_##name = id,
#include "abi/ops.def"
#undef KRN_SCALAR
#undef KRN_REDUCE
#undef KRN_MOVE
#undef KRN_FACTORY
#undef KRN_COMPOSITE
};

enum Dtype : uint8_t {
#define KRN_DTYPE(id, name, bits, dl, cls) kDtype_##name = id,
#include "abi/dtypes.def"
#undef KRN_DTYPE
};

}  // namespace keirin::cpu
