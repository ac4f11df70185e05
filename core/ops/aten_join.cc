// SPDX-License-Identifier: Apache-2.0
//
// Recipes that cut tensors into pieces or put pieces together: splits, joins, padding, rolls, grids.
#include <algorithm>

#include "core/ops/lowering.h"

namespace keirin {
namespace {

Values split_by(Lowering& w, ValueId x, int64_t dim, const Dims& lengths) {
  Values parts;
  int64_t at = 0;
  for (int64_t n : lengths) {
    parts.push_back(w.slice(x, dim, at, at + n));
    at += n;
  }
  return parts;
}

Dims even_lengths(int64_t n, int64_t each) {
  Dims lengths;
  if (n == 0) lengths.push_back(0);
  for (int64_t at = 0; at < n; at += each) lengths.push_back(std::min(each, n - at));
  return lengths;
}

Values split(Lowering& w) {
  ValueId x = w.tensor("self");
  int64_t dim = w.axis(w.integer("dim", 0), w.rank(x));
  if (w.failed() || w.rank(x) == 0) return w.decline("split of a 0-d tensor"), Values{};
  if (w.given("split_sizes")) return split_by(w, x, dim, w.ints("split_sizes"));
  Dims each = w.ints("split_size");
  if (each.size() != 1) return split_by(w, x, dim, each);  // split.sizes
  if (each[0] < 1) return w.decline("split into pieces of no size"), Values{};
  return split_by(w, x, dim, even_lengths(w.sizes(x)[dim], each[0]));
}

Values split_sizes(Lowering& w) {
  ValueId x = w.tensor("self");
  int64_t dim = w.axis(w.integer("dim", 0), w.rank(x));
  if (w.failed() || w.rank(x) == 0) return w.decline("split of a 0-d tensor"), Values{};
  return split_by(w, x, dim, w.ints(w.given("split_sizes") ? "split_sizes" : "split_size"));
}

Values chunk(Lowering& w) {
  ValueId x = w.tensor("self");
  int64_t dim = w.axis(w.integer("dim", 0), w.rank(x)), chunks = w.integer("chunks");
  if (w.failed() || w.rank(x) == 0 || chunks < 1) return w.decline("chunk of a 0-d tensor"), Values{};
  int64_t n = w.sizes(x)[dim];
  if (n == 0) return split_by(w, x, dim, Dims(chunks, 0));
  return split_by(w, x, dim, even_lengths(n, (n + chunks - 1) / chunks));
}

Values unbind(Lowering& w) {
  ValueId x = w.tensor("self");
  int64_t dim = w.axis(w.integer("dim", 0), w.rank(x));
  Dims s = w.sizes(x);
  if (w.failed() || s.empty()) return w.decline("unbind of a 0-d tensor"), Values{};
  int64_t n = s[dim];
  s.erase(s.begin() + dim);
  Values parts;
  for (int64_t i = 0; i < n; ++i) parts.push_back(w.reshape(w.slice(x, dim, i, i + 1), s));
  return parts;
}

// cat promotes, and skips the empty 1-d tensors that ATen still allows.
Values cat(Lowering& w) {
  Promotion promotion;
  Values parts;
  for (ValueId v : w.tensors("tensors")) {
    promotion.add_tensor(w.dtype_of(v), w.rank(v) == 0);
    if (w.sizes(v) != Dims{0}) parts.push_back(v);
  }
  if (parts.empty() && w.tensors("tensors").size() == 1) parts = w.tensors("tensors");
  if (w.failed() || parts.empty()) return w.decline("cat of nothing"), Values{};
  int64_t dim = w.axis(w.integer(w.given("axis") ? "axis" : "dim", 0), w.rank(parts[0]));
  for (ValueId& v : parts) v = w.cast(v, promotion.result());
  return {w.cat(parts, dim)};
}

Values stack(Lowering& w) {
  Values parts = w.tensors("tensors");
  if (w.failed() || parts.empty()) return w.decline("stack of nothing"), Values{};
  Promotion promotion;
  for (ValueId v : parts) promotion.add_tensor(w.dtype_of(v), w.rank(v) == 0);
  int64_t dim = w.axis(w.integer("dim", 0), w.rank(parts[0]) + 1);
  for (ValueId& v : parts) v = w.unsqueeze(w.cast(v, promotion.result()), dim);
  return {w.cat(parts, dim)};
}

Values pad(Lowering& w) {
  ValueId x = w.tensor("self");
  if (w.word("mode", "constant") != "constant") w.decline("padding mode " + w.word("mode"));
  Dims pairs = w.ints("pad"), low(w.rank(x), 0), high(w.rank(x), 0);
  if (pairs.size() % 2 != 0 || pairs.size() / 2 > low.size()) w.decline("a pad list that does not fit the rank");
  for (size_t i = 0; i < pairs.size() / 2 && !w.failed(); ++i) {
    low[low.size() - 1 - i] = pairs[2 * i];
    high[high.size() - 1 - i] = pairs[2 * i + 1];
  }
  double value = w.given("value") ? w.real("value") : 0;
  if (is_float(w.dtype_of(x)))
    return {w.row(OpCode::k_pad, {x}, {{AttrKey::k_low, low}, {AttrKey::k_high, high}, {AttrKey::k_value_d, value}})};
  const int64_t whole = static_cast<int64_t>(value);
  return {w.row(OpCode::k_pad, {x}, {{AttrKey::k_low, low}, {AttrKey::k_high, high}, {AttrKey::k_value_i, whole}})};
}

// roll: the tail goes first.
Values roll(Lowering& w) {
  ValueId x = w.tensor("self");
  Dims shifts = w.ints("shifts"), dims = w.ints("dims"), own = w.sizes(x);
  if (dims.empty() && shifts.size() == 1) {
    x = w.reshape(x, {w.type(x).num_elements()});
    dims = {0};
  }
  if (dims.size() != shifts.size()) w.decline("roll with lists of different length");
  for (size_t i = 0; i < dims.size() && !w.failed(); ++i) {
    int64_t dim = w.axis(dims[i], w.rank(x));
    if (w.failed() || w.rank(x) == 0) break;
    int64_t n = w.sizes(x)[dim], by = n > 0 ? ((shifts[i] % n) + n) % n : 0;
    if (by != 0) x = w.cat({w.slice(x, dim, n - by, n), w.slice(x, dim, 0, n - by)}, dim);
  }
  return {w.reshape(x, own)};
}

Values flip(Lowering& w) {
  ValueId x = w.tensor("self");
  Dims dims = w.ints("dims");
  if (dims.empty() || w.rank(x) == 0) return {x};
  return {w.row(OpCode::k_flip, {x}, {{AttrKey::k_dims, w.axes(dims, w.rank(x))}})};
}

Values diff(Lowering& w) {
  ValueId x = w.tensor("self");
  int64_t dim = w.axis(w.integer("dim", -1), w.rank(x)), n = w.integer("n", 1);
  if (w.failed() || w.rank(x) == 0 || n < 0) return w.decline("diff of a 0-d tensor"), Values{};
  Values parts;
  if (w.given("prepend")) parts.push_back(w.tensor("prepend"));
  parts.push_back(x);
  if (w.given("append")) parts.push_back(w.tensor("append"));
  x = w.cat(parts, dim);
  for (int64_t i = 0; i < n && !w.failed(); ++i) {
    int64_t size = w.sizes(x)[dim];
    if (size == 0) break;
    ValueId upper = w.slice(x, dim, 1, size), lower = w.slice(x, dim, 0, size - 1);
    x = w.binary(w.dtype_of(x) == DType::k_bool ? OpCode::k_logical_xor : OpCode::k_sub, upper, lower);
  }
  return {x};
}

Values meshgrid(Lowering& w) {
  Values axes = w.tensors("tensors");
  bool swap = w.word("indexing", "ij") == "xy" && axes.size() >= 2;
  if (swap) std::swap(axes[0], axes[1]);
  Dims sizes;
  for (ValueId v : axes) sizes.push_back(w.type(v).num_elements());
  Values grids;
  for (size_t i = 0; i < axes.size(); ++i) {
    Dims line(sizes.size(), 1);
    line[i] = sizes[i];
    grids.push_back(w.expand(w.reshape(axes[i], line), sizes));
  }
  if (swap) std::swap(grids[0], grids[1]);
  return grids;
}

Values broadcast_tensors(Lowering& w) {
  Values parts = w.tensors("tensors");
  Dims sizes;
  for (ValueId v : parts) sizes = w.broadcast({sizes, w.sizes(v)});
  for (ValueId& v : parts) v = w.expand(v, sizes);
  return parts;
}

constexpr RecipeRow kRecipes[] = {
    {"aten::split.Tensor", split},
    {"aten::unsafe_split.Tensor", split},
    {"aten::split.sizes", split_sizes},
    {"aten::split_with_sizes", split_sizes},
    {"aten::unsafe_split_with_sizes", split_sizes},
    {"aten::chunk", chunk},
    {"aten::unsafe_chunk", chunk},
    {"aten::unbind.int", unbind},
    {"aten::cat", cat},
    {"aten::concat", cat},
    {"aten::concatenate", cat},
    {"aten::stack", stack},
    {"aten::pad", pad},
    {"aten::constant_pad_nd", pad},
    {"aten::roll", roll},
    {"aten::flip", flip},
    {"aten::diff", diff},
    {"aten::meshgrid", meshgrid},
    {"aten::meshgrid.indexing", meshgrid},
    {"aten::broadcast_tensors", broadcast_tensors},
};

}  // namespace

std::span<const RecipeRow> join_recipes() { return kRecipes; }

}  // namespace keirin
