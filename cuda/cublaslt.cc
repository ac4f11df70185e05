// SPDX-License-Identifier: Apache-2.0
//
// From the public documentation of cuBLAS 12 and 13.
#include "cuda/cublaslt.h"

#include <dlfcn.h>

#include "cuda/gpu_driver.h"
#include "plugins/gpu/lt_product.h"

namespace keirin::cuda {
namespace {

std::string version_of(void* library, gpu::lt::Handle, std::string& why_not) {
  const auto version = reinterpret_cast<size_t (*)()>(dlsym(library, "cublasLtGetVersion"));
  if (version) return std::to_string(version());
  why_not = "this cuBLASLt lacks cublasLtGetVersion";
  return "";
}

const gpu::lt::Vendor kCublasLt = {
    .name = "cublaslt",
    .prefix = "cublasLt",
    .files = {"libcublasLt.so.13", "libcublasLt.so.12"},
    .how_to_get = "install CUDA's libcublas, or the LibTorch that brings it",
    .types = {.f32 = 0, .f64 = 1, .f16 = 2, .bf16 = 14},  // cudaDataType
    .sums = {.f32 = 68, .tf32 = 77, .f64 = 70},           // cublasComputeType_t
    .as_is = 0,
    .transposed = 1,
    .transpose_a = 3,
    .transpose_b = 4,
    .epilogue = 7,
    .bias_address = 8,
    .bias_type = -1,  // the result's, unless told
    .batch_count = 5,
    .batch_stride = 6,
    .most_workspace = 1,
    .least_alignment = 5,
    .algo_bytes = 64,
    .desc_bytes = 32 * sizeof(uint64_t),  // cublasLtMatmulDescOpaque_t
    .takes_all = true,
    .unsupported = 15,
    .version = version_of,
    .driver = gpu_driver,
};

}  // namespace

const gpu::lt::Vendor& cublaslt() { return kCublasLt; }

const gpu::ProductLibrary& cublas_products() {
  static const auto* products = new gpu::LtProducts(kCublasLt);
  return *products;
}

}  // namespace keirin::cuda
