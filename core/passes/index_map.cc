// SPDX-License-Identifier: Apache-2.0
#include "core/passes/index_map.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/passes/facts.h"

namespace keirin {
namespace {

constexpr int kMaxDepth = 64;
constexpr int64_t kMaxFactor = int64_t{1} << 31;  // larger ones would need checked products

class Tracer {
 public:
  explicit Tracer(const Graph& graph) : graph_(graph) {}

  std::optional<IndexMap> run(ValueId v, int depth = 0) {
    const Type& type = graph_.type(v);
    if (depth > kMaxDepth) return std::nullopt;
    if (type.dtype != DType::k_bool)
      if (auto splat = splat_of(graph_, v); splat && *splat == std::trunc(*splat) && std::fabs(*splat) < 0x1p31)
        return IndexMap{std::vector<int64_t>(type.sizes.size()), static_cast<int64_t>(*splat), false};
    if (graph_.values[v].producer == kNone) return std::nullopt;
    const Op& op = graph_.ops[graph_.values[v].producer];
    auto at = [&](size_t k) { return run(op.operands[k], depth + 1); };
    switch (op.code) {
      case OpCode::k_iota: return small(IndexMap{{op.i(AttrKey::k_step)}, op.i(AttrKey::k_start), false});
      case OpCode::k_cast: {
        bool exact = is_lossless(graph_.type(op.operands[0]).dtype, type.dtype);
        return exact ? at(0) : std::nullopt;
      }
      case OpCode::k_add: return combine(at(0), at(1), 1);
      case OpCode::k_sub: return combine(at(0), at(1), -1);
      case OpCode::k_mul: return product(at(0), at(1));
      case OpCode::k_ge: return condition(combine(at(0), at(1), -1), 0);
      case OpCode::k_gt: return condition(combine(at(0), at(1), -1), -1);
      case OpCode::k_le: return condition(combine(at(1), at(0), -1), 0);
      case OpCode::k_lt: return condition(combine(at(1), at(0), -1), -1);
      case OpCode::k_logical_not: return negated(at(0));
      case OpCode::k_select: {
        const Maybe which = at(0);
        if (!which || !which->is_condition) return std::nullopt;
        const auto [least, most] = ends(*which, type.sizes);
        return most < 0 ? at(2) : least >= 0 ? at(1) : std::nullopt;
      }
      case OpCode::k_expand: return expanded(at(0), graph_.type(op.operands[0]).sizes, type.sizes);
      case OpCode::k_reshape: return reshaped(at(0), graph_.type(op.operands[0]).sizes, type.sizes);
      case OpCode::k_permute: return permuted(at(0), op.ints(AttrKey::k_dims));
      case OpCode::k_slice: return sliced(at(0), op);
      default: return std::nullopt;
    }
  }

 private:
  using Maybe = std::optional<IndexMap>;

  static Maybe small(IndexMap map) {
    for (int64_t f : map.axes)
      if (std::llabs(f) > kMaxFactor) return std::nullopt;
    if (std::llabs(map.offset) > kMaxFactor) return std::nullopt;
    return map;
  }

  static Maybe combine(Maybe a, const Maybe& b, int64_t sign) {
    if (!a || !b || a->is_condition || b->is_condition) return std::nullopt;
    for (size_t i = 0; i < a->axes.size(); ++i) a->axes[i] += sign * b->axes[i];
    a->offset += sign * b->offset;
    return small(*a);
  }

  // The least and the largest value; of no elements anything.
  static std::pair<int64_t, int64_t> ends(const IndexMap& map, const Dims& sizes) {
    int64_t least = map.offset, most = map.offset;
    for (size_t i = 0; i < sizes.size(); ++i) (map.axes[i] < 0 ? least : most) += map.axes[i] * (sizes[i] - 1);
    return {least, most};
  }

  // Of which one is a number.
  static Maybe product(Maybe a, Maybe b) {
    if (!a || !b || a->is_condition || b->is_condition) return std::nullopt;
    const auto is_number = [](const IndexMap& map) { return std::ranges::all_of(map.axes, [](int64_t f) { return f == 0; }); };
    if (is_number(*a)) std::swap(a, b);
    if (!is_number(*b)) return std::nullopt;
    for (int64_t& f : a->axes)
      if (__builtin_mul_overflow(f, b->offset, &f)) return std::nullopt;
    if (__builtin_mul_overflow(a->offset, b->offset, &a->offset)) return std::nullopt;
    return small(*a);
  }

  static Maybe condition(Maybe difference, int64_t shift) {
    if (!difference) return std::nullopt;
    difference->offset += shift;
    difference->is_condition = true;
    return difference;
  }

  // Over the integers, not (f >= 0) is -f - 1 >= 0.
  static Maybe negated(Maybe map) {
    if (!map || !map->is_condition) return std::nullopt;
    for (int64_t& f : map->axes) f = -f;
    map->offset = -map->offset - 1;
    return map;
  }

  static Maybe expanded(Maybe map, const Dims& from, const Dims& to) {
    if (!map) return std::nullopt;
    for (size_t i = 0; i < from.size(); ++i)
      if (from[i] != to[i]) map->axes[i] = 0;
    return map;
  }

  // Only axes of size 1 come and go.
  static Maybe reshaped(const Maybe& map, const Dims& from, const Dims& to) {
    if (!map) return std::nullopt;
    IndexMap out = *map;
    out.axes.assign(to.size(), 0);
    size_t i = 0;
    for (size_t k = 0; k < to.size(); ++k) {
      if (to[k] == 1) continue;
      while (i < from.size() && from[i] == 1) ++i;
      if (i == from.size() || from[i] != to[k]) return std::nullopt;
      out.axes[k] = map->axes[i++];
    }
    for (; i < from.size(); ++i)
      if (from[i] != 1) return std::nullopt;
    return out;
  }

  static Maybe permuted(const Maybe& map, const Dims& dims) {
    if (!map) return std::nullopt;
    IndexMap out = *map;
    for (size_t i = 0; i < dims.size(); ++i) out.axes[i] = map->axes[static_cast<size_t>(dims[i])];
    return out;
  }

  static Maybe sliced(Maybe map, const Op& op) {
    if (!map || op.i(AttrKey::k_start) > kMaxFactor || op.i(AttrKey::k_step) > kMaxFactor) return std::nullopt;
    int64_t& factor = map->axes[static_cast<size_t>(op.i(AttrKey::k_dim))];
    if (std::llabs(factor) > 1024) return std::nullopt;
    map->offset += factor * op.i(AttrKey::k_start);
    factor *= op.i(AttrKey::k_step);
    return small(*map);
  }

  const Graph& graph_;
};

}  // namespace

std::optional<IndexMap> index_map_of(const Graph& graph, ValueId v) { return Tracer(graph).run(v); }

bool is_causal(const Graph& graph, ValueId v) {
  auto map = index_map_of(graph, v);
  const Dims& sizes = graph.type(v).sizes;
  if (!map || !map->is_condition || sizes.size() < 2 || map->offset != 0) return false;
  size_t r = sizes.size();
  for (size_t i = 0; i + 2 < r; ++i)
    if (map->axes[i] != 0 && sizes[i] != 1) return false;
  return map->axes[r - 2] == 1 && map->axes[r - 1] == -1 && sizes[r - 2] > 1 && sizes[r - 1] > 1;
}

}  // namespace keirin
