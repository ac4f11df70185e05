// SPDX-License-Identifier: Apache-2.0
//
// Recipes of tensors that come from no tensor, and of the triangles, which compare positions.
#include <cmath>

#include "core/ops/lowering.h"

namespace keirin {
namespace {

using Operand = Lowering::Operand;

DType dtype_or(Lowering& w, DType fallback) {
  if (auto d = w.dtype("dtype")) return *d;
  return w.hinted_dtype(0, fallback);
}

DType dtype_of_number(const Operand& n) { return n.dtype == DType::k_f64 ? DType::k_f32 : n.dtype; }

Values filled(Lowering& w, const Operand& value, DType dtype, const Dims& sizes) {
  return {w.full(value, dtype, sizes)};
}

template <int kValue>
Values constant(Lowering& w) {
  return filled(w, Lowering::number(int64_t{kValue}), dtype_or(w, DType::k_f32), w.ints("size"));
}

template <int kValue>
Values constant_like(Lowering& w) {
  ValueId x = w.tensor("self");
  return filled(w, Lowering::number(int64_t{kValue}), w.dtype("dtype").value_or(w.dtype_of(x)), w.sizes(x));
}

template <int kValue>
Values new_constant(Lowering& w) {
  ValueId x = w.tensor("self");
  return filled(w, Lowering::number(int64_t{kValue}), w.dtype("dtype").value_or(w.dtype_of(x)), w.ints("size"));
}

Values full(Lowering& w) {
  Operand value = w.operand("fill_value");
  return filled(w, value, dtype_or(w, dtype_of_number(value)), w.ints("size"));
}

Values full_like(Lowering& w) {
  ValueId x = w.tensor("self");
  return filled(w, w.operand("fill_value"), w.dtype("dtype").value_or(w.dtype_of(x)), w.sizes(x));
}

Values new_full(Lowering& w) {
  ValueId x = w.tensor("self");
  return filled(w, w.operand("fill_value"), w.dtype("dtype").value_or(w.dtype_of(x)), w.ints("size"));
}

Values fill(Lowering& w) {
  ValueId x = w.tensor("self");
  Operand value = w.operand("value");
  if (value.is_number()) return filled(w, value, w.dtype_of(x), w.sizes(x));
  return {w.expand(w.cast(value.id, w.dtype_of(x)), w.sizes(x))};
}

Values zero(Lowering& w) {
  ValueId x = w.tensor("self");
  return filled(w, Lowering::number(int64_t{0}), w.dtype_of(x), w.sizes(x));
}

Values scalar_tensor(Lowering& w) {
  Operand value = w.operand("s");
  return filled(w, value, dtype_or(w, DType::k_f32), {});
}

bool is_whole(const Operand& n) { return n.is_integer || (std::abs(n.d) < 1e15 && n.d == std::floor(n.d)); }

Values arange(Lowering& w) {
  Operand start = w.given("start") ? w.operand("start") : Lowering::number(int64_t{0});
  Operand end = w.operand("end"), step = w.given("step") ? w.operand("step") : Lowering::number(int64_t{1});
  if (!start.is_number() || !end.is_number() || !step.is_number()) w.decline("a bound that is a tensor");
  bool integers = start.is_integer && end.is_integer && step.is_integer;
  DType dtype = dtype_or(w, integers ? DType::k_i64 : DType::k_f32);
  if (!is_whole(start) || !is_whole(step) || step.as_double() == 0 || dtype == DType::k_bool)
    w.decline("arange over fractions");
  if (w.failed()) return {};
  double count = std::ceil((end.as_double() - start.as_double()) / step.as_double());
  if (!(count >= 0 && count < 1e12)) return w.decline("arange of a negative length"), Values{};
  return {w.iota(static_cast<int64_t>(start.as_double()), static_cast<int64_t>(count),
                 static_cast<int64_t>(step.as_double()), dtype)};
}

// Column minus row of the last two axes, compared with a diagonal, over [rows, columns].
ValueId against_diagonal(Lowering& w, OpCode code, int64_t rows, int64_t columns, int64_t diagonal) {
  Dims sizes{rows, columns};
  ValueId column = w.expand(w.iota(0, columns), sizes);
  ValueId row = w.expand(w.reshape(w.iota(diagonal, rows), {rows, 1}), sizes);
  return w.binary(code, column, row);
}

template <OpCode kKeep>
Values triangle(Lowering& w) {
  ValueId x = w.tensor("self");
  if (w.rank(x) < 2) return w.decline("a triangle of a tensor below 2-d"), Values{};
  Dims s = w.sizes(x);
  ValueId keep = against_diagonal(w, kKeep, s[s.size() - 2], s.back(), w.integer("diagonal", 0));
  return {w.select(keep, w.as_operand(x), Lowering::number(int64_t{0}), w.dtype_of(x))};
}

Values eye(Lowering& w) {
  int64_t n = w.integer("n"), m = w.given("m") ? w.integer("m") : n;
  return {w.cast(against_diagonal(w, OpCode::k_eq, n, m, 0), dtype_or(w, DType::k_f32))};
}

constexpr RecipeRow kRecipes[] = {
    {"aten::zeros", constant<0>},
    {"aten::ones", constant<1>},
    {"aten::empty.memory_format", constant<0>},
    {"aten::zeros_like", constant_like<0>},
    {"aten::ones_like", constant_like<1>},
    {"aten::empty_like", constant_like<0>},
    {"aten::new_zeros", new_constant<0>},
    {"aten::new_ones", new_constant<1>},
    {"aten::new_empty", new_constant<0>},
    {"aten::full", full},
    {"aten::full_like", full_like},
    {"aten::new_full", new_full},
    {"aten::fill.Scalar", fill},
    {"aten::fill.Tensor", fill},
    {"aten::zero", zero},
    {"aten::scalar_tensor", scalar_tensor},
    {"aten::arange", arange},
    {"aten::arange.start", arange},
    {"aten::arange.start_step", arange},
    {"aten::tril", triangle<OpCode::k_le>},
    {"aten::triu", triangle<OpCode::k_ge>},
    {"aten::eye", eye},
    {"aten::eye.m", eye},
};

}  // namespace

std::span<const RecipeRow> factory_recipes() { return kRecipes; }

}  // namespace keirin
