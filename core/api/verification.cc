// SPDX-License-Identifier: Apache-2.0
#include "core/api/verification.h"

#include <algorithm>
#include <numeric>

#include "core/api/other_weights.h"
#include "core/api/repro.h"
#include "core/eager/program/library_settings.h"
#include "core/ir/bytes.h"
#include "core/tune/elements.h"
#include "core/tune/inputs.h"
#include "core/tune/verify.h"

namespace keirin {
namespace {

using Tensors = Deciding::Tensors;

Result<Tensors> copies_of(const Tensors& tensors, TensorServices& services) {
  Tensors copies;
  for (const TensorRef& tensor : tensors) {
    KRN_TRY_LET(copies.emplace_back(), services.clone(tensor));
  }
  return copies;
}

// What a plan answered wrong, where the user wants it kept: into a folder. A sentence about it, or nothing.
std::string keep_wrong(Session::Impl& s, const Graph& captured, const Tensors& constants, std::string plan, const Tensors& inputs,
                       const std::string& reason) {
  const std::string& parent = s.options.repro_dir;
  if (parent.empty()) return {};
  if (const size_t at = plan.find('+'); at != std::string::npos) plan.resize(at);  // how it is launched is another matter
  const ReproCase c{s.name,         plan,   reason,   s.options.disabled_passes, s.options.numerics, s.options.error_budget,
                    s.device,       captured, inputs, constants};
  const Result<std::string> folder = write_repro(parent, c, s.runtime.tensors());
  return folder.ok() ? "; `keirin repro " + *folder + "` repeats it" : "; it could not be kept: " + folder.status().message().what;
}

// The captured graph in fp64 against the file's operators in fp64: an error of capture shows here whatever eager's dtype hides.
Status verify_capture(Deciding& d, const Tensors& inputs, const RefereeAnswer& referee) {
  const Graph& graph = d.prepared->captured.graph;
  KRN_TRY_LET(const Tensors captured,
              evaluate(graph, d.prepared->captured.calls, inputs, d.prepared->constants, {d.session.device, DType::k_f64}));
  KRN_TRY(d.trials.restore());
  const size_t num_outputs = d.session.eager->num_outputs();
  std::vector<std::string> names;
  Tensors ours, theirs;
  std::vector<size_t> answer;  // of each pair, its position among the referee's numbers; SIZE_MAX: what is written
  size_t user = 0;
  for (size_t k = 0; k < graph.outputs.size(); ++k) {
    const Output& output = graph.outputs[k];
    if (output.updates == kNone) {
      if (user >= num_outputs) return Status(Code::k_wrong_result, "the captured graph has more outputs than the model");
      names.push_back("output " + std::to_string(user));
      answer.push_back(user);
      theirs.push_back(referee.numbers[user++]);
    } else {
      const Value& target = graph.values[output.updates];
      const auto written = std::find(d.seen.written_weights.begin(), d.seen.written_weights.end(), size_t{target.index});
      const bool is_input = target.kind == ValueKind::kInput;
      const bool known = is_input ? std::count(d.seen.written_inputs.begin(), d.seen.written_inputs.end(), size_t{target.index}) > 0
                                  : written != d.seen.written_weights.end();
      if (!known) return Status(Code::k_wrong_result, "the captured graph writes \"" + target.name.str() + "\", which eager does not");
      names.push_back("\"" + target.name.str() + "\" after the call");
      const TensorRef& after = is_input ? referee.first_inputs[target.index]
                                        : referee.first_weights[static_cast<size_t>(written - d.seen.written_weights.begin())];
      const TensorRef& before = is_input ? inputs[target.index] : d.session.weights[target.index].tensor;
      KRN_TRY_LET(const Tensors changed, changed_elements(before, {after, captured[k]}));
      answer.push_back(SIZE_MAX);
      theirs.push_back(changed[0]);
      ours.push_back(changed[1]);
      continue;
    }
    ours.push_back(captured[k]);
  }
  const size_t num_updates = graph.outputs.size() - user;
  if (user != num_outputs || num_updates < d.seen.written_inputs.size())
    return Status(Code::k_wrong_result, "the captured graph lacks an output, or a write to an input");
  // fp64 on both sides: only the order of sums differs, unless an operator computes in its own dtype on either, or a device's kernel has
  // constants of f32 (some of CUDA's for fp64 do).
  const double bound = referee.has_own_dtype ? eager_bound(graph, false) : d.session.device.kind == Device::kCpu ? 1e-9 : 1e-6;
  KRN_TRY_LET(const std::string difference, find_difference(theirs, ours, d.services, {bound, true}, names));
  if (difference.empty()) return {};
  // What is left where terms cancel (the gradient of a bias in front of a batch norm) is small beside them, and all of it is their
  // roundings. It moves with them: by so much in the model's own dtypes, by 2^-29 of that in fp64, more where long sums round on the way.
  KRN_TRY_LET(const std::vector<Movement> moved, d.trials.movements(inputs, referee.numbers, referee.numbers));
  std::vector<Movement> in_double(theirs.size());
  for (size_t i = 0; i < theirs.size(); ++i)
    if (answer[i] != SIZE_MAX) in_double[i].largest = moved[answer[i]].largest * 0x1p-20;
  KRN_TRY_LET(const std::string why, unexplained(theirs, ours, in_double, d.services));
  if (why.empty()) return {};
  return Status(Code::k_wrong_result, "the captured graph does not mean what the file's operators do: " + difference);
}

// Eager in its own dtypes has to be near the referee: a candidate as far from it as eager may be anywhere.
Status verify_eager(Deciding& d, const Tensors& referee, const Tensors& eager, const std::vector<std::string>& names) {
  const bool tf32 = d.session.device.kind != Device::kCpu;  // LibTorch's convolutions may use it unless told not to
  const Nearness nearness{eager_bound(d.prepared->captured.graph, tf32), false};
  KRN_TRY_LET(const std::string difference, find_difference(referee, eager, d.services, nearness, names));
  if (difference.empty()) return {};
  return Status(Code::k_wrong_result,
                "eager itself is further from fp64 than its dtypes explain, so nothing can be judged by it: " + difference);
}

Status verify_set(Deciding& d, int set, const Tensors& inputs, const std::vector<size_t>& only) {
  Tensors referee;
  {
    KRN_TRY_LET(RefereeAnswer answer, d.trials.referee(inputs));
    if (set == 0) KRN_TRY(verify_capture(d, inputs, answer));
    referee = std::move(answer.numbers);
  }
  const size_t num_outputs = d.session.eager->num_outputs();
  Tensors copies;
  KRN_TRY_LET(Trial eager, d.trials.run(d.candidates[0].call, inputs, &copies));
  JudgeOptions judging = judge_options(d.prepared->captured.graph, d.session.options.numerics, d.session.options.error_budget);
  judging.names = d.trials.names(num_outputs);
  judging.must_vary = std::min(num_outputs, d.session.must_vary);
  // Inputs and weights at the end of the lists are compared where somebody wrote: so are these lists, and `places` is
  // where the referee or eager did.
  const Tensors contents = d.trials.contents(inputs);
  const size_t num_answers = eager.numbers.size() - contents.size();
  Tensors referee_written = referee, eager_written = eager.numbers;
  std::vector<ChangedPlaces> places(contents.size());
  for (size_t k = 0; k < contents.size(); ++k) {
    const size_t i = num_answers + k;
    KRN_TRY_LET(const Tensors changed, changed_elements(contents[k], {referee[i], eager.numbers[i]}, &places[k]));
    referee_written[i] = changed[0], eager_written[i] = changed[1];
  }
  // The candidate's list where any of the three wrote. False if it wrote where neither of the others did: then all three are cut anew.
  const auto where_written = [&](Tensors& theirs, Tensors& own, Tensors& candidates) -> Result<bool> {
    bool as_before = true;
    KRN_TRY_LET(const Tensors within, elements_within(places, std::span(candidates).subspan(num_answers)));
    for (size_t k = 0; k < contents.size(); ++k) {
      const size_t i = num_answers + k;
      if (within[k]) {
        candidates[i] = within[k];
        continue;
      }
      as_before = false;
      KRN_TRY_LET(const Tensors changed, changed_elements(contents[k], {referee[i], eager.numbers[i], candidates[i]}));
      theirs[i] = changed[0], own[i] = changed[1], candidates[i] = changed[2];
    }
    return as_before;
  };
  std::optional<std::vector<Movement>> moved;  // asked for only where something is far from fp64
  const auto why_unexplained = [&](const Tensors& numbers) -> std::string {
    if (!moved) {
      Result<std::vector<Movement>> found =
          d.trials.movements(inputs, referee, eager.numbers, roundings_of_sums(d.prepared->captured.graph));
      if (!found.ok()) return found.status().message().what;
      moved = std::move(*found);
    }
    const Result<std::string> why = unexplained(referee, numbers, *moved, d.services);
    return why.ok() ? *why : why.status().message().what;
  };
  if (Status far = verify_eager(d, referee_written, eager_written, judging.names); !far.ok()) {
    if (set > 0 && !d.session.inputs_belong_together) return far;
    if (const std::string why = why_unexplained(eager.numbers); !why.empty())
      return Status(far.code(), far.message().what + "; " + why);
    if (!std::exchange(d.sensitive, true))
      d.report.reasons.push_back(
          "roundings alone move this model's answers as far from fp64 as eager's are: compiled regions are judged one by one");
  }
  // What the model returns as None is nothing to judge.
  std::vector<size_t> judged;  // of each tensor that is, its number among those of a trial
  for (size_t i = 0; i < eager.numbers.size(); ++i)
    if (eager.numbers[i]) judged.push_back(i);
  const auto without_absent = [&](Tensors tensors) {
    size_t at = 0;
    std::erase_if(tensors, [&](const TensorRef&) { return !eager.numbers[at++]; });
    return tensors;
  };
  for (size_t i = judging.names.size(); i-- > 0;)
    if (!eager.numbers[i]) {
      judging.names.erase(judging.names.begin() + static_cast<ptrdiff_t>(i));
      judging.must_vary -= i < num_outputs;
    }
  KRN_TRY_LET(const Judge judge_written, Judge::make(without_absent(referee_written), without_absent(eager_written), d.services, judging));
  for (size_t i : only) {
    Candidate& candidate = d.candidates[i];
    if (candidate.baseline || !candidate.call || (set > 0 && !candidate.report.verified)) continue;
    candidate.report.verified = false;
    KRN_TRY(d.go_on());
    pass_gate();
    Result<Trial> trial = d.trials.run(candidate.call, inputs, &copies);
    if (!trial.ok()) {
      candidate.report.reason = "compile_failed";
      candidate.report.note = "set " + std::to_string(set) + ": " + trial.status().text();
      continue;
    }
    Judgement judgement;
    const Tensors answered = trial->numbers;  // before they are cut to where somebody wrote
    if (trial->numbers.size() != eager.numbers.size()) {
      judgement.reason = "it returns " + std::to_string(trial->numbers.size()) + " tensors, eager " + std::to_string(eager.numbers.size());
    } else {
      Tensors theirs = referee_written, own = eager_written;
      KRN_TRY_LET(const bool as_before, where_written(theirs, own, trial->numbers));
      const Tensors ours = without_absent(trial->numbers);
      KRN_TRY_LET(judgement, as_before
                                 ? judge_written(ours)
                                 : judge(without_absent(std::move(theirs)), without_absent(std::move(own)), ours, d.services, judging));
      if (only_numbers_differ(judgement, judging) && why_unexplained(answered).empty()) judgement.right = candidate.by_regions = true;
    }
    if (const std::string difference = d.trials.other_difference(eager, *trial, num_outputs); judgement.right && !difference.empty()) {
      judgement.right = false;
      judgement.reason = difference;
    }
    // A set on which an output varies shows what another one does not.
    std::map<size_t, std::string> hidden;
    for (size_t j = 0; j < judgement.outputs.size(); ++j)
      if (judgement.outputs[j].vacuous && (set == 0 || candidate.hidden.count(judged[j]))) hidden[judged[j]] = judgement.outputs[j].reason;
    candidate.hidden = std::move(hidden);
    candidate.report.verified = judgement.right;
    candidate.report.max_error = std::max(candidate.report.max_error, judgement.max_error);
    candidate.report.eager_error = std::max(candidate.report.eager_error, judgement.eager_error);
    if (!judgement.right) {
      candidate.report.reason = "wrong_result";
      candidate.wrong_set = set;
      candidate.report.note = "set " + std::to_string(set) + ": " + judgement.reason;
      if (candidate.is_plan())
        candidate.report.note += keep_wrong(d.session, d.prepared->captured.graph, d.prepared->constants, candidate.report.name, inputs,
                                            judgement.reason);
    }
    d.candidates[0].report.max_error = d.candidates[0].report.eager_error =
        std::max(d.candidates[0].report.eager_error, judgement.eager_error);
  }
  return {};
}

// Whether each output of the model may vary from call to call: it depends on an input, on state or on random numbers. What is picked out
// of equal elements does not depend on which are picked (a mask that masks nothing, shuffled).
std::vector<uint8_t> outputs_that_vary(const Deciding& d) {
  const Graph& graph = d.prepared->captured.graph;
  std::vector<uint8_t> varies(graph.values.size(), 0), equal(graph.values.size(), 0);  // equal: all elements are
  for (size_t v = 0; v < graph.values.size(); ++v) {
    varies[v] = graph.values[v].kind == ValueKind::kInput || graph.values[v].kind == ValueKind::kState;
    equal[v] = !varies[v] && graph.type(static_cast<ValueId>(v)).num_elements() == 1;
  }
  for (const Op& op : graph.ops) {
    const bool picks = (op.code == OpCode::k_gather || op.code == OpCode::k_take) && equal[op.operands[0]];
    const bool moves = op.code == OpCode::k_expand || op.code == OpCode::k_reshape || op.code == OpCode::k_permute ||
                       op.code == OpCode::k_slice || op.code == OpCode::k_cast;
    const bool alike = op.code == OpCode::k_full || picks || (moves && equal[op.operands[0]]);
    bool any = op.code == OpCode::kOpaque && d.seen.draws_random;
    for (ValueId v : op.operands) any |= v != kNone && varies[v];
    for (ValueId v : op.results) {
      if (v == kNone) continue;
      varies[v] = any && !picks;
      equal[v] = !varies[v] && (alike || graph.type(v).num_elements() == 1);
    }
  }
  std::vector<uint8_t> out;
  for (const Output& output : graph.outputs)
    if (output.updates == kNone) out.push_back(varies[output.value]);
  return out;
}

// What is right but hidden in all sets of inputs is shown in two other ways: an output that nothing changes cannot be anything else, and
// with other weights (core/api/other_weights.h) it varies. What is left is not verified.
void settle_hidden(Deciding& d, const std::vector<size_t>& only) {
  std::optional<std::vector<uint8_t>> varies;
  std::optional<Result<std::unique_ptr<OtherWeights>>> others;
  for (const size_t number : only) {
    Candidate& candidate = d.candidates[number];
    if (candidate.baseline || !candidate.call || !candidate.report.verified || candidate.hidden.empty()) continue;
    if (!varies) varies = outputs_that_vary(d);
    std::erase_if(candidate.hidden, [&](const auto& output) { return output.first < varies->size() && !(*varies)[output.first]; });
    if (candidate.hidden.empty()) continue;
    if (!others) others = OtherWeights::make(d);
    std::string why = others->ok() ? "" : others->status().message().what;
    if (others->ok() && **others) {
      const Result<Judgement> judgement = (**others)->judge(candidate);
      if (!judgement.ok()) why = judgement.status().message().what;
      else if (!judgement->right) why = "with other weights: " + judgement->reason, candidate.wrong_behind = true;
      else
        std::erase_if(candidate.hidden, [&](const auto& output) {
          return output.first < judgement->outputs.size() && !judgement->outputs[output.first].vacuous;
        });
    }
    if (candidate.hidden.empty()) continue;
    const auto& [output, reason] = *candidate.hidden.begin();
    candidate.report.verified = false;
    candidate.report.reason = "not_verified";
    candidate.report.note = "output " + std::to_string(output) + ": " + reason + (why.empty() ? "" : "; " + why);
  }
}

// Errors are answers too: where eager refuses an index, a plan has to. On a GPU LibTorch's check of it ends the context, so that
// nothing is tried there.
Status verify_refusals(Deciding& d, const std::vector<size_t>& only) {
  if (d.session.device.kind != Device::kCpu) return {};
  const std::vector<InputHint> hints = infer_inputs(d.prepared->captured.graph);
  Tensors own;  // what a call that is refused wrote of copies before does not matter
  for (size_t i = 0; i < hints.size(); ++i) {
    KRN_TRY_LET(const TensorRef refused, with_refused_index(d.inputs[i], hints[i], d.services));
    if (!refused) continue;
    if (own.empty()) {
      KRN_TRY_LET(own, copies_of(d.inputs, d.services));
    }
    Tensors inputs = own;
    inputs[i] = refused;
    const Status eager = d.trials.attempt(d.candidates[0].call, inputs);
    if (eager.ok()) continue;  // it reads no further than the index allows
    for (const size_t number : only) {
      Candidate& candidate = d.candidates[number];
      if (candidate.baseline || !candidate.call || !candidate.report.verified) continue;
      pass_gate();
      if (!d.trials.attempt(candidate.call, inputs).ok()) continue;
      candidate.report.verified = false;
      candidate.report.reason = "wrong_result";
      candidate.report.note = "it answers where eager refuses \"" + d.session.eager->rules().names().at(i) + "\": " + eager.message().what;
    }
  }
  return {};
}

}  // namespace

Status verify(Deciding& d, const std::vector<size_t>& only) {
  for (int set = 0; set < Deciding::kInputSets; ++set) {
    KRN_TRY(d.go_on());
    d.progress("verify", (set + 0.5) / Deciding::kInputSets);
    KRN_TRY(d.step([&]() -> Status {
      const Trials::SingleCalls scope(d.trials, set > 0);
      KRN_TRY_LET(Tensors inputs, d.input_set(set));
      Status status = verify_set(d, set, inputs, only);
      if (status.ok() || set == 0 || d.session.inputs_belong_together) return status;
      // Where eager refuses what was drawn (a mask that picks another number of rows than the values have), or is far from fp64 itself (a
      // norm of what hardly varies), that shows nothing of a plan.
      d.session.inputs_belong_together = true;
      KRN_TRY_LET(inputs, d.input_set(set));
      return verify_set(d, set, inputs, only);
    }));
  }
  d.step([&] { settle_hidden(d, only); });
  return d.step([&] { return verify_refusals(d, only); });
}

Status verify(Deciding& d) {
  std::vector<size_t> all(d.candidates.size());
  std::iota(all.begin(), all.end(), size_t{0});
  return verify(d, all);
}

Result<Judgement> judge_beside(const Session::Impl& session, const EagerProgram& eager, const Graph& graph, const Tensors& inputs,
                               const Tensors& outputs) {
  TensorServices& services = session.runtime.tensors();
  KRN_TRY_LET(const Tensors answered, eager.run(inputs));
  if (outputs.size() != answered.size()) return Status(Code::k_invalid_input, "there are more outputs than eager's, or fewer");
  // What is None is nothing to judge.
  std::vector<size_t> judged;
  for (size_t i = 0; i < answered.size(); ++i)
    if (answered[i]) judged.push_back(i);
  const auto present = [&](const Tensors& tensors) {
    Tensors list;
    for (size_t i : judged) list.push_back(tensors[i]);
    return list;
  };
  const auto referee_of = [&](const Roundings& roundings) -> Result<Tensors> {
    KRN_TRY_LET(const EagerProgram::RefereeRun run, eager.referee(inputs, {}, 1, roundings));
    return present(run.outputs[0]);
  };
  KRN_TRY_LET(const Tensors referee, referee_of({}));
  const Tensors own = present(answered), candidates = present(outputs);
  const JudgeOptions judging = judge_options(graph, session.options.numerics, session.options.error_budget);
  KRN_TRY_LET(Judgement judgement, judge(referee, own, candidates, services, judging));
  if (only_numbers_differ(judgement, judging)) {
    KRN_TRY_LET(const std::vector<Movement> moved,
                movements_like(referee, own, services, allows_tf32(session.device), roundings_of_sums(graph),
                               [&](uint32_t seed, bool tf32) { return referee_of({seed, tf32}); }));
    KRN_TRY_LET(const std::string why, unexplained(referee, candidates, moved, services));
    judgement.right = why.empty();
  }
  std::vector<OutputVerdict> verdicts(outputs.size());
  for (OutputVerdict& verdict : verdicts) verdict.right = true;
  for (size_t j = 0; j < judged.size(); ++j) verdicts[judged[j]] = std::move(judgement.outputs[j]);
  judgement.outputs = std::move(verdicts);
  return judgement;
}

// What is compared in service is what was compared before: the judge's rule, with the file's operators in fp64 as referee. A model
// that writes its state or inputs is not compared: a second run would write them again.
std::shared_ptr<PlanGuard> service_guard(Deciding& d, const std::string& name, const std::string& plugin) {
  auto guard = std::make_shared<PlanGuard>();
  if (d.range) guard->record = d.range->record;
  if (d.trials.writes() || d.seen.draws_random || !d.prepared || !d.session.options.verify) return guard;
  guard->sample_rate = d.session.options.sample_rate;
  guard->shadow_rate = d.session.options.shadow_rate;
  guard->check = [&s = d.session, specs = d.specs, prepared = d.prepared, name](const Tensors& inputs,
                                                                                const Tensors& outputs) -> std::string {
    TensorServices& services = s.runtime.tensors();
    (void)services.synchronize(s.device);  // the answer was enqueued on the caller's stream
    Graph captured = prepared->captured.graph;
    if (captured.outputs.empty()) {  // it was made without
      Result<Prepared> now = capture(s, specs, nullptr);
      if (!now.ok()) return {};
      captured = std::move(now->graph);
    }
    const auto judgement = judge_beside(s, *s.eager, captured, inputs, outputs);
    if (!judgement.ok() || judgement->right) return {};
    return judgement->reason + keep_wrong(s, captured, prepared->constants, name, inputs, judgement->reason);
  };
  PluginDevice* device = nullptr;
  for (PluginDevice* each : d.session.runtime.plugins().devices())
    if (each->plugin_name() == plugin && each->torch_device() == d.session.device) device = each;
  guard->revoke = [&s = d.session, calls = CallGuard(d.specs), range = d.range, name, device,
                   prepared = d.prepared](const std::string& what) {
    const std::string why = name + " answered wrong in service: " + what;
    if (range) s.revoke(range, why);
    else s.revoke(calls, why);
    // The graph as a whole is what the plugin claims next time: it is not given it again.
    const auto bytes = write_region(prepared->graph);
    if (device && bytes.ok()) device->quarantine(bytes->hash, "answered wrong in service");
  };
  return guard;
}

}  // namespace keirin
