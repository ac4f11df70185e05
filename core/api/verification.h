// SPDX-License-Identifier: Apache-2.0
//
// Which candidates are right: every number that a caller can see is judged by its error from the file's operators in fp64, beside
// eager's own, on several sets of inputs; what else a caller sees is compared with eager's. Internal to core/api.
#pragma once

#include "core/api/deciding.h"

namespace keirin {

// Judges all candidates that have a call and are not baselines, or only those whose numbers are given. Their reports say what came
// out. An error means that nothing can be judged: the captured graph, or eager itself, is not what the file's operators in fp64 are.
Status verify(Deciding& d);
Status verify(Deciding& d, const std::vector<size_t>& only);

// What watches the candidate of that name and plugin in service, by the same rule. A model that writes its state or inputs is not
// compared there: a second run would write them again.
std::shared_ptr<PlanGuard> service_guard(Deciding& d, const std::string& name, const std::string& plugin);

}  // namespace keirin
