// SPDX-License-Identifier: Apache-2.0
//
// From the public documentation of hipBLASLt 0.6 (ROCm 6.0) and later; its numbers were others before. It takes operands at any
// element, has no products for some instruction sets and no f64 for others, and computes GELU by tanh.
#include "rocm/hipblaslt.h"

#include <dlfcn.h>

#include "plugins/gpu/lt_product.h"
#include "rocm/gpu_driver.h"

namespace keirin::rocm {
namespace {

constexpr int kOldest = 600;  // 100000 * major + 100 * minor + patch

std::string version_of(void* library, gpu::lt::Handle handle, std::string& why_not) {
  const auto get = reinterpret_cast<int (*)(gpu::lt::Handle, int*)>(dlsym(library, "hipblasLtGetVersion"));
  int version = 0;
  if (get && get(handle, &version) == 0 && version >= kOldest) return std::to_string(version);
  why_not = "this hipBLASLt is older than 0.6, which came with ROCm 6.0";
  return "";
}

const gpu::Driver& any_driver() { return gpu_driver(64); }

const gpu::lt::Vendor kHipblasLt = {
    .name = "hipblaslt",
    .prefix = "hipblasLt",
    .files = {"libhipblaslt.so.1", "libhipblaslt.so.0", "libhipblaslt.so"},
    .how_to_get = "install ROCm's hipblaslt",
    .types = {.f32 = 0, .f64 = 1, .f16 = 2, .bf16 = 14},  // hipDataType
    .sums = {.f32 = 2, .tf32 = 2, .f64 = 7},              // hipblasComputeType_t; xf32 is not asked for: few devices have it
    .as_is = 111,
    .transposed = 112,
    .transpose_a = 0,
    .transpose_b = 1,
    .epilogue = 2,
    .bias_address = 3,
    .bias_type = 4,
    .batch_count = 0,
    .batch_stride = 1,
    .most_workspace = 1,
    .least_alignment = -1,
    .algo_bytes = 24,
    .desc_bytes = 0,  // it holds what it owns
    .takes_all = false,
    .unsupported = 7,
    .version = version_of,
    .driver = any_driver,
};

}  // namespace

const gpu::ProductLibrary& hipblaslt_products() {
  static const auto* products = new gpu::LtProducts(kHipblasLt);
  return *products;
}

}  // namespace keirin::rocm
