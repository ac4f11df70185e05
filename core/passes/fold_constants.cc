// SPDX-License-Identifier: Apache-2.0
//
// Pass 4: computes at load what depends on constants alone, and folds batch norm into the convolution before it (16-bit ones keep
// their weights and get a scale and a shift). What the model's table of constants gains is at most twice what it is made from;
// views of constants cost nothing and stay views, but for reshapes of what is computed here.
#include <algorithm>
#include <cmath>
#include <unordered_set>

#include "abi/planted.h"
#include "core/ir/rows.h"
#include "core/passes/pass.h"
#include "core/passes/rewriter.h"

namespace keirin {
namespace {

ValueId add_folded(Graph& graph, const FoldedConstant& folded) {
  return graph.add_constant(folded.type, folded.index, ValueKind::kConstant);
}

// y = (conv(x, w, b) - mean) * g / sqrt(var + eps) + beta, in f64: w' = w * s, b' = (b - mean) * s + beta.
class BatchNormFolder {
 public:
  BatchNormFolder(Rewriter& r, PassContext& context) : r_(r), context_(context) {}

  Result<bool> operator()(OpId id) {
    const Op& norm = r_.old().ops[id];
    if (norm.code != OpCode::k_batch_norm || r_.old_uses(norm.operands[0]) != 1) return false;
    ValueId x = r_.map(norm.operands[0]);
    const Graph& g = r_.graph();
    if (g.values[x].producer == kNone || g.ops[g.values[x].producer].code != OpCode::k_conv) return false;
    const Op conv = g.ops[g.values[x].producer];
    ValueIds params = r_.operands(norm);
    params.erase(params.begin());
    ValueId bias = conv.operands.size() > 2 ? conv.operands[2] : kNone;
    if (!folds(conv, bias, params)) return false;
    const DType dtype = g.type(conv.operands[1]).dtype;
    const bool wide = dtype == DType::k_f32 || dtype == DType::k_f64;
    Result<std::vector<FoldedConstant>> folded = compute(conv, bias, params, norm.d(AttrKey::k_eps));
    if (!folded.ok()) {
      context_.notes.push_back("batch norm not folded at " + norm.origin.str() + ": " + folded.status().message().what);
      return false;
    }
    ValueId w = add_folded(r_.graph(), (*folded)[0]), b = add_folded(r_.graph(), (*folded)[1]);
    if (!wide) return scale_and_shift(norm, x, w, b);
    r_.build().set_origin(conv.origin);  // it is the convolution still
    KRN_TRY_LET(ValueId y, r_.build().emit1(OpCode::k_conv, {conv.operands[0], w, b}, conv.attrs));
    r_.replace(norm.results[0], y);
    return true;
  }

 private:
  // 16-bit weights would be rounded after the scale (errors of 0.1 were seen): there batch norm becomes a scale and a shift of
  // the result, in f32, which libraries take as an epilogue.
  Result<bool> scale_and_shift(const Op& norm, ValueId x, ValueId scale, ValueId shift) {
    const DType dtype = r_.graph().type(x).dtype;
    const Dims sizes = r_.graph().type(x).sizes;
    Builder& build = r_.build();
    KRN_TRY_LET(ValueId y, build.cast(x, DType::k_f32));
    KRN_TRY_LET(scale, build.expand_to(scale, sizes));
    KRN_TRY_LET(y, build.emit1(OpCode::k_mul, {y, scale}));
    KRN_TRY_LET(shift, build.expand_to(shift, sizes));
    KRN_TRY_LET(y, build.emit1(OpCode::k_add, {y, shift}));
    KRN_TRY_LET(y, build.cast(y, dtype));
    r_.replace(norm.results[0], y);
    return true;
  }

  bool folds(const Op& conv, ValueId bias, const ValueIds& params) const {
    const Graph& g = r_.graph();
    bool axis_known = !conv.b(AttrKey::k_transposed) || conv.i(AttrKey::k_groups) == 1;
    auto constant = [&](ValueId v) { return v == kNone || g.values[v].kind == ValueKind::kConstant; };
    return axis_known && constant(conv.operands[1]) && constant(bias) && std::all_of(params.begin(), params.end(), constant);
  }

  // Weight and bias of the convolution that does both; where its weight stays (16 bits), scale and shift of its result.
  Result<std::vector<FoldedConstant>> compute(const Op& conv, ValueId bias, const ValueIds& params, double eps) {
    const Graph& g = r_.graph();
    Evaluator& evaluator = *context_.evaluator;
    auto values = [&](ValueId v, double absent) -> Result<std::vector<double>> {
      if (v == kNone) return std::vector<double>(static_cast<size_t>(g.type(params[3]).num_elements()), absent);
      return evaluator.read(g.values[v].index);
    };
    const Type& weight = g.type(conv.operands[1]);
    const bool folds_weight = weight.dtype == DType::k_f32 || weight.dtype == DType::k_f64;
    KRN_TRY_LET(std::vector<double> scale, values(params[0], 1));
    KRN_TRY_LET(std::vector<double> offset, values(params[1], 0));
    KRN_TRY_LET(const std::vector<double> mean, values(params[2], 0));
    KRN_TRY_LET(const std::vector<double> variance, values(params[3], 0));
    KRN_TRY_LET(const std::vector<double> old, values(folds_weight ? bias : kNone, 0));  // else the convolution keeps its bias
    for (size_t c = 0; c < scale.size(); ++c) {
      scale[c] /= std::sqrt(variance[c] + (KRN_PLANTED(folded_eps) ? -eps : eps));
      offset[c] += (old[c] - mean[c]) * scale[c];
    }
    std::vector<FoldedConstant> folded(2);
    if (folds_weight) {
      KRN_TRY_LET(folded[0], evaluator.scale(g.values[conv.operands[1]].index, weight, conv.b(AttrKey::k_transposed) ? 1 : 0, scale));
      KRN_TRY_LET(folded[1], evaluator.store(offset, weight.dtype, {static_cast<int64_t>(offset.size())}));
      return folded;
    }
    Dims per_channel(weight.sizes.size() - 1, 1);
    per_channel[0] = static_cast<int64_t>(scale.size());
    KRN_TRY_LET(folded[0], evaluator.store(scale, DType::k_f32, per_channel));
    KRN_TRY_LET(folded[1], evaluator.store(offset, DType::k_f32, per_channel));
    return folded;
  }

  Rewriter& r_;
  PassContext& context_;
};

Status fold_batch_norms(Graph& graph, PassContext& context) {
  if (context.numerics == Numerics::kStrict) return {};
  Rewriter r(graph);
  BatchNormFolder folder(r, context);
  for (OpId id = 0; id < r.old().ops.size(); ++id) {
    r.begin(id);
    KRN_TRY_LET(bool done, folder(id));
    if (!done) r.keep(id);
  }
  r.finish();
  return {};
}

// Which values to compute: results of real ops over constants that an op which stays reads.
class FoldPlan {
 public:
  explicit FoldPlan(const Graph& graph)
      : graph_(graph), foldable_(graph.ops.size()), needed_(graph.values.size()), uses_(graph.values.size()) {
    for (const Output& output : graph.outputs) ++uses_[output.value];
    for (const Op& op : graph.ops)
      for (ValueId v : op.operands)
        if (v != kNone) ++uses_[v];
    find_foldable();
    find_targets();
  }
  const std::vector<ValueId>& targets() const { return targets_; }

  // The targets and what they are made from, as a graph without inputs.
  Graph extract() const {
    Graph f;
    std::vector<ValueId> to(graph_.values.size(), kNone);
    std::vector<uint8_t> wanted(graph_.values.size());
    for (ValueId v : targets_) wanted[v] = 1;
    for (size_t i = graph_.ops.size(); i-- > 0;) {
      const Op& op = graph_.ops[i];
      if (!foldable_[i] || std::none_of(op.results.begin(), op.results.end(), [&](ValueId v) { return wanted[v]; })) continue;
      for (ValueId v : op.results) wanted[v] = 1;
      for (ValueId v : op.operands)
        if (v != kNone) wanted[v] = 1;
    }
    for (OpId i = 0; i < graph_.ops.size(); ++i) {
      const Op& op = graph_.ops[i];
      if (!foldable_[i] || std::none_of(op.results.begin(), op.results.end(), [&](ValueId v) { return wanted[v]; })) continue;
      ValueIds operands;
      for (ValueId v : op.operands) {
        if (v != kNone && to[v] == kNone)
          to[v] = f.add_constant(graph_.type(v), graph_.values[v].index, ValueKind::kConstant);
        operands.push_back(v == kNone ? kNone : to[v]);
      }
      std::vector<Type> types;
      for (ValueId v : op.results) types.push_back(graph_.type(v));
      OpId copy = f.add_op(op.code, std::move(operands), op.attrs, std::move(types));
      for (size_t k = 0; k < op.results.size(); ++k) to[op.results[k]] = f.ops[copy].results[k];
    }
    for (ValueId v : targets_) f.outputs.push_back({to[v], kNone, kNone});
    return f;
  }

 private:
  void find_foldable() {
    for (size_t i = 0; i < graph_.ops.size(); ++i) {
      const Op& op = graph_.ops[i];
      foldable_[i] = op.code != OpCode::kOpaque;
      for (ValueId v : op.operands) {
        if (v == kNone) continue;
        const Value& value = graph_.values[v];
        foldable_[i] = foldable_[i] && (value.producer == kNone ? value.kind == ValueKind::kConstant : foldable_[value.producer]);
      }
    }
  }

  void find_targets() {
    for (const Output& output : graph_.outputs) needed_[output.value] = 1;
    for (size_t i = graph_.ops.size(); i-- > 0;) {
      const Op& op = graph_.ops[i];
      bool read = std::any_of(op.results.begin(), op.results.end(), [&](ValueId v) { return needed_[v]; });
      if (foldable_[i] && !read) continue;
      bool real = find_row(op.code)->kind != RowKind::kFactory && (!is_view(op.code) || reshapes_computed(op));
      if (foldable_[i] && real && result_bytes(op) <= 2 * leaf_bytes(op)) {
        for (ValueId v : op.results)
          if (needed_[v]) targets_.push_back(v);
        continue;
      }
      for (ValueId v : op.operands)  // the op stays, so what it reads must be there
        if (v != kNone) needed_[v] = 1;
    }
    std::reverse(targets_.begin(), targets_.end());
  }

  // A reshape of what is computed anyway and read by nobody else: the constant has the sizes in which it is read.
  bool reshapes_computed(const Op& op) const {
    if (op.code != OpCode::k_reshape || uses_[op.operands[0]] != 1) return false;
    const OpId producer = graph_.values[op.operands[0]].producer;
    if (producer == kNone) return false;
    const Op& below = graph_.ops[producer];
    return is_view(below.code) ? reshapes_computed(below) : find_row(below.code)->kind != RowKind::kFactory;
  }

  int64_t result_bytes(const Op& op) const {
    int64_t n = 0;
    for (ValueId v : op.results) n += graph_.type(v).bytes();
    return n;
  }

  // Bytes of the constants that the op depends on, each once.
  int64_t leaf_bytes(const Op& op) const {
    ValueIds stack(op.operands);
    std::unordered_set<ValueId> seen;
    int64_t n = 0;
    while (!stack.empty()) {
      ValueId v = stack.back();
      stack.pop_back();
      if (v == kNone || !seen.insert(v).second) continue;
      if (graph_.values[v].producer == kNone) n += graph_.type(v).bytes();
      if (graph_.values[v].producer == kNone) continue;
      const Op& maker = graph_.ops[graph_.values[v].producer];
      stack.insert(stack.end(), maker.operands.begin(), maker.operands.end());
    }
    return n;
  }

  const Graph& graph_;
  std::vector<uint8_t> foldable_, needed_;
  std::vector<uint32_t> uses_;
  std::vector<ValueId> targets_;
};

Status fold_rest(Graph& graph, PassContext& context) {
  FoldPlan plan(graph);
  if (plan.targets().empty()) return {};
  Result<std::vector<FoldedConstant>> folded = context.evaluator->evaluate(plan.extract());
  if (!folded.ok() || folded->size() != plan.targets().size()) {
    context.notes.push_back("constants not folded: " + folded.status().message().what);
    return {};
  }
  std::vector<uint8_t> is_output(graph.values.size());
  for (const Output& output : graph.outputs) is_output[output.value] = 1;
  for (size_t k = 0; k < folded->size(); ++k) {
    ValueId old = plan.targets()[k];
    if (is_output[old] && (*folded)[k].type.strides != graph.type(old).strides) continue;
    graph.replace_uses(old, add_folded(graph, (*folded)[k]));
  }
  return rewrite(graph, [](Rewriter&, OpId) -> Result<bool> { return false; });  // drops what is dead, numbers leaves first
}

}  // namespace

Status passes::fold_constants(Graph& graph, PassContext& context) {
  if (!context.evaluator) return {};
  KRN_TRY(fold_batch_norms(graph, context));
  return fold_rest(graph, context);
}

}  // namespace keirin
