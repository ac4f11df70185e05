// SPDX-License-Identifier: Apache-2.0
#include "tests/graphs/random_graph.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <random>

#include "core/ops/builder.h"
#include "core/ops/table.h"

namespace keirin::graphs {
namespace {

using K = AttrKey;
constexpr int64_t kMostElements = 4096;  // of one tensor; of a large graph's
constexpr int64_t kMostOfLarge = 1 << 17;  // several slices of work and several threads

class Drawer {
 public:
  Drawer(uint64_t seed, bool finite, Sizes which)
      : random_(seed),
        finite_(finite),
        other_(which == Sizes::kOther),
        large_(one_in(16)),
        most_(large_ ? kMostOfLarge : kMostElements),
        b_(g_) {}

  Graph draw() {
    for (int i = 2 + pick(3); i-- > 0;) input(float_dtype(), sizes());
    if (one_in(2)) {
      const ValueId v =
          input(of({DType::k_i64, DType::k_i64, DType::k_i32, DType::k_i16, DType::k_i8, DType::k_u8, DType::k_bool}), sizes());
      if (one_in(2)) input(type(v).dtype, type(v).sizes);
    }
    if (one_in(4)) state_ = keep(g_.add_constant(type(pool_[0]), num_constants_++, ValueKind::kState), true);
    const int steps = large_ ? 2 + pick(4) : one_in(3) ? 20 + pick(12) : 3 + pick(12);
    for (int i = 0, tries = 0; i < steps && tries < 400; ++tries) i += step() ? 1 : 0;
    output(last_result());
    for (int more = pick(3); more-- > 0;) output(any());
    if (state_ != kNone) update(state_);
    if (one_in(6)) update(g_.inputs[pick(static_cast<int>(g_.inputs.size()))]);
    if (updates_.size() == 1 && one_in(3)) {  // back again: a swap
      const ValueId first = updates_[0].updates;
      const Made other = any_where([&](ValueId v) {
        return v != first && g_.values[v].kind == ValueKind::kInput && g_.values[v].name != "plain" && type(v).dtype == type(first).dtype &&
               type(v).sizes == type(first).sizes;
      });
      if (other) updates_.push_back({first, *other, kNone});
    }
    g_.outputs.insert(g_.outputs.end(), updates_.begin(), updates_.end());
    g_.drop_dead();
    return std::move(g_);
  }

 private:
  using Made = std::optional<ValueId>;

  // ---- choosing ----

  int pick(int n) { return static_cast<int>(random_() % static_cast<uint64_t>(n)); }
  bool one_in(int n) { return pick(n) == 0; }
  template <class T>
  T of(std::initializer_list<T> list) { return list.begin()[pick(static_cast<int>(list.size()))]; }
  DType float_dtype() { return of({DType::k_f32, DType::k_f32, DType::k_f32, DType::k_bf16, DType::k_f16, DType::k_f64}); }
  Dims sizes() {
    Dims out;
    for (int rank = of({0, 1, 2, 2, 2, 3, 3, 4}); rank-- > 0;) out.push_back(size());
    if (!out.empty() && one_in(30)) out[pick(static_cast<int>(out.size()))] = 0;
    while (count(out) > most_) *std::max_element(out.begin(), out.end()) = 3;
    return out;
  }
  int64_t size() {
    if (large_) return other_ ? of<int64_t>({6, 70, 144, 300, 999, 3001}) : of<int64_t>({3, 65, 130, 257, 1030, 4099});
    return other_ ? of<int64_t>({1, 3, 6, 5, 9, 11, 12, 24, 21, 40, 71}) : of<int64_t>({1, 2, 3, 4, 5, 7, 8, 16, 17, 33, 65});
  }
  static int64_t count(const Dims& sizes) {
    int64_t n = 1;
    for (int64_t s : sizes) n *= s;
    return n;
  }
  ValueId any() {
    return pool_[one_in(2) ? pool_.size() - 1 - pick(std::min<int>(4, static_cast<int>(pool_.size())))
                           : pick(static_cast<int>(pool_.size()))];
  }
  template <class P>
  Made any_where(P wanted) {
    for (int tries = 0; tries < 12; ++tries)
      if (ValueId v = any(); wanted(v)) return v;
    return {};
  }
  const Type& type(ValueId v) const { return g_.type(v); }
  bool is_float(ValueId v) const { return keirin::is_float(type(v).dtype); }
  int rank(ValueId v) const { return static_cast<int>(type(v).rank()); }
  ValueId last_result() const { return pool_.back(); }

  // ---- making ----

  ValueId input(DType dtype, Dims sizes) {
    Dims strides = contiguous_strides(sizes);
    if (sizes.size() >= 2 && one_in(4)) {  // transposed in memory
      Dims reversed(sizes.rbegin(), sizes.rend());
      strides = contiguous_strides(reversed);
      std::reverse(strides.begin(), strides.end());
    }
    if (one_in(8))  // every other element of a larger tensor
      for (int64_t& s : strides) s *= 2;
    const ValueId v = g_.add_input({dtype, std::move(sizes), std::move(strides)}, static_cast<uint32_t>(g_.inputs.size()));
    return keep(v, true);
  }
  ValueId weight(DType dtype, Dims sizes) {
    Dims strides = contiguous_strides(sizes);
    if (one_in(3)) return fresh(dtype, std::move(sizes));
    if (one_in(2))  // tied: one weight, several readers
      for (ValueId v = 0; v < g_.values.size(); ++v)
        if (g_.values[v].kind == ValueKind::kConstant && type(v).dtype == dtype && type(v).sizes == sizes) return v;
    return g_.add_constant({dtype, std::move(sizes), std::move(strides)}, num_constants_++, ValueKind::kConstant);
  }
  // An input that only the op about to be made reads: an index, a weight. It holds no special values: eager's norms multiply out
  // what others subtract first, and an infinite weight shows it.
  ValueId fresh(DType dtype, Dims sizes) {
    Dims strides = contiguous_strides(sizes);
    return g_.add_input({dtype, std::move(sizes), std::move(strides)}, static_cast<uint32_t>(g_.inputs.size()), "plain");
  }
  ValueId index(Dims sizes) { return fresh(one_in(3) ? DType::k_i32 : DType::k_i64, std::move(sizes)); }
  ValueId keep(ValueId v, bool exact) {
    exact_.resize(g_.values.size(), false);
    exact_[v] = exact;
    pool_.push_back(v);
    return v;
  }
  bool exact(ValueId v) const { return v < exact_.size() && exact_[v]; }
  // Nothing where the table refuses: the next step is another try.
  Made emit(OpCode op, ValueIds operands, Attrs attrs = {}) {
    Result<ValueIds> made = b_.emit(op, std::move(operands), std::move(attrs));
    if (!made.ok() || count(type(made.value()[0]).sizes) > 4 * most_) return {};
    exact_.resize(g_.values.size(), false);
    return made.value()[0];
  }
  ValueId literal(double v, ValueId like) {
    Result<ValueId> one = b_.full(v, type(like).dtype, Dims(type(like).sizes.size(), 1));
    return *must(b_.expand_to(must(std::move(one)).value(), type(like).sizes));
  }
  static Made must(Result<ValueId> v) {
    if (v.ok()) return v.value();
    std::fprintf(stderr, "a graph cannot be drawn: %s\n", v.status().text().c_str());
    std::abort();
  }
  // A new content for the storage of an input or of a state, made of the old one: mostly element by element, as caches and running
  // statistics are, else of elements elsewhere.
  void update(ValueId target) {
    const Type t = type(target);
    if (!keirin::is_float(t.dtype) || g_.values[target].name == "plain") return;
    const Made from = any_where([&](ValueId v) { return v != target && type(v).dtype == t.dtype && type(v).sizes == t.sizes; });
    if (from && one_in(4)) {  // another one's old content, as it is
      updates_.push_back({*from, target, kNone});
      return;
    }
    Made old = target;
    if (!t.sizes.empty() && one_in(2)) old = emit(OpCode::k_flip, {target}, {{K::k_dims, Dims{pick(rank(target))}}});
    const Made half = emit(OpCode::k_mul, {*old, literal(0.5, target)});
    const Made fresh = from ? emit(OpCode::k_add, {*half, *from}) : half;
    updates_.push_back({*fresh, target, kNone});
    g_.values[*fresh].type.strides = contiguous_strides(t.sizes);
  }
  void output(ValueId v) {
    if (g_.values[v].kind != ValueKind::kResult) return;
    for (const Output& o : g_.outputs)
      if (o.value == v) return;
    // Outputs are memory of their own: a view's strides are not for them.
    Type& t = g_.values[v].type;
    t.strides = contiguous_strides(t.sizes);
    g_.outputs.push_back({v, kNone, kNone});
  }

  // ---- steps ----

  bool step() {
    Made made;
    bool same_bits = false;  // of exact operands
    const ValueId x = any();
    switch (pick(17)) {
      case 0: case 1: made = pointwise(x); break;
      case 2: case 3: made = binary(x, same_bits); break;
      case 4: made = steady(x); break;
      case 5: made = decide(x, same_bits); break;
      case 6: made = cast(x, same_bits); break;
      case 7: case 8: case 9: made = view(x), same_bits = exact(x); break;
      case 10: made = joined(x, same_bits); break;
      case 11: made = picked(x), same_bits = exact(x); break;
      case 12: made = scattered(x); break;
      case 13: made = reduced(x, same_bits); break;
      case 14: made = normed(x); break;
      case 15: made = contracted(x); break;
      default: made = windowed(x); break;
    }
    if (!made || *made == x || g_.values[*made].kind != ValueKind::kResult) return false;
    keep(*made, same_bits);
    // Wrapping shows where a narrow integer is made wide again: sums and products alone wrap as well in the end.
    if (is_int(type(*made).dtype) && type(*made).dtype != DType::k_i64 && one_in(2))
      if (Result<ValueId> wide = b_.cast(*made, DType::k_i64); wide.ok()) keep(wide.value(), same_bits);
    // Magnitudes stay where models have them.
    if (is_float(*made) && !same_bits && one_in(4))
      if (Made calm = emit(of({OpCode::k_tanh, OpCode::k_sigmoid, OpCode::k_erf}), {*made})) keep(*calm, false);
    return true;
  }

  Made abs_plus(ValueId x, double v) {
    Made size = emit(OpCode::k_abs, {x});
    return emit(OpCode::k_add, {*size, literal(v, x)});
  }

  Made pointwise(ValueId x) {
    if (!is_float(x)) return {};
    using O = OpCode;
    const O op = of({O::k_exp,        O::k_expm1, O::k_log,       O::k_log1p,       O::k_log2,      O::k_sqrt, O::k_rsqrt,
                     O::k_reciprocal, O::k_sin,   O::k_cos,       O::k_tanh,        O::k_sigmoid,   O::k_erf,  O::k_relu,
                     O::k_silu,       O::k_gelu,  O::k_gelu_tanh, O::k_hardsigmoid, O::k_hardswish, O::k_mish, O::k_log_sigmoid,
                     O::k_leaky_relu, O::k_elu,   O::k_softplus,  O::k_pow,         O::k_exp2,      O::k_clamp});
    switch (op) {
      case O::k_exp: case O::k_exp2: case O::k_expm1: return emit(op, {*emit(O::k_tanh, {x})});
      case O::k_log:
      case O::k_log1p:
      case O::k_log2:
      case O::k_sqrt:
      case O::k_rsqrt:
      case O::k_reciprocal:
        return emit(op, {*abs_plus(x, 0.5)});
      case O::k_clamp: return emit(op, {x, literal(-0.5, x), literal(of({0.25, 1.0}), x)});
      case O::k_leaky_relu: return emit(op, {x, literal(0.125, x)});
      case O::k_elu: return emit(op, {x, literal(1, x), literal(1, x), literal(1, x)});
      case O::k_softplus: return emit(op, {x, literal(1, x), literal(20, x)});
      case O::k_pow: return emit(op, {*abs_plus(x, 0.5), literal(of({0.5, 2.0, 3.0, -1.0}), x)});
      case O::k_gelu: return finite_ ? emit(op, {x}) : Made();  // eager's vector code makes NaN of an infinity
      default: return emit(op, {x});
    }
  }

  // Operands whose result has the same bits everywhere.
  Made steady(ValueId x) {
    if (!exact(x)) return {};
    using O = OpCode;
    if (is_float(x)) {
      if (type(x).dtype != DType::k_f32) return {};
      Made y = emit(of({O::k_neg, O::k_abs, O::k_relu, O::k_floor, O::k_ceil, O::k_trunc, O::k_round, O::k_sign}), {x});
      if (y) keep(*y, true);
      return {};
    }
    if (type(x).dtype == DType::k_bool) {
      if (Made y = emit(O::k_logical_not, {x})) keep(*y, true);
      return {};
    }
    const O op = of({O::k_neg, O::k_abs, O::k_bit_not, O::k_sign, O::k_clamp});
    Made y = op == O::k_clamp ? emit(op, {x, literal(-3, x), literal(5, x)}) : emit(op, {x});
    if (y) keep(*y, true);
    return {};
  }

  bool broadcasts(ValueId a, ValueId b) const {
    const Dims &x = type(a).sizes, &y = type(b).sizes;
    int64_t n = 1;
    for (size_t i = 0; i < std::max(x.size(), y.size()); ++i) {
      const int64_t p = i < x.size() ? x[x.size() - 1 - i] : 1, q = i < y.size() ? y[y.size() - 1 - i] : 1;
      if (p != q && p != 1 && q != 1) return false;
      n *= p == 1 ? q : p;
    }
    return n <= most_;
  }
  Made paired(OpCode op, ValueId a, ValueId b, DType dtype) {
    Result<ValueId> made = b_.binary(op, a, b, dtype);
    exact_.resize(g_.values.size(), false);
    return made.ok() ? Made(made.value()) : Made();
  }
  Made partner(ValueId x) {
    return any_where([&](ValueId v) {
      return v != x && is_float(v) == is_float(x) && broadcasts(x, v) &&
             (type(v).dtype == DType::k_bool) == (type(x).dtype == DType::k_bool);
    });
  }
  DType common(ValueId a, ValueId b) const {
    const DType x = type(a).dtype, y = type(b).dtype;
    if (x == y) return x;
    const bool widens = x == DType::k_f64 ? exact(b) : y == DType::k_f64 && exact(a);
    if (widens && keirin::is_float(x)) return DType::k_f64;
    return keirin::is_float(x) ? DType::k_f32 : DType::k_i64;
  }

  Made binary(ValueId x, bool& same_bits) {
    using O = OpCode;
    const Made found = partner(x);
    const ValueId y = found.value_or(x);
    const DType dtype = common(x, y);
    if (dtype == DType::k_bool) {
      same_bits = exact(x) && exact(y);
      return paired(of({O::k_logical_and, O::k_logical_or, O::k_logical_xor}), x, y, dtype);
    }
    if (!is_float(x)) {
      same_bits = exact(x) && exact(y);
      return paired(of({O::k_add, O::k_sub, O::k_mul, O::k_maximum, O::k_minimum, O::k_bit_and, O::k_bit_or, O::k_bit_xor}), x, y, dtype);
    }
    const O op = of({O::k_add, O::k_add, O::k_sub, O::k_mul, O::k_mul, O::k_div, O::k_maximum, O::k_minimum});
    if (op == O::k_div) return paired(op, x, *abs_plus(y, 0.5), dtype);
    return paired(op, x, y, dtype);
  }

  // A decision over exact values, and what it chooses.
  Made decide(ValueId x, bool& same_bits) {
    using O = OpCode;
    if (!exact(x) || type(x).dtype == DType::k_bool) return {};
    const Made y = any_where([&](ValueId v) { return exact(v) && type(v).dtype == type(x).dtype && type(v).sizes == type(x).sizes; });
    const O op = of({O::k_lt, O::k_le, O::k_gt, O::k_ge, O::k_eq, O::k_ne});
    const Made test =
        one_in(3) && is_float(x) ? emit(O::k_is_nan, {x}) : emit(op, {x, y && *y != x ? *y : literal(of({0.0, 0.5, 2.0}), x)});
    if (!test) return {};
    keep(*test, true);
    const Made a = any_where([&](ValueId v) { return type(v).sizes == type(x).sizes && type(v).dtype != DType::k_bool; });
    if (!a) return {};
    const Made c = any_where([&](ValueId v) { return type(v).sizes == type(*a).sizes && type(v).dtype == type(*a).dtype; });
    const ValueId other = c && *c != *a ? *c : literal(0.25, *a);
    same_bits = exact(*a) && (!c || *c == *a || exact(*c));
    return emit(O::k_select, {*test, *a, other});
  }

  Made cast(ValueId x, bool& same_bits) {
    const DType from = type(x).dtype;
    DType to = float_dtype();
    // What was computed narrow is judged narrow.
    if (to == DType::k_f64 && is_float(x) && !exact(x)) to = DType::k_f32;
    if (is_float(x) && exact(x) && finite_ && one_in(3)) to = of({DType::k_i64, DType::k_i32, DType::k_i8});
    if (!is_float(x) && one_in(2)) to = of({DType::k_i64, DType::k_i32, DType::k_i16, DType::k_i8, DType::k_u8, DType::k_bool});
    // Beyond 65,504 eager has an infinity and fused code, which keeps f32, a number: neither is wrong.
    if (to == DType::k_f16 && (from == DType::k_i64 || from == DType::k_i32)) to = DType::k_f32;
    same_bits = exact(x) && (from == DType::k_bool || !keirin::is_float(to) || (from == DType::k_f32 && to == DType::k_f64));
    Result<ValueId> made = b_.cast(x, to);
    exact_.resize(g_.values.size(), false);
    return made.ok() ? Made(made.value()) : Made();
  }

  Made view(ValueId x) {
    const Dims s = type(x).sizes;
    const int r = rank(x);
    if (r == 0) return emit(OpCode::k_reshape, {x}, {{K::k_sizes, Dims{1}}});
    const int64_t d = pick(r);
    switch (pick(7)) {
      case 6: {
        if (r < 4 || count(s) == 0) return {};
        return emit(OpCode::k_relayout, {x}, {{K::k_encoding, std::string(of({"contiguous", "channels_last"}))}});
      }
      case 0: {
        Dims dims(s.size());
        for (size_t i = 0; i < dims.size(); ++i) dims[i] = static_cast<int64_t>(i);
        std::shuffle(dims.begin(), dims.end(), random_);
        return emit(OpCode::k_permute, {x}, {{K::k_dims, dims}});
      }
      case 1: return emit(OpCode::k_reshape, {x}, {{K::k_sizes, regrouped(s)}});
      case 2: {
        if (s[d] < 2) return {};
        const int64_t start = pick(static_cast<int>(s[d])), end = start + 1 + pick(static_cast<int>(s[d] - start));
        return emit(OpCode::k_slice, {x}, {{K::k_dim, d}, {K::k_start, start}, {K::k_end, end}, {K::k_step, int64_t{1} + pick(3)}});
      }
      case 3: return emit(OpCode::k_flip, {x}, {{K::k_dims, Dims{d}}});
      case 4: {
        Dims to = s;
        if (s[d] != 1 || count(s) > 500) return {};
        to[d] = 2 + pick(5);
        return emit(OpCode::k_expand, {x}, {{K::k_sizes, to}});
      }
      default: {
        Dims low(s.size(), 0), high(s.size(), 0);
        low[d] = pick(3) - 1, high[d] = pick(3) - (s[d] > 3 ? 1 : 0);
        if (s[d] + low[d] + high[d] < 1) return {};
        return emit(OpCode::k_pad, {x}, {{K::k_low, low}, {K::k_high, high}, {K::k_value_i, int64_t{1}}, {K::k_value_d, 0.5}});
      }
    }
  }
  Dims regrouped(const Dims& s) {
    int64_t n = count(s);
    Dims to;
    if (n == 0) return s;
    for (int64_t f : {2, 3, 4, 7})
      if (n % f == 0 && one_in(2)) to.push_back(f), n /= f;
    to.insert(to.begin() + pick(static_cast<int>(to.size()) + 1), n);
    return to;
  }

  Made joined(ValueId x, bool& same_bits) {
    if (rank(x) == 0) return {};
    const int64_t d = pick(rank(x));
    const Made other = any_where([&](ValueId v) {
      if (v == x || type(v).dtype != type(x).dtype || rank(v) != rank(x)) return false;
      for (int64_t a = 0; a < rank(x); ++a)
        if (a != d && type(v).sizes[a] != type(x).sizes[a]) return false;
      return true;
    });
    const ValueId y = other.value_or(x);
    same_bits = exact(x) && exact(y);
    const int64_t size = type(x).sizes[d], part = type(y).sizes[d];
    if (part <= size && y != x && one_in(2)) {
      const int64_t start = pick(static_cast<int>(size - part + 1));
      return emit(OpCode::k_slice_scatter, {x, y}, {{K::k_dim, d}, {K::k_start, start}, {K::k_end, start + part}, {K::k_step, int64_t{1}}});
    }
    if (count(type(x).sizes) > 1500) return {};
    return emit(OpCode::k_cat, one_in(2) ? ValueIds{x, y} : ValueIds{y, x, x}, {{K::k_dim, d}});
  }

  Made picked(ValueId x) {
    if (rank(x) == 0) return {};
    const int64_t d = pick(rank(x));
    if (type(x).sizes[d] == 0) return {};
    if (one_in(2)) return emit(OpCode::k_take, {x, index(one_in(3) ? Dims{2, 3} : Dims{1 + pick(9)})}, {{K::k_dim, d}});
    Dims at = type(x).sizes;
    at[d] = 1 + pick(7);
    return emit(OpCode::k_gather, {x, index(at)}, {{K::k_dim, d}});
  }

  Made scattered(ValueId x) {
    if (rank(x) == 0 || !is_float(x)) return {};
    const int64_t d = pick(rank(x));
    Dims from = type(x).sizes;
    if (from[d] == 0) return {};
    from[d] = 1 + pick(12);
    const Made y = any_where([&](ValueId v) { return type(v).dtype == type(x).dtype && type(v).sizes == from; });
    const ValueId source = y ? *y : input(type(x).dtype, from);
    const Attrs attrs{
        {K::k_dim, d}, {K::k_reduce, std::string(of({"sum", "sum", "mean", "amax", "amin"}))}, {K::k_include_self, !one_in(3)}};
    if (one_in(2)) return emit(OpCode::k_index_reduce, {x, fresh(DType::k_i64, {from[d]}), source}, attrs);
    // One index for whole rows, as models repeat it.
    Dims thin(from.size(), 1);
    thin[d] = from[d];
    const Made at = b_.expand_to(*must(b_.reshape(fresh(DType::k_i64, {from[d]}), thin)), from).value();
    return emit(OpCode::k_scatter, {x, *at, source}, attrs);
  }

  Made reduced(ValueId x, bool& same_bits) {
    using O = OpCode;
    if (rank(x) == 0) return {};
    Dims dims;
    for (int64_t d = 0; d < rank(x); ++d)
      if (one_in(2)) dims.push_back(d);
    if (dims.empty()) dims.push_back(pick(rank(x)));
    int64_t n = 1;
    for (int64_t d : dims) n *= type(x).sizes[d];
    const bool keepdim = one_in(2);
    const auto attrs = [&] { return Attrs{{K::k_dims, dims}, {K::k_keepdim, keepdim}}; };
    if (type(x).dtype == DType::k_bool) return same_bits = exact(x), emit(of({O::k_any, O::k_all}), {x}, attrs());
    if (n == 0) return {};
    if (one_in(4) && exact(x)) {
      dims = {dims[0]};
      same_bits = true;
      return emit(of({O::k_argmax, O::k_argmin}), {x}, attrs());
    }
    if (!is_float(x))
      return same_bits = exact(x),
             emit(type(x).dtype == DType::k_i64 ? of({O::k_sum, O::k_prod, O::k_amax, O::k_amin}) : of({O::k_amax, O::k_amin}), {x},
                  attrs());
    switch (pick(5)) {
      case 0: return same_bits = exact(x), emit(O::k_amax, {x}, attrs());
      case 1: return same_bits = exact(x), emit(O::k_amin, {x}, attrs());
      case 2: return emit(O::k_mean, {x}, attrs());
      case 3: {
        if (n < 4 || g_.values[x].kind != ValueKind::kInput) return {};  // equal values: see tests/conformance/skips.txt
        return emit(O::k_var, {x}, {{K::k_dims, dims}, {K::k_keepdim, keepdim}, {K::k_correction, of({0.0, 1.0})}});
      }
      default: return emit(O::k_sum, {*emit(O::k_mul, {x, literal(0.125, x)})}, attrs());
    }
  }

  Made normed(ValueId x) {
    using O = OpCode;
    const int r = rank(x);
    if (!is_float(x) || r == 0 || count(type(x).sizes) == 0) return {};
    const Dims s = type(x).sizes;
    const DType t = type(x).dtype;
    const Attr eps{K::k_eps, 1e-3};
    switch (pick(6)) {
      case 0: return emit(O::k_softmax, {x}, {{K::k_dim, int64_t{pick(r)}}});
      case 1: return emit(O::k_log_softmax, {x}, {{K::k_dim, int64_t{pick(r)}}});
      case 2:
      case 3: {
        if (s.back() < 4) return {};
        const int64_t n = r > 1 && one_in(3) ? 2 : 1;
        const Dims tail(s.end() - n, s.end());
        if (one_in(2)) return emit(O::k_rms_norm, {x, weight(t, tail)}, {{K::k_rank, n}, eps});
        return emit(O::k_layer_norm, {x, weight(t, tail), weight(t, tail)}, {{K::k_rank, n}, eps});
      }
      case 4: {
        if (r < 2 || s[0] == 0 || count(s) / s[0] < 4) return {};
        const int64_t groups = s[1] % 2 == 0 && count(s) / s[0] >= 8 ? 2 : 1;
        return emit(O::k_group_norm, {x, weight(t, {s[1]}), weight(t, {s[1]})}, {{K::k_groups, groups}, eps});
      }
      default: {
        if (r < 2) return {};
        const Made spread = abs_plus(fresh(t, {s[1]}), 0.5);
        return emit(O::k_batch_norm, {x, weight(t, {s[1]}), weight(t, {s[1]}), fresh(t, {s[1]}), *spread}, {eps});
      }
    }
  }

  Made contracted(ValueId x) {
    using O = OpCode;
    const int r = rank(x);
    if (!is_float(x) || r == 0) return {};
    const Dims s = type(x).sizes;
    const DType t = type(x).dtype;
    // Sums stay of the size of their terms.
    const ValueId small = *emit(O::k_mul, {x, literal(0.25, x)});
    const int64_t to = of<int64_t>({1, 3, 8, 17});
    switch (pick(5)) {
      case 4: {
        if (r != 2 || count(s) == 0) return {};
        const int64_t groups = 1 + pick(4);
        return emit(O::k_grouped_matmul, {small, weight(t, {groups, s[1], to}), index({groups})});
      }
      case 0: {
        const int64_t rows = one_in(3) ? s.back() : to;  // a square weight may be that of a matmul, too
        return emit(O::k_linear, {small, weight(t, {rows, s.back()}), one_in(2) ? weight(t, {rows}) : kNone});
      }
      case 1: {
        if (r < 2) return {};
        if (r == 2 && one_in(2)) return emit(O::k_matmul, {small, weight(t, {s.back(), one_in(2) ? s.back() : to})});
        Dims other(s.begin(), s.end() - 2), thin(s.size() - 2, 1);
        for (Dims* each : {&other, &thin}) each->insert(each->end(), {s.back(), to});
        if (one_in(2)) return emit(O::k_matmul, {small, *must(b_.expand_to(fresh(t, thin), other))});
        return emit(O::k_matmul, {small, fresh(t, other)});
      }
      case 2: {
        if (r != 4 || s[0] == 0 || !finite_) return {};  // eager's attention drops a NaN or keeps it, by its kernel
        const Dims k{s[0], s[1], of<int64_t>({2, 5, 9}), s[3]};
        return emit(O::k_attention, {x, fresh(t, k), fresh(t, k)},
                    {{K::k_causal, false}, {K::k_scale, 1 / std::sqrt(static_cast<double>(s[3]))}, {K::k_gqa, false}});
      }
      default: {
        if ((r != 3 && r != 4) || !finite_) return {};  // eager's 16-bit convolution multiplies padding with infinities
        const size_t n = s.size() - 2;
        Dims w{to, s[1]};
        w.insert(w.end(), n, 3);
        if (count(s) == 0 || count(w) > 2000) return {};
        const Dims stride(n, 1 + pick(2)), ones(n, 1);
        if (one_in(4)) {
          Dims grad{s[0], to};
          for (size_t i = 0; i < n; ++i) grad.push_back((s[i + 2] - 1) / stride[i] + 1);
          return emit(O::k_conv_grad_weight, {small, fresh(t, grad)},
                      {{K::k_sizes, Dims(n, 3)}, {K::k_stride, stride}, {K::k_padding, ones}, {K::k_dilation, ones},
                       {K::k_groups, int64_t{1}}});
        }
        const bool transposed = one_in(4);
        if (transposed) std::swap(w[0], w[1]);
        return emit(O::k_conv, {small, weight(t, w), one_in(2) ? weight(t, {to}) : kNone},
                    {{K::k_stride, stride},
                     {K::k_padding, ones},
                     {K::k_dilation, ones},
                     {K::k_groups, int64_t{1}},
                     {K::k_transposed, transposed},
                     {K::k_output_padding, Dims(n, 0)}});
      }
    }
  }

  Made windowed(ValueId x) {
    using O = OpCode;
    const int r = rank(x);
    if (!is_float(x) || count(type(x).sizes) == 0) return {};
    if (r == 2 && one_in(2)) {
      const std::string mode = of({"sum", "mean", "max"});
      return emit(O::k_embedding_bag, {x, index({2 + pick(3), 1 + pick(4)}), kNone},
                  {{K::k_mode, mode}, {K::k_include_last_offset, false}});
    }
    if (r != 4) return {};
    const Dims k{2, 2}, one{1, 1}, zero{0, 0};
    switch (pick(5)) {
      case 0:
        return emit(O::k_max_pool, {x},
                    {{K::k_kernel, k}, {K::k_stride, one}, {K::k_padding, one}, {K::k_dilation, one}, {K::k_ceil_mode, one_in(2)}});
      case 1:
        return emit(O::k_avg_pool, {x},
                    {{K::k_kernel, k},
                     {K::k_stride, k},
                     {K::k_padding, one_in(2) ? one : zero},
                     {K::k_ceil_mode, one_in(2)},
                     {K::k_count_include_pad, one_in(2)},
                     {K::k_divisor, int64_t{0}}});
      case 2: return emit(O::k_adaptive_avg_pool, {x}, {{K::k_sizes, of({Dims{1, 1}, Dims{2, 3}})}});
      case 3:
        return emit(O::k_upsample_nearest, {x}, {{K::k_sizes, Dims{2 * type(x).sizes[2], type(x).sizes[3] + 1}}, {K::k_scales, Dims{}}});
      default:
        if (!finite_) return {};  // whether an infinity meets a weight of 0 is the order of the axes
        return emit(O::k_upsample_bilinear, {x}, {{K::k_sizes, Dims{5, 6}}, {K::k_scales, Dims{}}, {K::k_align_corners, one_in(2)}});
    }
  }

  std::mt19937_64 random_;
  const bool finite_, other_, large_;
  const int64_t most_;
  Graph g_;
  Builder b_;
  std::vector<ValueId> pool_;
  std::vector<bool> exact_;
  uint32_t num_constants_ = 0;
  ValueId state_ = kNone;
  std::vector<Output> updates_;
};

}  // namespace

Graph draw_graph(uint64_t seed, bool finite, Sizes which) { return Drawer(seed, finite, which).draw(); }

}  // namespace keirin::graphs
