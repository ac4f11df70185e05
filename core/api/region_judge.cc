// SPDX-License-Identifier: Apache-2.0
#include "core/api/region_judge.h"

#include <algorithm>
#include <optional>

#include "abi/planted.h"
#include "core/eager/program/library_settings.h"
#include "core/eager/rows/graph_calls.h"
#include "core/eager/tensor_services.h"
#include "core/ir/rows.h"
#include "core/tune/elements.h"
#include "core/tune/inputs.h"
#include "core/tune/sensitivity.h"
#include "core/tune/verify.h"

namespace keirin {

using Tensors = Deciding::Tensors;

bool is_machines_fault(const Status& status) { return status.code() == Code::k_exhausted || status.code() == Code::k_cancelled; }

Result<Tensors> run_alone(Deciding& d, const Graph& graph, const std::shared_ptr<Executable>& executable,
                          const std::vector<ValueId>& operands, const Tensors& inputs) {
  PlanStep step;
  step.name = "alone";
  step.executable = executable;
  step.operands = operands;
  Tensors own = inputs;
  bool writes_state = false;
  for (const Output& output : graph.outputs) {
    step.results.push_back(output.value);
    step.targets.push_back(output.updates);
    if (output.updates == kNone) continue;
    const Value& target = graph.values[output.updates];
    writes_state |= target.kind == ValueKind::kState;
    if (target.kind == ValueKind::kInput) {
      KRN_TRY_LET(own.at(target.index), d.services.clone(inputs.at(target.index)));
    }
  }
  step.num_ops = static_cast<int>(graph.ops.size());
  std::vector<PlanStep> steps;
  steps.push_back(std::move(step));
  KRN_TRY_LET(const std::unique_ptr<Plan> plan, Plan::make(graph, std::move(steps), d.prepared->constants, d.services, d.session.device));
  Result<Tensors> outputs = plan->run(own);
  if (!outputs.ok()) {
    (void)d.trials.restore();
    return outputs.status();
  }
  Tensors all;
  size_t user = 0;
  for (const Output& output : graph.outputs) {
    if (output.updates == kNone) {
      all.push_back(outputs->at(user++));
      continue;
    }
    const Value& target = graph.values[output.updates];
    KRN_TRY_LET(TensorRef after,
                d.services.clone(target.kind == ValueKind::kInput ? own.at(target.index) : d.prepared->constants.at(target.index)));
    all.push_back(std::move(after));
  }
  if (writes_state) KRN_TRY(d.trials.restore());
  return all;
}

Result<Tensors> in_fp64(Deciding& d, const Graph& graph, const Tensors& inputs) {
  return evaluate(graph, d.prepared->captured.calls, inputs, d.prepared->constants, {d.session.device, DType::k_f64});
}

namespace {

// The same elements in the strides of `like`; itself where sizes or dtype are others.
Result<TensorRef> laid_out_as(const Tensor& like, const TensorRef& tensor, TensorServices& services) {
  const TensorSpec spec = spec_of(like);
  const TensorSpec own = spec_of(*tensor);
  if (own.sizes != spec.sizes || own.dtype != spec.dtype || own.strides == spec.strides) return tensor;
  KRN_TRY_LET(TensorRef out, services.allocate(spec));
  KRN_TRY(services.copy(out, tensor));
  return out;
}

}  // namespace

Status cut_to_written(Deciding& d, const Graph& graph, const Tensors& inputs, Answers* answers) {
  for (size_t k = 0; k < graph.outputs.size(); ++k) {
    if (graph.outputs[k].updates == kNone) continue;
    const Value& target = graph.values[graph.outputs[k].updates];
    const TensorRef& before = target.kind == ValueKind::kInput ? inputs.at(target.index) : d.prepared->constants.at(target.index);
    KRN_TRY_LET(Tensors written, changed_elements(before, {answers->eager[k], answers->referee[k], answers->ours[k]}));
    answers->eager[k] = std::move(written[0]), answers->referee[k] = std::move(written[1]), answers->ours[k] = std::move(written[2]);
  }
  return {};
}

namespace {

// How far the outputs move in fp64 when all that the graph is given is off by its rounding, and sums round as well. Where terms cancel (the
// gradient of a bias in front of a norm, of a key's bias in front of a softmax: the true one is nothing) that is far beside the output and
// little beside the terms. What moves further than roundings of the terms do makes much of little, and explains nothing: 0.
Result<std::vector<Movement>> movements_of_part(Deciding& d, const Graph& graph, const Tensors& border, const Tensors& referee,
                                                double bound) {
  double terms = 0;
  const auto look = [&](const TensorRef& tensor) -> Status {
    if (!tensor || !is_float(tensor->dtype())) return {};
    KRN_TRY_LET(const double largest, largest_magnitude(tensor, d.services));
    terms = std::max(terms, largest);
    return {};
  };
  for (const Tensors* list : {&border, &referee})
    for (const TensorRef& tensor : *list) KRN_TRY(look(tensor));
  Tensors kept = referee;  // what is written is cut to where it was
  for (size_t k = 0; k < graph.outputs.size(); ++k)
    if (graph.outputs[k].updates != kNone) kept[k] = nullptr;
  KRN_TRY_LET(std::vector<Movement> moved, movements(kept, d.services, [&](uint32_t seed) -> Result<Tensors> {
                Tensors off;
                for (size_t i = 0; i < border.size(); ++i) {
                  KRN_TRY_LET(off.emplace_back(), off_by_roundings(border[i], d.services, seed * border.size() + i));
                }
                return in_fp64(d, graph, off);
              }));
  const double sums = roundings_of_sums(graph);
  for (Movement& each : moved) each.largest = each.largest * sums <= bound * terms ? each.largest * sums : 0;
  return moved;
}

}  // namespace

Result<PartVerdict> judge_part(Deciding& d, const Graph& graph, const Tensors& border, Answers answers, bool all_outputs) {
  JudgeOptions judging = judge_options(graph, d.session.options.numerics, d.session.options.error_budget);
  judging.must_vary = 0;
  const Nearness nearness{eager_bound(graph, allows_tf32(d.session.device)), false};
  std::optional<std::vector<Movement>> moved;
  const auto is_explained = [&](size_t k, const TensorRef& numbers) -> Result<bool> {
    if (!moved) {
      KRN_TRY_LET(moved, movements_of_part(d, graph, border, answers.referee, nearness.bound));
    }
    KRN_TRY_LET(const std::string why, unexplained({&answers.referee[k], 1}, {&numbers, 1}, {&(*moved)[k], 1}, d.services));
    return why.empty();
  };
  PartVerdict verdict;
  for (size_t k = 0; k < graph.outputs.size(); ++k) {
    if (!all_outputs && !is_float(graph.type(graph.outputs[k].value).dtype)) continue;
    if (!answers.eager[k]) continue;
    KRN_TRY_LET(const std::string far, find_difference({&answers.referee[k], 1}, {&answers.eager[k], 1}, d.services, nearness));
    if (!far.empty() && verdict.decisive) {
      KRN_TRY_LET(verdict.decisive, is_explained(k, answers.eager[k]));
    }
    if (!verdict.wrong.empty()) continue;
    // Strides inside a plan are its own affair; what a caller sees of them is judged with the whole.
    KRN_TRY_LET(const TensorRef ours, laid_out_as(*answers.eager[k], answers.ours[k], d.services));
    judging.names = {"its output " + std::to_string(k)};
    KRN_TRY_LET(const Judgement judgement, judge({&answers.referee[k], 1}, {&answers.eager[k], 1}, {&ours, 1}, d.services, judging));
    if (judgement.right || KRN_PLANTED(region_unjudged)) continue;
    bool explained = false;
    if (!far.empty() && only_numbers_differ(judgement, judging)) {  // where eager is near, nobody else need be far
      KRN_TRY_LET(explained, is_explained(k, ours));
    }
    if (!explained) verdict.wrong = judgement.reason;
  }
  return verdict;
}

std::string name_of(const Graph& graph, OpId id) {
  const Op& op = graph.ops[id];
  return std::string(op_name(op.code)) + (op.origin.empty() ? "" : " (" + op.origin.str() + ")");
}

}  // namespace keirin
