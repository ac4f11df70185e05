// SPDX-License-Identifier: Apache-2.0
//
// Products through cuBLASLt (plugins/gpu/lt_product.h): its files and its numbers.
#pragma once

#include "plugins/gpu/lt_library.h"
#include "plugins/gpu/product.h"

namespace keirin::cuda {

const gpu::lt::Vendor& cublaslt();
const gpu::ProductLibrary& cublas_products();

}  // namespace keirin::cuda
