// SPDX-License-Identifier: Apache-2.0
//
// What is particular to CUDA in the text that the shared printer emits: nothing but the compiler's options.
#include "cuda/backend.h"

namespace keirin::cuda {

CodeTarget code_target(const Gpu& gpu, const krn_policy* policy) {
  CodeTarget target;
  target.arch = gpu.arch;
  target.contract = !policy || policy->numerics != KRN_NUMERICS_STRICT;
  target.fast = policy && policy->numerics == KRN_NUMERICS_FAST;
  return target;
}

}  // namespace keirin::cuda
