// SPDX-License-Identifier: Apache-2.0
//
// Library calls: products by cuBLASLt, convolutions by cuDNN. Everything else that an anchor may ask for is refused here with its
// reason.
#include "cuda/backend.h"
#include "cuda/conv.h"
#include "cuda/cublaslt.h"
#include "cuda/matmul.h"
#include "cuda/op_ids.h"
#include "plugins/kit/error.h"

namespace keirin::cuda {
namespace {

bool is_product(const codegen::AnchorDesc& anchor) { return anchor.op == op_matmul || anchor.op == op_linear; }

}  // namespace

bool vendor_takes(const codegen::AnchorDesc& anchor, uint32_t numerics, bool has_device, std::string& why_not) {
  if (anchor.op == op_conv) return conv_taken(anchor, numerics, has_device, why_not);
  if (!is_product(anchor)) {
    why_not = "no library call for this anchor";
    return false;
  }
  if (has_device && !CublasLt::get(why_not)) return false;
  return matmul_taken(anchor, why_not);
}

bool vendor_takes_post_op(const codegen::AnchorDesc& anchor, const codegen::PostOp& post, uint32_t numerics, bool has_device) {
  if (anchor.op == op_conv) return conv_takes_post_op(anchor, post, numerics, has_device);
  return is_product(anchor) && matmul_takes_post_op(anchor, post);
}

std::unique_ptr<codegen::Step> make_vendor_step(const codegen::AnchorDesc& anchor, const krn_policy* policy) {
  if (anchor.op == op_conv) return make_conv(anchor, policy ? policy->numerics : KRN_NUMERICS_DEFAULT);
  if (!is_product(anchor)) throw kit::Error(KRN_STATUS_unsupported, "no library call for this anchor; the node stays eager");
  return make_matmul(anchor, policy && policy->numerics == KRN_NUMERICS_FAST, !policy || !(policy->flags & KRN_POLICY_DETERMINISTIC));
}

}  // namespace keirin::cuda
