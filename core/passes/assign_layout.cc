// SPDX-License-Identifier: Apache-2.0
//
// Pass 9: lays convolution graphs out channels-last where the context asks for it: from each convolution through pooling,
// norms and pointwise ops. What reads those in another way (a view, attention over one) states the strides that eager gives
// it then: heads whose elements lie together are what fused attention takes. Only strides change: a relayout is put where
// the graph begins and where the user sees strides, and constant weights are laid out once.
#include <map>

#include "abi/planted.h"
#include "core/ir/rows.h"
#include "core/ops/infer.h"
#include "core/passes/pass.h"
#include "core/passes/rewriter.h"

namespace keirin {
namespace {

bool fits(const Type& type) { return (type.rank() == 4 || type.rank() == 5) && type.num_elements() > 0; }

bool is_channels_last(const Type& type) {
  if (!fits(type)) return false;
  Dims want = channels_last_strides(type.sizes);
  for (size_t i = 0; i < want.size(); ++i)
    if (type.sizes[i] != 1 && type.strides[i] != want[i]) return false;
  return true;
}

// Rows whose result follows the layout of their operands.
bool follows(const Op& op) {
  if (find_row(op.code)->kind == RowKind::kScalar) return true;
  switch (op.code) {
    case OpCode::k_max_pool: case OpCode::k_avg_pool: case OpCode::k_adaptive_avg_pool: case OpCode::k_batch_norm:
    case OpCode::k_group_norm: case OpCode::k_upsample_nearest: case OpCode::k_upsample_bilinear: case OpCode::k_cat:
    case OpCode::k_pad: return true;
    default: return false;
  }
}

class Layouter {
 public:
  Layouter(Rewriter& r, PassContext& context) : r_(r), context_(context), is_output_(r.old().values.size()) {
    for (const Output& output : r.old().outputs) is_output_[output.value] = 1;
  }

  Result<bool> operator()(OpId id) {
    const Op& op = r_.old().ops[id];
    if (op.code == OpCode::kOpaque || op.results.size() != 1) return false;
    const Type& type = r_.old().type(op.results[0]);
    if (op.code == OpCode::k_relayout && is_channels_last(type)) {  // a weight that is kept so for the backward: the convolution's own copy
      KRN_TRY_LET(ValueId x, laid_out(r_.map(op.operands[0])));
      if (!r_.can_replace(op.results[0], x)) return false;
      r_.replace(op.results[0], x);
      return true;
    }
    if (fits(type) && may_change(type)) {
      if (op.code == OpCode::k_conv || op.code == OpCode::k_conv_grad_weight) return convolution(id);
      for (ValueId v : op.operands)
        if (follows(op) && v != kNone && is_channels_last(r_.graph().type(r_.map(v))) &&
            r_.graph().values[r_.map(v)].kind == ValueKind::kResult) {
          keep_channels_last(id);
          return true;
        }
    }
    return as_eager_would(id);
  }

  // The user's outputs get the strides back that eager gives.
  Status restore_outputs() {
    for (const Output& output : r_.old().outputs) {
      const Type& want = r_.old().type(output.value);
      if (r_.graph().type(r_.map(output.value)).strides == want.strides || KRN_PLANTED(layout_not_restored)) continue;
      r_.begin_border();
      KRN_TRY_LET(ValueId back,
                  r_.build().emit1(OpCode::k_relayout, {r_.map(output.value)}, {{AttrKey::k_encoding, std::string("contiguous")}}));
      r_.replace(output.value, back);
    }
    return {};
  }

 private:
  // A relayout can give back row-major strides, and channels-last ones need none: others are left alone.
  static bool may_change(const Type& type) {
    return is_channels_last(type) || type.strides == contiguous_strides(type.sizes);
  }

  void keep_channels_last(OpId id) {
    OpId copy = r_.keep(id);
    Type& type = r_.graph().values[r_.graph().ops[copy].results[0]].type;
    type.strides = channels_last_strides(type.sizes);
  }

  // A result's strides follow from its operands', where those have changed.
  Result<bool> as_eager_would(OpId id) {
    const Op& op = r_.old().ops[id];
    const Type& before = r_.old().type(op.results[0]);
    if (is_output_[op.results[0]] && before.strides != contiguous_strides(before.sizes)) return false;
    bool changed = false;
    std::vector<const Type*> operands;
    for (ValueId v : op.operands) {
      operands.push_back(v == kNone ? nullptr : &r_.graph().type(r_.map(v)));
      changed |= v != kNone && operands.back()->strides != r_.old().type(v).strides;
    }
    if (!changed) return false;
    KRN_TRY_LET(std::vector<Type> types, infer_types(op, operands));
    const OpId copy = r_.keep(id);
    r_.graph().values[r_.graph().ops[copy].results[0]].type.strides = types[0].strides;
    return true;
  }

  Result<bool> convolution(OpId id) {
    const Op& op = r_.old().ops[id];
    const ValueId second = r_.map(op.operands[1]);
    KRN_TRY_LET(ValueId x, laid_out(r_.map(op.operands[0])));
    KRN_TRY_LET(ValueId other, op.code == OpCode::k_conv ? weight(second) : laid_out(second));
    keep_channels_last(id);
    r_.graph().ops.back().operands[0] = x;
    r_.graph().ops.back().operands[1] = other;
    return true;
  }

  // The same channels-last, copied once.
  Result<ValueId> laid_out(ValueId v) {
    if (is_channels_last(r_.graph().type(v))) return v;
    auto [at, fresh] = relaid_.emplace(v, kNone);
    if (fresh) {
      KRN_TRY_LET(at->second, r_.build().emit1(OpCode::k_relayout, {v}, {{AttrKey::k_encoding, std::string("channels_last")}}));
    }
    return at->second;
  }

  // A constant weight is laid out once, at load. Another one, as in training, stays as it is unless the context says otherwise.
  Result<ValueId> weight(ValueId w) {
    const Value& value = r_.graph().values[w];
    if (!fits(value.type) || is_channels_last(value.type)) return w;
    if (value.kind != ValueKind::kConstant && context_.relays_weights) return laid_out(w);
    if (!context_.evaluator || value.kind != ValueKind::kConstant) return w;
    auto [at, fresh] = weights_.emplace(w, w);
    if (!fresh) return at->second;
    Graph alone;
    Builder build(alone);
    KRN_TRY_LET(ValueId turned, build.emit1(OpCode::k_relayout, {alone.add_constant(value.type, value.index, ValueKind::kConstant)},
                                            {{AttrKey::k_encoding, std::string("channels_last")}}));
    alone.outputs = {{turned, kNone, kNone}};
    Result<std::vector<FoldedConstant>> folded = context_.evaluator->evaluate(alone);
    if (folded.ok() && folded->size() == 1)
      at->second = r_.graph().add_constant((*folded)[0].type, (*folded)[0].index, ValueKind::kConstant);
    else context_.notes.push_back("a convolution's weight keeps its layout: " + folded.status().message().what);
    return at->second;
  }

  Rewriter& r_;
  PassContext& context_;
  std::vector<uint8_t> is_output_;
  std::map<ValueId, ValueId> relaid_, weights_;
};

}  // namespace

Status passes::assign_layout(Graph& graph, PassContext& context) {
  if (!context.channels_last) return {};
  Rewriter rewriter(graph);
  Layouter layouter(rewriter, context);
  for (OpId id = 0; id < rewriter.old().ops.size(); ++id) {
    rewriter.begin(id);
    KRN_TRY_LET(bool done, layouter(id));
    if (!done) rewriter.keep(id);
  }
  KRN_TRY(layouter.restore_outputs());
  rewriter.finish();
  return {};
}

}  // namespace keirin
