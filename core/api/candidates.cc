// SPDX-License-Identifier: Apache-2.0
#include "core/api/candidates.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <numeric>
#include <set>
#include <sstream>

#include "core/base/end_flag.h"
#include "core/cache/artifact.h"
#include "core/eager/program/library_settings.h"
#include "core/eager/rows/fold_evaluator.h"
#include "core/host/call/device.h"
#include "core/host/guard/quarantine.h"
#include "core/base/request.h"
#include "core/ir/bytes.h"
#include "core/ir/rows.h"
#include "core/ir/text.h"
#include "core/ops/builder.h"
#include "core/partition/partition.h"
#include "core/passes/pass.h"

namespace keirin {
namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void dump(const std::string& folder, const std::string& name, const std::string& text) {
  if (folder.empty()) return;
  std::ofstream(std::filesystem::path(folder) / name, std::ios::binary) << text;
}

bool kept_by(Cut cut, const Op& op) {
  if (cut == Cut::kAll) return true;
  const OpRow* row = find_row(op.code);
  return (cut == Cut::kAnchorsOnly) == (row && row->is_anchor());
}

EagerCall eager_call(std::shared_ptr<PreparedCall> call) {
  return [call = std::move(call)](std::span<const TensorRef> operands, std::vector<TensorRef>& results) {
    return call->run(operands, results);
  };
}

// Why an op is eager's in a plan: a reason code of docs/report.md, and words.
struct WhyEager {
  const char* reason;
  std::string words;
};

Result<PlanStep> eager_step(const Prepared& prepared, OpId id, const WhyEager& why, BuiltPlan& built) {
  const Op& op = prepared.graph.ops[id];
  KRN_TRY_LET(auto call, prepared.calls->prepare(prepared.graph, id, prepared.constants));
  built.constant_bytes += call->constant_bytes();
  const char* laid_out = call->constant_bytes() > 0 ? ", weight laid out once" : "";
  PlanStep step;
  step.name = op.code == OpCode::kOpaque ? op.s(AttrKey::k_aten) : std::string(op_name(op.code));
  step.eager = eager_call(std::move(call));
  step.operands.assign(op.operands.begin(), op.operands.end());
  step.results.assign(op.results.begin(), op.results.end());
  // Rows other than moves and casts compute into memory of their own; what an opaque operator does is its own affair.
  const OpRow* row = find_row(op.code);
  step.may_alias = !row || row->kind == RowKind::kOpaque || row->kind == RowKind::kMove || op.code == OpCode::k_cast;
  step.keeps_results = row && row->kind == RowKind::kFactory;
  step.origin = op.origin.str();
  step.reason = why.reason;
  step.note = why.words + (op.origin.empty() ? "" : "; " + op.origin.str()) + laid_out;
  return step;
}

PolicyOptions policy_of(const Session::Impl& session) {
  PolicyOptions policy;
  policy.numerics = static_cast<uint32_t>(session.options.numerics);
  policy.replay = session.options.mode != "default";
  const Tf32Settings tf32 = tf32_settings(session.device);
  policy.tf32_convolutions = tf32.convolutions;
  policy.tf32_products = tf32.products;
  policy.tf32_recurrent = tf32.recurrent;
  return policy;
}

constexpr const char* kNeverCompiles = "it was not compiled before, and compile is never";

// Asking is cheap, but a warm start would first have to start the compile child: what was said is kept like artifacts.
Result<ClaimResult> claims_of(Session::Impl& session, PluginDevice& device, const PluginRegion& region) {
  if (const Status status = device.allowed(region.hash); !status.ok()) {
    if (status.code() == Code::k_exhausted) session.runtime.quarantine().note_refusal();  // it rests: nothing to be kept
    return status;
  }
  const PolicyOptions policy = policy_of(session);
  const CacheKey key = claims_key(device, region.hash, policy);
  Cache* cache = session.runtime.cache();
  if (cache)
    if (auto entry = cache->read(EntryKind::kClaims, key))
      if (auto known = parse_claims(*entry); known.ok() && check_claims(region, &*known).ok()) return known;
  if (session.never_compiles()) return Status(Code::k_unsupported, kNeverCompiles);
  KRN_TRY_LET(ClaimResult claims, device.claim(region, policy));
  if (cache && !session.enters) cache->publish(EntryKind::kClaims, key, claims_text(claims));
  return claims;
}

struct Compiled {
  std::shared_ptr<Executable> executable;
  bool from_cache = false;
};

Result<Compiled> compile_region(Session::Impl& session, PluginDevice& device, const RegionBytes& bytes,
                                const std::vector<TensorRef>& weights, uint32_t candidate) {
  PluginRegion region{bytes.bytes, bytes.hash, weights};
  const PolicyOptions policy = policy_of(session);
  CompileOptions options;
  options.candidate = candidate;
  options.cancel = end_flag();
  options.tune_budget = std::chrono::nanoseconds(static_cast<int64_t>(session.options.budget_seconds * 1e9));
  const CacheKey key = artifact_key(device, bytes.hash, policy, options);
  Cache* cache = session.runtime.cache();
  if (cache)
    if (auto entry = cache->read(EntryKind::kArtifact, key))
      if (auto artifact = parse_artifact(*entry); artifact.ok())
        if (auto loaded = device.load(region, *artifact); loaded.ok()) return Compiled{std::move(*loaded), true};
  if (session.never_compiles()) return Status(Code::k_unsupported, kNeverCompiles);
  note_compile();
  std::string generated;
  const std::string folder = dump_folder(session.options);
  if (!folder.empty()) options.dump = [&](std::string_view text) { generated.append(text); };
  KRN_TRY_LET(auto executable, device.compile(region, policy, options));
  if (!generated.empty()) dump(folder, "21-" + device.plugin_name() + "-" + key.hex().substr(0, 8) + ".txt", generated);
  if (cache && !session.enters)
    if (auto artifact = device.save(*executable); artifact.ok())
      cache->publish(EntryKind::kArtifact, key, artifact_bytes(*artifact));
  return Compiled{std::move(executable), false};
}

struct CompiledPart : Compiled {
  std::vector<ValueId> inputs;  // of the graph, in the executable's order
  Hash hash{};
  bool is_candidate = true;     // the k-th way; else the best guess
};

Result<CompiledPart> compile_part(Session::Impl& session, const Prepared& prepared, PluginDevice& device, const Graph& graph,
                                  uint32_t candidate, const Executable* like = nullptr) {
  KRN_TRY_LET(const RegionBytes bytes, write_region(graph));
  std::vector<TensorRef> weights;
  for (ValueId v : bytes.weights) {
    KRN_TRY_LET(TensorRef weight, session.runtime.tensors().to_device(prepared.constants[graph.values[v].index], session.device));
    weights.push_back(std::move(weight));
  }
  if (like) {
    KRN_TRY_LET(auto executable, device.resize(*like, {bytes.bytes, bytes.hash, weights}));
    return CompiledPart{{std::move(executable), false}, bytes.inputs, bytes.hash, true};
  }
  Result<Compiled> made = compile_region(session, device, bytes, weights, candidate);
  const bool is_candidate = made.ok();
  if (candidate > 0 && !made.ok() && made.status().code() == Code::k_unsupported) made = compile_region(session, device, bytes, weights, 0);
  if (!made.ok()) return made.status();
  return CompiledPart{std::move(*made), bytes.inputs, bytes.hash, is_candidate};
}

// LibTorch may round products, but its libraries choose by the sizes whether they do: one that was judged wrong with rounded operands is
// compiled without, before it is left eager.
void keep_precision(const Session::Impl& session, Prepared& prepared, const std::set<std::string>& wrong) {
  Graph& graph = prepared.graph;
  for (OpId id = 0; id < graph.ops.size() && !wrong.empty(); ++id) {
    if (!may_round(session, graph, id) || !wrong.count(hex(judged_hash(graph, id, session)))) continue;
    graph.ops[id].set(AttrKey::k_ieee, true);
    prepared.keeps_precision = true;
    prepared.written = nullptr;
  }
}

// What a plugin answers for one region leaves the others what they are; only what ends all work ends the plan.
bool costs_one_region(const Status& status) {
  return status.code() != Code::k_device_lost && status.code() != Code::k_cancelled;
}

// A prior score of 0 is an oracle or an exercise: found and listed, raced only if named.
bool is_asked(const Session::Impl& session, const PluginDevice& device) {
  const std::vector<std::string>& wanted = session.options.plugins;
  if (!(device.torch_device() == session.device)) return false;
  return wanted.empty() ? device.desc().prior_score != 0 : std::find(wanted.begin(), wanted.end(), device.plugin_name()) != wanted.end();
}

constexpr const char* kWrongBefore = "answered wrong before; `keirin cache forgive` lets it try again";

struct CutGraph {
  Partition parts;
  std::vector<uint32_t> numbers;  // by region: its number, which it keeps where others are left out
  bool repaired = false;          // something claimed is left out because it was judged wrong
};

// The graph cut by what the plugin claims, less what it was judged wrong for: such an op stays eager, and a region that was wrong
// as a whole is halved until no part of it is known to be wrong. The refusals say so.
Result<CutGraph> cut_graph(const Session::Impl& session, const Graph& graph, const PlanChoice& choice, ClaimedOps& claimed) {
  const std::set<std::string> wrong = session.tries_known_wrong ? std::set<std::string>() : choice.device->known_wrong();
  std::vector<Claim> wanted(1);  // each a class of its own, which partition joins with no other
  bool repaired = false;
  for (const OpId op : claimed.ops) {
    if (!kept_by(choice.cut, graph.ops[op])) continue;
    if (!wrong.empty() && wrong.count(hex(judged_hash(graph, op, session)))) claimed.refusals[op] = kWrongBefore, repaired = true;
    else wanted[0].ops.push_back(op);
  }
  constexpr int kMostHalvings = 16;
  for (int halvings = 0;; ++halvings) {
    KRN_TRY_LET(Partition parts, partition(graph, wanted));
    bool changed = false;
    for (const Region& region : parts.regions) {
      const auto is_wrong = [&](const Hash& hash) { return wrong.contains(hex(hash)); };
      if (wrong.empty()) continue;
      const bool left_out = is_wrong(left_out_hash(region.cut.graph, session));
      if (!left_out && !is_wrong(judged_hash(region.cut.graph, session))) continue;
      changed = repaired = true;
      // What cannot be halved is not compiled: single ops, and what floats into whatever reads it.
      const bool halve = !left_out && region.ops.size() > 1 && halvings < kMostHalvings;
      const std::vector<OpId> out(region.ops.begin() + static_cast<ptrdiff_t>(halve ? region.ops.size() / 2 : 0), region.ops.end());
      for (Claim& claim : wanted) std::erase_if(claim.ops, [&](OpId op) { return std::binary_search(out.begin(), out.end(), op); });
      if (halve) wanted.push_back({static_cast<uint32_t>(wanted.size()), out});
      else for (const OpId op : out) claimed.refusals[op] = kWrongBefore;
    }
    if (changed) continue;
    std::vector<uint32_t> number_of(graph.ops.size(), 0);
    for (uint32_t r = 0; r < parts.regions.size(); ++r)
      for (OpId op : parts.regions[r].ops) number_of[op] = r;
    if (!choice.left_out.empty()) {
      const auto is_left = [&](OpId op) {
        return std::find(choice.left_out.begin(), choice.left_out.end(), number_of[op]) != choice.left_out.end();
      };
      for (Claim& claim : wanted) std::erase_if(claim.ops, is_left);
      KRN_TRY_LET(parts, partition(graph, wanted));
    }
    std::vector<uint32_t> numbers;
    for (const Region& region : parts.regions) numbers.push_back(number_of[region.ops.back()]);  // what floats in stands before
    return CutGraph{std::move(parts), std::move(numbers), repaired};
  }
}

using Refusals = std::map<OpId, std::string>;

ClaimedOps by_op(const ClaimResult& claims, const std::vector<OpId>& ops_of_nodes) {
  ClaimedOps out;
  for (const NodeClaim& claim : claims.claims)
    for (const uint32_t node : claim.nodes) out.ops.push_back(ops_of_nodes[node]);
  for (const NodeRefusal& refusal : claims.refusals)
    if (refusal.node < ops_of_nodes.size()) out.refusals[ops_of_nodes[refusal.node]] = refusal.why;
  return out;
}

WhyEager why_eager(const Prepared& prepared, OpId id, const Refusals& said) {
  const Op& op = prepared.graph.ops[id];
  if (op.code == OpCode::kOpaque)
    return {"opaque", op.call < prepared.captured.whys.size() ? prepared.captured.whys[op.call] : "not in the operator table"};
  const auto refusal = said.find(id);
  if (refusal == said.end()) return {"left_out", "not among the operators that this plan compiles"};
  return {refusal->second == kWrongBefore ? "known_wrong" : "refused", refusal->second};
}

// Why nodes stay eager, counted.
std::vector<std::string> count_refusals(const Prepared& prepared, const std::vector<uint8_t>& compiled, const Refusals& said) {
  const Graph& graph = prepared.graph;
  std::map<std::string, int> counts;
  for (OpId id = 0; id < graph.ops.size(); ++id) {
    if (compiled[id]) continue;
    const Op& op = graph.ops[id];
    std::string name = op.code == OpCode::kOpaque ? op.s(AttrKey::k_aten) : std::string(op_name(op.code));
    ++counts[name + ": " + why_eager(prepared, id, said).words];
  }
  std::vector<std::pair<int, std::string>> sorted;
  for (const auto& [text, count] : counts) sorted.emplace_back(count, text);
  std::sort(sorted.rbegin(), sorted.rend());
  std::vector<std::string> out;
  for (const auto& [count, text] : sorted) out.push_back(std::to_string(count) + " x " + text);
  return out;
}

// The order of the axes in which such strides are row-major; empty where there is none: elements that overlap, or gaps.
Dims row_major_order(const Dims& sizes, const Dims& strides) {
  Dims order(sizes.size());
  std::iota(order.begin(), order.end(), int64_t{0});
  std::ranges::stable_sort(order, std::greater(), [&](int64_t d) { return strides[static_cast<size_t>(d)]; });
  Dims ordered_sizes, ordered_strides;
  for (const int64_t d : order) {
    ordered_sizes.push_back(sizes[static_cast<size_t>(d)]);
    ordered_strides.push_back(strides[static_cast<size_t>(d)]);
  }
  return ordered_strides == contiguous_strides(ordered_sizes) ? order : Dims();
}

// The same elements in memory as these strides have them.
Result<ValueId> laid_out(Builder& build, ValueId v, const Type& type, const Dims& strides) {
  const auto relaid = [&](ValueId from, const char* encoding) {
    return build.emit1(OpCode::k_relayout, {from}, {{AttrKey::k_encoding, std::string(encoding)}});
  };
  if (strides == contiguous_strides(type.sizes)) return relaid(v, "contiguous");
  if ((type.rank() == 4 || type.rank() == 5) && strides == channels_last_strides(type.sizes)) return relaid(v, "channels_last");
  const Dims order = row_major_order(type.sizes, strides);
  if (order.empty()) return v;
  Dims back(order.size());
  for (size_t i = 0; i < order.size(); ++i) back[static_cast<size_t>(order[i])] = static_cast<int64_t>(i);
  KRN_TRY_LET(ValueId out, build.permute(v, order));
  KRN_TRY_LET(out, relaid(out, "contiguous"));
  return build.permute(out, back);
}

// Memory formats are not part of a Graph's ops, but the caller sees the strides of outputs: where eager's are dense and ours are others,
// the output is laid out again.
Status conform_outputs(Graph& graph, const std::vector<TensorSpec>& eager_outputs) {
  Builder build(graph);
  for (size_t k = 0; k < graph.outputs.size() && k < eager_outputs.size(); ++k) {
    Output& output = graph.outputs[k];
    const TensorSpec& eager = eager_outputs[k];
    if (output.updates != kNone || output.alias_of != kNone || eager.dtype == DType::kNone) continue;
    const Type type = graph.type(output.value);
    if (static_cast<int64_t>(eager.strides.size()) != type.rank() || eager.strides == type.strides) continue;
    KRN_TRY_LET(output.value, laid_out(build, output.value, type, eager.strides));
  }
  return {};
}

}  // namespace

const char* cut_name(Cut cut) {
  switch (cut) {
    case Cut::kAll: return "all";
    case Cut::kNoAnchors: return "no_anchors";
    case Cut::kAnchorsOnly: return "anchors_only";
  }
  return "all";
}

std::vector<std::string> BuiltPlan::hashes() const {
  std::vector<std::string> out;
  for (const BuiltRegion& region : regions) out.push_back(hex(region.hash));
  return out;
}

std::string why_no_plugin(Session::Impl& session) {
  PluginHost& host = session.runtime.plugins();
  const std::vector<PluginDevice*> devices = host.devices();
  if (std::any_of(devices.begin(), devices.end(), [&](PluginDevice* device) { return is_asked(session, *device); })) return {};
  std::string found;
  for (const PluginReport& report : host.reports()) {
    const std::string name = report.name.empty() ? report.path : report.name;
    std::string why = report.used ? "has no such device" : report.reason;
    for (PluginDevice* device : devices)
      if (device->plugin_name() == report.name && device->torch_device() == session.device)
        why = "was not asked for by name (--only-plugin)";
    found += (found.empty() ? "" : "; ") + name + " " + why + (report.used || report.advice.empty() ? "" : " (" + report.advice + ")");
  }
  if (found.empty())
    return "no plugin was found for " + device_name(session.device) +
           ": set KEIRIN_PLUGIN_PATH or give the folder of Keirin's plugins; `keirin plugins --why` says where it looks";
  return "no plugin compiles for " + device_name(session.device) + ": " + found;
}

std::string PlanChoice::name() const {
  std::string text = device->plugin_name() + "/" + cut_name(cut) + (candidate ? "/" + std::to_string(candidate) : "");
  for (uint32_t number : left_out) text += "-r" + std::to_string(number);
  return text;
}

std::optional<PlanChoice> find_choice(Session::Impl& session, const std::string& name) {
  for (PluginDevice* device : session.runtime.plugins().devices()) {
    if (!(device->torch_device() == session.device)) continue;
    for (Cut cut : {Cut::kAll, Cut::kNoAnchors, Cut::kAnchorsOnly})
      for (uint32_t k : {0u, 1u}) {
        PlanChoice choice{device, cut, k, {}};
        const std::string whole = choice.name();
        if (name == whole) return choice;
        if (name.rfind(whole + "-r", 0) != 0) continue;
        std::istringstream numbers(name.substr(whole.size()));
        std::string number;
        while (std::getline(numbers, number, 'r') && std::getline(numbers, number, '-') && number.size() < 9 && !number.empty() &&
               number.find_first_not_of("0123456789") == std::string::npos)
          choice.left_out.push_back(static_cast<uint32_t>(std::stoul(number)));
        if (choice.name() == name) return choice;
      }
  }
  return {};
}

std::string dump_folder(const Options& options) {
  if (options.dump_dir.empty()) return {};
  std::error_code error;
  std::filesystem::create_directories(options.dump_dir, error);
  return error ? std::string() : options.dump_dir;
}

Prepared with_weights(Captured captured, const WeightTable& weights, Device device) {
  Prepared prepared;
  prepared.captured = std::move(captured);
  prepared.graph = prepared.captured.graph;
  for (size_t i = 0; i < weights.size(); ++i) prepared.constants.push_back(weights[i].tensor);
  prepared.calls = std::make_unique<GraphCalls>(prepared.captured.calls, CallOptions{device, std::nullopt});
  return prepared;
}

Result<Prepared> capture(Session::Impl& session, const std::vector<TensorSpec>& inputs, const ObservedRun* seen, SeenAt seen_at) {
  auto start = std::chrono::steady_clock::now();
  KRN_TRY_LET(Captured captured, import_graph(session.model->program, session.weights, inputs, session.device, seen, seen_at));
  for (Value& value : captured.graph.values)
    if (value.kind == ValueKind::kConstant &&
        std::count(session.written_elsewhere.begin(), session.written_elsewhere.end(), size_t{value.index}) > 0)
      value.kind = ValueKind::kState;
  Prepared prepared = with_weights(std::move(captured), session.weights, session.device);
  prepared.stage_seconds.emplace_back("capture", seconds_since(start));
  dump(dump_folder(session.options), "00-captured.ir", print(prepared.graph));
  return prepared;
}

Status optimise(Session::Impl& session, Prepared& prepared, const std::vector<TensorSpec>& eager_outputs, FoldedConstants& folded,
                bool at_once) {
  const std::string folder = dump_folder(session.options);
  KRN_TRY(conform_outputs(prepared.graph, eager_outputs));
  FoldEvaluator evaluator(prepared.constants, session.runtime.tensors(), session.device, &folded);
  PassContext context;
  context.numerics = session.options.numerics;
  context.evaluator = &evaluator;
  context.channels_last = true;  // what matrix units want, and vector units bear
  context.relays_weights = session.device.kind != Device::kCpu;  // those of processors lay out what they want by themselves
  context.short_run_bytes = session.device.kind != Device::kCpu ? 32 : 0;  // a sector of a GPU's memory
  context.disabled = session.options.disabled_passes;
  context.dump_dir = folder;
  context.check_each = !at_once;
  int64_t weight_bytes = 0;
  for (const Value& value : prepared.graph.values)
    if (value.kind == ValueKind::kConstant) weight_bytes += value.type.bytes();
  context.extra_weight_bytes = static_cast<int64_t>(session.options.memory_limit * static_cast<double>(weight_bytes));
  auto start = std::chrono::steady_clock::now();
  KRN_TRY(run_passes(prepared.graph, context));
  prepared.folded = evaluator.origins();
  prepared.own_constant_bytes = evaluator.computed_bytes();
  prepared.stage_seconds.emplace_back("passes", seconds_since(start));
  return {};
}

Result<std::shared_ptr<const RegionBytes>> written_graph(Prepared& prepared) {
  if (!prepared.written) {
    KRN_TRY_LET(RegionBytes bytes, write_region(prepared.graph));
    prepared.written = std::make_shared<const RegionBytes>(std::move(bytes));
  }
  return prepared.written;
}

Result<BuiltPart> build_part(Session::Impl& session, const Prepared& prepared, PluginDevice& device, const Graph& graph,
                             uint32_t candidate) {
  KRN_TRY_LET(CompiledPart part, compile_part(session, prepared, device, graph, candidate));
  return BuiltPart{std::move(part.executable), std::move(part.inputs)};
}

Hash judged_hash(const Graph& region, const Session::Impl& session) {
  const auto bytes = write_region(region);
  if (!bytes.ok()) return {};  // equal to no region's
  Sha256 hash;
  hash.update(bytes->hash.data(), bytes->hash.size());
  const PolicyOptions policy = policy_of(session);
  const std::string rule = std::to_string(policy.numerics) + " " + std::to_string(session.options.error_budget) +
                           (policy.tf32_convolutions ? " c" : "") + (policy.tf32_products ? " p" : "") +
                           (policy.tf32_recurrent ? " r" : "");
  hash.update(rule.data(), rule.size());
  return hash.finish();
}

Hash left_out_hash(const Graph& region, const Session::Impl& session) {
  const std::string rule = "left out " + hex(judged_hash(region, session));
  return sha256(rule.data(), rule.size());
}

Hash judged_hash(const Graph& graph, OpId op, const Session::Impl& session) {
  std::vector<uint8_t> escapes(graph.values.size(), 0);
  for (ValueId v : graph.ops[op].results) escapes[v] = 1;
  return judged_hash(extract_region(graph, {op}, escapes, {}).graph, session);
}

bool may_round(const Session::Impl& session, const Graph& graph, OpId id) {
  const Op& op = graph.ops[id];
  const bool conv = op.code == OpCode::k_conv || op.code == OpCode::k_conv_grad_weight;
  const bool recurrent = op.code == OpCode::k_lstm || op.code == OpCode::k_gru;
  const bool product = op.code == OpCode::k_linear || op.code == OpCode::k_matmul || op.code == OpCode::k_grouped_matmul;
  if (!conv && !recurrent && !product) return false;
  if (op.b(AttrKey::k_ieee) || graph.type(op.operands[0]).dtype != DType::k_f32) return false;
  const PolicyOptions policy = policy_of(session);
  return policy.numerics == KRN_NUMERICS_FAST || (conv        ? policy.tf32_convolutions
                                                  : recurrent ? policy.tf32_recurrent
                                                              : policy.tf32_products);
}

namespace {

Result<ClaimedOps> claimed_ops(Session::Impl& session, Prepared& prepared, PluginDevice& device) {
  KRN_TRY_LET(const std::shared_ptr<const RegionBytes> written, written_graph(prepared));
  KRN_TRY_LET(const ClaimResult claims, claims_of(session, device, {written->bytes, written->hash, {}}));
  return by_op(claims, written->nodes);
}

}  // namespace

Result<BuiltPlan> build_plan(Session::Impl& session, Prepared& prepared, const PlanChoice& choice, const SizePattern* like) {
  PluginDevice& device = *choice.device;
  const uint32_t candidate = choice.candidate;
  auto start = std::chrono::steady_clock::now();
  BuiltPlan built;
  built.plugin = device.plugin_name();
  built.name = choice.name();
  built.choice = choice;
  built.num_known_wrong = device.known_wrong().size();
  if (!session.tries_known_wrong) keep_precision(session, prepared, device.known_wrong());

  if (like) {
    built.claimed = like->claimed;
  } else {
    KRN_TRY_LET(built.claimed, claimed_ops(session, prepared, device));
  }
  KRN_TRY_LET(const CutGraph cut, cut_graph(session, prepared.graph, choice, built.claimed));
  built.repaired = cut.repaired || prepared.keeps_precision;
  const Partition& parts = cut.parts;
  const Refusals& said = built.claimed.refusals;
  if (like && parts.regions.size() != like->executables.size())
    return Status(Code::k_unsupported, "the graph is cut otherwise at this size");
  if (parts.regions.empty())
    return Status(Code::k_unsupported, device.plugin_name() + " takes no operators of this model that are worth compiling");

  built.from_cache = true;
  std::vector<uint8_t> compiled(prepared.graph.ops.size(), 0);
  Status failure;  // of the last region that was lost
  bool other_way = false;  // a region has this candidate
  std::vector<PlanStep> steps;
  for (const Step& each : parts.steps) {
    if (each.kind == Step::kEager) {
      KRN_TRY_LET(PlanStep step, eager_step(prepared, each.index, why_eager(prepared, each.index, said), built));
      steps.push_back(std::move(step));
      continue;
    }
    const Region& region = parts.regions[each.index];
    const Executable* const resized = like ? like->executables[built.regions.size()].get() : nullptr;
    Result<CompiledPart> made = compile_part(session, prepared, device, region.cut.graph, candidate, resized);
    if (like && !made.ok()) return made.status();
    other_way |= made.ok() && made->is_candidate;
    if (!made.ok() && costs_one_region(made.status())) {
      failure = made.status();
      built.lost.push_back("r" + std::to_string(cut.numbers[each.index]) + ": " + failure.message().what);
      for (OpId op : region.ops) {
        KRN_TRY_LET(PlanStep step, eager_step(prepared, op, {"compile_failed", failure.message().what}, built));
        steps.push_back(std::move(step));
      }
      continue;
    }
    KRN_TRY_LET(CompiledPart code, std::move(made));
    built.from_cache &= code.from_cache;
    const ExecutableInfo& info = code.executable->info();
    built.kernels_generated += info.num_codegen;
    built.constant_bytes += static_cast<int64_t>(info.constant_bytes);
    for (OpId op : region.ops) compiled[op] = 1;
    PlanStep step;
    step.name = "r" + std::to_string(cut.numbers[each.index]);
    step.executable = std::move(code.executable);
    for (ValueId v : code.inputs) step.operands.push_back(region.cut.values[v]);
    for (const Output& output : region.cut.graph.outputs) {
      step.results.push_back(region.cut.values[output.value]);
      step.targets.push_back(output.updates == kNone ? kNone : region.cut.values[output.updates]);
    }
    step.num_ops = static_cast<int>(region.ops.size());
    step.launches = static_cast<int>(info.num_kernels + info.num_anchors);
    step.note = std::to_string(info.num_kernels) + " kernels, " + std::to_string(info.num_anchors) + " library calls" +
                (info.in_worker ? ", in the worker" : "");
    built.regions.push_back({steps.size(), cut.numbers[each.index], region.cut, std::move(code.inputs), code.hash});
    steps.push_back(std::move(step));
  }
  built.nodes_compiled = static_cast<int>(std::count(compiled.begin(), compiled.end(), 1));
  if (built.nodes_compiled == 0) return failure;
  if (!other_way) return Status(Code::k_unsupported, "no region has another way of compiling");
  built.refusals = count_refusals(prepared, compiled, said);
  KRN_TRY_LET(built.plan, Plan::make(prepared.graph, std::move(steps), prepared.constants, session.runtime.tensors(), session.device));
  built.seconds = seconds_since(start);
  return built;
}

void build_plans(Session::Impl& session, Prepared& prepared, const std::function<void(Result<BuiltPlan>, const std::string&)>& take) {
  for (PluginDevice* device : session.runtime.plugins().devices()) {
    if (!is_asked(session, *device)) continue;
    int largest = 0;
    for (Cut cut : {Cut::kAll, Cut::kNoAnchors, Cut::kAnchorsOnly}) {
      Result<BuiltPlan> built = build_plan(session, prepared, {device, cut, 0, {}});
      if (cut == Cut::kAll) largest = built.ok() ? built->nodes_compiled : 0;
      else if (!built.ok() || built->nodes_compiled == largest) continue;  // nothing of that kind, or the same plan again
      const bool repeats = !built.ok() && built.status().code() != Code::k_unsupported && built.status().code() != Code::k_internal;
      take(std::move(built), PlanChoice{device, cut, 0, {}}.name());
      if (repeats || is_to_end()) break;  // smaller cuts would crash or hang the compiler once more
    }
    if (largest == 0) continue;
    // Another way of compiling the largest cut: packed or plain weights.
    Result<BuiltPlan> second = build_plan(session, prepared, {device, Cut::kAll, 1, {}});
    if (second.ok()) take(std::move(second), PlanChoice{device, Cut::kAll, 1, {}}.name());
  }
}

int compile_other_structures(Session::Impl& session, const std::vector<TensorSpec>& specs) {
  int generated = 0;
  for (const std::vector<TensorSpec>& other : session.other_structures(specs)) {
    if (is_to_end()) break;
    // What cannot be compiled now will say so when its time comes.
    Result<Prepared> prepared = capture(session, other, nullptr);
    if (!prepared.ok() || !optimise(session, *prepared, {}, session.folded).ok()) continue;
    build_plans(session, *prepared, [&](Result<BuiltPlan> built, const std::string&) {
      if (built.ok()) generated += static_cast<int>(built->kernels_generated);
    });
  }
  return generated;
}

}  // namespace keirin
