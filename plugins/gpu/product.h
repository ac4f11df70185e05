// SPDX-License-Identifier: Apache-2.0
//
// matmul and linear as products for a vendor's library, with the epilogues that such libraries compute exactly as the
// table does: bias, ReLU, tanh-GELU in 16 bits, and a residual. Operands may be row- or column-major by stride; batches collapse
// into one stride.
#pragma once

#include <memory>
#include <string>

#include "plugins/gpu/device.h"

namespace keirin::gpu {

// A matrix of a (batched) tensor as libraries see it: column-major, so a row-major one is its transpose.
struct Matrix {
  bool transposed = false;  // row-major in memory: the library's matrix is the transpose of ours
  int64_t ld = 0;
  int64_t batch = 1, batch_stride = 0;
};

// One product D[m, n] = A[m, k] * B[k, n] over `batch`, from a matmul or a linear anchor.
struct ProductProblem {
  int64_t m = 0, n = 0, k = 0, batch = 1;
  Matrix a, b, d, c;
  bool has_bias = false, has_residual = false;
};

// Which of a library's algorithms a product gets: its first guess, so that equal problems get equal ones in every process; what a product
// of such sizes has, where a call waits; the fastest of its guesses.
enum class Pick : uint8_t { kFirst, kLikeOthers, kFastest };

class ProductLibrary {
 public:
  virtual ~ProductLibrary() = default;
  // Opens the library. The device's context must be current. Any thread.
  virtual bool usable(std::string& why_not) const = 0;
  // Whether it is usable and has products of operands of that float type on the current device.
  virtual bool takes(uint8_t dtype, std::string& why_not) const = 0;
  // Whether such products may have a bias, activations and a residual; else a kernel adds them behind the library's call.
  virtual bool fuses(uint8_t /*dtype*/) const { return true; }
  // `tf32`: f32 operands may be rounded to it. `seconds`: what the choice took with cold caches, 0 if it was not timed.
  // Operands of 16 bits may have a result in f32. Throws kit::Error; `unsupported` if the library has none.
  virtual std::unique_ptr<codegen::Step> make(const codegen::AnchorDesc& anchor, const ProductProblem& problem,
                                              bool tf32, Pick pick, double* seconds) const = 0;
};

// `first`, and `second` for the types that it has none of. Both outlive it.
std::unique_ptr<ProductLibrary> either_products(const ProductLibrary& first, const ProductLibrary& second);

// By shapes and dtypes alone.
bool product_taken(const codegen::AnchorDesc& anchor, std::string& why_not);
bool product_takes_post_op(const codegen::AnchorDesc& anchor, const codegen::PostOp& post);
bool product_takes_epilogue(const codegen::AnchorDesc& anchor);
// Whether somebody computes what stands behind the product: the library, or a kernel of our own (library_tail.h).
bool product_tail_taken(const codegen::AnchorDesc& anchor, const ProductLibrary& library, std::string& why_not);
// The library's step (ProductLibrary::make), and behind it a kernel for what the library does not fuse; `seconds` counts that as expected.
std::unique_ptr<codegen::Step> make_product(const codegen::AnchorDesc& anchor, const Gpu& gpu, const CodeTarget& target, bool load,
                                            bool tf32, Pick pick, double* seconds = nullptr);

}  // namespace keirin::gpu
