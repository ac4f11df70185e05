// SPDX-License-Identifier: Apache-2.0
//
// A size of a range gets its plan. Nothing is verified or raced: that was done at the sizes where the range was checked.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/api/deciding.h"
#include "core/api/session_impl.h"

namespace keirin {

// All but learn_graphs, learn_checked_kinds and rehearse under the session's compile_mutex.

// Has plans of the same choice for other sizes be made as this candidate's was, if it is one of a plan and its program allows that.
void remember_pattern(Deciding& d, const Candidate& candidate);

// The plan of this choice for d's graph, made as enter_at_once would if these sizes lay between others that were checked: of what was made
// for those. None: nothing like it was made, or it does not suffice.
std::optional<Candidate> made_of_other_sizes(Deciding& d, const std::string& choice);

// Has graphs of sizes of this one's kind be written down from now on, where what capture and passes make of the program at many of them
// says how. Not under compile_mutex, which nobody has to wait for: it takes a moment for each of those sizes. An error says why they are
// captured as before.
Status learn_graphs(Session::Impl& session, const Sizes& like, const std::atomic<bool>& stop);

// Has graphs of the kinds of the checked sizes be learned that plans answer: the first calls between them wait for what is known by then.
// Takes compile_mutex.
void learn_checked_kinds(Session::Impl& session);

// Makes plans of sizes of this one's kind, whose graphs are known, and lets them go: what a plugin and its libraries do once for a
// structure, or for sizes near these, a call would wait for otherwise. Whether one can be made does not matter. Takes compile_mutex for
// one plan at a time.
void rehearse(Session::Impl& session, const Sizes& like, const std::atomic<bool>& stop);

// Makes a plan of the range's choice for calls like one with these inputs and publishes it: by enter_at_once, else eager runs once, to be
// looked at, and code is generated for a structure that was not met. Eager answers such calls from then on where no plan can be made, also
// where the error says why; `exhausted`: the machine let it down, nothing was published.
Status enter(Session::Impl& session, const std::shared_ptr<const SizeRange>& range, const std::vector<TensorRef>& inputs);

// The same of what is there: the way in which plans of other sizes were cut and fused, their code and constants. Eager is not asked:
// that is for programs of which its runs showed nothing that the file does not say. `unsupported`: nothing was published.
Status enter_at_once(Session::Impl& session, const std::shared_ptr<const SizeRange>& range, const std::vector<TensorRef>& inputs);

}  // namespace keirin
