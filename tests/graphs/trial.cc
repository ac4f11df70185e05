// SPDX-License-Identifier: Apache-2.0
#include "tests/graphs/trial.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <random>

#include "core/eager/rows/fold_evaluator.h"
#include "core/eager/tensor_services.h"
#include "core/exec/plan.h"
#include "core/ir/bytes.h"
#include "core/ir/rows.h"
#include "core/ir/text.h"
#include "core/partition/partition.h"
#include "core/passes/pass.h"
#include "core/tune/elements.h"
#include "core/tune/inputs.h"
#include "core/tune/verify.h"

namespace keirin::graphs {
namespace {

constexpr uint32_t kEager = kNone;

// One value in sixteen is special. Not the largest floats: the order of a sum decides which of them overflow. Integers wrap, so
// theirs are as large as they get. No denormals among values that cancel to the bit: 1.5 - 1.5 + 2^-130 is 2^-130 in eager's order and 0
// where the first term is added last.
void add_specials(const Tensor& t, uint64_t seed, bool denormals) {
  constexpr double kOneOf64Bits = 0x1p62;
  std::mt19937_64 random(seed);
  each_element(t, [&](int64_t, void* at) {
    const uint64_t r = random();
    if (r % 16 != 0) return;
    const double least = t.dtype() == DType::k_f16 ? 0x1p-23 : t.dtype() == DType::k_f64 ? 0x1p-1070 : 0x1p-130;  // denormal
    const double floats[] = {std::nan(""), INFINITY, -INFINITY, 0.0, -0.0, least};
    const double integers[] = {0x1p31, -0x1p31 - 1, 0x1p32 + 5, -0x1p33, kOneOf64Bits, -2 * kOneOf64Bits};
    store_element(t.dtype(), at, is_float(t.dtype()) ? floats[r / 16 % (denormals ? 6 : 5)] : integers[r / 16 % 6]);
  });
}

// Multiples of a half: many are equal, as behind a quantisation or a relu.
void make_coarse(const Tensor& t) {
  each_element(t, [&](int64_t, void* at) { store_element(t.dtype(), at, std::round(load_element(t.dtype(), at) * 2) / 2); });
}

Result<std::vector<TensorRef>> make_constants(const Graph& graph, TensorServices& services, uint64_t seed) {
  std::vector<TensorRef> out;
  for (const Value& value : graph.values) {
    if (value.kind != ValueKind::kConstant && value.kind != ValueKind::kState) continue;
    if (out.size() <= value.index) out.resize(value.index + 1);
    KRN_TRY_LET(out[value.index], make_tensor(value.type, {}, services, Device{}, seed + 1000 + value.index));
  }
  return out;
}

Result<PlanStep> eager_step(const Graph& graph, const std::shared_ptr<const CallTable>& calls, OpId id, Device where) {
  const Op& op = graph.ops[id];
  KRN_TRY_LET(auto call, GraphCalls(calls, {where, {}}).prepare(graph, id));
  PlanStep step;
  step.name = op.code == OpCode::kOpaque ? op.s(AttrKey::k_aten) : std::string(op_name(op.code));
  step.eager = [run = std::shared_ptr<const PreparedCall>(std::move(call))](
                   std::span<const TensorRef> operands, std::vector<TensorRef>& results) { return run->run(operands, results); };
  step.operands.assign(op.operands.begin(), op.operands.end());
  step.results.assign(op.results.begin(), op.results.end());
  return step;
}

Result<PlanStep> region_step(const Region& region, PluginDevice& device, const std::vector<TensorRef>& constants, bool from_artifact) {
  const Graph& graph = region.cut.graph;
  KRN_TRY_LET(const RegionBytes bytes, write_region(graph));
  PluginRegion view{bytes.bytes, bytes.hash, {}};
  for (ValueId v : bytes.weights) view.weights.push_back(constants[graph.values[v].index]);
  PlanStep step;
  step.name = "region";
  KRN_TRY_LET(step.executable, device.compile(view, {}, {}));
  if (from_artifact) {
    const Result<Artifact> artifact = device.save(*step.executable);
    if (!artifact.ok() && artifact.status().code() != Code::k_unsupported) return artifact.status();
    if (artifact.ok()) {
      KRN_TRY_LET(step.executable, device.load(view, *artifact));
    }
  }
  for (ValueId v : bytes.inputs) step.operands.push_back(region.cut.values[v]);
  for (const Output& o : graph.outputs) {
    step.results.push_back(region.cut.values[o.value]);
    step.targets.push_back(o.updates == kNone ? kNone : region.cut.values[o.updates]);
  }
  step.num_ops = static_cast<int>(region.ops.size());
  return step;
}

// In the strides that the graph states; what the plan returns has them.
Status conform(std::vector<TensorRef>& tensors, const Graph& graph, TensorServices& services) {
  for (size_t o = 0; o < tensors.size(); ++o) {
    const Type& type = graph.type(graph.outputs[o].value);
    KRN_TRY_LET(TensorRef own, services.allocate({tensors[o]->dtype(), type.sizes.vec(), type.strides.vec(), tensors[o]->device()}));
    KRN_TRY(services.copy(own, tensors[o]));
    tensors[o] = std::move(own);
  }
  return {};
}

// In the strides they have: a region binds those of state and weights.
Result<std::vector<TensorRef>> moved(const std::vector<TensorRef>& tensors, Device device, TensorServices& services) {
  std::vector<TensorRef> out = tensors;
  for (TensorRef& t : out) {
    if (t == nullptr || t->device() == device) continue;
    const TensorRef from = t;
    KRN_TRY_LET(
        t, services.allocate(
               {from->dtype(), {from->sizes(), from->sizes() + from->rank()}, {from->strides(), from->strides() + from->rank()}, device}));
    KRN_TRY(services.copy(t, from));
  }
  return out;
}

Result<std::vector<TensorRef>> clones(const std::vector<TensorRef>& tensors, TensorServices& services) {
  std::vector<TensorRef> out;
  for (const TensorRef& t : tensors) {
    KRN_TRY_LET(TensorRef own, t ? services.clone(t) : Result<TensorRef>(TensorRef()));
    out.push_back(std::move(own));
  }
  return out;
}

// The same elements with twice the strides, from one element past an aligned address on.
Result<TensorRef> spread(const TensorRef& tensor, TensorServices& services) {
  TensorSpec spec{tensor->dtype(), {tensor->sizes(), tensor->sizes() + tensor->rank()}, {}, {}};
  spec.strides = contiguous_strides(spec.sizes).vec();
  for (int64_t& s : spec.strides) s *= 2;
  KRN_TRY_LET(const TensorRef memory, services.allocate({spec.dtype, {2 * num_elements(*tensor) + 1}, {}, {}}));
  KRN_TRY_LET(TensorRef view, services.wrap(spec, static_cast<char*>(memory->data()) + dtype_bytes(spec.dtype), memory));
  KRN_TRY(services.copy(view, tensor));
  return view;
}

// The graph as a session would make it: folded and merged weights, for some channels-last, for some one pass off; read back from
// its own text.
Result<Graph> optimise(const Graph& graph, const Setting& setting, std::vector<TensorRef>& constants, TensorServices& services,
                       Device where) {
  std::mt19937_64 random(setting.seed + 177);
  FoldedConstants folded;
  FoldEvaluator evaluator(constants, services, where, &folded);
  PassContext context;
  context.evaluator = &evaluator;
  context.extra_weight_bytes = 1 << 20;
  context.channels_last = random() % 2 == 0;
  if (random() % 4 == 0) context.disabled = {std::string(all_passes()[random() % all_passes().size()].name)};
  Graph out = graph;
  KRN_TRY(run_passes(out, context));
  if (const char* folder = std::getenv("KEIRIN_DUMP")) std::ofstream(std::string(folder) + "/optimised.ir") << print(out);
  KRN_TRY_LET(Graph again, parse(print(out)));
  if (print(again) != print(out)) return Status(Code::k_internal, "the graph's text reads back as another graph");
  return again;
}

// The 16-bit float through which a wider output was computed, else kNone. Such an output is as exact as that: where one side's last
// rounding was lucky, the other's, half a unit away, is not wrong.
DType narrow_within(const Graph& graph, ValueId output) {
  if (!is_float(graph.type(output).dtype) || dtype_bytes(graph.type(output).dtype) == 2) return DType::kNone;
  std::vector<ValueId> open{output};
  std::vector<uint8_t> seen(graph.values.size(), 0);
  DType found = DType::kNone;
  while (!open.empty()) {
    const Value& value = graph.values[open.back()];
    open.pop_back();
    if (value.kind != ValueKind::kResult) continue;
    const DType dtype = value.type.dtype;
    if (dtype == DType::k_bf16 || (dtype == DType::k_f16 && found == DType::kNone)) found = dtype;
    for (ValueId v : graph.ops[value.producer].operands)
      if (v != kNone && !std::exchange(seen[v], 1)) open.push_back(v);
  }
  return found;
}

// Calls one plan and judges what each call returns and writes.
class Calls {
 public:
  Calls(const Program& program, Plan& plan, TensorServices& services, Device where)
      : graph_(program.graph), calls_(program.calls), constants_(program.constants), plan_(plan), services_(services), where_(where) {}

  // Empty, or what was wrong. An eager that refuses what the passes or a plugin accept leaves nothing to compare with.
  Result<std::string> call(const std::vector<TensorRef>& inputs) {
    KRN_TRY_LET(const std::vector<TensorRef> inputs_before, clones(inputs, services_));
    KRN_TRY_LET(const std::vector<TensorRef> constants_before, clones(constants_, services_));
    KRN_TRY_LET(std::vector<TensorRef> candidate, plan_.run(inputs));
    for (size_t o = candidate.size(); o < graph_.outputs.size(); ++o) {
      const Value& target = graph_.values[graph_.outputs[o].updates];
      candidate.push_back(target.kind == ValueKind::kInput ? inputs[target.index] : constants_[target.index]);
    }
    CallOptions own, wide;
    own.device = where_;
    wide.float_dtype = DType::k_f64;
    Result<std::vector<TensorRef>> asked = evaluate(graph_, calls_, inputs_before, constants_before, own);
    if (!asked.ok()) return std::string();
    std::vector<TensorRef> eager = std::move(asked).value();
    // The referee is the host's LibTorch: on a GPU some fp64 kernels keep constants in f32 (hardswish).
    KRN_TRY_LET(const std::vector<TensorRef> host_inputs, moved(inputs_before, {}, services_));
    KRN_TRY_LET(const std::vector<TensorRef> host_constants, moved(constants_before, {}, services_));
    KRN_TRY_LET(std::vector<TensorRef> referee, evaluate(graph_, calls_, host_inputs, host_constants, wide));
    kept_.insert(kept_.end(), candidate.begin(), candidate.begin() + num_user_outputs());
    KRN_TRY(conform(eager, graph_, services_));
    KRN_TRY(conform(candidate, graph_, services_));
    copies_.insert(copies_.end(), candidate.begin(), candidate.begin() + num_user_outputs());
    for (size_t o = 0; o < eager.size(); ++o) {
      JudgeOptions judging;
      // The referee of f64 is no wider than eager, whose error would read as none.
      if (eager[o]->dtype() == DType::k_f64) judging.error_budget = 1e-11;
      TensorRef its = eager[o], ours = candidate[o];
      if (const DType narrow = narrow_within(graph_, graph_.outputs[o].value); narrow != DType::kNone) {
        KRN_TRY_LET(its, services_.cast(its, narrow));
        KRN_TRY_LET(ours, services_.cast(ours, narrow));
      }
      KRN_TRY_LET(const Judgement judgement, judge({&referee[o], 1}, {&its, 1}, {&ours, 1}, services_, judging));
      if (!judgement.right) return "output " + std::to_string(o) + ": " + judgement.reason;
    }
    return inputs_intact(inputs, inputs_before);
  }

  // Empty, or which result of an earlier call a later one has changed.
  Result<std::string> results_intact() {
    for (size_t k = 0; k < kept_.size(); ++k) {
      KRN_TRY_LET(const bool same, same_elements(kept_[k], copies_[k]));
      if (!same)
        return "output " + std::to_string(k % static_cast<size_t>(num_user_outputs())) + " of an earlier call was changed by a later one";
    }
    return std::string();
  }

 private:
  ptrdiff_t num_user_outputs() const {
    return std::count_if(graph_.outputs.begin(), graph_.outputs.end(), [](const Output& o) { return o.updates == kNone; });
  }

  Result<bool> same_elements(const TensorRef& a, const TensorRef& b) {
    JudgeOptions bits;
    bits.strict = true;
    KRN_TRY_LET(const TensorRef own,
                services_.allocate({a->dtype(), {a->sizes(), a->sizes() + a->rank()}, {b->strides(), b->strides() + b->rank()}, {}}));
    KRN_TRY(services_.copy(own, a));
    KRN_TRY_LET(const Judgement judgement, judge({&b, 1}, {&b, 1}, {&own, 1}, services_, bits));
    return judgement.right;
  }

  Result<std::string> inputs_intact(const std::vector<TensorRef>& inputs, const std::vector<TensorRef>& before) {
    for (size_t i = 0; i < inputs.size(); ++i) {
      const auto writes = [&](const Output& o) { return o.updates == graph_.inputs[i]; };
      if (std::any_of(graph_.outputs.begin(), graph_.outputs.end(), writes)) continue;
      KRN_TRY_LET(const bool same, same_elements(inputs[i], before[i]));
      if (!same) return "input " + std::to_string(i) + " was written";
    }
    return std::string();
  }

  const Graph& graph_;
  std::shared_ptr<const CallTable> calls_;
  const std::vector<TensorRef>& constants_;
  Plan& plan_;
  TensorServices& services_;
  Device where_;
  std::vector<TensorRef> kept_, copies_;  // what calls returned, and what it held then
};

}  // namespace

const char* cut_name(Cut cut) {
  switch (cut) {
    case Cut::kCpu: return "cpu";
    case Cut::kReference: return "reference";
    case Cut::kCuda: return "cuda";
    case Cut::kMixed: break;
  }
  return "mixed";
}

Result<std::unique_ptr<Plugins>> Plugins::open(const std::vector<Source>& sources, const std::string& worker, TensorServices& services,
                                               RunIn run_in) {
  auto out = std::unique_ptr<Plugins>(new Plugins);
  out->services_ = &services;
  for (const Source& source : sources) {
    HostOptions options;
    options.paths = {source.folder};
    options.search = false;
    options.worker = worker;
    options.services = &services;
    options.run_in = run_in;
    options.compile_in = run_in == RunIn::kWorker ? CompileIn::kChild : CompileIn::kProcess;
    KRN_TRY_LET(std::unique_ptr<PluginHost> host, PluginHost::open(options));
    if (host->devices().empty()) {
      std::string why = "no device in '" + source.folder + "'";
      for (const PluginReport& report : host->reports()) {
        why += "; " + report.reason;
        for (const DeviceReport& device : report.devices) why += "; " + device.hardware + ": " + device.reason;
      }
      return Status(Code::k_unsupported, why);
    }
    out->devices_.push_back(host->devices()[0]);
    out->cuts_.push_back(source.cut);
    out->hosts_.push_back(std::move(host));
  }
  if (!out->devices_.empty()) out->where_ = out->devices_[0]->torch_device();
  KRN_TRY(ensure_device(out->where_));
  return out;
}

// By op of the graph: the plugin that computes it, or kEager.
Result<std::vector<uint32_t>> Plugins::assign(const Graph& graph, const Setting& setting) {
  std::vector<std::vector<uint32_t>> wanted(graph.ops.size());
  KRN_TRY_LET(const RegionBytes whole, write_region(graph));
  for (uint32_t p = 0; p < devices_.size(); ++p) {
    if (setting.cut != Cut::kMixed && cuts_[p] != setting.cut) continue;
    KRN_TRY_LET(const ClaimResult claims, devices_[p]->claim({whole.bytes, whole.hash, {}}, {}));
    for (const NodeClaim& claim : claims.claims)
      for (uint32_t node : claim.nodes) wanted[whole.nodes[node]].push_back(p);
  }
  std::mt19937_64 random(setting.seed + 77);
  std::vector<uint32_t> out(graph.ops.size(), kEager);
  for (size_t op = 0; op < out.size(); ++op) {
    const uint64_t r = random();
    if (wanted[op].empty() || (setting.cut == Cut::kMixed && r % 8 == 0)) continue;
    out[op] = wanted[op][r / 8 % wanted[op].size()];
  }
  return out;
}

Result<std::unique_ptr<Plan>> Plugins::build(const Graph& graph, const Setting& setting, const Program& program, Verdict& verdict) {
  KRN_TRY_LET(const std::vector<uint32_t> owner, assign(graph, setting));
  std::vector<Claim> claims;
  for (uint32_t p = 0; p < devices_.size(); ++p) {
    Claim claim{p, {}};
    for (OpId op = 0; op < owner.size(); ++op)
      if (owner[op] == p) claim.ops.push_back(op);
    if (!claim.ops.empty()) claims.push_back(std::move(claim));
  }
  KRN_TRY_LET(const Partition parts, partition(graph, claims));
  std::vector<PlanStep> steps;
  for (const Step& each : parts.steps) {
    const bool region = each.kind == Step::kRegion;
    KRN_TRY_LET(PlanStep step, region ? region_step(parts.regions[each.index], *devices_[parts.regions[each.index].plugin],
                                                    program.constants, setting.seed / 8 % 4 == 0)
                                      : eager_step(graph, program.calls, each.index, where_));
    if (region) {
      const ExecutableInfo& info = step.executable->info();
      verdict.compiled += step.num_ops;
      verdict.kernels += static_cast<int>(info.num_kernels);
      verdict.generated += static_cast<int>(info.num_codegen);
    }
    steps.push_back(std::move(step));
  }
  return Plan::make(graph, std::move(steps), program.constants, *services_, where_);
}

Verdict Plugins::try_graph(const Graph& graph, const Setting& setting) {
  Verdict verdict;
  if (Status s = draw_and_run(graph, setting, verdict); !s.ok()) verdict.right = false, verdict.reason = s.text();
  return verdict;
}

Verdict Plugins::try_program(Program program, const std::vector<std::vector<TensorRef>>& calls, const Setting& setting) {
  Verdict verdict;
  if (Status s = run(std::move(program), calls, setting, verdict); !s.ok()) verdict.right = false, verdict.reason = s.text();
  return verdict;
}

Result<std::vector<TensorRef>> Plugins::values(const Graph& graph, const Setting& setting, uint32_t call) {
  InputOptions options;
  options.seed = setting.seed;
  options.set = call;
  KRN_TRY_LET(std::vector<TensorRef> inputs, make_inputs(graph, *services_, options));
  const std::vector<InputHint> hints = infer_inputs(graph);
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Value& input = graph.values[graph.inputs[i]];
    if (input.name != "plain" && is_int(input.type.dtype)) {  // no index: either sign
      KRN_TRY_LET(inputs[i], make_tensor(input.type, {InputHint::kIntegers, input.type.dtype == DType::k_u8 ? 0.0 : -100.0, 100, {}},
                                         *services_, Device{}, setting.seed + call));
    }
    if (call == 1 && hints[i].kind == InputHint::kNormal && is_float(input.type.dtype)) make_coarse(*inputs[i]);
    const bool wide = hints[i].kind == InputHint::kNormal || is_int(input.type.dtype);
    if (!setting.finite && wide && input.name != "plain") add_specials(*inputs[i], setting.seed + i, call == 0);
    if (call == 0) continue;
    KRN_TRY_LET(inputs[i], spread(inputs[i], *services_));
  }
  return inputs;
}

Status Plugins::draw_and_run(const Graph& graph, const Setting& setting, Verdict& verdict) {
  KRN_TRY_LET(std::vector<TensorRef> constants, make_constants(graph, *services_, setting.seed));
  std::vector<std::vector<TensorRef>> calls;
  for (uint32_t call = 0; call < 2; ++call) {
    KRN_TRY_LET(std::vector<TensorRef> inputs, values(graph, setting, call));
    calls.push_back(std::move(inputs));
  }
  return run({graph, nullptr, std::move(constants)}, calls, setting, verdict);
}

Status Plugins::run(Program program, const std::vector<std::vector<TensorRef>>& calls, const Setting& setting, Verdict& verdict) {
  KRN_TRY_LET(program.constants, moved(program.constants, where_, *services_));
  KRN_TRY_LET(const Graph optimised, optimise(program.graph, setting, program.constants, *services_, where_));
  KRN_TRY_LET(const std::unique_ptr<Plan> plan, build(optimised, setting, program, verdict));
  Calls judged(program, *plan, *services_, where_);
  const auto take = [&](const std::string& reason) {
    if (verdict.right && !reason.empty()) verdict.right = false, verdict.reason = reason;
  };
  for (const std::vector<TensorRef>& drawn : calls) {
    KRN_TRY_LET(const std::vector<TensorRef> inputs, moved(drawn, where_, *services_));
    KRN_TRY_LET(const std::string wrong, judged.call(inputs));
    take(wrong);
  }
  KRN_TRY_LET(const std::string changed, judged.results_intact());
  take(changed);
  return {};
}

}  // namespace keirin::graphs
