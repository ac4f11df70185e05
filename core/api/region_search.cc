// SPDX-License-Identifier: Apache-2.0
#include "core/api/region_search.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <numeric>
#include <optional>

#include "core/api/region_judge.h"
#include "core/eager/rows/graph_calls.h"

namespace keirin {
namespace {

using Tensors = Deciding::Tensors;

constexpr int kTimesHalved = 3;     // of what is cut unlooked at
constexpr size_t kMostParts = 200;  // that are compiled to find what is wrong

// Which ops of one region make it wrong, or show nothing.
class Search {
  using Ops = std::vector<OpId>;

 public:
  Search(Deciding& d, const BuiltPlan& plan, const BuiltRegion& region, const Tensors& inputs, double end)
      : d_(d), plan_(plan), graph_(region.cut.graph), inputs_(inputs), end_(end) {}

  Result<Culprits> run(const std::string& whole) {
    KRN_TRY_LET(const Ops ops, compute_values());
    const Status status = narrow(ops, whole).status();
    const bool too_long = status.code() == Code::k_timeout;
    if (!status.ok() && !too_long) return status;
    return Culprits{std::move(found_), !too_long};
  }

  std::vector<Hash> cut() const {
    std::vector<Hash> out{judged_hash(graph_, d_.session)};
    std::vector<Ops> parts{all_ops()};
    for (int times = 1; times < kTimesHalved; ++times) {
      std::vector<Ops> smaller;
      for (const Ops& part : parts)
        if (part.size() > 1) std::ranges::copy(halves_of(part), std::back_inserter(smaller));
      for (const Ops& part : smaller) out.push_back(judged_hash(part_of(part).graph, d_.session));
      parts = std::move(smaller);
    }
    return out;
  }

  Result<std::vector<Hash>> too_large() {
    if (now_s() > end_) return cut();
    KRN_TRY_LET(const Ops ops, compute_values());
    std::vector<Hash> out{judged_hash(graph_, d_.session)};
    KRN_TRY(halve(ops, out));
    return out;
  }

 private:
  // Of the region, as eager computes them; its ops.
  Result<Ops> compute_values() {
    Graph all = graph_;
    all.outputs.clear();
    for (const Op& op : all.ops)
      for (ValueId v : op.results) all.outputs.push_back({v, kNone, kNone});
    KRN_TRY_LET(const Tensors results,
                evaluate(all, d_.prepared->captured.calls, inputs_, d_.prepared->constants, {d_.session.device, std::nullopt}));
    values_.resize(graph_.values.size());
    for (size_t k = 0; k < results.size(); ++k) values_[all.outputs[k].value] = results[k];
    for (ValueId v : graph_.inputs) values_[v] = inputs_.at(graph_.values[v].index);
    return all_ops();
  }

  Ops all_ops() const {
    Ops ops(graph_.ops.size());
    std::iota(ops.begin(), ops.end(), OpId{0});
    return ops;
  }
  // As a plan is cut in two that is not to have them together.
  static std::array<Ops, 2> halves_of(const Ops& ops) {
    const auto middle = ops.begin() + static_cast<ptrdiff_t>(ops.size() / 2);
    return {Ops(ops.begin(), middle), Ops(middle, ops.end())};
  }

  Tensors values_of(const RegionGraph& part, const std::vector<ValueId>& of) const {
    Tensors out;
    for (ValueId v : of) out.push_back(values_[part.values[v]]);
    return out;
  }
  Tensors eager_of(const RegionGraph& part) const {
    Tensors out;
    for (const Output& output : part.graph.outputs) out.push_back(values_[part.values[output.value]]);
    return out;
  }

  Status halve(const Ops& ops, std::vector<Hash>& out) {
    if (ops.size() < 2) return {};
    for (const Ops& half : halves_of(ops)) {
      if (now_s() > end_) return {};
      const RegionGraph part = part_of(half);
      if (part.graph.outputs.empty()) continue;
      const Tensors inputs = values_of(part, part.graph.inputs);
      Answers answers{eager_of(part), {}, eager_of(part)};
      KRN_TRY_LET(answers.referee, in_fp64(d_, part.graph, inputs));
      KRN_TRY(cut_to_written(d_, part.graph, inputs, &answers));
      KRN_TRY_LET(const PartVerdict verdict, judge_part(d_, part.graph, inputs, std::move(answers), true));
      if (verdict.decisive) continue;
      out.push_back(judged_hash(part.graph, d_.session));
      KRN_TRY(halve(half, out));
    }
    return {};
  }

  RegionGraph part_of(const Ops& ops) const {
    std::vector<uint8_t> inside(graph_.ops.size(), 0), escapes(graph_.values.size(), 0);
    for (OpId op : ops) inside[op] = 1;
    for (OpId op = 0; op < graph_.ops.size(); ++op)
      for (ValueId v : graph_.ops[op].operands)
        if (v != kNone && !inside[op]) escapes[v] = 1;
    for (const Output& output : graph_.outputs) escapes[output.value] = 1;
    return extract_region(graph_, ops, escapes, {});
  }

  // Empty: the part alone is right, or cannot be tried.
  Result<std::string> try_part(const Ops& ops) {
    if (now_s() > end_ || ++parts_ > kMostParts) return Status(Code::k_timeout, "too long");
    const RegionGraph part = part_of(ops);
    if (part.graph.outputs.empty()) return std::string();
    Result<BuiltPart> built = build_part(d_.session, *d_.prepared, *plan_.choice.device, part.graph, plan_.choice.candidate);
    if (!built.ok()) return std::string();
    const Tensors inputs = values_of(part, part.graph.inputs);
    Answers answers{eager_of(part), {}, {}};
    KRN_TRY_LET(answers.referee, in_fp64(d_, part.graph, inputs));
    Result<Tensors> ours = run_alone(d_, part.graph, built->executable, built->inputs, inputs);
    if (!ours.ok() && is_machines_fault(ours.status())) return ours.status();
    if (!ours.ok()) return std::string(ours.status().message().what);
    answers.ours = std::move(*ours);
    KRN_TRY(cut_to_written(d_, part.graph, inputs, &answers));
    KRN_TRY_LET(PartVerdict verdict, judge_part(d_, part.graph, inputs, std::move(answers), true));
    return std::move(verdict.wrong);
  }

  // `ops`, ascending, are wrong, and `why` says how. Whether one of them is wrong alone.
  Result<bool> narrow(const Ops& ops, const std::string& why) {
    if (ops.size() == 1) {
      add({judged_hash(graph_, ops[0], d_.session), name_of(graph_, ops[0]) + ": " + why, may_round(d_.session, graph_, ops[0])});
      return true;
    }
    const auto [first, second] = halves_of(ops);
    KRN_TRY_LET(const std::string first_wrong, try_part(first));
    KRN_TRY_LET(const std::string second_wrong, try_part(second));
    const size_t before = found_.size();
    bool alone = false;
    for (const auto& [half, wrong] : {std::pair(&first, &first_wrong), std::pair(&second, &second_wrong)})
      if (!wrong->empty()) {
        KRN_TRY_LET(const bool found, narrow(*half, *wrong));
        alone |= found;
      }
    if (alone) return true;
    // Wrong together, and so they are with more around them: a plan begins with the largest part.
    const size_t found = found_.size();
    for (OpId op : ops)
      if (may_round(d_.session, graph_, op)) add({judged_hash(graph_, op, d_.session), name_of(graph_, op) + " with others: " + why, true});
    if (found_.size() > found) return false;
    const std::string range =
        std::to_string(ops.size()) + " operators together, from " + name_of(graph_, ops.front()) + " to " + name_of(graph_, ops.back());
    add({judged_hash(part_of(ops).graph, d_.session), found_.size() == before ? range + ": " + why : std::string()});
    return false;
  }

  void add(Culprit culprit) {
    for (const Culprit& known : found_)
      if (known.hash == culprit.hash) return;
    found_.push_back(std::move(culprit));
  }

  Deciding& d_;
  const BuiltPlan& plan_;
  const Graph& graph_;
  const Tensors& inputs_;
  const double end_;
  std::vector<TensorRef> values_;  // by value of the region, as eager computes them
  std::vector<Culprit> found_;
  size_t parts_ = 0;
};

}  // namespace

Result<Culprits> find_wrong(Deciding& d, const BuiltPlan& plan, const BuiltRegion& region, const Tensors& inputs, const std::string& why,
                            double end) {
  return Search(d, plan, region, inputs, end).run(why);
}

Result<std::vector<Hash>> find_too_large(Deciding& d, const BuiltPlan& plan, const BuiltRegion& region, const Tensors& inputs, double end) {
  return Search(d, plan, region, inputs, end).too_large();
}

std::vector<Hash> parts_of(Deciding& d, const BuiltPlan& plan, const BuiltRegion& region, const Tensors& inputs) {
  return Search(d, plan, region, inputs, 0).cut();
}

}  // namespace keirin
