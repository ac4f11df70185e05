// SPDX-License-Identifier: Apache-2.0
#include "tests/graphs/trial.h"

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <random>

#include "core/eager/graph_calls.h"
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

// One value in sixteen is special. Not the largest numbers: the order of a sum decides which of them overflow.
void add_specials(const Tensor& t, uint64_t seed) {
  std::mt19937_64 random(seed);
  each_element(t, [&](int64_t, void* at) {
    const uint64_t r = random();
    if (r % 16 != 0) return;
    const double specials[] = {std::nan(""), INFINITY, -INFINITY, 0.0, -0.0};
    store_element(t.dtype(), at, specials[r / 16 % 5]);
  });
}

Result<std::vector<TensorRef>> make_constants(const Graph& graph, TensorServices& services, uint64_t seed) {
  std::vector<TensorRef> out;
  for (const Value& value : graph.values) {
    if (value.kind != ValueKind::kConstant) continue;
    if (out.size() <= value.index) out.resize(value.index + 1);
    KRN_TRY_LET(out[value.index], make_tensor(value.type, {}, services, Device{}, seed + 1000 + value.index));
  }
  return out;
}

Result<PlanStep> eager_step(const Graph& graph, OpId id, Device where) {
  const Op& op = graph.ops[id];
  KRN_TRY_LET(auto call, GraphCalls(nullptr, {where, {}}).prepare(graph, id));
  PlanStep step;
  step.name = std::string(op_name(op.code));
  step.eager = [run = std::shared_ptr<const PreparedCall>(std::move(call))](std::span<const TensorRef> operands, std::vector<TensorRef>& results) {
    return run->run(operands, results);
  };
  step.operands = op.operands;
  step.results = op.results;
  return step;
}

Result<PlanStep> region_step(const Region& region, PluginDevice& device, const std::vector<TensorRef>& constants) {
  const Graph& graph = region.cut.graph;
  KRN_TRY_LET(const RegionBytes bytes, write_region(graph));
  PluginRegion view{bytes.bytes, bytes.hash, {}};
  for (ValueId v : bytes.weights) view.weights.push_back(constants[graph.values[v].index]);
  PlanStep step;
  step.name = "region";
  KRN_TRY_LET(step.executable, device.compile(view, {}, {}));
  for (ValueId v : bytes.inputs) step.operands.push_back(region.cut.values[v]);
  for (const Output& o : graph.outputs) step.results.push_back(region.cut.values[o.value]);
  step.num_ops = static_cast<int>(region.ops.size());
  return step;
}

// On the device, of the same strides.
Status move(std::vector<TensorRef>& tensors, Device device, TensorServices& services) {
  if (device == Device{}) return {};
  for (TensorRef& t : tensors) {
    if (t == nullptr) continue;  // a constant that no value names
    KRN_TRY_LET(t, services.to_device(t, device));
  }
  return {};
}

// In the strides that the graph states; what the plan returns has them.
Status conform(std::vector<TensorRef>& tensors, const Graph& graph, TensorServices& services) {
  for (size_t o = 0; o < tensors.size(); ++o) {
    const Type& type = graph.type(graph.outputs[o].value);
    KRN_TRY_LET(TensorRef own, services.allocate({tensors[o]->dtype(), type.sizes, type.strides, tensors[o]->device()}));
    KRN_TRY(services.copy(own, tensors[o]));
    tensors[o] = std::move(own);
  }
  return {};
}

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

Result<std::unique_ptr<Plugins>> Plugins::open(const std::vector<Source>& sources, const std::string& worker, TensorServices& services) {
  auto out = std::unique_ptr<Plugins>(new Plugins);
  out->services_ = &services;
  for (const Source& source : sources) {
    HostOptions options;
    options.paths = {source.folder};
    options.search = false;
    options.worker = worker;
    options.services = &services;
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

Result<std::unique_ptr<Plan>> Plugins::build(const Graph& graph, const Setting& setting, const std::vector<TensorRef>& constants,
                                             int& compiled) {
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
    KRN_TRY_LET(PlanStep step, region ? region_step(parts.regions[each.index], *devices_[parts.regions[each.index].plugin], constants)
                                      : eager_step(graph, each.index, where_));
    if (region) compiled += step.num_ops;
    steps.push_back(std::move(step));
  }
  return Plan::make(graph, std::move(steps), constants, *services_, where_);
}

Verdict Plugins::try_graph(const Graph& graph, const Setting& setting) {
  Verdict verdict;
  if (Status s = run(graph, setting, verdict); !s.ok()) verdict.right = false, verdict.reason = s.text();
  return verdict;
}

Status Plugins::run(const Graph& graph, const Setting& setting, Verdict& verdict) {
  KRN_TRY_LET(std::vector<TensorRef> constants, make_constants(graph, *services_, setting.seed));
  InputOptions options;
  options.seed = setting.seed;
  KRN_TRY_LET(std::vector<TensorRef> inputs, make_inputs(graph, *services_, options));
  const std::vector<InputHint> hints = infer_inputs(graph);
  for (size_t i = 0; !setting.finite && i < inputs.size(); ++i)
    if (is_float(inputs[i]->dtype()) && hints[i].kind == InputHint::kNormal && graph.values[graph.inputs[i]].name != "plain") add_specials(*inputs[i], setting.seed + i);
  const std::vector<TensorRef> host_constants = constants, host_inputs = inputs;
  KRN_TRY(move(constants, where_, *services_));
  KRN_TRY(move(inputs, where_, *services_));

  Graph optimised = graph;
  PassContext context;
  KRN_TRY(run_passes(optimised, context));
  if (const char* folder = std::getenv("KEIRIN_DUMP")) std::ofstream(std::string(folder) + "/optimised.ir") << print(optimised);
  KRN_TRY_LET(const std::unique_ptr<Plan> plan, build(optimised, setting, constants, verdict.compiled));
  KRN_TRY_LET(std::vector<TensorRef> candidate, plan->run(inputs));

  // The referee is the host's LibTorch: on a GPU some fp64 kernels keep constants in f32 (hardswish).
  CallOptions own, wide;
  own.device = where_;
  wide.float_dtype = DType::k_f64;
  Result<std::vector<TensorRef>> asked = evaluate(graph, nullptr, inputs, constants, own);
  if (!asked.ok()) return {};  // eager refuses what the passes or a plugin accept: nothing to compare with
  std::vector<TensorRef> eager = std::move(asked).value();
  KRN_TRY_LET(std::vector<TensorRef> referee, evaluate(graph, nullptr, host_inputs, host_constants, wide));
  KRN_TRY(conform(eager, graph, *services_));
  KRN_TRY(conform(candidate, graph, *services_));
  for (size_t o = 0; o < eager.size(); ++o) {
    JudgeOptions judging;
    // The referee of f64 is no wider than eager, whose error would read as none.
    if (eager[o]->dtype() == DType::k_f64) judging.error_budget = 1e-11;
    KRN_TRY_LET(const Judgement judgement, judge({&referee[o], 1}, {&eager[o], 1}, {&candidate[o], 1}, *services_, judging));
    if (judgement.right) continue;
    verdict.right = false;
    verdict.reason = "output " + std::to_string(o) + ": " + judgement.reason;
    break;
  }
  return {};
}

}  // namespace keirin::graphs
