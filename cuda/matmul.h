// SPDX-License-Identifier: Apache-2.0
//
// Products through cuBLASLt: bias, ReLU and tanh-GELU as its epilogues, a residual as beta * C.
#pragma once

#include "plugins/gpu/product.h"

namespace keirin::cuda {

// Its guesses are raced by matmul_race.h.
const gpu::ProductLibrary& cublas_products();

}  // namespace keirin::cuda
