// SPDX-License-Identifier: Apache-2.0
//
// A Tensor as the plugin contract shows it. The view borrows sizes and strides: the Tensor must outlive it.
#pragma once

#include "abi/plugin.h"
#include "core/base/tensor.h"

namespace keirin {

krn_tensor view_of(const Tensor& tensor, uint32_t flags = 0);  // flags: KRN_TENSOR_*

}  // namespace keirin
