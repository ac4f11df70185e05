// SPDX-License-Identifier: Apache-2.0
//
// Products through rocBLAS, opened at run time and declared in our own words, where hipBLASLt has none or is absent. It fuses nothing but
// a sum; its choice of kernel is its own, so nothing is raced.
#pragma once

#include <memory>
#include <vector>

#include "plugins/gpu/product.h"

namespace keirin::rocm {

// hipBLASLt's, and rocBLAS's for the types that it has none of. The process's, never destroyed.
const gpu::ProductLibrary& hip_products();

// For tests: rocBLAS from another file, over another driver.
std::unique_ptr<gpu::ProductLibrary> open_rocblas(std::vector<const char*> files, const gpu::Driver& driver);

}  // namespace keirin::rocm
