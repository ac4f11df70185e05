// SPDX-License-Identifier: Apache-2.0
#include "core/passes/pad_safety.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "abi/planted.h"
#include "core/ir/rows.h"
#include "core/ops/aten.h"
#include "core/passes/index_map.h"
#include "core/passes/pad_axes.h"

namespace keirin {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Padded elements of a value lie between these numbers. `moves`: they are other ones at other sizes, though no less than the extent.
// `or_nan`: or are NaN, each by itself.
struct Fill {
  double low = 0, high = 0;
  bool moves = false, or_nan = false;
  bool is_or_nan(double x) const { return !moves && low == x && high == x; }
  bool is(double x) const { return !or_nan && is_or_nan(x); }
  bool is_finite() const { return !or_nan && std::isfinite(low) && std::isfinite(high); }
  bool operator==(const Fill&) const = default;
};

// What is known of a value in both graphs.
struct State {
  PadAxes axes;
  std::vector<std::optional<Fill>> fills;  // by axis: of elements that are padded along it; nullopt: anything, NaN included
  std::optional<Fill> all;   // of every element, padded or not, where they are all the same
  bool or_nan = false;       // elements that are not padded are those of the smaller graph, or NaN
  bool constant = false;     // it depends on no input, so that it is the same in every call of these sizes
  uint32_t input = kNone;    // every element is one of this input's, unchanged
  std::string unsafe;        // why nothing else here counts; empty: it does

  const std::optional<Fill>& fill_along(size_t axis) const { return all ? all : fills[axis]; }
  // Of all padded elements.
  std::optional<Fill> fill() const {
    if (all) return all;
    const std::optional<Fill>* common = nullptr;
    for (size_t a = 0; a < axes.size(); ++a) {
      if (!grows(axes[a])) continue;
      if (common && *common != fills[a]) return std::nullopt;
      common = &fills[a];
    }
    return common ? *common : std::nullopt;
  }
  void forget() {  // of its elements, what is known beside their places
    fills.assign(axes.size(), std::nullopt);
    all.reset();
    input = kNone;
  }
};

State unsafe(std::string why) {
  State out;
  out.unsafe = std::move(why);
  return out;
}

State of_axes(PadAxes axes) {
  State out;
  out.axes = std::move(axes);
  out.forget();
  return out;
}

// Both graphs' form of one operator.
struct Pair {
  const Op &small, &large;
  OpCode code() const { return small.code; }
  bool same(AttrKey key) const {
    const AttrValue *a = small.find(key), *b = large.find(key);
    return a == nullptr || b == nullptr ? a == b : *a == *b;
  }
  bool same_but(std::initializer_list<AttrKey> others) const {
    const auto differs = [&](const Attr& attr) { return std::ranges::find(others, attr.key) == others.end() && !same(attr.key); };
    return std::ranges::none_of(small.attrs, differs) && std::ranges::none_of(large.attrs, differs);
  }
};

class Prover {
 public:
  Prover(const Graph& small, const Graph& large, std::vector<PadProof::Bound>& bounds)
      : small_(small), large_(large), bounds_(bounds), states_(small.values.size()) {}

  State& at(ValueId v) { return states_[v]; }

  // `inputs` in the order of Graph::inputs.
  Status run(std::vector<State> inputs) {
    const auto differ = [](const std::string& what) {
      return Status(Code::k_unsupported, "the graph is another one at other sizes: " + what);
    };
    if (small_.values.size() != large_.values.size() || small_.ops.size() != large_.ops.size() ||
        small_.outputs.size() != large_.outputs.size() || small_.inputs != large_.inputs)
      return differ(std::to_string(small_.ops.size()) + " operators, or " + std::to_string(large_.ops.size()));
    for (ValueId v = 0; v < small_.values.size(); ++v) {
      const Value &a = small_.values[v], &b = large_.values[v];
      if (a.kind != b.kind || a.index != b.index || a.producer != b.producer || a.type.dtype != b.type.dtype ||
          a.type.rank() != b.type.rank())
        return differ("value " + std::to_string(v));
      if (a.kind == ValueKind::kConstant || a.kind == ValueKind::kState) {
        states_[v] = of_axes(axes_of(a.type.sizes, b.type.sizes));
        states_[v].constant = a.kind == ValueKind::kConstant;
        if (a.type.sizes != b.type.sizes) states_[v] = unsafe("a constant of other sizes");
      }
    }
    for (size_t i = 0; i < small_.inputs.size(); ++i) states_[small_.inputs[i]] = std::move(inputs[i]);
    for (size_t i = 0; i < small_.ops.size(); ++i) {
      const Pair op{small_.ops[i], large_.ops[i]};
      if (op.small.code != op.large.code || op.small.operands != op.large.operands || op.small.results != op.large.results)
        return differ("operator " + std::to_string(i));
      visit(op);
    }
    return {};
  }

 private:
  static std::string name_of(const Op& op) {
    std::string name = op.code == OpCode::kOpaque ? "an operator that the table does not have" : std::string(op_name(op.code));
    return op.origin.empty() ? name : name + " (" + op.origin.str() + ")";
  }

  void visit(const Pair& op) {
    std::vector<State> results;
    const auto bad = std::ranges::find_if(op.small.operands, [&](ValueId v) { return v != kNone && !states_[v].unsafe.empty(); });
    if (std::optional<State> index = wrapped_index(op)) {
      results.push_back(std::move(*index));
    } else if (std::optional<State> picked = picked_by_position(op)) {
      results.push_back(std::move(*picked));
    } else if (bad != op.small.operands.end()) {
      results.assign(op.small.results.size(), unsafe(states_[*bad].unsafe));
    } else {
      results = rule(op);
      const bool or_nan = std::ranges::any_of(op.small.operands, [&](ValueId v) { return v != kNone && states_[v].or_nan; });
      for (State& state : results) {
        if (or_nan && state.unsafe.empty() && !is_body(op)) {
          if (passes_nan(op)) state.or_nan = true;
          else state = unsafe("where padding makes NaN of a number, it would not be seen behind it");
        }
        if (!state.unsafe.empty()) state.unsafe = name_of(op.small) + ": " + state.unsafe;
      }
    }
    const bool constant = op.small.code != OpCode::kOpaque && std::ranges::all_of(op.small.operands, [&](ValueId v) {
      return v == kNone || states_[v].constant;
    });
    for (size_t i = 0; i < op.small.results.size(); ++i) {
      State state = i < results.size() ? std::move(results[i]) : unsafe(name_of(op.small) + ": no rule for this result");
      if (state.unsafe.empty() && !fits(state.axes, op.small.results[i])) state = unsafe(name_of(op.small) + ": other sizes than expected");
      state.constant = constant;
      states_[op.small.results[i]] = std::move(state);
    }
  }

  // The rules and the shape rules say the same sizes, or one of them is wrong.
  bool fits(const PadAxes& axes, ValueId v) const {
    const Dims &a = small_.type(v).sizes, &b = large_.type(v).sizes;
    if (axes.size() != a.size()) return false;
    for (size_t i = 0; i < a.size(); ++i) {
      int64_t small = 1, large = 1;
      for (const PadFactor& f : axes[i]) small *= f.small, large *= f.large;
      if (small != a[i] || large != b[i]) return false;
    }
    return true;
  }

  static bool is_body(const Pair& op) {
    const OpRow* const row = find_row(op.code());
    return row && row->kind == RowKind::kComposite && !row->is_anchor();
  }
  // Whether each element that is made of NaN, where operands may have some, is NaN, or what it would be without.
  bool passes_nan(const Pair& op) const {
    const OpCode code = op.code();
    switch (find_row(code)->kind) {
      case RowKind::kScalar: {
        if (!is_float(type(op.small.results[0]).dtype) || code == OpCode::k_sign || code == OpCode::k_pow) return false;
        const bool any = code == OpCode::k_add || code == OpCode::k_sub || code == OpCode::k_mul || code == OpCode::k_div ||
                         code == OpCode::k_maximum || code == OpCode::k_minimum || code == OpCode::k_select;
        // Of the others, operands behind the first are bounds: with NaN as one, the other side of it is answered.
        return any || std::ranges::none_of(op.small.operands.begin() + 1, op.small.operands.end(),
                                           [&](ValueId v) { return states_[v].or_nan; });
      }
      case RowKind::kReduce: return code != OpCode::k_argmax && code != OpCode::k_argmin;
      case RowKind::kMove: return code != OpCode::k_scatter && code != OpCode::k_index_reduce;
      default:
        return code == OpCode::k_matmul || code == OpCode::k_linear || code == OpCode::k_conv || code == OpCode::k_attention;
    }
  }

  const Type& type(ValueId v) const { return small_.type(v); }
  const State& operand(const Pair& op, size_t i) const { return states_[op.small.operands[i]]; }
  bool present(const Pair& op, size_t i) const { return i < op.small.operands.size() && op.small.operands[i] != kNone; }
  int64_t size_of(const Pair& op, size_t i, size_t axis, bool large) const {
    return (large ? large_ : small_).type(op.small.operands[i]).sizes[axis];
  }
  static std::string axis_text(size_t axis) { return "along axis " + std::to_string(axis) + ", which is padded"; }

  std::vector<State> rule(const Pair& op) {
    if (op.small.effects) return {unsafe("it has effects")};
    const OpRow* const row = find_row(op.code());
    if (row == nullptr) return {unsafe("no rule is known")};
    switch (row->kind) {
      case RowKind::kScalar: return {scalar(op)};
      case RowKind::kReduce: return {reduce(op)};
      case RowKind::kMove: return {move(op)};
      case RowKind::kFactory: return {factory(op)};
      case RowKind::kComposite: return row->is_anchor() ? anchor(op) : body(op);
      default: return {unsafe("no rule is known")};
    }
  }

  // ---- elements one by one

  State scalar(const Pair& op) {
    if (!op.same_but({})) return unsafe("its numbers depend on the size");
    PadAxes axes = operand(op, 0).axes;
    for (size_t i = 1; i < op.small.operands.size(); ++i) {
      std::optional<PadAxes> both = unite(axes, operand(op, i).axes);
      if (!both) return unsafe("its operands are padded in different ways");
      axes = std::move(*both);
    }
    State out = of_axes(std::move(axes));
    const auto fill_by = [&](auto&& of) {
      std::vector<std::optional<Fill>> fills;
      for (size_t i = 0; i < op.small.operands.size(); ++i) fills.push_back(of(operand(op, i)));
      return filled(op, fills);
    };
    out.all = fill_by([](const State& x) { return x.all; });
    if (out.all && out.all->or_nan) out.all.reset();  // then they differ
    for (size_t a = 0; a < out.axes.size(); ++a)
      if (grows(out.axes[a])) out.fills[a] = fill_by([a](const State& x) { return x.fill_along(a); });
    const DType dtype = type(op.small.results[0]).dtype;
    if (op.code() == OpCode::k_cast && (dtype == DType::k_i64 || dtype == DType::k_i32) && is_int(type(op.small.operands[0]).dtype))
      out.input = operand(op, 0).input;
    return out;
  }

  // What is known of the padded elements of an element-wise result: enough for masks and indices.
  std::optional<Fill> filled(const Pair& op, const std::vector<std::optional<Fill>>& f) const {
    const auto truth = [](bool x) { return Fill{x ? 1.0 : 0.0, x ? 1.0 : 0.0, false}; };
    switch (op.code()) {
      case OpCode::k_cast: return cast(f[0], type(op.small.operands[0]).dtype, type(op.small.results[0]).dtype);
      case OpCode::k_select:
        if (f[0] && f[0]->is(1)) return f[1];
        if (f[0] && f[0]->is(0)) return f[2];
        return f[1] == f[2] ? f[1] : std::nullopt;
      case OpCode::k_logical_not:
        if (f[0] && (f[0]->is(0) || f[0]->is(1))) return truth(f[0]->is(0));
        return std::nullopt;
      case OpCode::k_logical_and:
        if ((f[0] && f[0]->is(0)) || (f[1] && f[1]->is(0))) return truth(false);
        if (f[0] && f[1] && f[0]->is(1) && f[1]->is(1)) return truth(true);
        return std::nullopt;
      case OpCode::k_logical_or:
        if ((f[0] && f[0]->is(1)) || (f[1] && f[1]->is(1))) return truth(true);
        if (f[0] && f[1] && f[0]->is(0) && f[1]->is(0)) return truth(false);
        return std::nullopt;
      case OpCode::k_mul: {
        const bool zero = (f[0] && f[0]->is_or_nan(0)) || (f[1] && f[1]->is_or_nan(0));
        if (!zero) return std::nullopt;
        const bool finite = f[0] && f[0]->is_finite() && f[1] && f[1]->is_finite();
        return Fill{0, 0, false, !finite && is_float(type(op.small.results[0]).dtype)};
      }
      default: break;
    }
    if (f.size() != 2 || !f[0] || !f[1] || f[0]->or_nan || f[1]->or_nan) return std::nullopt;
    const Fill &a = *f[0], &b = *f[1];
    // What moves is 1 or more at any size, and nothing else holds at all of them.
    if ((a.moves && (b.moves || b.high > 0 || a.low < 1)) || (b.moves && (a.moves || a.high > 0 || b.low < 1))) return std::nullopt;
    const bool below = a.high < b.low, not_above = a.high <= b.low, above = a.low > b.high, not_below = a.low >= b.high;
    const auto told = [&](bool yes, bool no) { return yes ? std::optional(truth(true)) : no ? std::optional(truth(false)) : std::nullopt; };
    switch (op.code()) {
      case OpCode::k_lt: return told(below, not_below);
      case OpCode::k_le: return told(not_above, above);
      case OpCode::k_gt: return told(above, not_above);
      case OpCode::k_ge: return told(not_below, below);
      case OpCode::k_eq: return told(a.is(a.low) && b.is(a.low), below || above);
      case OpCode::k_ne: return told(below || above, a.is(a.low) && b.is(a.low));
      default: return std::nullopt;
    }
  }

  static std::optional<Fill> cast(const std::optional<Fill>& fill, DType from, DType to) {
    if (!fill || (fill->or_nan && !is_float(to))) return std::nullopt;
    if (to == DType::k_bool) {
      if (fill->low > 0 || fill->high < 0) return Fill{1, 1, false};
      return fill->is(0) ? fill : std::nullopt;
    }
    if (std::isinf(fill->low) && fill->low == fill->high) return is_float(from) && is_float(to) ? fill : std::nullopt;
    // Whole numbers that the dtype has: of indices, and of masks.
    const double most = is_float(to) ? 256 : to == DType::k_i64 || to == DType::k_i32 ? 2147483647.0 : 127;
    const bool whole = fill->low == std::trunc(fill->low) && fill->high == std::trunc(fill->high);
    return whole && fill->low >= 0 && fill->high <= most ? fill : std::nullopt;
  }

  // index and index_put count negative positions from the end: select(i < 0, i + extent, i). From the end of a padded axis that is another
  // element, so there must be none.
  std::optional<State> wrapped_index(const Pair& op) {
    if (op.code() != OpCode::k_select) return std::nullopt;
    const ValueId index = op.small.operands[2];
    const auto made = [&](ValueId v, OpCode code) -> const Op* {
      if (v == kNone || small_.values[v].producer == kNone) return nullptr;
      const Op& by = small_.ops[small_.values[v].producer];
      return by.code == code ? &by : nullptr;
    };
    const auto number = [&](ValueId v) -> std::optional<int64_t> {
      while (const Op* view = made(v, OpCode::k_expand) ? made(v, OpCode::k_expand) : made(v, OpCode::k_reshape)) v = view->operands[0];
      const Op* full = made(v, OpCode::k_full);
      return full && is_int(type(v).dtype) ? std::optional(full->i(AttrKey::k_value_i)) : std::nullopt;
    };
    const Op *below = made(op.small.operands[0], OpCode::k_lt), *sum = made(op.small.operands[1], OpCode::k_add);
    if (!below || !sum || below->operands[0] != index || sum->operands[0] != index || number(below->operands[1]) != 0) return std::nullopt;
    const std::optional<int64_t> extent = number(sum->operands[1]);
    if (!extent || states_[op.small.operands[1]].unsafe.empty()) return std::nullopt;  // the extent is the same in both graphs
    const State& state = states_[index];
    const std::optional<Fill> fill = state.unsafe.empty() ? state.fill() : std::nullopt;
    if (!state.unsafe.empty() || state.input == kNone || (grows(state.axes) && !(fill && fill->low >= 0))) return std::nullopt;
    take_for_granted(state.input, *extent);
    return state;
  }

  void take_for_granted(uint32_t input, int64_t extent) {
    if (std::ranges::find(bounds_, PadProof::Bound{input, extent}) == bounds_.end()) bounds_.push_back({input, extent});
  }

  // ---- reductions

  // Padded elements that change no result, or make it NaN.
  static bool is_neutral(const std::optional<Fill>& fill, std::string_view reduction) {
    if (!fill) return false;
    if (reduction == "sum" || reduction == "any") return fill->is_or_nan(0);
    if (reduction == "prod" || reduction == "all") return fill->is_or_nan(1);
    if (reduction == "amax") return fill->is_or_nan(-kInfinity);
    if (reduction == "amin") return fill->is_or_nan(kInfinity);
    return false;
  }

  State reduce(const Pair& op) {
    if (!op.same_but({})) return unsafe("its axes depend on the size");
    const State& x = operand(op, 0);
    const Dims& dims = op.small.ints(AttrKey::k_dims);
    const std::string_view name = op_name(op.code());
    const bool picks = name == "amax" || name == "amin" || name == "any" || name == "all";
    const auto of_equal = [&](const std::optional<Fill>& fill) {
      const bool same = fill && !fill->moves && fill->low == fill->high && (picks || (name == "sum" && fill->is_or_nan(0)));
      return same ? fill : std::nullopt;
    };
    State out;
    const auto add_axis = [&](const PadAxis& axis, const std::optional<Fill>& fill) {
      out.axes.push_back(axis);
      out.fills.push_back(fill);
    };
    for (size_t i = 0; i < x.axes.size(); ++i) {
      const bool reduced = std::ranges::find(dims, static_cast<int64_t>(i)) != dims.end();
      if (reduced && grows(x.axes[i])) {
        if (!is_neutral(x.fill_along(i), name) && !KRN_PLANTED(pad_reduced))
          return unsafe("it reduces " + axis_text(i) + ", by elements that count");
        out.or_nan = out.or_nan || (x.fill_along(i) && x.fill_along(i)->or_nan);
      }
      if (!reduced) add_axis(x.axes[i], of_equal(x.fill_along(i)));
      else if (op.small.b(AttrKey::k_keepdim)) add_axis({}, std::nullopt);
    }
    out.all = of_equal(x.all);
    return out;
  }

  // ---- moves

  State move(const Pair& op) {
    switch (op.code()) {
      case OpCode::k_expand: return expand(op);
      case OpCode::k_reshape: return reshape(op);
      case OpCode::k_permute: return permute(op);
      case OpCode::k_slice: return slice(op);
      case OpCode::k_cat: return cat(op);
      case OpCode::k_pad: return pad(op);
      case OpCode::k_flip: return flip(op);
      case OpCode::k_take: return take(op);
      case OpCode::k_gather: return gather(op);
      case OpCode::k_scatter:
      case OpCode::k_index_reduce: return scatter(op);
      case OpCode::k_slice_scatter: return slice_scatter(op);
      case OpCode::k_cumsum: return cumsum(op);
      case OpCode::k_relayout: return op.same_but({}) ? operand(op, 0) : unsafe("another layout at another size");
      default: return unsafe("no rule is known");
    }
  }

  State expand(const Pair& op) {
    const State& x = operand(op, 0);
    const Dims &small = op.small.ints(AttrKey::k_sizes), &large = op.large.ints(AttrKey::k_sizes);
    State out = x;
    for (size_t i = 0; i < x.axes.size(); ++i) {
      if (size_of(op, 0, i, false) == small[i] && size_of(op, 0, i, true) == large[i]) continue;
      if (size_of(op, 0, i, false) != 1 || size_of(op, 0, i, true) != 1) return unsafe("it expands at one of the sizes only");
      out.axes[i] = axis_of(small[i], large[i], true);
      out.fills[i].reset();  // the same as what is not padded
    }
    return out;
  }

  State reshape(const Pair& op) {
    const State& x = operand(op, 0);
    const Dims &small = op.small.ints(AttrKey::k_sizes), &large = op.large.ints(AttrKey::k_sizes);
    std::optional<PadAxes> axes = x.all ? axes_of(small, large, true) : regroup(x.axes, small, large);
    if (!axes) return unsafe("it takes the padded axis apart");
    State out = of_axes(std::move(*axes));
    out.all = x.all;
    out.input = x.input;
    if (x.all) return out;
    // What grows is never taken apart, and keeps its order.
    std::vector<const std::optional<Fill>*> of_factors;
    for (size_t a = 0; a < x.axes.size(); ++a)
      for (const PadFactor& factor : x.axes[a])
        if (factor.grows()) of_factors.push_back(&x.fills[a]);
    size_t next = 0;
    for (size_t a = 0; a < out.axes.size(); ++a) {
      bool first = true;
      for (const PadFactor& factor : out.axes[a]) {
        if (!factor.grows()) continue;
        const std::optional<Fill>& fill = *of_factors[next++];
        if (first) out.fills[a] = fill;
        else if (out.fills[a] != fill) out.fills[a].reset();
        first = false;
      }
    }
    return out;
  }

  State permute(const Pair& op) {
    if (!op.same_but({})) return unsafe("its axes depend on the size");
    const State& x = operand(op, 0);
    State out = x;
    for (size_t i = 0; i < x.axes.size(); ++i) {
      const auto from = static_cast<size_t>(op.small.ints(AttrKey::k_dims)[i]);
      out.axes[i] = x.axes[from];
      out.fills[i] = x.fills[from];
    }
    return out;
  }

  struct Span {
    int64_t start, end, step;
  };
  static Span span_of(const Op& op) { return {op.i(AttrKey::k_start), op.i(AttrKey::k_end), op.i(AttrKey::k_step)}; }

  State slice(const Pair& op) {
    if (!op.same_but({AttrKey::k_end})) return unsafe("where it begins depends on the size");
    const auto dim = static_cast<size_t>(op.small.i(AttrKey::k_dim));
    const auto [start, end, step] = span_of(op.small);
    const int64_t end_large = op.large.i(AttrKey::k_end);
    const int64_t size = size_of(op, 0, dim, false), size_large = size_of(op, 0, dim, true);
    State out = operand(op, 0);
    const auto count = [&, start = start, step = step](int64_t e) { return (e - start + step - 1) / step; };
    if (end == end_large && end <= size && (!grows(out.axes[dim]) || out.axes[dim].size() == 1)) {
      out.axes[dim] = axis_of(count(end), count(end));
      out.fills[dim].reset();
      return out;
    }
    if (!grows(out.axes[dim])) {  // as many of what is longer as the size says
      if (end > end_large) return unsafe("where it ends depends on the size");
      out.axes[dim] = axis_of(count(end), count(end_large));
      out.fills[dim].reset();
      return out;
    }
    if (end != size || end_large != size_large) return unsafe("where it ends depends on the size");
    if (start == 0 && step == 1) return out;
    if (!grows_alone(out.axes[dim]) || count(end) <= 0) return unsafe("it takes the padded axis apart");
    out.axes[dim] = axis_of(count(end), count(end_large), out.axes[dim][0].uniform);
    return out;
  }

  State cat(const Pair& op) {
    if (!op.same_but({})) return unsafe("its axis depends on the size");
    const auto dim = static_cast<size_t>(op.small.i(AttrKey::k_dim));
    State out = operand(op, 0);
    const size_t last = op.small.operands.size() - 1;
    int64_t small = 0, large = 0;
    for (size_t i = 0; i <= last; ++i) {
      const State& x = operand(op, i);
      for (size_t a = 0; a < x.axes.size(); ++a) {
        if (a == dim) continue;
        std::optional<PadAxis> axis = unite(out.axes[a], x.axes[a]);
        if (!axis) return unsafe("its operands are padded in different ways");
        out.axes[a] = std::move(*axis);
        out.fills[a] = i == 0 || out.fills[a] == x.fill_along(a) ? x.fill_along(a) : std::nullopt;
      }
      if (grows(x.axes[dim]) && (i != last || x.axes[dim].size() != 1)) return unsafe("something is joined behind the padded elements");
      if (x.input != out.input) out.input = kNone;
      small += size_of(op, i, dim, false), large += size_of(op, i, dim, true);
    }
    out.axes[dim] = axis_of(small, large);
    out.fills[dim] = operand(op, last).fill_along(dim);
    out.all.reset();
    return out;
  }

  State pad(const Pair& op) {
    if (!op.same_but({})) return unsafe("how much it pads depends on the size");
    State out = operand(op, 0);
    const Dims &low = op.small.ints(AttrKey::k_low), &high = op.small.ints(AttrKey::k_high);
    const DType dtype = type(op.small.operands[0]).dtype;
    const double value = is_float(dtype) ? op.small.d(AttrKey::k_value_d) : static_cast<double>(op.small.i(AttrKey::k_value_i));
    const bool fills_alike = out.fill() && out.fill()->is(value);
    for (size_t i = 0; i < out.axes.size(); ++i) {
      if (low[i] == 0 && high[i] == 0) continue;
      const int64_t more = low[i] + high[i];
      if (grows(out.axes[i])) {
        if (out.axes[i].size() != 1) return unsafe("it takes the padded axis apart");
        if (low[i] < 0 || high[i] < 0 || (high[i] > 0 && !fills_alike)) return unsafe("it pads " + axis_text(i));
      }
      out.axes[i] = axis_of(size_of(op, 0, i, false) + more, size_of(op, 0, i, true) + more);
    }
    if (!fills_alike) out.forget();
    out.input = kNone;
    return out;
  }

  State flip(const Pair& op) {
    if (!op.same_but({})) return unsafe("its axes depend on the size");
    State out = operand(op, 0);
    for (int64_t d : op.small.ints(AttrKey::k_dims))
      if (grows(out.axes[static_cast<size_t>(d)])) return unsafe("it turns round " + axis_text(static_cast<size_t>(d)));
    return out;
  }

  // At all sizes, and not only at these: of an axis that grows, its first element or the first padded one; of another one a number, or
  // what depends on no input, which eager has looked at when the larger size was decided.
  static bool is_in_range(const State& index, bool axis_grows, double size, double size_large) {
    if (index.constant && !axis_grows) return true;
    const std::optional<Fill> fill = index.fill();
    if (!fill || fill->low < 0 || fill->high >= size_large) return false;
    return axis_grows ? fill->is(0) || (fill->moves && fill->low >= size) : !fill->moves;
  }

  // Why an index may not be used along an axis of `x`; empty: it may.
  std::string refuse_index(const Pair& op, size_t index, const PadAxis& axis, int64_t size, int64_t size_large) {
    const State& i = operand(op, index);
    if (grows(i.axes) && !is_in_range(i, grows(axis), static_cast<double>(size), static_cast<double>(size_large)))
      return "padded elements of its index may be out of range";
    if (!grows(axis)) return {};
    if (axis.size() != 1) return "its index goes through several axes, of which one is padded";
    if (i.input == kNone) return "its index into the padded axis is computed, so that nobody can look whether it is in range";
    take_for_granted(i.input, size);
    return {};
  }

  // An index that is made of positions: each of its axes goes along one factor of the axis that it picks from, at both sizes, so that what
  // is picked at a position that is not padded is not padded either. By axis of the index: which factor, kNone: it does not vary along it.
  std::optional<std::vector<size_t>> picks_own_row(const Pair& op, const PadAxis& axis) const {
    const ValueId index = op.small.operands[1];
    const std::optional<IndexMap> small = index_map_of(small_, index), large = index_map_of(large_, index);
    if (!small || !large || small->is_condition || large->is_condition || small->offset != 0 || large->offset != 0) return std::nullopt;
    std::vector<size_t> along(small->axes.size(), kNone);
    for (size_t k = 0; k < small->axes.size(); ++k) {
      const int64_t size = type(index).sizes[k], size_large = large_.type(index).sizes[k];
      if (size_large == 1 || (small->axes[k] == 0 && large->axes[k] == 0)) continue;
      if (states_[index].unsafe.empty() && grows(states_[index].axes[k]) && states_[index].axes[k].size() != 1) return std::nullopt;
      int64_t stride = 1, stride_large = 1;
      for (size_t f = axis.size(); f-- > 0 && along[k] == kNone;) {
        const bool goes = small->axes[k] == stride && large->axes[k] == stride_large && std::ranges::find(along, f) == along.end();
        if (goes && size <= axis[f].small && size_large <= axis[f].large) along[k] = f;
        stride *= axis[f].small, stride_large *= axis[f].large;
      }
      if (along[k] == kNone) return std::nullopt;
    }
    return along;
  }

  State take(const Pair& op) {
    if (!op.same_but({})) return unsafe("its axis depends on the size");
    const auto dim = static_cast<size_t>(op.small.i(AttrKey::k_dim));
    const State &x = operand(op, 0), &index = operand(op, 1);
    const std::optional<std::vector<size_t>> along = picks_own_row(op, x.axes[dim]);
    if (!along)
      if (std::string why = refuse_index(op, 1, x.axes[dim], size_of(op, 0, dim, false), size_of(op, 0, dim, true)); !why.empty())
        return unsafe(std::move(why));
    return take_rows(op, index.axes, along);
  }

  State take_rows(const Pair& op, const PadAxes& of_index, const std::optional<std::vector<size_t>>& along) {
    const auto dim = static_cast<size_t>(op.small.i(AttrKey::k_dim));
    const auto at = static_cast<ptrdiff_t>(dim);
    const State& x = operand(op, 0);
    State out = x;
    out.axes.erase(out.axes.begin() + at);
    out.axes.insert(out.axes.begin() + at, of_index.begin(), of_index.end());
    out.fills.erase(out.fills.begin() + at);
    out.fills.insert(out.fills.begin() + at, of_index.size(), std::nullopt);
    // What is picked beyond the end of a factor that is gone through to its end is padded.
    for (size_t k = 0; along && k < along->size(); ++k)
      if ((*along)[k] != kNone && type(op.small.operands[1]).sizes[k] == x.axes[dim][(*along)[k]].small)
        out.fills[dim + k] = x.fills[dim];
    return out;
  }

  // The same by an index that is nothing but positions, though they are counted by sizes that are padded: row * length + column.
  std::optional<State> picked_by_position(const Pair& op) {
    if (op.code() != OpCode::k_take || !op.same_but({})) return std::nullopt;
    const ValueId index = op.small.operands[1];
    if (!operand(op, 0).unsafe.empty() || states_[index].unsafe.empty()) return std::nullopt;
    const auto along = picks_own_row(op, operand(op, 0).axes[static_cast<size_t>(op.small.i(AttrKey::k_dim))]);
    if (!along) return std::nullopt;
    PadAxes axes;
    for (size_t k = 0; k < along->size(); ++k)
      axes.push_back(axis_of(type(index).sizes[k], large_.type(index).sizes[k], (*along)[k] == kNone));
    State out = take_rows(op, axes, along);
    return fits(out.axes, op.small.results[0]) ? std::optional(std::move(out)) : std::nullopt;
  }

  State gather(const Pair& op) {
    if (!op.same_but({})) return unsafe("its axis depends on the size");
    const auto dim = static_cast<size_t>(op.small.i(AttrKey::k_dim));
    const State &x = operand(op, 0), &index = operand(op, 1);
    for (size_t a = 0; a < x.axes.size(); ++a) {
      const bool apart = grows(x.axes[a]) || grows(index.axes[a]);
      if (a != dim && apart && !unite(x.axes[a], index.axes[a])) return unsafe("its operands are padded in different ways");
    }
    if (std::string why = refuse_index(op, 1, x.axes[dim], size_of(op, 0, dim, false), size_of(op, 0, dim, true)); !why.empty())
      return unsafe(std::move(why));
    State out = of_axes(index.axes);
    out.all = x.all;
    out.input = x.input;
    return out;
  }

  // scatter, and index_reduce, whose index has one axis.
  State scatter(const Pair& op) {
    if (!op.same_but({})) return unsafe("its axis depends on the size");
    const auto dim = static_cast<size_t>(op.small.i(AttrKey::k_dim));
    const bool one_axis = op.code() == OpCode::k_index_reduce;
    const State &self = operand(op, 0), &index = operand(op, 1), &src = operand(op, 2);
    State out = of_axes(self.axes);
    for (size_t a = 0; a < self.axes.size(); ++a) {
      if (a == dim) continue;
      const bool apart = grows(self.axes[a]) || grows(src.axes[a]) || (!one_axis && grows(index.axes[a]));
      if (!apart) continue;
      std::optional<PadAxis> axis = unite(self.axes[a], src.axes[a]);
      if (axis && !one_axis) axis = unite(*axis, index.axes[a]);
      if (!axis) return unsafe("its operands are padded in different ways");
      out.axes[a] = std::move(*axis);
    }
    const PadAxis& along = index.axes[one_axis ? 0 : dim];
    if ((grows(along) || grows(src.axes[dim])) && !unite(along, src.axes[dim])) return unsafe("its operands are padded in different ways");
    const int64_t size = size_of(op, 0, dim, false), size_large = size_of(op, 0, dim, true);
    if (std::string why = refuse_index(op, 1, self.axes[dim], size, size_large); !why.empty()) return unsafe(std::move(why));
    if (grows(along)) {
      const std::optional<Fill> into = index.fill(), of = src.fill();
      const bool into_padded = grows_alone(self.axes[dim]) && into && into->moves && into->low >= static_cast<double>(size);
      if (!into_padded && !is_neutral(of, op.small.s(AttrKey::k_reduce)))
        return unsafe("padded elements are written to where others belong");
      out.or_nan = !into_padded && of->or_nan;
    }
    return out;
  }

  State slice_scatter(const Pair& op) {
    if (!op.same_but({AttrKey::k_end})) return unsafe("where it begins depends on the size");
    const auto dim = static_cast<size_t>(op.small.i(AttrKey::k_dim));
    const State &self = operand(op, 0), &src = operand(op, 1);
    const auto [start, end, step] = span_of(op.small);
    const int64_t end_large = op.large.i(AttrKey::k_end);
    const int64_t size = size_of(op, 0, dim, false), size_large = size_of(op, 0, dim, true);
    State out = of_axes(self.axes);
    for (size_t a = 0; a < self.axes.size(); ++a) {
      if (a == dim) continue;
      std::optional<PadAxis> axis = unite(self.axes[a], src.axes[a]);
      if (!axis) return unsafe("its operands are padded in different ways");
      out.axes[a] = std::move(*axis);
    }
    const bool all = start == 0 && step == 1 && end == size && end_large == size_large;
    if (all) out.axes[dim] = src.axes[dim];
    else if (end != end_large || end > size || grows(src.axes[dim]) || self.axes[dim].size() > 1)
      return unsafe("it writes up to the end of the padded axis");
    for (size_t a = 0; a < self.axes.size(); ++a)
      if (self.fill_along(a) == src.fill_along(a)) out.fills[a] = self.fill_along(a);
    return out;
  }

  State cumsum(const Pair& op) {
    if (!op.same_but({})) return unsafe("its axis depends on the size");
    State out = operand(op, 0);
    PadAxis& axis = out.axes[static_cast<size_t>(op.small.i(AttrKey::k_dim))];
    if (grows(axis) && axis.size() != 1) return unsafe("it sums through several axes, of which one is padded");
    if (grows(axis)) axis[0].uniform = false;
    out.forget();
    return out;
  }

  // ---- factories

  State factory(const Pair& op) {
    if (!op.same_but({AttrKey::k_sizes})) return unsafe("a number depends on the size");
    const Type &small = type(op.small.results[0]), &large = large_.type(op.small.results[0]);
    if (op.code() == OpCode::k_full) {
      const double value = is_float(small.dtype) ? op.small.d(AttrKey::k_value_d) : static_cast<double>(op.small.i(AttrKey::k_value_i));
      State out = of_axes(axes_of(small.sizes, large.sizes, true));
      if (!std::isnan(value)) out.all = Fill{value, value};
      return out;
    }
    if (op.code() != OpCode::k_iota) return unsafe("no rule is known");
    State out = of_axes(axes_of(small.sizes, large.sizes));
    const int64_t start = op.small.i(AttrKey::k_start), step = op.small.i(AttrKey::k_step);
    const auto at = [&](int64_t i) { return static_cast<double>(start + i * step); };
    if (grows(out.axes) && start >= 0 && step >= 1) out.fills[0] = Fill{at(small.sizes[0]), at(large.sizes[0] - 1), true};
    return out;
  }

  // ---- composites

  std::vector<State> body(const Pair& op) {
    if (op.code() == OpCode::k_softmax || op.code() == OpCode::k_log_softmax) {
      const State& x = operand(op, 0);
      const auto dim = static_cast<size_t>(op.small.i(AttrKey::k_dim));
      // What is -infinity has no share, and the rows of a value that is padded along this axis alone are none but those of the call.
      if (op.same_but({}) && grows_alone(x.axes[dim]) && x.fill_along(dim) && x.fill_along(dim)->is(-kInfinity)) {
        State out = x;
        out.forget();
        const auto growing = std::ranges::count_if(x.axes, [](const PadAxis& axis) { return grows(axis); });
        if (op.code() == OpCode::k_softmax && growing == 1) out.fills[dim] = Fill{0, 0};
        return {out};
      }
    }
    Result<Graph> small = decompose(small_, op.small), large = decompose(large_, op.large);
    if (!small.ok() || !large.ok()) return std::vector<State>(op.small.results.size(), unsafe("no rule is known"));
    std::vector<State> inputs;
    for (size_t i = 0; i < op.small.operands.size(); ++i)
      if (present(op, i)) inputs.push_back(operand(op, i));
    Prover inner(*small, *large, bounds_);
    if (Status status = inner.run(std::move(inputs)); !status.ok())
      return std::vector<State>(op.small.results.size(), unsafe(status.message().what));
    std::vector<State> out;
    for (const Output& output : small->outputs) out.push_back(inner.at(output.value));
    return out;
  }

  std::vector<State> anchor(const Pair& op) {
    const auto several = [&](State state) { return std::vector<State>(op.small.results.size(), std::move(state)); };
    const bool states_sizes =
        op.code() == OpCode::k_upsample_nearest || op.code() == OpCode::k_upsample_bilinear || op.code() == OpCode::k_adaptive_avg_pool;
    if (!op.same_but({})) return several(unsafe("its numbers depend on the size"));
    switch (op.code()) {
      case OpCode::k_matmul: return {matmul(op)};
      case OpCode::k_linear: return {linear(op)};
      case OpCode::k_grouped_matmul: return {grouped_matmul(op)};
      case OpCode::k_attention: return {attention(op)};
      case OpCode::k_lstm:
      case OpCode::k_gru: return rnn(op);
      case OpCode::k_embedding_bag: return {embedding_bag(op)};
      case OpCode::k_conv: return {windows(op, op.small.ints(AttrKey::k_stride).size(), 1)};
      case OpCode::k_max_pool:
      case OpCode::k_avg_pool: return {windows(op, op.small.ints(AttrKey::k_kernel).size(), 2)};
      default: break;
    }
    if (states_sizes) return {windows(op, op.small.ints(AttrKey::k_sizes).size(), 2)};
    return several(unsafe("no rule is known"));
  }

  bool any_grows(const Pair& op, size_t from) const {
    for (size_t i = from; i < op.small.operands.size(); ++i)
      if (present(op, i) && grows(operand(op, i).axes)) return true;
    return false;
  }

  State matmul(const Pair& op) {
    const State &a = operand(op, 0), &b = operand(op, 1);
    const size_t r = a.axes.size();
    PadAxes axes;
    for (size_t i = 0; i + 2 < r; ++i) {
      std::optional<PadAxis> axis = unite(a.axes[i], b.axes[i]);
      if (!axis) return unsafe("its operands are padded in different ways");
      axes.push_back(std::move(*axis));
    }
    bool or_nan = false;
    if (grows(a.axes[r - 1])) {
      const std::optional<Fill> of_a = a.fill_along(r - 1), of_b = b.fill_along(r - 2);
      const bool nothing = (of_a && of_a->is_or_nan(0)) || (of_b && of_b->is_or_nan(0));
      if (!nothing || !unite(a.axes[r - 1], b.axes[r - 2])) return unsafe("it sums " + axis_text(r - 1));
      or_nan = is_float(type(op.small.results[0]).dtype) && !(of_a && of_b && of_a->is_finite() && of_b->is_finite());
    }
    axes.push_back(a.axes[r - 2]);
    axes.push_back(b.axes[r - 1]);
    State out = of_axes(std::move(axes));
    out.or_nan = or_nan;
    return out;
  }

  State linear(const Pair& op) {
    const State& x = operand(op, 0);
    if (any_grows(op, 1)) return unsafe("its weight is padded");
    if (grows(x.axes.back())) return unsafe("it sums " + axis_text(x.axes.size() - 1));
    PadAxes axes = x.axes;
    const int64_t n = type(op.small.results[0]).sizes.back();
    axes.back() = axis_of(n, n);
    return of_axes(std::move(axes));
  }

  // Rows are apart from each other; padded ones are of no group, or of the last one.
  State grouped_matmul(const Pair& op) {
    const State& x = operand(op, 0);
    if (any_grows(op, 1)) return unsafe("its weights or groups are padded");
    if (grows(x.axes[1])) return unsafe("it sums " + axis_text(1));
    const int64_t n = type(op.small.results[0]).sizes[1];
    return of_axes({x.axes[0], axis_of(n, n)});
  }

  // Rows of queries and batches are apart from each other. Padded keys may be there where none of the call's queries looks at them: their
  // shares are 0, so that what they add is 0, or NaN of values that are not finite.
  State attention(const Pair& op) {
    const State &q = operand(op, 0), &k = operand(op, 1), &v = operand(op, 2);
    const size_t r = q.axes.size();
    PadAxes axes = q.axes;
    for (size_t i = 0; i + 2 < r; ++i) {
      const bool heads = i + 3 == r && op.small.b(AttrKey::k_gqa);
      if (heads && (grows(q.axes[i]) || grows(k.axes[i]) || grows(v.axes[i]))) return unsafe("its heads are padded");
      if (heads) continue;
      std::optional<PadAxis> axis = unite(q.axes[i], k.axes[i]);
      if (axis) axis = unite(*axis, v.axes[i]);
      if (axis && present(op, 3)) axis = unite(*axis, operand(op, 3).axes[i]);
      if (!axis) return unsafe("its operands are padded in different ways");
      axes[i] = std::move(*axis);
    }
    const bool padded_keys = grows(k.axes[r - 2]) || grows(v.axes[r - 2]);
    if (padded_keys && !hides_keys(op)) return unsafe("it sums over padded keys");
    if (grows(q.axes[r - 1]) || grows(v.axes[r - 1])) return unsafe("it sums " + axis_text(r - 1));
    if (present(op, 3)) {
      std::optional<PadAxis> rows = unite(q.axes[r - 2], operand(op, 3).axes[r - 2]);
      if (!rows) return unsafe("its operands are padded in different ways");
      axes[r - 2] = std::move(*rows);
    }
    axes[r - 1] = v.axes[r - 1];
    State out = of_axes(std::move(axes));
    out.or_nan = padded_keys;
    return out;
  }

  // Whether no query of the call looks at a padded key: by the mask, or since they come after it.
  bool hides_keys(const Pair& op) const {
    const size_t r = operand(op, 0).axes.size();
    const PadAxis& keys = operand(op, 1).axes[r - 2];
    if (!unite(keys, operand(op, 2).axes[r - 2])) return false;
    if (present(op, 3)) {
      const State& mask = operand(op, 3);
      if (!unite(mask.axes[r - 1], keys)) return false;
      const double hidden = type(op.small.operands[3]).dtype == DType::k_bool ? 0 : -kInfinity;
      if (mask.fill_along(r - 1) && mask.fill_along(r - 1)->is(hidden)) return true;
    }
    const auto as_many = [&](bool large) { return size_of(op, 0, r - 2, large) == size_of(op, 1, r - 2, large); };
    return op.small.b(AttrKey::k_causal) && as_many(false) && as_many(true);
  }

  std::vector<State> rnn(const Pair& op) {
    const State &x = operand(op, 0), &h = operand(op, 1);
    const bool batch_first = op.small.b(AttrKey::k_batch_first);
    const size_t batch = batch_first ? 0 : 1, steps = batch_first ? 1 : 0, first_weight = op.code() == OpCode::k_lstm ? 3 : 2;
    const auto all = [&](std::string why) { return std::vector<State>(op.small.results.size(), unsafe(std::move(why))); };
    if (any_grows(op, first_weight) || grows(x.axes[2])) return all("its weights or features are padded");
    for (size_t i = 1; i < first_weight; ++i) {
      const PadAxes& state = operand(op, i).axes;
      if (!unite(state[1], x.axes[batch]) || grows(state[0]) || grows(state[2])) return all("its operands are padded in different ways");
    }
    if (grows(x.axes[steps]) && op.small.b(AttrKey::k_bidirectional)) return all("it goes back " + axis_text(steps));
    if (grows(x.axes[steps]) && x.axes[steps].size() != 1) return all("its steps are of several axes, of which one is padded");
    PadAxes axes = x.axes;
    for (PadAxis& axis : axes)
      if (axis.size() == 1) axis[0].uniform = false;  // steps differ though their inputs do not
    const int64_t features = type(op.small.results[0]).sizes[2];
    axes[2] = axis_of(features, features);
    std::vector<State> out{of_axes(std::move(axes))};
    while (out.size() < op.small.results.size())
      out.push_back(grows(x.axes[steps]) ? unsafe("its last state is that after padded steps") : of_axes(h.axes));
    return out;
  }

  State embedding_bag(const Pair& op) {
    const State &weight = operand(op, 0), &index = operand(op, 1);
    if (!any_grows(op, 0)) return of_axes(axes_of(type(op.small.results[0]).sizes, large_.type(op.small.results[0]).sizes));
    if (present(op, 2) || grows(weight.axes) || grows(index.axes[1])) return unsafe("its bags are padded");
    if (std::string why = refuse_index(op, 1, weight.axes[0], size_of(op, 0, 0, false), size_of(op, 0, 0, true)); !why.empty())
      return unsafe(std::move(why));
    return of_axes({index.axes[0], weight.axes[1]});
  }

  // Convolutions, pools and interpolations: rows of the first `apart` axes are apart from each other.
  State windows(const Pair& op, size_t spatial, size_t apart) {
    const State& x = operand(op, 0);
    if (any_grows(op, 1)) return unsafe("its weight is padded");
    for (size_t i = std::min(apart, x.axes.size() - spatial); i < x.axes.size(); ++i)
      if (grows(x.axes[i])) return unsafe("it looks at neighbours " + axis_text(i));
    const Dims& sizes = type(op.small.results[0]).sizes;
    PadAxes axes = x.axes;
    for (size_t i = 0; i < axes.size(); ++i)
      if (!grows(axes[i])) axes[i] = axis_of(sizes[i], sizes[i]);
    return of_axes(std::move(axes));
  }

  const Graph &small_, &large_;
  std::vector<PadProof::Bound>& bounds_;
  std::vector<State> states_;
};

}  // namespace

Result<PadProof> prove_pad_safe(const Graph& small, const Graph& large, const std::vector<PadFill>& fills) {
  if (small.inputs.size() != large.inputs.size() || fills.size() != small.inputs.size())
    return Status(Code::k_unsupported, "the graph is another one at other sizes: other inputs");
  std::vector<State> inputs;
  for (size_t i = 0; i < small.inputs.size(); ++i) {
    State state = of_axes(axes_of(small.type(small.inputs[i]).sizes, large.type(large.inputs[i]).sizes));
    if (!std::isnan(fills[i].value))
      state.fills.assign(state.axes.size(), Fill{fills[i].value, fills[i].value, fills[i].is_extent});
    state.input = static_cast<uint32_t>(i);
    inputs.push_back(std::move(state));
  }
  PadProof proof;
  Prover prover(small, large, proof.bounds);
  KRN_TRY(prover.run(std::move(inputs)));
  for (size_t i = 0; i < small.outputs.size(); ++i) {
    const Output& output = small.outputs[i];
    const std::string name = "output " + std::to_string(i);
    if (output.updates != kNone) return Status(Code::k_unsupported, "a call writes state or an input");
    const State& state = prover.at(output.value);
    if (!state.unsafe.empty()) return Status(Code::k_unsupported, name + " would not be the same: " + state.unsafe);
    std::vector<bool> cut;
    for (const PadAxis& axis : state.axes) {
      if (grows(axis) && !grows_at_end(axis))
        return Status(Code::k_unsupported, name + " has an axis that is a product of a padded size and others, and is not cut back");
      cut.push_back(grows(axis));
    }
    if (output.alias_of != kNone && grows(state.axes)) return Status(Code::k_unsupported, name + " is an input itself");
    proof.cut.push_back(std::move(cut));
    proof.or_nan.push_back(state.or_nan);
  }
  for (const Op& op : small.ops)
    if (op.effects) return Status(Code::k_unsupported, "an operator has effects: " + (op.origin.empty() ? "opaque" : op.origin.str()));
  return proof;
}

}  // namespace keirin
