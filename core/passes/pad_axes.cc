// SPDX-License-Identifier: Apache-2.0
#include "core/passes/pad_axes.h"

#include <algorithm>

namespace keirin {
namespace {

void append(PadAxis& axis, PadFactor factor) {
  if (factor.small == 1 && factor.large == 1) return;
  if (!axis.empty() && !axis.back().grows() && !factor.grows()) {
    axis.back().small *= factor.small;
    axis.back().large *= factor.large;
    return;
  }
  axis.push_back(factor);
}

// The same elements padded, in the same places: what grows and what lies within it, which does not, are as one that grows, too.
PadAxis joined(const PadAxis& axis) {
  PadAxis out;
  for (const PadFactor& f : axis) {
    if (!out.empty() && out.back().grows() && !f.grows()) out.back().small *= f.small, out.back().large *= f.large;
    else append(out, f);
  }
  for (PadFactor& f : out) f.uniform = false;
  return out;
}

}  // namespace

PadAxis axis_of(int64_t small, int64_t large, bool uniform) {
  PadAxis axis;
  append(axis, {small, large, uniform && small != large});
  return axis;
}

PadAxes axes_of(const Dims& small, const Dims& large, bool uniform) {
  PadAxes axes;
  for (size_t i = 0; i < small.size(); ++i) axes.push_back(axis_of(small[i], large[i], uniform));
  return axes;
}

bool grows(const PadAxis& axis) {
  return std::ranges::any_of(axis, [](const PadFactor& f) { return f.grows(); });
}

bool grows(const PadAxes& axes) {
  return std::ranges::any_of(axes, [](const PadAxis& axis) { return grows(axis); });
}

bool grows_alone(const PadAxis& axis) { return axis.size() == 1 && axis[0].grows(); }

bool grows_at_end(const PadAxis& axis) { return joined(axis).size() == 1 && grows(axis); }

std::optional<PadAxis> unite(const PadAxis& a, const PadAxis& b) {
  if (a == b) return a;
  const auto all = [](const PadAxis& axis) {
    PadFactor product;
    for (const PadFactor& f : axis) product.small *= f.small, product.large *= f.large;
    return std::pair(product.small, product.large);
  };
  if (all(a) != all(b)) return std::nullopt;
  if (a.size() == 1 && a[0].uniform) return b;
  if (b.size() == 1 && b[0].uniform) return a;
  if (joined(a) != joined(b)) return std::nullopt;
  PadAxis finer = a.size() < b.size() ? b : a;
  for (PadFactor& f : finer) f.uniform = false;
  return finer;
}

std::optional<PadAxes> unite(const PadAxes& a, const PadAxes& b) {
  if (a.size() != b.size()) return std::nullopt;
  PadAxes out;
  for (size_t i = 0; i < a.size(); ++i) {
    std::optional<PadAxis> axis = unite(a[i], b[i]);
    if (!axis) return std::nullopt;
    out.push_back(std::move(*axis));
  }
  return out;
}

std::optional<PadAxes> regroup(const PadAxes& axes, const Dims& small, const Dims& large) {
  PadAxis all;
  for (const PadAxis& axis : axes)
    for (const PadFactor& factor : axis) append(all, factor);
  for (const PadFactor& f : all)
    if (f.small == 0 || f.large == 0) return std::nullopt;
  PadAxes out;
  size_t at = 0;
  for (size_t i = 0; i < small.size(); ++i) {
    PadAxis axis;
    int64_t rest = small[i], rest_large = large[i];
    if (rest == 0 || rest_large == 0) return std::nullopt;
    while (rest != 1 || rest_large != 1) {
      if (at == all.size()) return std::nullopt;
      PadFactor& f = all[at];
      if (rest % f.small == 0 && rest_large % f.large == 0) {
        append(axis, f);
        rest /= f.small, rest_large /= f.large;
        ++at;
      } else if (!f.grows() && rest == rest_large && f.small % rest == 0) {
        append(axis, {rest, rest, false});
        f.small /= rest, f.large /= rest;
        rest = rest_large = 1;
      } else if (f.grows() && f.small % rest == 0 && f.large % rest_large == 0 && f.small / rest == f.large / rest_large) {
        append(axis, {rest, rest_large, f.uniform});  // as often as before, but for more of them
        f = {f.small / rest, f.large / rest_large, false};
        rest = rest_large = 1;
      } else {
        return std::nullopt;
      }
    }
    out.push_back(std::move(axis));
  }
  if (at != all.size()) return std::nullopt;
  return out;
}

}  // namespace keirin
