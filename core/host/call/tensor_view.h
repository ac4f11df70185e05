// SPDX-License-Identifier: Apache-2.0
//
// A Tensor, or what will be one, as the plugin contract shows it. The view borrows sizes and strides: they must outlive it.
#pragma once

#include "abi/plugin.h"
#include "core/base/tensor.h"
#include "core/ir/graph.h"

namespace keirin {

krn_tensor view_of(const Tensor& tensor, uint32_t flags = 0);  // flags: KRN_TENSOR_*
krn_tensor view_of(const Type& type, Device device, uint32_t flags = 0);  // its address and storage are not known yet

// Bytes from the first to the last element, for a type with any strides.
int64_t span_bytes(const Type& type);

}  // namespace keirin
