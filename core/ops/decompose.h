// SPDX-License-Identifier: Apache-2.0
//
// The bodies of the composites, one function each, over the composite's operands (kNone where absent). They use core
// rows only, and spell eager's inner precision: f32 for half-precision values, by explicit casts. Private to core/ops.
#pragma once

#include "core/ops/lowering.h"

namespace keirin::bodies {

ValueId batch_norm(Lowering& w, const Op& op, const Values& operands);
// By the statistics of the batch itself, which is in training without running ones.
ValueId batch_norm_of_batch(Lowering& w, ValueId x, ValueId weight, ValueId bias, double eps);
ValueId layer_norm(Lowering& w, const Op& op, const Values& operands);
ValueId group_norm(Lowering& w, const Op& op, const Values& operands);
ValueId group_norm_by_channel(Lowering& w, const Op& op, const Values& operands);
ValueId rms_norm(Lowering& w, const Op& op, const Values& operands);
ValueId softmax(Lowering& w, const Op& op, const Values& operands);
ValueId log_softmax(Lowering& w, const Op& op, const Values& operands);
ValueId mean(Lowering& w, const Op& op, const Values& operands);
ValueId var(Lowering& w, const Op& op, const Values& operands);

// Mean over `dims`, and mean of the squared distances from it; both keep the axes. x is in its compute dtype.
ValueId mean_of(Lowering& w, ValueId x, const Dims& dims, bool keepdim = true);
ValueId variance_of(Lowering& w, ValueId x, const Dims& dims, double correction, bool keepdim = true);

}  // namespace keirin::bodies
