// SPDX-License-Identifier: Apache-2.0
//
// What stays of a decision for the next process: the ledger's record under the decision's key, and the start from it. Internal to
// core/api.
#pragma once

#include "core/api/deciding.h"
#include "core/api/known_run.h"

namespace keirin {

// Where something may be taken from it, or kept for others.
Cache* usable_cache(const Session::Impl& session);
// Of what is known of the program without its graph: all that a decision depends on, and `what` it is about. Nothing for a program that
// no digest tells from others. `any_weights`: of the program whatever its weights hold.
std::optional<CacheKey> key_by_program(const Session::Impl& session, const std::string& what, bool any_weights = false);

// What read_known_run asks for: program and inputs in the place of the graph.
std::optional<CacheKey> known_run_key(const Session::Impl& session, const std::vector<TensorRef>& inputs);
// What an earlier process, which kept a decision for such inputs of this very file, was shown by eager: asked for by file and inputs, since
// the graph that the decision is kept for is not known before.
std::optional<KnownRun> read_known_run(const Deciding& d);
// Fills ledger_key and ledger, or raced_with_others, where there is a cache and something may be taken from it.
void read_kept_decision(Deciding& d);
// The same of what has no graph of its own: `what` tells it from everything else that is decided.
void read_kept_decision(Deciding& d, const Hash& what);
// Loads the plan that an earlier process chose, publishes it and fills the report. False where the race has to run; the time of
// loading is then noted all the same, for `measure_again`.
bool start_from_kept_decision(Deciding& d);
// Where d.raced_with_others is: its choice, which is the candidate, was judged right with these weights too. Keeps that, publishes it and
// fills the report with the race's figures.
void keep_judged(Deciding& d, const Candidate& candidate);
// For the next process; what others disturbed for this one alone, where decisions are made beside calls.
void keep_decision(Deciding& d);
// What was measured then, as a row of a report.
CandidateReport report_of(const LedgerCandidate& known);

}  // namespace keirin
