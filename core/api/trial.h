// SPDX-License-Identifier: Apache-2.0
//
// A candidate's calls as a caller sees them: outputs, what inputs and state hold afterwards, which of them share memory, what the
// random generators will draw next. Eager's own trial is what the others are held against; the numbers are judged by their error
// from the file's operators in fp64 (EagerProgram::referee), which share no step of capture, passes or plugins with what is judged.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/api/session_impl.h"
#include "core/eager/program/observed.h"
#include "core/eager/tensor_services.h"
#include "core/tune/sensitivity.h"
#include "core/tune/verify.h"

namespace keirin {

// What shares memory, by number: outputs, then inputs, then weights; the first of each pair is an output.
using Sharing = std::vector<std::pair<size_t, size_t>>;
Sharing sharing_of(const std::vector<TensorRef>& outputs, const std::vector<TensorRef>& inputs, const WeightTable& weights);

// An output that eager returns as a view of something that the caller has anyway.
struct OutputView {
  enum class Of { kInput, kWeight, kOutput };
  size_t output = 0;
  Of of = Of::kInput;
  size_t source = 0;  // position of the input, weight or output that holds all its elements
  int64_t byte_offset = 0;  // from the source's first element
};
// The views among eager's own outputs, of inputs that do not share memory with each other. Other overlap is not listed: a trial
// then differs from eager's.
std::vector<OutputView> views_among(const std::vector<TensorRef>& outputs, const std::vector<TensorRef>& inputs,
                                    const WeightTable& weights);

// What eager's outputs are besides numbers: views of each other or of what the caller has, and of which strides.
struct OutputForms {
  std::vector<OutputView> views;
  std::vector<TensorSpec> specs;  // of each output; without dtype where eager returns None
};
OutputForms forms_of(const std::vector<TensorRef>& outputs, const std::vector<TensorRef>& inputs, const WeightTable& weights);
// `call` with its outputs in eager's forms: laid out again where the strides are others, and shared as eager's are. `may_differ` says
// whether the strides have to be looked at; `call` itself is returned if there is nothing to do.
CallFn with_forms(CallFn call, const OutputForms& forms, bool may_differ, TensorServices& services, const WeightTable& weights);

struct Trial {
  // For the judge: the outputs of each call, then the inputs that are written and the weights that are, as the last call left them.
  std::vector<TensorRef> numbers;
  std::string touched;                   // an input that eager does not write and that has other bits now; empty: none
  Sharing sharing;                       // of the first call
  std::optional<RandomState> generators; // afterwards, of a model that draws
};

// What the file's operators answer in fp64.
struct RefereeAnswer {
  std::vector<TensorRef> numbers;                    // the same list
  std::vector<TensorRef> first_inputs, first_weights;  // inputs and written weights after the first call
  bool has_own_dtype = false;                        // an operator has no fp64 form and ran in the file's dtype
};

// Makes trials of one model on one set of inputs.
class Trials {
 public:
  // `seen` of these inputs' sizes and strides. Both must outlive this.
  Trials(Session::Impl& session, const ObservedRun& seen) : s_(session), seen_(seen) {}

  // Keeps what a trial may write, so that each begins alike: call before the first one. `graph`: as captured; null if it was not.
  Status save(const std::vector<TensorRef>& inputs, const Graph* graph = nullptr);
  Status restore();
  // Calls one after the other, as races make them, would lead a position in a cache out of it: where eager raises, and a GPU is lost. So
  // each begins at the position of the first: of what calls write, small integers that have a part in an answer, and small floats that
  // integers are made of. `own`: its inputs, of own_copies.
  Status put_back_positions(const std::vector<TensorRef>& own) const;
  bool writes() const { return !seen_.written_inputs.empty() || !seen_.written_weights.empty(); }
  // One call, or two in a row where the first one leaves something to the second: all, but for positions. There the second begins as far in
  // front of the first as that one leaves it behind: eager may raise behind it. A call of eager's more shows how far that is.
  int num_calls() const { return !single_ && (writes() || seen_.draws_random) ? 2 : 1; }
  // While it lives, one call: of inputs on which the state is known to carry, because two were made on others. What a plan hands from
  // one call to the next does not depend on the values.
  class SingleCalls {
   public:
    SingleCalls(Trials& trials, bool single) : trials_(trials) { trials_.single_ = single; }
    ~SingleCalls() { trials_.single_ = false; }
    SingleCalls(const SingleCalls&) = delete;
    SingleCalls& operator=(const SingleCalls&) = delete;

   private:
    Trials& trials_;
  };

  Result<std::vector<TensorRef>> own_copies(const std::vector<TensorRef>& inputs);  // of what is written; the others themselves
  // A call gets copies of the inputs. `copies`: those that the trials before it, of the same inputs, left as they were; afterwards
  // those that this one did. An input that a trial wrote or handed out is copied again.
  Result<Trial> run(const CallFn& call, const std::vector<TensorRef>& inputs, std::vector<TensorRef>* copies = nullptr);
  // One call on inputs that may be written, and that it is expected to refuse: whether it does. State is put back.
  Status attempt(const CallFn& call, const std::vector<TensorRef>& own);
  Result<RefereeAnswer> referee(const std::vector<TensorRef>& inputs, const Roundings& roundings = {});
  // How far its numbers move where every operator rounds, no more than eager's do (movements_like).
  Result<std::vector<Movement>> movements(const std::vector<TensorRef>& inputs, const std::vector<TensorRef>& referee,
                                          const std::vector<TensorRef>& eager, double sums = 1);
  // What the inputs and weights at the end of the list held before the calls, and positions before the last of them.
  std::vector<TensorRef> contents(const std::vector<TensorRef>& inputs) const;
  // What each number is called, for a model of so many outputs.
  std::vector<std::string> names(size_t num_outputs) const;

  // What else differs from eager's trial, in words; empty if nothing does.
  std::string other_difference(const Trial& eager, const Trial& candidate, size_t num_outputs) const;

 private:
  Session::Impl& s_;
  const ObservedRun& seen_;
  struct Position {
    size_t number = 0;        // in state_, or among the inputs
    TensorRef first, second;  // what it holds before the first call, and before the second; null: what the first left
  };
  Status look_at_positions(const std::vector<TensorRef>& inputs);
  // As they are before the first call or the second (`content`), of `own` inputs.
  Status put_positions(const std::vector<TensorRef>& own, TensorRef Position::*content) const;

  std::vector<std::pair<TensorRef, TensorRef>> state_;  // a weight, its content before
  std::vector<Position> positions_, input_positions_;   // of state_, and of the inputs that are written
  bool looked_ = false;                                 // at them: what comes before the second call is known
  std::optional<RandomState> generators_;
  bool single_ = false;
};

}  // namespace keirin
