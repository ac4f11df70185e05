// SPDX-License-Identifier: Apache-2.0
//
// Recipes that show values in another shape or order, and the plumbing that is the identity. Joins and splits:
// aten_join.cc.
#include <algorithm>

#include "core/ops/lowering.h"

namespace keirin {
namespace {

int64_t product(const Dims& dims) {
  int64_t n = 1;
  for (int64_t d : dims) n *= d;
  return n;
}

// Sizes with at most one -1 resolved.
Dims resolved(Lowering& w, Dims sizes, int64_t elements) {
  int64_t known = 1, open = -1;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] == -1 && open < 0)
      open = static_cast<int64_t>(i);
    else
      known *= sizes[i];
  }
  if (open >= 0 && (known <= 0 || elements % known != 0))
    w.decline("a -1 that no size resolves");
  else if (open >= 0)
    sizes[open] = elements / known;
  return sizes;
}

Values identity(Lowering& w) { return {w.tensor(w.given("self") ? "self" : "input")}; }

Values to(Lowering& w) {
  ValueId x = w.tensor("self");
  return {w.cast(x, w.dtype("dtype").value_or(w.dtype_of(x)))};
}

Values to_other(Lowering& w) {
  ValueId x = w.tensor("self"), other = w.tensor("other");
  return {w.cast(x, w.dtype_of(other))};
}

Values copy(Lowering& w) {
  ValueId x = w.tensor("self"), src = w.tensor("src");
  return {w.expand(w.cast(src, w.dtype_of(x)), w.sizes(x))};
}

Values reshape(Lowering& w) {
  ValueId x = w.tensor("self");
  Dims sizes = w.ints(w.given("shape") ? "shape" : "size");
  return {w.reshape(x, resolved(w, sizes, w.type(x).num_elements()))};
}

// as_strided of dense memory: a reshape under dense strides, else its elements are taken by their places, as many in a row as lie side by
// side (the overlapping windows of sliding attention). Other memory would be named, not values.
Values as_strided(Lowering& w) {
  ValueId x = w.tensor("self");
  const Type type = w.type(x);
  const Dims sizes = w.ints("size"), strides = w.ints("stride");
  const int64_t offset = w.integer("storage_offset", 0), elements = type.num_elements();
  if (type.strides != contiguous_strides(type.sizes) || sizes.size() != strides.size())
    return w.decline("as_strided of other than dense memory"), Values{};
  if (strides == contiguous_strides(sizes) && offset == 0 && product(sizes) == elements) return {w.reshape(x, sizes)};
  int64_t last = offset;
  for (size_t d = 0; d < sizes.size(); ++d) last += (sizes[d] - 1) * strides[d];
  if (product(sizes) == 0 || last >= elements) return w.decline("as_strided beyond its operand"), Values{};
  size_t outer = sizes.size();  // axes that count places; the others lie side by side
  int64_t run = 1;
  while (outer > 0 && strides[outer - 1] == run) {
    const int64_t longer = run * sizes[outer - 1];
    bool whole = elements % longer == 0 && offset % longer == 0;
    for (size_t d = 0; d + 1 < outer; ++d) whole &= strides[d] % longer == 0;
    if (!whole) break;
    run = longer;
    --outer;
  }
  const Dims counted(sizes.begin(), sizes.begin() + static_cast<ptrdiff_t>(outer));
  ValueId places = w.expand(w.full(Lowering::number(offset / run), DType::k_i64, {}), counted);
  for (size_t d = 0; d < outer; ++d) {
    Dims along(outer, 1);
    along[d] = sizes[d];
    const ValueId steps = w.reshape(w.iota(0, sizes[d], strides[d] / run), along);
    places = w.binary(OpCode::k_add, places, w.expand(steps, counted));
  }
  const ValueId rows = w.row(OpCode::k_take, {w.reshape(x, {elements / run, run}), places}, {{AttrKey::k_dim, int64_t{0}}});
  return {w.reshape(rows, sizes)};
}

Values reshape_as(Lowering& w) {
  ValueId x = w.tensor("self"), other = w.tensor("other");
  return {w.reshape(x, w.sizes(other))};
}

Values flatten(Lowering& w) {
  ValueId x = w.tensor("self");
  Dims s = w.sizes(x);
  int64_t a = w.axis(w.integer("start_dim", 0), w.rank(x)), b = w.axis(w.integer("end_dim", -1), w.rank(x));
  if (a > b) w.decline("flatten of an empty range");
  if (w.failed()) return {};
  if (s.empty()) return {w.reshape(x, {1})};
  Dims out(s.begin(), s.begin() + a);
  out.push_back(product(Dims(s.begin() + a, s.begin() + b + 1)));
  out.insert(out.end(), s.begin() + b + 1, s.end());
  return {w.reshape(x, out)};
}

Values unflatten(Lowering& w) {
  ValueId x = w.tensor("self");
  Dims s = w.sizes(x);
  int64_t dim = w.axis(w.integer("dim"), w.rank(x));
  if (w.failed() || s.empty()) return w.decline("unflatten of a 0-d tensor"), Values{};
  Dims inner = resolved(w, w.ints("sizes"), s[dim]);
  s.erase(s.begin() + dim);
  s.insert(s.begin() + dim, inner.begin(), inner.end());
  return {w.reshape(x, s)};
}

Values squeeze(Lowering& w) {
  ValueId x = w.tensor("self");
  Dims s = w.sizes(x), out, dims = w.axes(w.ints("dim"), w.rank(x));
  if (w.given("dim") && w.ints("dim").empty()) dims.clear();
  for (size_t i = 0; i < s.size(); ++i) {
    bool listed = std::find(dims.begin(), dims.end(), static_cast<int64_t>(i)) != dims.end();
    if (!(listed && s[i] == 1)) out.push_back(s[i]);
  }
  return {w.reshape(x, out)};
}

Values unsqueeze(Lowering& w) {
  ValueId x = w.tensor("self");
  return {w.unsqueeze(x, w.axis(w.integer("dim"), w.rank(x) + 1))};
}

Values permute(Lowering& w) {
  ValueId x = w.tensor("self");
  Dims dims = w.ints("dims");
  for (int64_t& d : dims) d = w.axis(d, w.rank(x));
  return {w.permute(x, dims)};
}

Values transpose(Lowering& w) {
  ValueId x = w.tensor("self");
  const char* first = w.given("axis0") ? "axis0" : "dim0";
  const char* second = w.given("axis1") ? "axis1" : "dim1";
  return {w.transpose(x, w.integer(first), w.integer(second))};
}

Values transpose_matrix(Lowering& w) {
  ValueId x = w.tensor("self");
  return {w.rank(x) < 2 ? x : w.transpose(x, -2, -1)};
}

Values reverse_axes(Lowering& w) {
  ValueId x = w.tensor("self");
  Dims dims;
  for (int64_t i = w.rank(x); i-- > 0;) dims.push_back(i);
  return {w.permute(x, dims)};
}

Values movedim(Lowering& w) {
  ValueId x = w.tensor("self");
  int64_t rank = w.rank(x);
  Dims from = w.ints("source"), to = w.ints("destination"), dims(rank, -1);
  if (from.size() != to.size()) w.decline("movedim with lists of different length");
  std::vector<bool> used(rank, false);
  for (size_t i = 0; i < from.size() && !w.failed(); ++i) {
    int64_t a = w.axis(from[i], rank), b = w.axis(to[i], rank);
    if (!w.failed() && rank > 0) dims[b] = a, used[a] = true;
  }
  int64_t next = 0;
  for (int64_t& d : dims) {
    if (d >= 0) continue;
    while (next < rank && used[next]) ++next;
    d = next++;
  }
  return {w.permute(x, dims)};
}

Values expand(Lowering& w) {
  ValueId x = w.tensor("self");
  Dims sizes = w.ints("size"), own = w.sizes(x);
  if (sizes.size() < own.size()) w.decline("expand to a lower rank");
  for (size_t i = 0; i < own.size() && !w.failed(); ++i) {
    int64_t& s = sizes[sizes.size() - own.size() + i];
    if (s == -1) s = own[i];
  }
  return {w.expand(x, sizes)};
}

Values expand_as(Lowering& w) {
  ValueId x = w.tensor("self"), other = w.tensor("other");
  return {w.expand(x, w.sizes(other))};
}

// repeat: each axis becomes (times, size), expanded and folded back.
Values repeat(Lowering& w) {
  ValueId x = w.tensor("self");
  Dims times = w.ints(w.given("repeats") ? "repeats" : "dims"), own = w.sizes(x);
  while (times.size() < own.size()) times.insert(times.begin(), 1);
  while (own.size() < times.size()) own.insert(own.begin(), 1);
  Dims split, wide, out;
  for (size_t i = 0; i < own.size(); ++i) {
    split.insert(split.end(), {1, own[i]});
    wide.insert(wide.end(), {times[i], own[i]});
    out.push_back(times[i] * own[i]);
  }
  return {w.reshape(w.expand(w.reshape(x, split), wide), out)};
}

Values repeat_interleave(Lowering& w) {
  ValueId x = w.tensor("self");
  int64_t times = w.integer("repeats");
  if (!w.given("dim")) x = w.reshape(x, {w.type(x).num_elements()});
  int64_t dim = w.axis(w.integer("dim", 0), w.rank(x));
  Dims own = w.sizes(x);
  if (w.failed() || own.empty()) return w.decline("repeat_interleave of a 0-d tensor"), Values{};
  Dims wide = own, out = own;
  wide.insert(wide.begin() + dim + 1, times);
  out[dim] *= times;
  return {w.reshape(w.expand(w.unsqueeze(x, dim + 1), wide), out)};
}

Values select(Lowering& w) {
  ValueId x = w.tensor("self");
  int64_t dim = w.axis(w.integer("dim"), w.rank(x)), at = w.integer("index");
  Dims s = w.sizes(x);
  if (w.failed() || s.empty()) return w.decline("select of a 0-d tensor"), Values{};
  if (at < 0) at += s[dim];
  ValueId part = w.slice(x, dim, at, at + 1);
  s.erase(s.begin() + dim);
  return {w.reshape(part, s)};
}

struct Span {
  int64_t dim, start, end, step;
};

// The range of slice.Tensor, clamped as Python does.
Span span_of(Lowering& w, const Dims& sizes) {
  int64_t dim = w.axis(w.integer("dim", 0), static_cast<int64_t>(sizes.size()));
  if (w.failed() || sizes.empty()) return w.decline("slice of a 0-d tensor"), Span{};
  int64_t n = sizes[dim];
  auto clamp = [&](int64_t v) { return std::clamp<int64_t>(v < 0 ? v + n : v, 0, n); };
  int64_t start = clamp(w.integer("start", 0)), end = clamp(w.given("end") ? w.integer("end") : n);
  return {dim, start, std::max(start, end), w.integer("step", 1)};
}

Values slice(Lowering& w) {
  ValueId x = w.tensor("self");
  Span r = span_of(w, w.sizes(x));
  return {w.slice(x, r.dim, r.start, r.end, r.step)};
}

ValueId write_span(Lowering& w, ValueId x, ValueId src, const Span& r) {
  return w.row(
      OpCode::k_slice_scatter, {x, w.cast(src, w.dtype_of(x))},
      {{AttrKey::k_dim, r.dim}, {AttrKey::k_start, r.start}, {AttrKey::k_end, r.end}, {AttrKey::k_step, r.step}});
}

Values slice_scatter(Lowering& w) {
  ValueId x = w.tensor("self"), src = w.tensor("src");
  Dims s = w.sizes(x);
  Span r = span_of(w, s);
  if (w.failed() || r.step < 1) return w.decline("a step below 1"), Values{};
  s[r.dim] = (r.end - r.start + r.step - 1) / r.step;
  return {write_span(w, x, w.expand(src, s), r)};
}

Values select_scatter(Lowering& w) {
  ValueId x = w.tensor("self"), src = w.tensor("src");
  int64_t dim = w.axis(w.integer("dim"), w.rank(x)), at = w.integer("index");
  if (w.failed() || w.rank(x) == 0) return w.decline("select_scatter of a 0-d tensor"), Values{};
  if (at < 0) at += w.sizes(x)[dim];
  return {write_span(w, x, w.unsqueeze(src, dim), {dim, at, at + 1, 1})};
}

Values narrow(Lowering& w) {
  ValueId x = w.tensor("self");
  int64_t dim = w.axis(w.integer("dim"), w.rank(x)), start = w.integer("start");
  if (w.failed() || w.rank(x) == 0) return w.decline("narrow of a 0-d tensor"), Values{};
  if (start < 0) start += w.sizes(x)[dim];
  return {w.slice(x, dim, start, start + w.integer("length"))};
}

// (C r r, H, W) to (C, H r, W r), and back.
Values pixel_shuffle(Lowering& w) {
  ValueId x = w.tensor("self");
  int64_t r = w.integer("upscale_factor"), k = w.rank(x);
  if (k < 3 || r < 1 || w.sizes(x)[k - 3] % (r * r) != 0) return w.decline("channels that do not divide"), Values{};
  Dims s = w.sizes(x), lead(s.begin(), s.end() - 3), split = lead, order;
  int64_t c = s[k - 3] / (r * r), h = s[k - 2], v = s[k - 1], n = k - 3;
  split.insert(split.end(), {c, r, r, h, v});
  for (int64_t i = 0; i < n; ++i) order.push_back(i);
  order.insert(order.end(), {n, n + 3, n + 1, n + 4, n + 2});
  lead.insert(lead.end(), {c, h * r, v * r});
  return {w.reshape(w.permute(w.reshape(x, split), order), lead)};
}

Values pixel_unshuffle(Lowering& w) {
  ValueId x = w.tensor("self");
  int64_t r = w.integer("downscale_factor"), k = w.rank(x);
  if (k < 3 || r < 1 || w.sizes(x)[k - 2] % r != 0 || w.sizes(x)[k - 1] % r != 0)
    return w.decline("sizes that do not divide"), Values{};
  Dims s = w.sizes(x), lead(s.begin(), s.end() - 3), split = lead, order;
  int64_t c = s[k - 3], h = s[k - 2] / r, v = s[k - 1] / r, n = k - 3;
  split.insert(split.end(), {c, h, r, v, r});
  for (int64_t i = 0; i < n; ++i) order.push_back(i);
  order.insert(order.end(), {n, n + 2, n + 4, n + 1, n + 3});
  lead.insert(lead.end(), {c * r * r, h, v});
  return {w.reshape(w.permute(w.reshape(x, split), order), lead)};
}

Values channel_shuffle(Lowering& w) {
  ValueId x = w.tensor("self");
  int64_t groups = w.integer("groups");
  Dims s = w.sizes(x);
  if (s.size() < 3 || groups < 1 || s[1] % groups != 0) return w.decline("groups that do not divide"), Values{};
  Dims split = s;
  split[1] = groups;
  split.insert(split.begin() + 2, s[1] / groups);
  return {w.reshape(w.transpose(w.reshape(x, split), 1, 2), s)};
}

constexpr RecipeRow kRecipes[] = {
    {"aten::contiguous", identity},
    {"aten::clone", identity},
    {"aten::detach", identity},
    {"aten::detach_", identity},
    {"aten::alias", identity},
    {"aten::lift_fresh_copy", identity},
    {"aten::lift_fresh", identity},
    {"aten::lift", identity},
    {"aten::positive", identity},
    {"aten::resolve_conj", identity},
    {"aten::resolve_neg", identity},
    {"aten::conj", identity},
    {"aten::_to_copy", to},
    {"aten::to.dtype", to},
    {"aten::to.dtype_layout", to},
    {"aten::to.device", to},
    {"aten::to.prim_Device", to},
    {"aten::to.prim_dtype", to},
    {"aten::to.other", to_other},
    {"aten::type_as", to_other},
    {"aten::copy", copy},
    {"aten::view", reshape},
    {"aten::reshape", reshape},
    {"aten::_unsafe_view", reshape},
    {"aten::_reshape_alias", reshape},
    {"aten::as_strided", as_strided},
    {"aten::view_as", reshape_as},
    {"aten::reshape_as", reshape_as},
    {"aten::flatten.using_ints", flatten},
    {"aten::unflatten.int", unflatten},
    {"aten::squeeze", squeeze},
    {"aten::squeeze.dim", squeeze},
    {"aten::squeeze.dims", squeeze},
    {"aten::unsqueeze", unsqueeze},
    {"aten::permute", permute},
    {"aten::transpose.int", transpose},
    {"aten::swapaxes", transpose},
    {"aten::swapdims", transpose},
    {"aten::t", transpose_matrix},
    {"aten::mT", transpose_matrix},
    {"aten::adjoint", transpose_matrix},
    {"aten::numpy_T", reverse_axes},
    {"aten::movedim.int", movedim},
    {"aten::movedim.intlist", movedim},
    {"aten::moveaxis.int", movedim},
    {"aten::expand", expand},
    {"aten::broadcast_to", expand},
    {"aten::expand_as", expand_as},
    {"aten::repeat", repeat},
    {"aten::tile", repeat},
    {"aten::repeat_interleave.self_int", repeat_interleave},
    {"aten::select.int", select},
    {"aten::slice.Tensor", slice},
    {"aten::narrow", narrow},
    {"aten::slice_scatter", slice_scatter},
    {"aten::select_scatter", select_scatter},
    {"aten::pixel_shuffle", pixel_shuffle},
    {"aten::pixel_unshuffle", pixel_unshuffle},
    {"aten::channel_shuffle", channel_shuffle},
};

}  // namespace

std::span<const RecipeRow> view_recipes() { return kRecipes; }

}  // namespace keirin
