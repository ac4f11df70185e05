// SPDX-License-Identifier: Apache-2.0
//
// Pass 5: an attention mask that hides nothing goes, one that hides the future becomes the flag `causal`: with a mask operand
// LibTorch and the vendors lose their flash kernels. Exact: the scores that remain are the same.
#include <cmath>

#include "abi/planted.h"
#include "core/passes/facts.h"
#include "core/passes/index_map.h"
#include "core/passes/pass.h"

namespace keirin {
namespace {

constexpr int64_t kMaxElementsRead = int64_t{1} << 22;

// The value that hides a score whatever the score is.
bool hides(DType dtype, double x) { return x <= round_to(dtype, dtype == DType::k_f16 ? -65504.0 : -3.3895e38); }

enum class MaskKind { kOther, kHidesNothing, kCausal };

class MaskReader {
 public:
  MaskReader(const Graph& graph, PassContext& context) : graph_(graph), context_(context) {}

  MaskKind kind(ValueId mask) const {
    const Value& value = graph_.values[mask];
    const bool additive = value.type.dtype != DType::k_bool;
    if (value.range && !value.range->may_be_nan && value.range->low == value.range->high &&
        value.range->low == (additive ? 0.0 : 1.0))
      return MaskKind::kHidesNothing;
    if (auto splat = splat_of(graph_, mask); splat && *splat == (additive ? 0.0 : 1.0)) return MaskKind::kHidesNothing;
    if (additive ? is_additive_causal(mask) : is_causal(graph_, mask)) return MaskKind::kCausal;
    return kind_of_constant(mask);
  }

 private:
  // select(causal, 0, -inf), or select(not causal, -inf, 0), seen through views.
  bool is_additive_causal(ValueId mask) const {
    ValueId v = behind_square_views(mask);
    const Op* select = made_by(graph_, v, OpCode::k_select);
    if (!select || graph_.type(v).rank() < 2) return false;
    auto shown = splat_of(graph_, select->operands[1]), hidden = splat_of(graph_, select->operands[2]);
    return shown && hidden && *shown == 0 && hides(graph_.type(v).dtype, *hidden) && is_causal(graph_, select->operands[0]);
  }

  // Views that leave the last two axes as they are.
  ValueId behind_square_views(ValueId v) const {
    for (;;) {
      const Op* op = made_by(graph_, v, OpCode::k_expand);
      if (!op) op = made_by(graph_, v, OpCode::k_reshape);
      if (!op) return v;
      const Dims &to = graph_.type(v).sizes, &from = graph_.type(op->operands[0]).sizes;
      if (to.size() < 2 || from.size() < 2 || !std::equal(to.end() - 2, to.end(), from.end() - 2)) return v;
      v = op->operands[0];
    }
  }

  MaskKind kind_of_constant(ValueId mask) const {
    ValueId v = behind_square_views(mask);
    const Value& value = graph_.values[v];
    if (value.kind != ValueKind::kConstant || !context_.evaluator || value.type.rank() < 2) return MaskKind::kOther;
    int64_t n = value.type.num_elements();
    if (n == 0 || n > kMaxElementsRead) return MaskKind::kOther;
    Result<std::vector<double>> elements = context_.evaluator->read(value.index);
    if (!elements.ok() || static_cast<int64_t>(elements->size()) != n) return MaskKind::kOther;
    int64_t rows = value.type.sizes.end()[-2], columns = value.type.sizes.end()[-1];
    bool all_shown = true, causal = true;
    for (int64_t i = 0; i < n; ++i) {
      double x = (*elements)[static_cast<size_t>(i)];
      bool shown = value.type.dtype == DType::k_bool ? x != 0 : x == 0;
      bool hidden = value.type.dtype == DType::k_bool ? x == 0 : hides(value.type.dtype, x);
      bool visible = i % columns <= i / columns % rows + (KRN_PLANTED(mask_bottom_right) ? columns - rows : 0);
      all_shown = all_shown && shown;
      causal = causal && (visible ? shown : hidden);
    }
    return all_shown ? MaskKind::kHidesNothing : causal ? MaskKind::kCausal : MaskKind::kOther;
  }

  const Graph& graph_;
  PassContext& context_;
};

}  // namespace

Status passes::drop_constant_masks(Graph& graph, PassContext& context) {
  bool changed = false;
  for (Op& op : graph.ops) {
    if (op.code != OpCode::k_attention || op.operands.size() < 4 || op.operands[3] == kNone) continue;
    MaskKind kind = MaskReader(graph, context).kind(op.operands[3]);
    if (kind == MaskKind::kOther) continue;
    op.operands[3] = kNone;
    if (kind == MaskKind::kCausal) op.set(AttrKey::k_causal, true);
    changed = true;
  }
  if (changed) graph.drop_dead();
  return {};
}

}  // namespace keirin
