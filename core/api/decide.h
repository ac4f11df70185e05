// SPDX-License-Identifier: Apache-2.0
//
// The decision for one shape: which candidates there are, which of them are right, which of those is fastest beyond noise. Rule
// G1 holds here: compiled code is used only where it is verified, measured faster than the better of eager and eager with
// launch replay, and bounded in memory. Whatever fails on the way costs a line in the report, and eager answers.
#pragma once

#include <vector>

#include "core/api/session_impl.h"

namespace keirin {

// Under the session's compile_mutex. Publishes what answers calls of this kind from now on. An error is eager's own on these inputs,
// or a rule of the options that cannot be kept.
// `for_range`: at one of the places where ranges are checked.
Result<ModelReport> decide(Session::Impl& session, const std::vector<TensorRef>& inputs, bool for_range = false);

// Under the session's compile_mutex, with `takes_over` set. Publishes what an earlier process decided for such calls; `unsupported` where
// none did, or its plan cannot be made, and nothing was published.
Result<ModelReport> take_over(Session::Impl& session, const std::vector<TensorRef>& inputs);

// Eager steps of what was chosen under the option `fallback`: an error where they are forbidden, a line of the report for `warn`.
Status keep_fallback_rule(const Session::Impl& session, ModelReport& report);

}  // namespace keirin
