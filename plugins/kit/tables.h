// SPDX-License-Identifier: Apache-2.0
//
// The ids of abi/ops.def, dtypes.def and attrs.def under their names, for plugins that know operators: `using enum` makes them
// short. What a row means is not here: plugins/codegen and plugins/reference know their part of it.
#pragma once

#include <cstdint>

namespace keirin::kit {

enum Op : uint32_t {
  kOp_opaque = 0,  // any operator registered with LibTorch, called by the host; never claimed
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

enum DType : uint8_t {
#define KRN_DTYPE(id, name, ...) kDType_##name = id,
#include "abi/dtypes.def"
#undef KRN_DTYPE
};

enum AttrKey : uint32_t {
#define KRN_ATTR(id, name, ...) kAttr_##name = id,
#include "abi/attrs.def"
#undef KRN_ATTR
};

}  // namespace keirin::kit
