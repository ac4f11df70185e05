// SPDX-License-Identifier: Apache-2.0
//
// Whether two sets of addresses, each that of a tensor's strides, have one in common, and whether one holds the other.
#include "core/base/overlap.h"

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <optional>
#include <vector>

namespace keirin {
namespace {

constexpr int64_t kMostProbes = 65536;

struct Axis {
  int64_t stride, size;
};

// Axes with more than one element and a stride, the largest stride first; those that run on into each other are one.
std::vector<Axis> axes_of(const Tensor& t) {
  std::vector<Axis> axes;
  for (int64_t d = 0; d < t.rank(); ++d)
    if (t.sizes()[d] > 1 && t.strides()[d] != 0) axes.push_back({t.strides()[d], t.sizes()[d]});
  std::sort(axes.begin(), axes.end(), [](const Axis& a, const Axis& b) { return a.stride > b.stride; });
  std::vector<Axis> out;
  for (const Axis& axis : axes) {
    if (!out.empty() && out.back().stride == axis.stride * axis.size)
      out.back() = {axis.stride, out.back().size * axis.size};
    else
      out.push_back(axis);
  }
  return out;
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

// Whether `target` is a sum of one multiple of each stride, each within its bounds: an element of one tensor less one of another. The
// largest stride goes first: what the smaller ones reach leaves few multiples of it.
class Difference {
 public:
  Difference(const std::vector<Axis>& plus, const std::vector<Axis>& minus) {
    std::map<int64_t, Bounds, std::greater<>> terms;
    for (const Axis& axis : plus) terms[axis.stride].high += axis.size - 1;
    for (const Axis& axis : minus) terms[axis.stride].low -= axis.size - 1;
    terms_.assign(terms.begin(), terms.end());
    rest_.resize(terms_.size() + 1);
    for (size_t i = terms_.size(); i-- > 0;) {
      const auto& [stride, bounds] = terms_[i];
      rest_[i] = {rest_[i + 1].low + bounds.low * stride, rest_[i + 1].high + bounds.high * stride, std::gcd(rest_[i + 1].divisor, stride)};
    }
  }

  // None: more than kMostProbes sums would have to be looked at.
  std::optional<bool> can_be(int64_t target) {
    probes_ = 0;
    const bool found = find(0, target);
    return probes_ > kMostProbes ? std::nullopt : std::optional(found);
  }

 private:
  struct Bounds {
    int64_t low = 0, high = 0;
  };
  struct Rest : Bounds {
    int64_t divisor = 0;
  };

  static int64_t floor_of(int64_t a, int64_t b) { return a / b - (a % b < 0); }

  bool find(size_t i, int64_t target) {
    if (target < rest_[i].low || target > rest_[i].high) return false;
    if (i == terms_.size()) return true;  // its bounds are zero
    if (target % rest_[i].divisor != 0) return false;
    const auto& [stride, bounds] = terms_[i];
    const int64_t last = std::min(bounds.high, floor_of(target - rest_[i + 1].low, stride));
    for (int64_t n = std::max(bounds.low, -floor_of(rest_[i + 1].high - target, stride)); n <= last; ++n)
      if (++probes_ > kMostProbes || find(i + 1, target - n * stride)) return true;
    return false;
  }

  std::vector<std::pair<int64_t, Bounds>> terms_;  // by stride
  std::vector<Rest> rest_;                         // what the sums from each term on reach, and what divides them all
  int64_t probes_ = 0;
};

// The bytes of a tensor.
std::vector<Axis> byte_axes_of(const Tensor& t) {
  const int64_t bytes = dtype_bytes(t.dtype());
  std::vector<Axis> axes = axes_of(t);
  for (Axis& axis : axes) axis.stride *= bytes;
  axes.push_back({1, bytes});
  return axes;
}

}  // namespace

bool shares_elements(const Tensor& a, const Tensor& b) {
  if (!ranges_meet(a, b)) return false;
  if (same_elements(a, b)) return true;
  const auto distance = static_cast<int64_t>(reinterpret_cast<uintptr_t>(b.data()) - reinterpret_cast<uintptr_t>(a.data()));
  const int64_t bytes = dtype_bytes(a.dtype());
  const bool by_element = dtype_bytes(b.dtype()) == bytes && distance % bytes == 0;
  Difference difference = by_element ? Difference(axes_of(a), axes_of(b)) : Difference(byte_axes_of(a), byte_axes_of(b));
  return difference.can_be(by_element ? distance / bytes : distance).value_or(true);
}

namespace {

// Whether the axes of the inside stay within those of the outside that they run along: each along one whose stride divides its own.
// `outer` nest. False where they may run over and still meet elements only.
bool runs_within(const std::vector<Axis>& inner, const std::vector<Axis>& outer, int64_t first) {
  std::vector<int64_t> room;  // elements after the first one, along each axis of the outside
  for (const Axis& axis : outer) {
    const int64_t at = std::min(first / axis.stride, axis.size - 1);
    first -= at * axis.stride;
    room.push_back(axis.size - 1 - at);
  }
  if (first != 0) return false;
  for (const Axis& axis : inner) {
    const auto along = std::find_if(outer.begin(), outer.end(), [&](const Axis& o) { return axis.stride % o.stride == 0; });
    if (along == outer.end()) return false;
    room[static_cast<size_t>(along - outer.begin())] -= axis.stride / along->stride * (axis.size - 1);
  }
  return std::ranges::all_of(room, [](int64_t left) { return left >= 0; });
}

}  // namespace

bool covers(const Tensor& whole, const Tensor& part) {
  if (!ranges_meet(whole, part)) return false;
  if (same_elements(whole, part)) return true;
  const auto [begin, end] = byte_range(part);
  const auto [whole_begin, whole_end] = byte_range(whole);
  const int64_t bytes = dtype_bytes(whole.dtype());
  const std::vector<Axis> inner = axes_of(part), outer = axes_of(whole);
  if (begin < whole_begin || end > whole_end || dtype_bytes(part.dtype()) != bytes || !nests(outer)) return false;
  const auto distance = static_cast<int64_t>(begin - whole_begin);
  if (distance % bytes != 0) return false;
  if (runs_within(inner, outer, distance / bytes)) return true;
  int64_t probes = 1;
  for (const Axis& axis : inner)
    if ((probes *= axis.size) > kMostProbes) return false;
  return visit_offsets(inner, distance / bytes, [&](int64_t offset) { return offset >= 0 && holds(outer, offset); });
}

}  // namespace keirin
