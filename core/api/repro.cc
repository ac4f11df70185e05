// SPDX-License-Identifier: Apache-2.0
#include "core/api/repro.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include <nlohmann/json.hpp>

#include "core/api/candidates.h"
#include "core/eager/weights/safetensors.h"
#include "core/ir/text.h"
#include "core/ir/verify.h"
#include "core/tune/inputs.h"
#include "core/tune/shrink.h"
#include "core/tune/verify.h"

namespace keirin {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using Tensors = std::vector<TensorRef>;

constexpr uint64_t kSeed = 1;  // of values that the folder does not hold: those of a smaller graph

NamedTensors named(const Tensors& tensors) {
  NamedTensors out;
  for (size_t i = 0; i < tensors.size(); ++i)
    if (tensors[i]) out.emplace_back(std::to_string(i), tensors[i]);
  return out;
}

Result<Tensors> by_number(const std::string& path, Device device, TensorServices& services) {
  KRN_TRY_LET(const NamedTensors all, read_safetensors(path, services));
  Tensors out;
  for (const auto& [name, tensor] : all) {
    if (name.empty() || name.size() > 6 || name.find_first_not_of("0123456789") != std::string::npos)
      return Status(Code::k_corrupt, {"tensor \"" + name + "\" is not a number", path, "nothing was run", {}});
    const size_t at = std::stoul(name);
    if (out.size() <= at) out.resize(at + 1);
    KRN_TRY_LET(out[at], services.to_device(tensor, device));
  }
  return out;
}

Result<std::string> read_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return Status(Code::k_invalid_input, {"cannot be read", path, "nothing was run", "give a folder that --repro wrote"});
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

bool fits(const TensorRef& tensor, const Type& type) {
  return tensor && tensor->dtype() == type.dtype && Dims(tensor->sizes(), tensor->sizes() + tensor->rank()) == type.sizes;
}

// One plan over graphs that differ, as a session would build and judge it.
class Trial {
 public:
  Trial(Runtime& runtime, const ReproCase& c, const Options& options) : case_(c), services_(runtime.tensors()), session_(runtime, options) {
    session_.options.disabled_passes = c.disabled_passes;
    session_.options.numerics = c.numerics;
    session_.device = c.device;
    session_.tries_known_wrong = true;
  }

  // Empty where the plan is right, else what is wrong. `passes_only`: LibTorch computes what the passes left, and no plugin.
  Result<std::string> run(const Graph& graph, const std::vector<std::string>& disabled, bool passes_only) {
    KRN_TRY(verify(graph));
    KRN_TRY_LET(const Tensors inputs,
                values(graph, case_.inputs, graph.inputs.size(), [](const Value& v) { return v.kind == ValueKind::kInput; }));
    KRN_TRY_LET(const Tensors constants, values(graph, case_.constants, 0, [](const Value& v) {
                  return v.kind == ValueKind::kConstant || v.kind == ValueKind::kState;
                }));
    const CallOptions own{session_.device, std::nullopt}, wide{session_.device, DType::k_f64};
    KRN_TRY_LET(const Tensors eager, evaluate(graph, nullptr, inputs, constants, own));
    KRN_TRY_LET(const Tensors referee, evaluate(graph, nullptr, inputs, constants, wide));
    Prepared prepared;
    prepared.captured.graph = prepared.graph = graph;
    KRN_TRY_LET(prepared.constants, clones(constants));
    KRN_TRY_LET(const Tensors own_inputs, clones(inputs));
    prepared.calls = std::make_unique<GraphCalls>(nullptr, own);
    session_.options.disabled_passes = disabled;
    std::vector<TensorSpec> eager_outputs;
    for (const TensorRef& output : eager) eager_outputs.push_back(output ? spec_of(*output) : TensorSpec());
    KRN_TRY(optimise(session_, prepared, eager_outputs, session_.folded));
    Tensors candidate;
    if (passes_only) {
      KRN_TRY_LET(candidate, evaluate(prepared.graph, nullptr, own_inputs, prepared.constants, own));
    } else {
      KRN_TRY_LET(const BuiltPlan plan, build(prepared));
      KRN_TRY_LET(candidate, plan.plan->run(own_inputs));
      for (size_t o = candidate.size(); o < graph.outputs.size(); ++o) {
        const Value& target = graph.values[graph.outputs[o].updates];
        candidate.push_back(target.kind == ValueKind::kInput ? own_inputs[target.index] : prepared.constants[target.index]);
      }
    }
    KRN_TRY_LET(const Judgement judgement,
                judge(referee, eager, candidate, services_, judge_options(graph, case_.numerics, case_.error_budget)));
    return judgement.right ? std::string() : judgement.reason;
  }

 private:
  Result<Tensors> clones(const Tensors& tensors) {
    Tensors out(tensors.size());
    for (size_t i = 0; i < tensors.size(); ++i)
      if (tensors[i]) {
        KRN_TRY_LET(out[i], services_.clone(tensors[i]));
      }
    return out;
  }

  // The recorded tensors where they fit, drawn ones where the graph was made smaller than they are.
  template <class F>
  Result<Tensors> values(const Graph& graph, const Tensors& recorded, size_t count, F&& wanted) {
    Tensors drawn, out(count);
    if (count > 0) {
      KRN_TRY_LET(drawn, make_inputs(graph, services_, {kSeed, 0, session_.device, {}}));
    }
    for (const Value& value : graph.values) {
      if (!wanted(value)) continue;
      if (out.size() <= value.index) out.resize(value.index + 1);
      TensorRef& tensor = out[value.index];
      if (value.index < recorded.size() && fits(recorded[value.index], value.type)) tensor = recorded[value.index];
      else if (value.index < drawn.size()) tensor = drawn[value.index];
      else {
        KRN_TRY_LET(tensor, make_tensor(value.type, {}, services_, session_.device, kSeed + value.index));
      }
    }
    return out;
  }

  Result<BuiltPlan> build(Prepared& prepared) {
    if (const auto choice = find_choice(session_, case_.plan)) return build_plan(session_, prepared, *choice);
    return Status(Code::k_invalid_input,
                  {"no plugin here makes the plan " + case_.plan, {}, "nothing was run", "name its folder with --plugin"});
  }

  const ReproCase& case_;
  TensorServices& services_;
  Session::Impl session_;  // without a file: what building a plan needs of one
};

std::string blame_of(Trial& trial, const ReproCase& c, const Graph& graph) {
  std::vector<std::string> passes;
  for (const PassRow& row : all_passes())
    if (row.on && std::find(c.disabled_passes.begin(), c.disabled_passes.end(), row.name) == c.disabled_passes.end())
      passes.emplace_back(row.name);
  const auto fails = [&](bool passes_only) {
    return [&trial, &c, &graph, passes_only](std::vector<std::string> disabled) {
      disabled.insert(disabled.end(), c.disabled_passes.begin(), c.disabled_passes.end());
      const Result<std::string> wrong = trial.run(graph, disabled, passes_only);
      return wrong.ok() && !wrong->empty();
    };
  };
  const std::string plugin = c.plan.substr(0, c.plan.find('/'));
  if (fails(true)({})) return "pass " + first_bad_pass(passes, fails(true)) + ": what it leaves is another graph, whoever computes it";
  const std::string pass = first_bad_pass(passes, fails(false));
  if (pass.empty()) return "plugin " + plugin + ": it is wrong with every pass off, too";
  return "plugin " + plugin + ": it is wrong about what pass " + pass + " leaves, which LibTorch computes right";
}

}  // namespace

std::string first_bad_pass(const std::vector<std::string>& passes,
                           const std::function<bool(const std::vector<std::string>& disabled)>& fails) {
  for (size_t kept = 0; kept <= passes.size(); ++kept)
    if (fails({passes.begin() + static_cast<ptrdiff_t>(kept), passes.end()})) return kept == 0 ? std::string() : passes[kept - 1];
  return {};
}

Result<std::string> write_repro(const std::string& parent, const ReproCase& c, TensorServices& services) {
  std::string name = c.model + "-" + c.plan;
  std::replace(name.begin(), name.end(), '/', '-');
  std::error_code error;
  fs::create_directories(parent, error);
  fs::path folder = fs::path(parent) / name;
  for (int n = 2; !fs::create_directory(folder, error) && !error && n < 100; ++n)
    folder = fs::path(parent) / (name + "-" + std::to_string(n));
  if (error) return Status(Code::k_exhausted, {"a folder for the wrong answer could not be made: " + error.message(), folder, {}, {}});
  std::ofstream(folder / "graph.ir") << print(c.graph);
  std::ofstream(folder / "case.json") << json{{"schema", "keirin/repro/1"},
                                              {"model", c.model},
                                              {"plan", c.plan},
                                              {"reason", c.reason},
                                              {"disabled_passes", c.disabled_passes},
                                              {"numerics", static_cast<int>(c.numerics)},
                                              {"error_budget", c.error_budget},
                                              {"device", {c.device.kind, c.device.index}}}
                                             .dump(1)
                                      << "\n";
  Tensors used(c.constants.size());  // passes add folded ones, which the graph as captured does not have
  for (const Value& v : c.graph.values)
    if ((v.kind == ValueKind::kConstant || v.kind == ValueKind::kState) && v.index < used.size()) used[v.index] = c.constants[v.index];
  KRN_TRY(write_safetensors(folder / "inputs.safetensors", named(c.inputs), services));
  KRN_TRY(write_safetensors(folder / "constants.safetensors", named(used), services));
  return folder.string();
}

Result<ReproCase> read_repro(const std::string& folder, TensorServices& services) {
  ReproCase c;
  KRN_TRY_LET(const std::string text, read_text(folder + "/graph.ir"));
  KRN_TRY_LET(const std::string head, read_text(folder + "/case.json"));
  KRN_TRY_LET(c.graph, parse(text));
  KRN_TRY(verify(c.graph));
  for (const Op& op : c.graph.ops)
    if (op.code == OpCode::kOpaque)
      return Status(Code::k_unsupported, {"the graph calls " + op.s(AttrKey::k_aten) + ", which its text does not describe", folder,
                                          "nothing was run", "repeat it with the model itself"});
  try {
    const json j = json::parse(head);
    c.model = j.at("model"), c.plan = j.at("plan"), c.reason = j.at("reason");
    c.disabled_passes = j.at("disabled_passes").get<std::vector<std::string>>();
    c.numerics = static_cast<Numerics>(std::clamp(j.at("numerics").get<int>(), 0, 2));
    c.error_budget = j.at("error_budget");
    c.device = {j.at("device").at(0), j.at("device").at(1)};
  } catch (const json::exception& e) {
    return Status(Code::k_corrupt, {std::string("case.json cannot be read: ") + e.what(), folder, "nothing was run", {}});
  }
  KRN_TRY_LET(c.inputs, by_number(folder + "/inputs.safetensors", c.device, services));
  KRN_TRY_LET(c.constants, by_number(folder + "/constants.safetensors", c.device, services));
  return c;
}

Result<ReproFinding> reproduce(Runtime& runtime, const ReproCase& c, const Options& options, int most_tries) {
  KRN_TRY_LET(const Options complete, complete_options(options));
  Trial trial(runtime, c, complete);
  ReproFinding finding;
  KRN_TRY_LET(finding.reason, trial.run(c.graph, c.disabled_passes, false));
  if (finding.reason.empty()) return finding;
  const auto fails = [&](const Graph& graph) {
    const Result<std::string> wrong = trial.run(graph, c.disabled_passes, false);
    return wrong.ok() && !wrong->empty();
  };
  finding.smallest = shrink(c.graph, fails, most_tries);
  KRN_TRY_LET(finding.smallest_reason, trial.run(finding.smallest, c.disabled_passes, false));
  finding.blame = blame_of(trial, c, finding.smallest);
  return finding;
}

}  // namespace keirin
