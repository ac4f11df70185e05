// SPDX-License-Identifier: Apache-2.0
//
// matmul and linear through cuBLASLt, with the epilogues that it computes exactly as the table does: bias, ReLU, tanh-GELU, and
// a residual as beta * C. Operands may be row- or column-major by stride; batches collapse into one stride.
#pragma once

#include <memory>
#include <string>

#include "plugins/codegen/backend.h"

namespace keirin::cuda {

bool matmul_taken(const codegen::AnchorDesc& anchor, std::string& why_not);
bool matmul_takes_post_op(const codegen::AnchorDesc& anchor, const codegen::PostOp& post);

// `tf32`: numerics=fast. `raced`: the library's guesses are timed (matmul_race.h), else its first is taken, so that equal problems
// get equal algorithms in every process. `seconds`: what the choice took with cold caches, 0 if it was not timed. Operands of 16
// bits may have a result in f32. Throws kit::Error; `unsupported` if the library has none.
std::unique_ptr<codegen::Step> make_matmul(const codegen::AnchorDesc& anchor, bool tf32, bool raced, double* seconds = nullptr);

}  // namespace keirin::cuda
