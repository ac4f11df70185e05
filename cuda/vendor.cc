// SPDX-License-Identifier: Apache-2.0
//
// Library calls: products by cuBLASLt. Everything else that an anchor may ask for is refused here with its reason.
#include "cuda/backend.h"
#include "cuda/cublaslt.h"
#include "cuda/matmul.h"
#include "cuda/op_ids.h"
#include "plugins/kit/error.h"

namespace keirin::cuda {

bool vendor_takes(const codegen::AnchorDesc& anchor, bool has_cublaslt, std::string& why_not) {
  if (anchor.op != op_matmul && anchor.op != op_linear) {
    why_not = "no library call for this anchor";
    return false;
  }
  if (!has_cublaslt) {
    why_not = "libcublasLt.so.13 or .12 is not installed";
    return false;
  }
  return matmul_taken(anchor, why_not);
}

bool vendor_takes_post_op(const codegen::AnchorDesc& anchor, const codegen::PostOp& post) {
  return (anchor.op == op_matmul || anchor.op == op_linear) && matmul_takes_post_op(anchor, post);
}

std::unique_ptr<codegen::Step> make_vendor_step(const codegen::AnchorDesc& anchor, const krn_policy* policy) {
  if (anchor.op != op_matmul && anchor.op != op_linear)
    throw kit::Error(KRN_STATUS_unsupported, "no library call for this anchor; the node stays eager");
  return make_matmul(anchor, policy && policy->numerics == KRN_NUMERICS_FAST);
}

}  // namespace keirin::cuda
