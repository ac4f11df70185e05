// SPDX-License-Identifier: Apache-2.0
//
// Pass 7: linears that read one input through constant weights (Q, K and V; gate and up) become one linear over the
// concatenated weight, and slices of its result. The second copy of the weights must fit into what the context allows.
#include <algorithm>
#include <map>
#include <tuple>

#include "abi/planted.h"
#include "core/passes/pass.h"
#include "core/passes/rewriter.h"

namespace keirin {
namespace {

class Merger {
 public:
  Merger(Rewriter& r, PassContext& context) : r_(r), context_(context) {
    const Graph& old = r_.old();
    for (OpId id = 0; id < old.ops.size(); ++id) {
      const Op& op = old.ops[id];
      if (op.code != OpCode::k_linear || old.values[op.operands[1]].kind != ValueKind::kConstant) continue;
      ValueId bias = bias_of(op);
      if (bias != kNone && old.values[bias].kind != ValueKind::kConstant) continue;
      groups_[key_of(op)].push_back(id);
    }
  }

  // At the first of a group: the merged linear. At the others: nothing to do, their results are named already.
  Result<bool> operator()(OpId id) {
    const Op& op = r_.old().ops[id];
    if (op.code != OpCode::k_linear) return false;
    auto at = groups_.find(key_of(op));
    if (at == groups_.end() || at->second.size() < 2) return false;
    const std::vector<OpId>& group = at->second;
    if (group[0] != id) return r_.map(op.results[0]) != kNone;
    return merge(group);
  }

 private:
  static ValueId bias_of(const Op& op) { return op.operands.size() > 2 ? op.operands[2] : kNone; }
  // Its input, whether it has a bias, and whether its operands stay whole.
  using Key = std::tuple<ValueId, bool, bool>;
  static Key key_of(const Op& op) { return {op.operands[0], bias_of(op) != kNone, op.b(AttrKey::k_ieee)}; }

  Result<bool> merge(const std::vector<OpId>& group) {
    const Graph& old = r_.old();
    int64_t bytes = 0;
    for (OpId id : group) bytes += old.type(old.ops[id].operands[1]).bytes();
    if (bytes > context_.extra_weight_bytes) {
      context_.notes.push_back("linears not merged at " + old.ops[group[0]].origin.str() + ": a second copy of their weights needs " +
                               std::to_string(bytes) + " bytes");
      return false;
    }
    Result<std::vector<FoldedConstant>> folded = concatenate(group);
    if (!folded.ok()) {
      context_.notes.push_back("linears not merged at " + old.ops[group[0]].origin.str() + ": " + folded.status().message().what);
      return false;
    }
    context_.extra_weight_bytes -= bytes;
    ValueIds operands = {r_.map(old.ops[group[0]].operands[0])};
    for (const FoldedConstant& f : *folded) operands.push_back(r_.graph().add_constant(f.type, f.index, ValueKind::kConstant));
    operands.resize(3, kNone);
    r_.build().set_origin(joined_origin(group));
    KRN_TRY_LET(ValueId y, r_.build().emit1(OpCode::k_linear, operands, old.ops[group[0]].attrs));
    int64_t dim = r_.graph().type(y).rank() - 1, start = 0;
    for (OpId id : group) {
      int64_t end = start + old.type(old.ops[id].operands[1]).sizes[0];
      KRN_TRY_LET(ValueId part, r_.build().emit1(OpCode::k_slice, {y}, {{AttrKey::k_dim, dim}, {AttrKey::k_start, start},
                                                                        {AttrKey::k_end, end}, {AttrKey::k_step, int64_t{1}}}));
      r_.replace(old.ops[id].results[0], part);
      if (!KRN_PLANTED(merged_slice)) start = end;
    }
    return true;
  }

  // Of all nodes that it stands for, at the first one's place in the model.
  std::string joined_origin(const std::vector<OpId>& group) const {
    std::string nodes, path;
    for (OpId id : group) {
      const std::string& origin = r_.old().ops[id].origin.str();
      const size_t end = std::min(origin.find(" @ "), origin.size());
      if (nodes.empty()) path = origin.substr(end);
      nodes += (nodes.empty() ? "" : ", ") + origin.substr(0, end);
    }
    return nodes + path;
  }

  Result<std::vector<FoldedConstant>> concatenate(const std::vector<OpId>& group) {
    Graph f;
    Builder b(f);
    bool biased = bias_of(r_.old().ops[group[0]]) != kNone;
    for (size_t k = 1; k <= (biased ? 2u : 1u); ++k) {
      ValueIds parts;
      for (OpId id : group) {
        const Value& value = r_.old().values[r_.old().ops[id].operands[k]];
        parts.push_back(f.add_constant(value.type, value.index, ValueKind::kConstant));
      }
      KRN_TRY_LET(ValueId all, b.emit1(OpCode::k_cat, std::move(parts), {{AttrKey::k_dim, int64_t{0}}}));
      f.outputs.push_back({all, kNone, kNone});
    }
    return context_.evaluator->evaluate(f);
  }

  Rewriter& r_;
  PassContext& context_;
  std::map<Key, std::vector<OpId>> groups_;
};

}  // namespace

Status passes::merge_siblings(Graph& graph, PassContext& context) {
  if (!context.evaluator || context.extra_weight_bytes <= 0) return {};
  Rewriter rewriter(graph);
  Merger merger(rewriter, context);
  for (OpId id = 0; id < rewriter.old().ops.size(); ++id) {
    rewriter.begin(id);
    KRN_TRY_LET(bool done, merger(id));
    if (!done) rewriter.keep(id);
  }
  rewriter.finish();
  return {};
}

}  // namespace keirin
