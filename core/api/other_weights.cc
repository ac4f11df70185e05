// SPDX-License-Identifier: Apache-2.0
#include "core/api/other_weights.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/api/verification.h"
#include "core/tune/elements.h"
#include "core/tune/inputs.h"

namespace keirin {
namespace {

// Reads all of it only where its beginning is zeros.
Result<bool> is_all_zeros(const TensorRef& tensor, TensorServices& services) {
  constexpr int64_t kFew = 1024;
  const auto zeros = [&](const TensorRef& part) -> Result<bool> {
    KRN_TRY_LET(const std::vector<double> values, read_values(part, services));
    return std::all_of(values.begin(), values.end(), [](double x) { return x == 0; });
  };
  TensorSpec first = spec_of(*tensor);
  if (num_elements(*tensor) > kFew && first.strides == contiguous_strides(first.sizes)) {
    first.sizes = {kFew}, first.strides = {1};
    KRN_TRY_LET(const TensorRef part, services.view(tensor, first, 0));
    KRN_TRY_LET(const bool begins, zeros(part));
    if (!begins) return false;
  }
  return zeros(tensor);
}

// A matrix keeps the deviation of what it multiplies; of one axis it is a bias or a mean, or the factor of a branch.
Result<TensorRef> drawn_like(const TensorRef& tensor, TensorServices& services, uint64_t seed) {
  const TensorSpec spec = spec_of(*tensor);
  InputHint hint;
  hint.b = spec.sizes.size() < 2 ? 0.1 : 1 / std::sqrt(static_cast<double>(num_elements(*tensor) / spec.sizes[0]));
  return make_tensor({spec.dtype, spec.sizes, contiguous_strides(spec.sizes)}, hint, services, spec.device, seed);
}

}  // namespace

Result<std::unique_ptr<OtherWeights>> OtherWeights::make(Deciding& d) {
  if (!d.prepared || d.trials.writes() || d.seen.draws_random) return std::unique_ptr<OtherWeights>();
  const WeightTable& own = d.session.weights;
  WeightTable::Values values;
  for (size_t i = 0; i < own.size(); ++i) {
    if (!is_float(own[i].tensor->dtype()) || num_elements(*own[i].tensor) < 2) continue;
    KRN_TRY_LET(const bool zeros, is_all_zeros(own[i].tensor, d.services));
    if (!zeros) continue;
    KRN_TRY_LET(TensorRef drawn, drawn_like(own[i].tensor, d.services, i));
    values.emplace_back(own[i].name, std::move(drawn));
  }
  if (values.empty()) return std::unique_ptr<OtherWeights>();
  KRN_TRY_LET(WeightTable weights, own.with_values(d.services, values));
  std::unique_ptr<OtherWeights> made(new OtherWeights(d, std::move(weights)));
  KRN_TRY_LET(made->eager_, EagerProgram::make(d.session.model->program, made->weights_, d.session.device));
  made->prepared_ = std::make_shared<Prepared>(with_weights(d.prepared->captured, made->weights_, d.session.device));
  KRN_TRY(optimise(d.session, *made->prepared_, d.forms.specs, made->folded_));
  return made;
}

Result<CallFn> OtherWeights::call_of(const Candidate& candidate) const {
  if (!candidate.is_plan()) {
    KRN_TRY_LET(auto replay, EagerGraph::make(prepared_->graph, prepared_->captured.calls, prepared_->constants,
                                              {d_.session.device, std::nullopt}));
    return CallFn([replay = std::shared_ptr<EagerGraph>(std::move(replay))](const std::vector<TensorRef>& inputs) {
      return replay->run(inputs);
    });
  }
  KRN_TRY_LET(BuiltPlan built, build_plan(d_.session, *prepared_, candidate.built.choice));
  if (built.hashes() != candidate.built.hashes())
    return Status(Code::k_unsupported, "with other weights it would be other code");
  return CallFn([plan = std::move(built.plan), prepared = prepared_](const std::vector<TensorRef>& inputs) { return plan->run(inputs); });
}

Result<Judgement> OtherWeights::judge(const Candidate& candidate) const {
  KRN_TRY_LET(CallFn call, call_of(candidate));
  KRN_TRY_LET(const std::vector<TensorRef> outputs, with_forms(std::move(call), d_.forms, true, d_.services, weights_)(d_.inputs));
  return judge_beside(d_.session, *eager_, d_.prepared->captured.graph, d_.inputs, outputs);
}

}  // namespace keirin
