// SPDX-License-Identifier: Apache-2.0
//
// The rules behind the pass `recognise`, one family a file. A rule looks at one op whose operands are rewritten already and
// answers the value that stands for its result, or kNone. What a rule leaves unread falls away.
#pragma once

#include "core/passes/rewriter.h"

namespace keirin::recognise {

using Rule = Result<ValueId> (*)(Rewriter& r, const Op& op, const ValueIds& operands);

Result<ValueId> index_reduce(Rewriter& r, const Op& op, const ValueIds& operands);
Result<ValueId> silu(Rewriter& r, const Op& op, const ValueIds& operands);
Result<ValueId> gelu(Rewriter& r, const Op& op, const ValueIds& operands);
Result<ValueId> rms_norm(Rewriter& r, const Op& op, const ValueIds& operands);
Result<ValueId> rms_norm_cast(Rewriter& r, const Op& op, const ValueIds& operands);
Result<ValueId> rms_norm_weight(Rewriter& r, const Op& op, const ValueIds& operands);
Result<ValueId> softmax(Rewriter& r, const Op& op, const ValueIds& operands);
Result<ValueId> linear(Rewriter& r, const Op& op, const ValueIds& operands);

// The row applied to the operands, or kNone where it does not take them: a rule that does not fit is not an error.
inline ValueId try_emit(Rewriter& r, OpCode code, ValueIds operands, Attrs attrs = {}) {
  Result<ValueId> v = r.build().emit1(code, std::move(operands), std::move(attrs));
  return v.ok() ? *v : kNone;
}

}  // namespace keirin::recognise
