// SPDX-License-Identifier: Apache-2.0
//
// Recipes that read or write through index tensors. Boolean masks give sizes that depend on data: they stay opaque, but
// for the forms that equal a selection.
#include <algorithm>
#include <optional>

#include "core/ops/lowering.h"

namespace keirin {
namespace {

ValueId take(Lowering& w, ValueId x, ValueId index, int64_t dim) {
  return w.row(OpCode::k_take, {x, index}, {{AttrKey::k_dim, dim}});
}

bool is_non_negative(const Lowering& w, ValueId v, int depth = 8) {
  const Op* op = depth > 0 ? w.producer(v) : nullptr;
  if (op == nullptr) return false;
  switch (op->code) {
    case OpCode::k_iota:
      return op->i(AttrKey::k_start) >= 0 && op->i(AttrKey::k_step) >= 0;
    case OpCode::k_full:
      return op->i(AttrKey::k_value_i) >= 0;
    case OpCode::k_reshape:
    case OpCode::k_expand:
    case OpCode::k_permute:
    case OpCode::k_slice:
    case OpCode::k_cast:
      return is_non_negative(w, op->operands[0], depth - 1);
    default:
      return false;
  }
}

// index and index_put count negative positions from the end; gather and its kin do not.
ValueId wrapped(Lowering& w, ValueId index, int64_t size) {
  index = w.cast(index, DType::k_i64);
  if (is_non_negative(w, index)) return index;
  ValueId shifted = w.with_number(OpCode::k_add, index, static_cast<double>(size));
  return w.row(OpCode::k_select, {w.with_number(OpCode::k_lt, index, 0), shifted, index});
}

// A list of index tensors reduced to one: `base` with the indexed axes moved together and merged into `dim`.
struct OneIndex {
  ValueId base = kNone;
  ValueId index = kNone;
  int64_t dim = 0;
  Dims moved;  // sizes of `base` before the merge
  Dims order;  // the permutation that moved the axes, empty if none
  int64_t count = 0;
};

std::optional<OneIndex> one_index(Lowering& w, ValueId x, const Values& indices) {
  Dims at;
  Dims shape;
  for (size_t i = 0; i < indices.size(); ++i) {
    if (indices[i] == kNone) continue;
    if (!is_int(w.dtype_of(indices[i])) || w.dtype_of(indices[i]) == DType::k_u8)
      return w.decline("a boolean index"), std::nullopt;
    at.push_back(static_cast<int64_t>(i));
    shape = w.broadcast({shape, w.sizes(indices[i])});
  }
  if (w.failed() || at.empty() || at.back() >= w.rank(x))
    return w.decline("an index list that does not fit"), std::nullopt;
  OneIndex one;
  one.count = static_cast<int64_t>(at.size());
  bool adjacent = at.back() - at.front() + 1 == one.count;
  one.dim = adjacent ? at.front() : 0;
  one.base = x;
  if (!adjacent) {  // the indexed axes go first
    one.order = at;
    for (int64_t i = 0; i < w.rank(x); ++i)
      if (std::find(at.begin(), at.end(), i) == at.end()) one.order.push_back(i);
    one.base = w.permute(x, one.order);
  }
  one.moved = w.sizes(one.base);
  Dims merged = one.moved;
  for (int64_t i = 0; i < one.count; ++i) {
    int64_t size = one.moved[one.dim + i];
    ValueId index = w.expand(wrapped(w, indices[at[i]], size), shape);
    if (i > 0) {
      one.index = w.with_number(OpCode::k_mul, one.index, static_cast<double>(size));
      index = w.binary(OpCode::k_add, one.index, index);
      merged[one.dim] *= size;
    }
    one.index = index;
  }
  merged.erase(merged.begin() + one.dim + 1, merged.begin() + one.dim + one.count);
  one.base = w.reshape(one.base, merged);
  return w.failed() ? std::nullopt : std::optional(one);
}

Values index(Lowering& w) {
  auto one = one_index(w, w.tensor("self"), w.tensors("indices"));
  if (!one) return {};
  return {take(w, one->base, one->index, one->dim)};
}

// x[mask] = number, the one boolean form whose sizes do not depend on data.
std::optional<ValueId> put_by_mask(Lowering& w, ValueId x, const Values& indices, ValueId values, bool accumulate) {
  if (indices.size() != 1 || indices[0] == kNone || w.dtype_of(indices[0]) != DType::k_bool) return std::nullopt;
  if (accumulate || w.type(values).num_elements() != 1) return std::nullopt;
  Dims mask = w.sizes(indices[0]);
  mask.resize(std::max<size_t>(mask.size(), w.rank(x)), 1);
  ValueId value = w.reshape(values, {});
  return w.select(w.reshape(indices[0], mask), w.as_operand(value), w.as_operand(x), w.dtype_of(x));
}

Values index_put(Lowering& w) {
  ValueId x = w.tensor("self"), values = w.tensor("values");
  Values indices = w.tensors("indices");
  bool accumulate = w.flag("accumulate");
  if (w.failed()) return {};
  if (auto masked = put_by_mask(w, x, indices, values, accumulate)) return {*masked};
  auto one = one_index(w, x, indices);
  if (!one) return {};
  Dims base = w.sizes(one->base), region(base.begin(), base.begin() + one->dim), shape = w.sizes(one->index);
  region.insert(region.end(), shape.begin(), shape.end());
  region.insert(region.end(), base.begin() + one->dim + 1, base.end());
  int64_t count = w.type(one->index).num_elements();
  Dims rows = base;
  rows[one->dim] = count;
  ValueId src = w.reshape(w.expand(w.cast(values, w.dtype_of(x)), region), rows);
  ValueId out = w.row(OpCode::k_index_reduce, {one->base, w.reshape(one->index, {count}), src},
                      {{AttrKey::k_dim, one->dim},
                       {AttrKey::k_reduce, std::string(accumulate ? "sum" : "none")},
                       {AttrKey::k_include_self, true}});
  out = w.reshape(out, one->moved);
  if (one->order.empty()) return {out};
  Dims back(one->order.size());
  for (size_t i = 0; i < back.size(); ++i) back[one->order[i]] = static_cast<int64_t>(i);
  return {w.permute(out, back)};
}

Values index_select(Lowering& w) {
  ValueId x = w.tensor("self"), at = w.tensor("index");
  if (w.rank(x) == 0 || w.rank(at) > 1) w.decline("index_select of a 0-d tensor");
  if (w.rank(at) == 0) at = w.reshape(at, {1});
  return {take(w, x, at, w.axis(w.integer("dim"), w.rank(x)))};
}

Values embedding(Lowering& w) { return {take(w, w.tensor("weight"), w.tensor("indices"), 0)}; }

Values gather(Lowering& w) {
  ValueId x = w.tensor("self"), at = w.tensor("index");
  return {w.row(OpCode::k_gather, {x, at}, {{AttrKey::k_dim, w.axis(w.integer("dim"), w.rank(x))}})};
}

Values take_along_dim(Lowering& w) {
  ValueId x = w.tensor("self"), at = w.tensor("indices");
  if (!w.given("dim") || w.rank(x) != w.rank(at)) return w.decline("take_along_dim without a dim"), Values{};
  int64_t dim = w.axis(w.integer("dim"), w.rank(x));
  Dims a = w.sizes(x), b = w.sizes(at);
  if (w.failed() || a.empty()) return w.decline("take_along_dim of a 0-d tensor"), Values{};
  Dims flat_a = a, flat_b = b;
  flat_a[dim] = flat_b[dim] = 1;
  Dims both = w.broadcast({flat_a, flat_b});
  Dims sx = both, si = both;
  sx[dim] = a[dim];
  si[dim] = b[dim];
  return {w.row(OpCode::k_gather, {w.expand(x, sx), w.expand(at, si)}, {{AttrKey::k_dim, dim}})};
}

Values scatter_row(Lowering& w, ValueId src, std::string reduce, bool include_self) {
  ValueId x = w.tensor("self"), at = w.tensor("index");
  if (w.rank(x) == 0) w.decline("scatter into a 0-d tensor");
  return {w.row(OpCode::k_scatter, {x, at, src},
                {{AttrKey::k_dim, w.axis(w.integer("dim"), w.rank(x))},
                 {AttrKey::k_reduce, std::move(reduce)},
                 {AttrKey::k_include_self, include_self}})};
}

Values scatter_src(Lowering& w) { return scatter_row(w, w.tensor("src"), "none", true); }
Values scatter_add(Lowering& w) { return scatter_row(w, w.tensor("src"), "sum", true); }
Values scatter_reduce(Lowering& w) {
  return scatter_row(w, w.tensor("src"), w.word("reduce"), w.flag("include_self", true));
}

Values scatter_value(Lowering& w) {
  ValueId x = w.tensor("self"), at = w.tensor("index");
  return scatter_row(w, w.expand(w.full(w.operand("value"), w.dtype_of(x), {}), w.sizes(at)), "none", true);
}

Values index_row(Lowering& w, ValueId src, std::string reduce, bool include_self) {
  ValueId x = w.tensor("self"), at = w.tensor("index");
  if (w.rank(x) == 0) w.decline("a 0-d tensor has no axis to index");
  if (w.rank(at) == 0) at = w.reshape(at, {1});
  return {w.row(OpCode::k_index_reduce, {x, at, src},
                {{AttrKey::k_dim, w.axis(w.integer("dim"), w.rank(x))},
                 {AttrKey::k_reduce, std::move(reduce)},
                 {AttrKey::k_include_self, include_self}})};
}

Values index_add(Lowering& w) {
  ValueId src = w.tensor("source");
  if (w.given("alpha") && w.real("alpha") != 1)
    src = w.pointwise(OpCode::k_mul, {w.as_operand(src), w.operand("alpha")}, w.dtype_of(src));
  return index_row(w, src, "sum", true);
}

Values index_copy(Lowering& w) { return index_row(w, w.tensor("source"), "none", true); }

Values index_fill(Lowering& w) {
  ValueId x = w.tensor("self"), at = w.tensor("index");
  int64_t dim = w.axis(w.integer("dim"), w.rank(x));
  if (w.failed() || w.rank(x) == 0) return w.decline("a 0-d tensor has no axis to index"), Values{};
  Dims s = w.sizes(x);
  s[dim] = w.type(at).num_elements();
  Lowering::Operand value = w.operand("value");
  ValueId one = value.is_number() ? w.full(value, w.dtype_of(x), {}) : w.cast(value.id, w.dtype_of(x));
  return index_row(w, w.expand(one, s), "none", true);
}

Values index_reduce(Lowering& w) {
  return index_row(w, w.tensor("source"), w.word("reduce"), w.flag("include_self", true));
}

Values one_hot(Lowering& w) {
  ValueId x = w.tensor("self");
  int64_t n = w.integer("num_classes", -1);
  if (n < 1) return w.decline("one_hot with a number of classes from the data"), Values{};
  Dims out = w.sizes(x);
  out.push_back(n);
  const ValueId classes = w.iota(0, n);
  // Out of the classes, so that a number that is none of them is eager's error.
  const ValueId wanted = w.row(OpCode::k_take, {classes, w.cast(x, DType::k_i64)}, {{AttrKey::k_dim, int64_t{0}}});
  return {w.cast(w.binary(OpCode::k_eq, w.expand(w.unsqueeze(wanted, w.rank(x)), out), w.expand(classes, out)), DType::k_i64)};
}

constexpr RecipeRow kRecipes[] = {
    {"aten::index.Tensor", index},
    {"aten::_unsafe_index.Tensor", index},
    {"aten::index_put", index_put},
    {"aten::_unsafe_index_put", index_put},
    {"aten::index_select", index_select},
    {"aten::embedding", embedding},
    {"aten::gather", gather},
    {"aten::take_along_dim", take_along_dim},
    {"aten::scatter.src", scatter_src},
    {"aten::scatter.value", scatter_value},
    {"aten::scatter_add", scatter_add},
    {"aten::scatter_reduce.two", scatter_reduce},
    {"aten::index_add", index_add},
    {"aten::index_copy", index_copy},
    {"aten::index_fill.int_Scalar", index_fill},
    {"aten::index_fill.int_Tensor", index_fill},
    {"aten::index_reduce", index_reduce},
    {"aten::one_hot", one_hot},
};

}  // namespace

std::span<const RecipeRow> index_recipes() { return kRecipes; }

}  // namespace keirin
