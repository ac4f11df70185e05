// SPDX-License-Identifier: Apache-2.0
#include "core/ops/strides.h"

#include <algorithm>
#include <utility>

namespace keirin {
namespace {

bool is_row_major(const Dims& sizes, const Dims& strides) {
  int64_t expected = 1;
  for (size_t i = sizes.size(); i-- > 0;) {
    if (sizes[i] == 0) return true;
    if (sizes[i] != 1 && strides[i] != expected) return false;
    expected *= sizes[i];
  }
  return true;
}

bool is_channels_last(const Dims& sizes, const Dims& strides) {
  if (sizes.size() != 4 && sizes.size() != 5) return false;
  Dims want = channels_last_strides(sizes);
  for (size_t i = 0; i < sizes.size(); ++i)
    if (sizes[i] != 1 && strides[i] != want[i]) return false;
  return true;
}

// Every element has its own place and there are no holes.
bool is_dense(const Dims& sizes, const Dims& strides) {
  std::vector<size_t> order;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] == 0) return true;
    if (sizes[i] != 1) order.push_back(i);
  }
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return strides[a] < strides[b]; });
  int64_t expected = 1;
  for (size_t i : order) {
    if (strides[i] != expected) return false;
    expected *= sizes[i];
  }
  return true;
}

bool is_broadcast(const Type& type) {
  for (size_t i = 0; i < type.sizes.size(); ++i)
    if (type.sizes[i] > 1 && type.strides[i] == 0) return true;
  return false;
}

// -1: axis a moves faster than b for the first operand that can tell, 1: slower, 0: no operand can tell.
int compare_axes(const Dims& sizes, const std::vector<const Type*>& operands, size_t a, size_t b) {
  for (const Type* t : operands) {
    int64_t sa = t->strides[a], sb = t->strides[b];
    if (sa == 0 || sb == 0) continue;
    if (sa != sb) return sa < sb ? -1 : 1;
    if (sizes[a] > sizes[b]) return 1;
  }
  return 0;
}

// Axes from fastest to slowest. Not std::sort: the comparison is not transitive where operands cannot tell.
std::vector<size_t> memory_order(const Dims& sizes, const std::vector<const Type*>& operands) {
  std::vector<size_t> order(sizes.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = order.size() - 1 - i;
  for (size_t i = 1; i < order.size(); ++i) {
    size_t at = i;
    for (size_t j = i; j-- > 0;) {
      int c = compare_axes(sizes, operands, order[j], order[at]);
      if (c < 0) break;
      if (c > 0) {
        std::swap(order[j], order[at]);
        at = j;
      }
    }
  }
  return order;
}

}  // namespace

Dims pointwise_strides(const Dims& sizes, const std::vector<const Type*>& operands) {
  if (operands.empty()) return contiguous_strides(sizes);
  auto all = [&](auto&& test) { return std::all_of(operands.begin(), operands.end(), test); };
  if (all([](const Type* t) { return !is_broadcast(*t); })) {
    if (all([](const Type* t) { return is_row_major(t->sizes, t->strides); })) return contiguous_strides(sizes);
    if (all([](const Type* t) { return is_channels_last(t->sizes, t->strides); })) return channels_last_strides(sizes);
    if (all([&](const Type* t) { return is_dense(t->sizes, t->strides) && t->strides == operands[0]->strides; }))
      return operands[0]->strides;
  }
  Dims strides(sizes.size());
  int64_t next = 1;
  for (size_t axis : memory_order(sizes, operands)) {
    strides[axis] = next;
    next *= std::max<int64_t>(sizes[axis], 1);
  }
  return strides;
}

std::optional<Dims> view_strides(const Type& type, const Dims& sizes) {
  for (int64_t size : type.sizes)
    if (size == 0) return contiguous_strides(sizes);
  Dims strides(sizes.size(), 1);
  // Both shapes are walked from the right in groups of old axes that lie evenly in memory.
  size_t next = sizes.size();
  int64_t base = type.strides.empty() ? 1 : type.strides.back();
  int64_t old_elements = 1, new_elements = 1;
  for (size_t i = type.sizes.size(); i-- > 0;) {
    old_elements *= type.sizes[i];
    bool group_ends = i == 0 || (type.sizes[i - 1] != 1 && type.strides[i - 1] != old_elements * base);
    if (!group_ends) continue;
    while (next > 0 && (new_elements < old_elements || sizes[next - 1] == 1)) {
      --next;
      strides[next] = new_elements * base;
      new_elements *= sizes[next];
    }
    if (new_elements != old_elements) return std::nullopt;
    if (i > 0) {
      base = type.strides[i - 1];
      old_elements = new_elements = 1;
    }
  }
  while (next > 0 && sizes[next - 1] == 1) strides[--next] = new_elements * base;
  if (next != 0) return std::nullopt;
  return strides;
}

bool suggests_channels_last(const Type& type) {
  size_t rank = type.sizes.size();
  if (rank != 4 && rank != 5) return false;
  if (type.strides[1] == 0) return false;
  // Channels innermost, then the spatial axes from the right, then the batch; an ambiguous N1..1 or 1C..1 is row-major.
  int64_t least = 0;
  std::vector<size_t> order{1};
  for (size_t i = rank - 1; i >= 2; --i) order.push_back(i);
  order.push_back(0);
  for (size_t axis : order) {
    if (type.sizes[axis] == 0) return false;
    if (type.strides[axis] < least) return false;
    if (axis == 0 && least == type.strides[1]) return false;
    least = type.strides[axis];
    if (type.sizes[axis] > 1) least *= type.sizes[axis];
  }
  return true;
}

Dims strides_like(const Type& like, const Dims& sizes) {
  bool ranked = sizes.size() == 4 || sizes.size() == 5;
  return ranked && suggests_channels_last(like) ? channels_last_strides(sizes) : contiguous_strides(sizes);
}

Dims preserved_strides(const Type& type) {
  return is_dense(type.sizes, type.strides) ? type.strides : pointwise_strides(type.sizes, {&type});
}

}  // namespace keirin
