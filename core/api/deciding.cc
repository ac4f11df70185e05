// SPDX-License-Identifier: Apache-2.0
#include "core/api/deciding.h"

#include <algorithm>
#include <chrono>
#include <fstream>

#include <unistd.h>

#include "core/api/events.h"
#include "core/base/end_flag.h"
#include "core/base/overlap.h"
#include "core/eager/program/library_settings.h"
#include "core/tune/inputs.h"

namespace keirin {

using Tensors = Deciding::Tensors;

int64_t resident_bytes(const Session::Impl& session) {
  constexpr int64_t kDeviceContextBytes = int64_t{512} << 20;
  if (session.device.kind != Device::kCpu) return kDeviceContextBytes + session.weights.storage_bytes();
  int64_t pages = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> pages >> resident;
  return resident * sysconf(_SC_PAGE_SIZE);
}

double now_s() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

Deciding::Deciding(Session::Impl& session, const Tensors& inputs)
    : session(session), services(session.runtime.tensors()), gives_way(session.gives_way), inputs(inputs) {
  report.model = session.name;
  report.device = device_name(session.device);
  report.mode = session.options.mode;
  report.threads = services.num_threads();
  if (count) report.fitness = "counts";
  for (const TensorRef& t : inputs) {
    specs.push_back(spec_of(*t));
    report.inputs.push_back(spec_text(specs.back()));
  }
  report.sizes = session.free_sizes(specs);
}

Status Deciding::go_on() { return is_to_end() ? Status(Code::k_cancelled, "the session is being closed") : Status(); }

void Deciding::progress(const char* stage, double done) {
  session.tell(Event::Kind::kProgress, kDetail, stage, done);
  if (!session.options.progress) return;
  try {
    session.options.progress(session.name + ": " + stage, done, 0);
  } catch (...) {  // a user's callback does not throw into the core
  }
}

bool Deciding::inputs_share() const {
  for (size_t i = 0; i < inputs.size(); ++i) {
    for (size_t k = 0; k < i; ++k)
      if (ranges_meet(*inputs[i], *inputs[k])) return true;
    for (size_t k = 0; k < session.weights.size(); ++k)
      if (ranges_meet(*inputs[i], *session.weights[k].tensor)) return true;
  }
  return false;
}

CallGuard Deciding::call_guard() const {
  CallGuard::Writes writes{seen.written_inputs, {}, {}};
  for (const size_t i : seen.written_weights) writes.weights.push_back(session.weights[i].tensor);
  for (size_t i = 0; i < session.weights.size(); ++i) writes.all_weights.push_back(session.weights[i].tensor);
  return CallGuard(inputs, session.device, numeric_modes(session.device), writes);
}

Result<Tensors> Deciding::input_set(int set) {
  if (set == 0) return inputs;
  if (session.inputs_belong_together) {
    Tensors near;
    for (size_t i = 0; i < inputs.size(); ++i) {
      KRN_TRY_LET(near.emplace_back(), near_to(inputs[i], services, (i + 1) * kInputSets + static_cast<uint64_t>(set)));
    }
    return near;
  }
  if (!session.rules) {
    KRN_TRY_LET(Tensors drawn, make_inputs(prepared->captured.graph, services,
                                           {static_cast<uint64_t>(set), static_cast<uint32_t>(set), session.device, {}}));
    // Integers that an operator outside the table reads may be pivots, lengths or offsets, and others than the caller's no valid ones.
    const std::vector<InputHint> hints = infer_inputs(prepared->captured.graph);
    for (size_t i = 0; i < drawn.size() && i < hints.size(); ++i)
      if (hints[i].unknown_meaning) drawn[i] = inputs[i];
    for (size_t i = 0; i < drawn.size(); ++i) {  // single numbers may lie in host memory
      KRN_TRY_LET(drawn[i], services.to_device(drawn[i], inputs[i]->device()));
    }
    return drawn;
  }
  Tensors drawn;
  for (size_t i = 0; i < specs.size(); ++i) {
    TensorSpec spec = specs[i];
    spec.device = {};
    KRN_TRY_LET(const InitRule rule, rule_at(session.rules->inputs, i, specs));
    KRN_TRY_LET(TensorRef tensor, draw(services, spec, rule, session.rules->seed + 1000 + set, "input" + std::to_string(i)));
    KRN_TRY_LET(tensor, services.to_device(tensor, session.device));
    drawn.push_back(std::move(tensor));
  }
  return drawn;
}

namespace {

constexpr int64_t kBytesOfCounters = 1024;  // guard, record and table entry
// Of a graph's value or operator: what one of them takes on the heap on the average, names and origins included.
constexpr int64_t kBytesOfNode = 512;

// What the calls of one size hold between two of them: graphs, arena, outputs that wait for the next call where they do, and constants
// that passes computed for this size alone.
int64_t bytes_between_calls(const Prepared& prepared, const Plan* plan, bool outputs_wait) {
  const auto nodes = static_cast<int64_t>(prepared.graph.ops.size() + prepared.graph.values.size());
  int64_t bytes = 3 * kBytesOfNode * nodes + prepared.own_constant_bytes;
  if (plan) bytes += plan->held_bytes();
  for (const Output& output : prepared.graph.outputs)
    if (outputs_wait && output.updates == kNone) bytes += prepared.graph.type(output.value).bytes();
  return bytes;
}

}  // namespace

// Whether an output of the plan may have other strides than eager's: those of eager steps are not known before they run.
bool Deciding::strides_may_differ(const Plan& plan) const {
  if (std::any_of(plan.steps().begin(), plan.steps().end(), [](const PlanStep& step) { return !step.executable; })) return true;
  const Graph& graph = prepared->graph;
  size_t user = 0;
  for (const Output& output : graph.outputs) {
    if (output.updates != kNone) continue;
    const TensorSpec& spec = forms.specs.at(user++);
    const Type& type = graph.type(output.value);
    if (spec.sizes != type.sizes) return true;
    for (size_t d = 0; d < spec.sizes.size(); ++d)
      if (spec.sizes[d] > 1 && spec.strides[d] != type.strides[d]) return true;
  }
  return false;
}

void Deciding::make_calls(Candidate& candidate) {
  candidate.own = [plan = candidate.built.plan, prepared = prepared](const Tensors& inputs) { return plan->run(inputs); };
  candidate.call = in_eagers_forms(candidate.own, strides_may_differ(*candidate.built.plan));
}

void Deciding::publish(CallFn call, std::shared_ptr<PlanGuard> guard, const std::shared_ptr<Plan>& plan) {
  Decision decision{call ? call_guard() : CallGuard(specs), std::move(call), std::move(guard)};
  decision.range = range;
  decision.hot_after = hot_after;
  if (decision.call && report.disturbed.empty() && report.speedup != 1) decision.gain = report.speedup;
  if (for_range && plan) plan->lend_arena();
  const bool outputs_wait = session.device.kind == Device::kCpu;  // Plan::bind_outputs
  if (for_range)
    decision.bytes = kBytesOfCounters + (decision.call && prepared ? bytes_between_calls(*prepared, plan.get(), outputs_wait) : 0);
  if (plan && forms.views.empty() && !strides_may_differ(*plan))  // else what the caller gets is not what the plan makes
    decision.into = [plan, prepared = prepared](const Tensors& inputs, const Tensors& given) { return plan->run_into(inputs, given); };
  session.publish(std::make_shared<Decision>(std::move(decision)));
}

}  // namespace keirin
