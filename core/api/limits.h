// SPDX-License-Identifier: Apache-2.0
//
// How fast a call could be at best on this machine: the larger of two times, since a machine can move and compute at once. What has to be
// moved (core/ops/work.h) at the rate of a copy of as many bytes, which for few bytes is one of a cache and on a GPU the time of a launch;
// what has to be multiplied at the best rate that LibTorch reached in a large product, or convolution, of the dtype (on processors in
// either). Measured and no data sheet's figure: a library may come out ahead of it by a little.
#pragma once

#include "core/api/candidates.h"

namespace keirin {

// Fills ModelReport::limit_ms, and StepReport::limit_us where `built` is the plan that the steps are of (null: there are none). Rates are
// measured once a process, device, number of threads and kind of work, which takes some tenths of a second. What cannot be measured stays
// 0. One thread at a time on a quiet machine, as a race.
void add_limits(const Session::Impl& session, const Prepared& prepared, const BuiltPlan* built, ModelReport& report);

}  // namespace keirin
