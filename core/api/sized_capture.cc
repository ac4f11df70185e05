// SPDX-License-Identifier: Apache-2.0
#include "core/api/sized_capture.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <set>
#include <span>
#include <string>
#include <utility>

#include "core/eager/rows/graph_calls.h"

namespace keirin {
namespace {

constexpr size_t kMostLearned = 24;     // sizes; two decide what a number follows, the others have to agree
constexpr size_t kMostRehearsed = 256;  // half a second of a thread's time or so
constexpr size_t kLeastDrawn = 8;       // of more than these
constexpr size_t kMostBoxes = 8;        // parts of a box, each with a structure of its own
constexpr int kTries = 16;              // draws for each
constexpr uint32_t kSeed = 7;

// The free sizes of a kind that vary by themselves, as sizes of the box allow: the others are 1 or equal to one of these.
struct Variable {
  std::vector<size_t> of;  // positions in Sizes
  int64_t least = 2, most = INT64_MAX;
};

std::vector<Variable> variables_of(const SizeBox& box, const Sizes& kind) {
  std::vector<Variable> out;
  for (size_t i = 0; i < kind.size(); ++i) {
    if (kind[i] < 0) continue;
    auto at = std::ranges::find_if(out, [&](const Variable& v) { return static_cast<int64_t>(v.of[0]) == kind[i]; });
    if (at == out.end()) at = out.insert(at, Variable{});
    at->of.push_back(i);
    at->least = std::max(at->least, box.least[i]);
    at->most = std::min(at->most, box.most[i]);
  }
  return out;
}

// Where two differ in more than numbers and constants, in words; empty: nowhere.
std::string difference(const Prepared& a, const Prepared& b) {
  if (const std::string where = SizedGraph::difference(a.graph, b.graph); !where.empty()) return where;
  if (a.folded.size() != b.folded.size()) return "in the number of its constants";
  for (size_t i = 0; i < a.folded.size(); ++i) {
    if (a.folded[i].how == b.folded[i].how) continue;
    if (!a.folded[i].by || !b.folded[i].by) return "in the numbers of a constant";
    const std::string where = SizedGraph::difference(*a.folded[i].by, *b.folded[i].by);
    if (!where.empty()) return "in a constant, " + where;
  }
  return {};
}

// Sizes by the structure that they have, as a number.
struct Labelled {
  Sizes sizes;
  size_t label = 0;
};

// How mixed their structures are (Gini's impurity, times their number): 0 where there is one.
double impurity(std::span<const Labelled> all) {
  std::map<size_t, double> counts;
  for (const Labelled& each : all) ++counts[each.label];
  if (counts.size() < 2) return 0;
  const auto number = static_cast<double>(all.size());
  double out = number;
  for (const auto& [label, count] : counts) out -= count * count / number;
  return out;
}

// Cuts the box where that parts the structures best, until each piece has one.
void cut(SizeBox box, std::span<Labelled> all, size_t most, std::vector<SizeBox>& pieces) {
  const double mixed = impurity(all);
  if (mixed == 0) return pieces.push_back(std::move(box));
  if (most < 2) return;
  double best = mixed;
  size_t dim = 0, at = 0;
  const auto sort_by = [&](size_t d) { std::ranges::stable_sort(all, {}, [d](const Labelled& each) { return each.sizes[d]; }); };
  for (size_t d = 0; d < box.least.size(); ++d) {
    sort_by(d);
    for (size_t k = 1; k < all.size(); ++k) {
      if (all[k - 1].sizes[d] == all[k].sizes[d]) continue;
      const double left = impurity(all.first(k)) + impurity(all.subspan(k));
      if (left < best) best = left, dim = d, at = k;
    }
  }
  if (at == 0) return;
  sort_by(dim);
  SizeBox low = box, high = std::move(box);
  low.most[dim] = all[at - 1].sizes[dim];  // nothing is known of what lies between
  high.least[dim] = all[at].sizes[dim];
  cut(std::move(low), all.first(at), most / 2, pieces);
  cut(std::move(high), all.subspan(at), most / 2, pieces);
}

// Up to `many` of the box's sizes of this kind, its corners among them; all of them if there are not more. Empty if fewer than kLeastDrawn
// were found although there are more than `many`.
std::vector<Sizes> some_sizes(const SizeBox& box, const Sizes& kind, size_t many) {
  const std::vector<Variable> variables = variables_of(box, kind);
  std::set<Sizes> out;
  // `value` of each variable, by its number; kept where the kind is this one.
  const auto add = [&](auto&& value) {
    Sizes sizes(kind.size(), 1);
    for (size_t v = 0; v < variables.size(); ++v) {
      const int64_t each = value(v);
      for (const size_t i : variables[v].of) sizes[i] = each;
    }
    if (kind_of(sizes) == kind && box.holds(sizes)) out.insert(std::move(sizes));
  };
  double all = 1;
  for (const Variable& v : variables) all *= static_cast<double>(std::max<int64_t>(0, v.most - v.least + 1));
  if (all <= static_cast<double>(many)) {
    for (int64_t number = 0; number < static_cast<int64_t>(all); ++number)
      add([&, rest = number](size_t v) mutable {
        const int64_t values = variables[v].most - variables[v].least + 1, at = rest % values;
        rest /= values;
        return variables[v].least + at;
      });
    return {out.begin(), out.end()};
  }
  std::mt19937 random(kSeed);
  if (variables.size() <= 3)
    for (size_t corner = 0; corner < size_t{1} << variables.size(); ++corner)
      add([&](size_t v) { return corner >> v & 1 ? variables[v].most : variables[v].least; });
  for (size_t tries = 0; tries < kTries * many && out.size() < many; ++tries)
    add([&](size_t v) {  // half of them as sizes are met, small ones more often
      const auto least = static_cast<double>(variables[v].least), most = static_cast<double>(variables[v].most);
      const double at = std::generate_canonical<double, 32>(random);
      return static_cast<int64_t>(tries % 2 == 0 ? least + at * (most + 1 - least) : least * std::pow((most + 1) / least, at));
    });
  if (out.size() < kLeastDrawn) return {};
  return {out.begin(), out.end()};
}

}  // namespace

std::vector<Sizes> SizedCapture::sizes_to_learn(const SizeBox& box, const Sizes& kind) {
  return some_sizes(box, kind, kMostLearned);
}

std::vector<Sizes> SizedCapture::sizes_to_rehearse() const { return some_sizes(box_, kind_, kMostRehearsed); }

std::vector<SizeBox> SizedCapture::pieces_of(const SizeBox& box, const std::vector<Sizes>& sizes,
                                             const std::vector<const Prepared*>& prepared) {
  std::vector<const Prepared*> structures;
  std::vector<Labelled> all;
  for (size_t k = 0; k < sizes.size(); ++k) {
    const auto like = std::ranges::find_if(structures, [&](const Prepared* each) { return difference(*each, *prepared[k]).empty(); });
    all.push_back({sizes[k], static_cast<size_t>(like - structures.begin())});
    if (like == structures.end()) structures.push_back(prepared[k]);
  }
  std::vector<SizeBox> pieces;
  if (!all.empty()) cut(box, all, kMostBoxes, pieces);
  return pieces;
}

Result<SizedCapture> SizedCapture::of(SizeBox box, const std::vector<Sizes>& sizes, const std::vector<const Prepared*>& prepared,
                                      size_t num_weights) {
  const auto unsupported = [](std::string why) { return Status(Code::k_unsupported, std::move(why)); };
  if (sizes.empty() || sizes.size() != prepared.size()) return unsupported("no graphs to learn of");
  const std::vector<Sizes> needed = sizes_to_learn(box, kind_of(sizes[0]));
  const auto lacks = [&](const Sizes& each) { return std::ranges::find(sizes, each) == sizes.end(); };
  if (needed.empty() || std::ranges::any_of(needed, lacks)) return unsupported("too few sizes of its kind were looked at");
  for (const Prepared* each : prepared)
    if (const std::string where = difference(*prepared[0], *each); !where.empty())
      return unsupported("the graph has another structure at other sizes: " + where);
  std::vector<const Graph*> graphs;
  for (const Prepared* each : prepared) {
    graphs.push_back(&each->graph);
    if (std::ranges::any_of(each->graph.ops, [](const Op& op) { return op.code == OpCode::kOpaque; }))
      return unsupported("it has operators that are called as the file has them");
  }
  SizedCapture out;
  out.box_ = std::move(box);
  out.kind_ = kind_of(sizes[0]);
  KRN_TRY_LET(out.graph_, SizedGraph::of(sizes, graphs));
  for (size_t i = 0; i < prepared[0]->folded.size(); ++i) {
    const FoldEvaluator::Origin& first = prepared[0]->folded[i];
    const auto each = [&](const auto& holds) {
      return std::ranges::all_of(prepared, [&](const Prepared* p) { return holds(p->folded[i]); });
    };
    Constant constant;
    if (each([&](const FoldEvaluator::Origin& origin) { return origin.how == first.how; })) {
      constant.shared = prepared[0]->constants[num_weights + i];
      constant.origin = first;
    } else {
      if (!each([](const FoldEvaluator::Origin& origin) { return origin.by != nullptr; }))
        return unsupported("numbers that sizes decide are in one of its constants");
      std::vector<const Graph*> by;
      for (const Prepared* p : prepared) by.push_back(p->folded[i].by.get());
      KRN_TRY_LET(SizedGraph computed, SizedGraph::of(sizes, by));
      constant.by = std::move(computed);
    }
    out.constants_.push_back(std::move(constant));
  }
  return out;
}

Result<Prepared> SizedCapture::at(const Sizes& sizes, const WeightTable& weights, TensorServices& services, Device device,
                                  FoldedConstants& folded) const {
  Prepared out = with_weights({}, weights, device);
  KRN_TRY_LET(out.graph, graph_.at(sizes));
  const size_t num_weights = out.constants.size();
  FoldEvaluator evaluator(out.constants, services, device, &folded);
  std::vector<Type> types;
  for (const Constant& constant : constants_) {
    if (constant.shared) {
      types.push_back(evaluator.take(constant.shared, constant.origin).type);
      continue;
    }
    KRN_TRY_LET(const Graph by, constant.by->at(sizes));
    KRN_TRY_LET(const std::vector<FoldedConstant> computed, evaluator.evaluate(by));
    types.push_back(computed.at(0).type);
  }
  for (const Value& value : out.graph.values)
    if (value.kind == ValueKind::kConstant && value.index >= num_weights && !(value.type == types[value.index - num_weights]))
      return Status(Code::k_unsupported, "a constant is laid out otherwise at these sizes");
  out.folded = evaluator.origins();
  out.own_constant_bytes = evaluator.computed_bytes();
  return out;
}

}  // namespace keirin
