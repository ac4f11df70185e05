// SPDX-License-Identifier: Apache-2.0
//
// Which of the right candidates is the fastest, beyond noise, within the memory that is allowed. Internal to core/api.
#pragma once

#include "core/api/deciding.h"

namespace keirin {

// A candidate's call as recorded launches; `wrong_result` where the recording answers other inputs in another way than the call does.
// `others` are these inputs, made for the first candidate that is recorded: for large ones that takes seconds.
Result<CallFn> record_launches(Deciding& d, const Candidate& candidate, std::vector<TensorRef>& others);
// What answers calls in the place of recorded launches of `own` where they keep their memory in place (Session::keep_memory_in_place):
// launches that are recorded of them.
CallFn launches_in_place(Deciding& d, CallFn own);
// Adds eager and every right plan as recorded launches, on devices that have them.
void add_launch_replays(Deciding& d);
// Takes those out that need more memory than the options allow.
void measure_memory(Deciding& d);
// Times them against each other and names the winner, by number. Fills the times of the candidates' reports, what disturbed the race
// and whether the decision may be kept.
Result<size_t> race_candidates(Deciding& d);
// Whether a candidate is faster than another one that was raced, beyond noise and by as much as a race asks for.
Result<bool> is_faster(Deciding& d, const Candidate& candidate, const Candidate& held);
// A step as reports show it.
StepReport step_report(const PlanStep& step, const std::string& plugin, double microseconds = 0);
// The steps of a plan with their times, into the report.
void time_steps(Deciding& d, const Candidate& candidate);

}  // namespace keirin
