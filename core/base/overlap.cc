// SPDX-License-Identifier: Apache-2.0
//
// The probe behind shares_elements: each element of the smaller tensor is looked for in the larger one by dividing its address by
// the larger strides first, which is exact where the axes nest.
#include "core/base/overlap.h"

#include <algorithm>
#include <vector>

namespace keirin {
namespace {

constexpr int64_t kMostProbes = 65536;

int64_t num_elements(const Tensor& t) {
  int64_t n = 1;
  for (int64_t d = 0; d < t.rank(); ++d) n *= t.sizes()[d];
  return n;
}

struct Axis {
  int64_t stride, size;
};

// Axes with more than one element and a stride, the largest stride first.
std::vector<Axis> axes_of(const Tensor& t) {
  std::vector<Axis> axes;
  for (int64_t d = 0; d < t.rank(); ++d)
    if (t.sizes()[d] > 1 && t.strides()[d] != 0) axes.push_back({t.strides()[d], t.sizes()[d]});
  std::sort(axes.begin(), axes.end(), [](const Axis& a, const Axis& b) { return a.stride > b.stride; });
  return axes;
}

// Whether each stride steps over all that the axes inside it reach.
bool nests(const std::vector<Axis>& axes) {
  int64_t reach = 0;
  for (size_t i = axes.size(); i-- > 0;) {
    if (axes[i].stride <= reach) return false;
    reach += axes[i].stride * (axes[i].size - 1);
  }
  return true;
}

bool holds(const std::vector<Axis>& axes, int64_t offset) {
  for (const Axis& axis : axes) offset -= std::min(offset / axis.stride, axis.size - 1) * axis.stride;
  return offset == 0;
}

}  // namespace

std::pair<uintptr_t, uintptr_t> byte_range(const Tensor& tensor) {
  const auto begin = reinterpret_cast<uintptr_t>(tensor.data());
  int64_t last = 0;
  for (int64_t d = 0; d < tensor.rank(); ++d) {
    if (tensor.sizes()[d] == 0) return {begin, begin};
    last += (tensor.sizes()[d] - 1) * tensor.strides()[d];
  }
  return {begin, begin + static_cast<uintptr_t>((last + 1) * dtype_bytes(tensor.dtype()))};
}

bool ranges_meet(const Tensor& a, const Tensor& b) {
  const auto [a_begin, a_end] = byte_range(a);
  const auto [b_begin, b_end] = byte_range(b);
  return a_begin < b_end && b_begin < a_end && a_begin != a_end && b_begin != b_end;
}

bool same_strides(const Tensor& a, const Tensor& b) {
  if (a.rank() != b.rank()) return false;
  bool same = true;
  for (int64_t d = 0; d < a.rank(); ++d) {
    if (a.sizes()[d] == 0) return true;
    same &= a.sizes()[d] <= 1 || a.strides()[d] == b.strides()[d];
  }
  return same;
}

bool same_elements(const Tensor& a, const Tensor& b) {
  return a.data() == b.data() && a.dtype() == b.dtype() && a.rank() == b.rank() &&
         std::equal(a.sizes(), a.sizes() + a.rank(), b.sizes()) && same_strides(a, b);
}

namespace {

// Visits the offset of each element of `inner` from `first`, until `visit` answers false; its last answer.
template <class Visit>
bool visit_offsets(const std::vector<Axis>& inner, int64_t first, Visit&& visit) {
  std::vector<int64_t> at(inner.size(), 0);
  for (int64_t offset = first;;) {
    if (!visit(offset)) return false;
    size_t d = inner.size();
    while (d > 0 && ++at[d - 1] == inner[d - 1].size) {
      offset -= inner[d - 1].stride * (inner[d - 1].size - 1);
      at[--d] = 0;
    }
    if (d == 0) return true;
    offset += inner[d - 1].stride;
  }
}

// The elements of one tensor looked for in another: where the first one begins, in elements of the other, if that can be said.
struct Probe {
  bool possible = false;
  std::vector<Axis> inner, outer;
  int64_t first = 0;

  Probe(const Tensor& small, const Tensor& large) : inner(axes_of(small)), outer(axes_of(large)) {
    const int64_t bytes = dtype_bytes(small.dtype());
    const auto distance = static_cast<int64_t>(reinterpret_cast<uintptr_t>(small.data()) - reinterpret_cast<uintptr_t>(large.data()));
    if (bytes == 0 || dtype_bytes(large.dtype()) != bytes || distance % bytes != 0 || !nests(outer)) return;
    first = distance / bytes;
    int64_t probes = 1;
    for (const Axis& axis : inner)
      if ((probes *= axis.size) > kMostProbes) return;
    possible = true;
  }
};

}  // namespace

bool shares_elements(const Tensor& a, const Tensor& b) {
  if (!ranges_meet(a, b)) return false;
  if (same_elements(a, b)) return true;
  const bool swap = num_elements(a) > num_elements(b);
  const Probe probe(swap ? b : a, swap ? a : b);
  if (!probe.possible) return true;
  return !visit_offsets(probe.inner, probe.first, [&](int64_t offset) { return offset < 0 || !holds(probe.outer, offset); });
}

bool covers(const Tensor& whole, const Tensor& part) {
  if (!ranges_meet(whole, part)) return false;
  if (same_elements(whole, part)) return true;
  const auto [begin, end] = byte_range(part);
  const auto [whole_begin, whole_end] = byte_range(whole);
  if (begin < whole_begin || end > whole_end) return false;
  const Probe probe(part, whole);
  int64_t elements = 1;
  for (const Axis& axis : probe.outer) elements *= axis.size;
  const int64_t bytes = dtype_bytes(whole.dtype());
  const bool dense = static_cast<uintptr_t>(elements * bytes) == whole_end - whole_begin;
  if (dense && dtype_bytes(part.dtype()) == bytes && static_cast<int64_t>(begin - whole_begin) % bytes == 0 && nests(probe.outer))
    return true;
  return probe.possible &&
         visit_offsets(probe.inner, probe.first, [&](int64_t offset) { return offset >= 0 && holds(probe.outer, offset); });
}

}  // namespace keirin
