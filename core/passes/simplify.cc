// SPDX-License-Identifier: Apache-2.0
//
// Pass 3: exact rewrites only, so that every numerics allows them: one op for equal ops, views and casts that change nothing,
// x*1, x-0, x+(-0), double negation, values that range facts pin to one number. Not x+0, x*0, x-x, reassociation.
#include <cmath>
#include <unordered_map>

#include "abi/planted.h"
#include "core/ir/rows.h"
#include "core/ir/text.h"
#include "core/ops/table.h"
#include "core/passes/facts.h"
#include "core/passes/pass.h"
#include "core/passes/rewriter.h"

namespace keirin {
namespace {

class Simplifier {
 public:
  explicit Simplifier(Rewriter& r) : r_(r), g_(r.graph()) {}

  Result<bool> operator()(OpId id) {
    const Op& op = r_.old().ops[id];
    if (op.code == OpCode::kOpaque) return false;
    ValueIds operands = r_.operands(op);
    KRN_TRY_LET(ValueId pinned, pinned_value(op));
    if (pinned != kNone) return take(op, pinned);
    KRN_TRY_LET(ValueId simpler, simpler_value(op, operands));
    if (simpler != kNone && r_.can_replace(op.results[0], simpler)) return take(op, simpler);
    return reuse(id, op, operands);
  }

 private:
  bool take(const Op& op, ValueId v) {
    r_.replace(op.results[0], v);
    return true;
  }

  // An integer or bool whose range is one number is that number.
  Result<ValueId> pinned_value(const Op& op) {
    const Value& value = r_.old().values[op.results[0]];
    if (op.results.size() != 1 || op.code == OpCode::k_full || is_float(value.type.dtype) || !value.range) return kNone;
    if (value.range->low != value.range->high || splat_of(r_.old(), op.results[0])) return kNone;
    return r_.build().full_i(static_cast<int64_t>(value.range->low), value.type.dtype, value.type.sizes);
  }

  // An equal op was seen before: its results serve. Commuted operands do not count as equal.
  bool reuse(OpId id, const Op& op, const ValueIds& operands) {
    std::string key(op_name(op.code));
    for (ValueId v : operands) key += ',' + std::to_string(v);
    for (const Attr& attr : op.attrs)
      if (!KRN_PLANTED(equal_without_attrs)) key += attr_text(attr);
    auto [at, fresh] = seen_.emplace(std::move(key), kNone);
    if (fresh) {
      at->second = r_.keep(id);
      return true;
    }
    const Op& first = g_.ops[at->second];
    for (size_t k = 0; k < op.results.size(); ++k)
      if (g_.type(first.results[k]).strides != r_.old().type(op.results[k]).strides) return false;
    for (size_t k = 0; k < op.results.size(); ++k) r_.replace(op.results[k], first.results[k]);
    return true;
  }

  static std::string attr_text(const Attr& attr) {
    Graph holder;
    holder.add_op(OpCode::k_full, {}, {attr}, {});
    return print_op(holder, 0);
  }

  Result<ValueId> simpler_value(const Op& op, const ValueIds& x) {
    switch (op.code) {
      case OpCode::k_mul: return is_splat(x[1], 1) ? x[0] : is_splat(x[0], 1) ? x[1] : kNone;
      case OpCode::k_div: return is_splat(x[1], 1) ? x[0] : kNone;
      case OpCode::k_sub: return is_splat(x[1], 0) ? x[0] : kNone;
      case OpCode::k_add: return is_splat(x[1], -0.0) ? x[0] : is_splat(x[0], -0.0) ? x[1] : kNone;
      case OpCode::k_neg: case OpCode::k_logical_not: case OpCode::k_bit_not: return undone(op.code, x[0]);
      case OpCode::k_logical_and: return is_splat(x[1], 1) ? x[0] : is_splat(x[0], 1) ? x[1] : kNone;
      case OpCode::k_logical_or: return is_splat(x[1], 0) ? x[0] : is_splat(x[0], 0) ? x[1] : kNone;
      case OpCode::k_select: return chosen(x);
      case OpCode::k_cast: return cast(op, x[0]);
      case OpCode::k_reciprocal: return reciprocal(x[0]);
      default: return moved(op, x);
    }
  }

  // For a float the sign of a zero counts; for an integer it does not exist.
  bool is_splat(ValueId v, double number) const {
    auto splat = splat_of(g_, v);
    if (!splat || *splat != number) return false;
    return number != 0 || KRN_PLANTED(negative_zero) || !is_float(g_.type(v).dtype) || std::signbit(*splat) == std::signbit(number);
  }

  ValueId undone(OpCode code, ValueId x) const {
    const Op* inner = made_by(g_, x, code);
    return inner ? inner->operands[0] : kNone;
  }

  ValueId chosen(const ValueIds& x) const {
    if (x[1] == x[2]) return x[1];
    auto condition = splat_of(g_, x[0]);
    return !condition ? kNone : *condition != 0 ? x[1] : x[2];
  }

  // As a kernel of that dtype divides: a quotient of f32 in f64 is rounded once more and right all the same.
  Result<ValueId> reciprocal(ValueId x) {
    const Op* full = made_by(g_, x, OpCode::k_full);
    const DType dtype = g_.type(x).dtype;
    if (!full || (dtype != DType::k_f32 && dtype != DType::k_f64)) return kNone;
    return r_.build().full(round_to(dtype, 1 / *splat_of(g_, x)), dtype, full->ints(AttrKey::k_sizes));
  }

  Result<ValueId> cast(const Op& op, ValueId x) {
    DType to = g_.type(x).dtype, want = r_.old().type(op.results[0]).dtype;
    if (to == want) return x;
    if (const Op* full = made_by(g_, x, OpCode::k_full)) {
      auto number = splat_of(g_, x);
      bool exact = number && (is_float(want) || *number == std::trunc(*number)) && std::fabs(*number) <= 0x1p31;
      if (exact && (!is_int(want) || is_lossless(to, want) || (*number >= 0 && *number <= 127)))
        return r_.build().full(want == DType::k_bool ? *number != 0 : round_to(want, *number), want, full->ints(AttrKey::k_sizes));
    }
    const Op* inner = made_by(g_, x, OpCode::k_cast);
    if (!inner) return kNone;
    ValueId source = inner->operands[0];
    if (!is_lossless(g_.type(source).dtype, to) && !KRN_PLANTED(lossy_cast_dropped)) return kNone;
    return r_.build().cast(source, want);
  }

  Result<ValueId> moved(const Op& op, const ValueIds& x) {
    if (find_row(op.code)->kind != RowKind::kMove) return kNone;
    const Type &from = g_.type(x[0]), &to = r_.old().type(op.results[0]);
    switch (op.code) {
      case OpCode::k_expand: case OpCode::k_slice: return from.sizes == to.sizes ? x[0] : kNone;
      case OpCode::k_cat: return x.size() == 1 ? x[0] : kNone;
      case OpCode::k_slice_scatter: return g_.type(x[1]).sizes == to.sizes ? x[1] : kNone;
      case OpCode::k_flip: return op.ints(AttrKey::k_dims).empty() ? x[0] : kNone;
      case OpCode::k_relayout: return from == to ? x[0] : kNone;
      case OpCode::k_pad: {
        for (int64_t n : op.ints(AttrKey::k_low)) if (n) return kNone;
        for (int64_t n : op.ints(AttrKey::k_high)) if (n) return kNone;
        return x[0];
      }
      case OpCode::k_reshape: {
        if (from.sizes == to.sizes) return x[0];
        const Op* inner = made_by(g_, x[0], OpCode::k_reshape);
        if (!inner) return kNone;
        return r_.build().reshape(inner->operands[0], to.sizes);
      }
      case OpCode::k_permute: {
        Dims dims = op.ints(AttrKey::k_dims);
        const Op* inner = made_by(g_, x[0], OpCode::k_permute);
        ValueId source = inner ? inner->operands[0] : x[0];
        if (inner) for (int64_t& d : dims) d = inner->ints(AttrKey::k_dims)[static_cast<size_t>(d)];
        bool identity = true;
        for (size_t i = 0; i < dims.size(); ++i) identity = identity && dims[i] == static_cast<int64_t>(i);
        if (!inner && !identity) return kNone;
        return r_.build().permute(source, std::move(dims));
      }
      default: return kNone;
    }
  }

  Rewriter& r_;
  Graph& g_;
  std::unordered_map<std::string, OpId> seen_;
};

}  // namespace

// A rewrite can make ops that simplify further, with each other or with older ones: until nothing changes. Each round but the
// last removes something, and two are the rule.
Status passes::simplify(Graph& graph, PassContext&) {
  for (int round = 0; round < 16; ++round) {
    Rewriter rewriter(graph);
    Simplifier simplifier(rewriter);
    for (OpId id = 0; id < rewriter.old().ops.size(); ++id) {
      rewriter.begin(id);
      KRN_TRY_LET(bool done, simplifier(id));
      if (!done) rewriter.keep(id);
    }
    if (const Graph before = rewriter.finish(); graph == before) break;
  }
  return {};
}

}  // namespace keirin
