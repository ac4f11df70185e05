// SPDX-License-Identifier: Apache-2.0
//
// Pass 2: range facts. Every integer, bool and constant value gets an Interval, run forward through the table: scalar rows by
// the very formulas that compute them, moves by which elements they can touch. A fact is never a guess: where a row has no
// rule, nothing is known. Floats get facts only from rows that round once.
#include <cmath>
#include <limits>

#include "abi/planted.h"
#include "abi/interval.h"
#include "core/ops/table.h"
#include "core/passes/facts.h"
#include "core/passes/pass.h"

namespace keirin {
namespace {

using scalar::Interval;
using scalar::Truth;

constexpr int64_t kMaxElementsRead = int64_t{1} << 18;  // constants that are small enough to look at

Interval of(const Truth& t) { return Interval(t.can_be_false ? 0.0 : 1.0, t.can_be_true ? 1.0 : 0.0, false); }
Truth truth_of(const Interval& x) { return {x.high != 0 || x.low != 0 || x.nan, scalar::has_zero(x)}; }

// All values that the dtype can hold.
Interval whole(DType dtype) {
  if (dtype == DType::k_bool) return Interval(0, 1, false);
  if (!is_int(dtype)) return scalar::everything();
  int bits = static_cast<int>(dtype_bytes(dtype)) * 8;
  if (dtype == DType::k_u8) return Interval(0, 255, false);
  double top = std::ldexp(1.0, bits - 1);
  return Interval(-top, top - 1, false);
}

// What of x survives being stored as dtype: wrapping makes an integer that left its range anything, rounding moves a bound
// that the dtype cannot hold outwards.
Interval stored(DType dtype, Interval x) {
  Interval all = whole(dtype);
  if (is_int(dtype)) {
    constexpr double kExact = 9007199254740992.0;  // 2^53
    bool fits = !x.nan && x.low >= all.low && x.high <= all.high && std::fabs(x.low) <= kExact && std::fabs(x.high) <= kExact;
    return fits ? x : all;
  }
  if (!is_float(dtype)) return x;
  auto outward = [&](double bound, double towards) {
    double r = round_to(dtype, bound);
    if (r == bound || dtype == DType::k_f64) return bound;
    double spacing = std::fabs(bound) * (dtype == DType::k_f32 ? 0x1p-22 : dtype == DType::k_f16 ? 0x1p-9 : 0x1p-6) + 0x1p-24;
    return bound + std::copysign(spacing, towards);
  };
  return Interval(outward(x.low, -1.0), outward(x.high, 1.0), x.nan);
}

class Inference {
 public:
  Inference(Graph& graph, const PassContext& context) : graph_(graph), context_(context) {}

  // `of_inputs`: what is known of them, by position; empty: nothing.
  void run(const std::vector<std::optional<Range>>& of_inputs = {}) {
    const std::vector<uint8_t> tells = values_that_tell();
    for (ValueId v = 0; v < graph_.values.size(); ++v) graph_.values[v].range.reset();
    for (size_t i = 0; i < of_inputs.size(); ++i) graph_.values[graph_.inputs[i]].range = of_inputs[i];
    for (ValueId v = 0; v < graph_.values.size(); ++v) {
      if (graph_.values[v].kind == ValueKind::kConstant && tells[v]) read_constant(v);
    }
    for (const Op& op : graph_.ops) {
      if (op.results.size() != 1 || op.code == OpCode::kOpaque) continue;
      set(op.results[0], result_of(op));
    }
  }

 private:
  Interval get(ValueId v) const {
    const Value& value = graph_.values[v];
    if (value.range) return Interval(value.range->low, value.range->high, value.range->may_be_nan);
    return whole(value.type.dtype);
  }

  // Nothing follows from the range of a weight that only contractions read, and weights are many.
  std::vector<uint8_t> values_that_tell() const {
    std::vector<uint8_t> tells(graph_.values.size());
    for (const Op& op : graph_.ops) {
      const bool contraction = op.code == OpCode::k_conv || op.code == OpCode::k_linear || op.code == OpCode::k_matmul ||
                               op.code == OpCode::k_grouped_matmul;
      for (ValueId v : op.operands)
        if (v != kNone && (!contraction || !is_float(graph_.type(v).dtype))) tells[v] = 1;
    }
    for (const Output& output : graph_.outputs) tells[output.value] = 1;
    return tells;
  }

  // Facts that say nothing are not written down.
  void set(ValueId v, Interval x) {
    Value& value = graph_.values[v];
    Interval all = whole(value.type.dtype);
    x = stored(value.type.dtype, x);
    if (x.low <= all.low && x.high >= all.high && (x.nan || !all.nan)) return;
    value.range = Range{x.low + 0.0, x.high + 0.0, x.nan};  // -0 and 0 are one bound
  }

  void read_constant(ValueId v) {
    const Value& value = graph_.values[v];
    int64_t n = value.type.num_elements();
    if (!context_.evaluator || n == 0 || n > kMaxElementsRead || dtype_class(value.type.dtype) == DTypeClass::x) return;
    Result<std::vector<double>> elements = context_.evaluator->read(value.index);
    if (!elements.ok() || elements->empty()) return;
    Interval x(INFINITY, -INFINITY, false);
    for (double e : *elements) {
      if (std::isnan(e)) {
        x.nan = true;
      } else {
        x.low = scalar::least(x.low, e);
        x.high = scalar::greatest(x.high, e);
      }
    }
    if (x.low <= x.high) set(v, x);
  }

  Interval result_of(const Op& op) const {
    const OpRow& row = *find_row(op.code);
    DType dtype = graph_.type(op.results[0]).dtype;
    if (graph_.type(op.results[0]).num_elements() == 0) return whole(dtype);
    switch (row.kind) {
      case RowKind::kScalar: return scalar_row(op);
      case RowKind::kFactory: return factory(op);
      case RowKind::kReduce: return reduce(op);
      case RowKind::kMove: return move(op);
      default: return whole(dtype);
    }
  }

  Interval scalar_row(const Op& op) const {
    auto x = [&](size_t k) { return get(op.operands[k]); };
    auto t = [&](size_t k) { return truth_of(get(op.operands[k])); };
    switch (op.code) {
#define KRN_RANGE1(name) case OpCode::k_##name: return rows::row_##name(x(0));
#define KRN_RANGE2(name) case OpCode::k_##name: return rows::row_##name(x(0), x(1));
#define KRN_TEST2(name) case OpCode::k_##name: return of(rows::row_##name(x(0), x(1)));
#define KRN_LOGIC2(name) case OpCode::k_##name: return of(rows::row_##name(t(0), t(1)));
      KRN_RANGE1(neg) KRN_RANGE1(abs) KRN_RANGE1(sign) KRN_RANGE1(reciprocal) KRN_RANGE1(sqrt) KRN_RANGE1(relu)
      KRN_RANGE1(floor) KRN_RANGE1(ceil) KRN_RANGE1(trunc) KRN_RANGE1(round)
      KRN_RANGE2(add) KRN_RANGE2(sub) KRN_RANGE2(mul) KRN_RANGE2(div) KRN_RANGE2(maximum) KRN_RANGE2(minimum)
      KRN_TEST2(eq) KRN_TEST2(ne) KRN_TEST2(lt) KRN_TEST2(le) KRN_TEST2(gt) KRN_TEST2(ge)
      KRN_LOGIC2(logical_and) KRN_LOGIC2(logical_or) KRN_LOGIC2(logical_xor)
#undef KRN_RANGE1
#undef KRN_RANGE2
#undef KRN_TEST2
#undef KRN_LOGIC2
      case OpCode::k_clamp: return rows::row_clamp(x(0), x(1), x(2));
      case OpCode::k_select: return rows::row_select(t(0), x(1), x(2));
      case OpCode::k_logical_not: return of(rows::row_logical_not(t(0)));
      case OpCode::k_is_nan: return of(rows::row_is_nan(x(0)));
      case OpCode::k_cast: return cast(op);
      case OpCode::k_bit_and: return x(0).low >= 0 && x(1).low >= 0 ? Interval(0, scalar::least(x(0).high, x(1).high), false)
                                                                    : whole(graph_.type(op.results[0]).dtype);
      default: return whole(graph_.type(op.results[0]).dtype);
    }
  }

  Interval cast(const Op& op) const {
    Interval x = get(op.operands[0]);
    DType to = graph_.type(op.results[0]).dtype;
    if (to == DType::k_bool) return of(truth_of(x));
    if (is_int(to) && is_float(graph_.type(op.operands[0]).dtype)) return x.nan ? whole(to) : scalar::trunc(x);
    return x;
  }

  Interval factory(const Op& op) const {
    DType dtype = graph_.type(op.results[0]).dtype;
    if (op.code == OpCode::k_full)
      return is_float(dtype) ? Interval(round_to(dtype, op.d(AttrKey::k_value_d)))
                             : Interval(static_cast<double>(op.i(AttrKey::k_value_i)));
    double start = static_cast<double>(op.i(AttrKey::k_start)), step = static_cast<double>(op.i(AttrKey::k_step));
    double last = start + step * static_cast<double>(graph_.type(op.results[0]).sizes[0] - 1);
    return Interval(scalar::least(start, last), scalar::greatest(start, last), false);
  }

  Interval reduce(const Op& op) const {
    Interval x = get(op.operands[0]);
    const Type &from = graph_.type(op.operands[0]), &to = graph_.type(op.results[0]);
    if (from.num_elements() == 0) return whole(to.dtype);
    double n = static_cast<double>(from.num_elements() / to.num_elements());
    switch (op.code) {
      case OpCode::k_amax: case OpCode::k_amin: case OpCode::k_any: case OpCode::k_all: return x;
      case OpCode::k_argmax: case OpCode::k_argmin: return Interval(0, n - 1, false);
      case OpCode::k_sum: return is_float(to.dtype) ? whole(to.dtype) : Interval(x.low * n, x.high * n, false);
      default: return whole(to.dtype);
    }
  }

  Interval move(const Op& op) const {
    Interval x = get(op.operands[0]);
    DType dtype = graph_.type(op.results[0]).dtype;
    switch (op.code) {
      case OpCode::k_expand: case OpCode::k_reshape: case OpCode::k_permute: case OpCode::k_slice: case OpCode::k_flip:
      case OpCode::k_take: case OpCode::k_gather: case OpCode::k_relayout: return x;
      case OpCode::k_cat: {
        for (ValueId v : op.operands) x = hull(x, get(v));
        return x;
      }
      case OpCode::k_pad:
        return KRN_PLANTED(pad_range) ? x
                                      : hull(x, is_float(dtype) ? Interval(op.d(AttrKey::k_value_d))
                                                                : Interval(static_cast<double>(op.i(AttrKey::k_value_i))));
      case OpCode::k_slice_scatter: return hull(x, get(op.operands[1]));
      case OpCode::k_scatter: case OpCode::k_index_reduce:
        return op.s(AttrKey::k_reduce) == "none" ? hull(x, get(op.operands[2])) : whole(dtype);
      case OpCode::k_cumsum: {
        if (is_float(dtype)) return whole(dtype);
        double n = static_cast<double>(graph_.type(op.operands[0]).sizes[static_cast<size_t>(op.i(AttrKey::k_dim))]);
        return Interval(scalar::least(x.low, x.low * n), scalar::greatest(x.high, x.high * n), false);
      }
      default: return whole(dtype);
    }
  }

  Graph& graph_;
  const PassContext& context_;
};

}  // namespace

void find_ranges(Graph& graph, const std::vector<std::optional<Range>>& of_inputs) { Inference(graph, {}).run(of_inputs); }

Status passes::infer(Graph& graph, PassContext& context) {
  Inference(graph, context).run();
  return {};
}

}  // namespace keirin
