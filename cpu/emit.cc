// SPDX-License-Identifier: Apache-2.0
//
// What is particular to x86 in the code that the shared LLVM builder emits: nothing but its parameters.
#include "cpu/backend.h"

namespace keirin::cpu {

codegen::native::CpuTarget code_target(const Machine& machine, const krn_policy* policy) {
  codegen::native::CpuTarget target = machine.code;
  target.contract = !policy || policy->numerics != KRN_NUMERICS_STRICT;
  return target;
}

}  // namespace keirin::cpu
