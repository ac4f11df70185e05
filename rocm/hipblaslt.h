// SPDX-License-Identifier: Apache-2.0
//
// Products through hipBLASLt (plugins/gpu/lt_product.h): its files and its numbers.
#pragma once

#include "plugins/gpu/product.h"

namespace keirin::rocm {

const gpu::ProductLibrary& hipblaslt_products();

}  // namespace keirin::rocm
