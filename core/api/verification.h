// SPDX-License-Identifier: Apache-2.0
//
// Which candidates are right: every number that a caller can see is judged by its error from the file's operators in fp64, beside
// eager's own, on several sets of inputs; what else a caller sees is compared with eager's. Internal to core/api.
#pragma once

#include "core/api/deciding.h"
#include "core/tune/verify.h"

namespace keirin {

// Judges all candidates that have a call and are not baselines, or only those whose numbers are given. Their reports say what came
// out. An error means that nothing can be judged: the captured graph, or eager itself, is not what the file's operators in fp64 are.
Status verify(Deciding& d);
Status verify(Deciding& d, const std::vector<size_t>& only);

// The rule, of one call of a model that writes nothing: `outputs` beside those of `eager`, which answers as well, on what the file's
// operators answer in fp64. `graph` is the captured one.
Result<Judgement> judge_beside(const Session::Impl& session, const EagerProgram& eager, const Graph& graph,
                               const std::vector<TensorRef>& inputs, const std::vector<TensorRef>& outputs);

// What watches the candidate of that name and plugin in service, by the same rule. A model that writes its state or inputs is not
// compared there: a second run would write them again.
std::shared_ptr<PlanGuard> service_guard(Deciding& d, const std::string& name, const std::string& plugin);

}  // namespace keirin
