// SPDX-License-Identifier: Apache-2.0
//
// Ids of operators and dtypes as names, from the tables of abi/.
#pragma once

#include <cstdint>

namespace keirin::cuda {

enum : uint32_t {
#define KRN_SCALAR(id, name, ...) op_##name = id,
#define KRN_REDUCE(id, name, ...) op_##name = id,
#define KRN_MOVE(id, name, ...) op_##name = id,
#define KRN_FACTORY(id, name, ...) op_##name = id,
#define KRN_COMPOSITE(id, name, ...) op_##name = id,
#include "abi/ops.def"
#undef KRN_SCALAR
#undef KRN_REDUCE
#undef KRN_MOVE
#undef KRN_FACTORY
#undef KRN_COMPOSITE
};

enum : uint8_t {
#define KRN_DTYPE(id, name, ...) dtype_##name = id,
#include "abi/dtypes.def"
#undef KRN_DTYPE
};

}  // namespace keirin::cuda
