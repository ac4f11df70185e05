// SPDX-License-Identifier: Apache-2.0
//
// Ordering of axes. The vector axis is the one along which most bytes are contiguous, stores counting double.
#include "plugins/codegen/kernel/shape_kernel.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "plugins/codegen/kernel/bounds.h"
#include "plugins/codegen/kernel/rows.h"

namespace keirin::codegen {
namespace {

class Shaper {
 public:
  Shaper(const Draft& draft, const TargetInfo& target) : d_(draft), target_(target), reduces_(draft.reduces) {
    for (size_t a = 0; a < d_.axes.size(); ++a) axes_.push_back({d_.axes[a], {static_cast<int>(a)}, static_cast<int>(a)});
    for (const Node& n : d_.dag.nodes) {
      if (n.prim == Prim::kCoord) fixed_[n.imm] = true;
    }
    for (const DraftReduce& r : d_.reduces) ordered_ |= r.monoid == Monoid::kArgMax || r.monoid == Monoid::kArgMin;
  }

  Kernel shape() {
    merge();
    choose_inner();
    if (column_ && !d_.has_csr && target_.joins_deviations) join_deviations();
    return build();
  }

 private:
  struct MergedAxis {
    DraftAxis axis;
    std::vector<int> atoms;  // outermost first
    int lead;                // the atom whose coefficient is the merged axis' own: the innermost
  };

  // Every form that must stay affine in the merged axes.
  template <class F>
  bool all_forms(F test) const {
    for (const DraftAccess& a : d_.accesses) {
      if (!test(a.index)) return false;
      for (const FormGuard& g : a.guards) {
        if (!test(g.form)) return false;
      }
    }
    return true;
  }

  bool mergeable(const MergedAxis& outer, const MergedAxis& inner) const {
    if (outer.axis.in_row != inner.axis.in_row || outer.axis.pinned || inner.axis.pinned) return false;
    if (fixed_[outer.lead] || fixed_[inner.lead]) return false;
    int64_t size = inner.axis.size;
    return all_forms([&](const Form& f) { return f.coeff[outer.lead] == f.coeff[inner.lead] * size; });
  }

  void merge() {
    for (bool again = true; again;) {
      again = false;
      for (size_t i = 0; i < axes_.size() && !again; ++i) {
        for (size_t j = 0; j < axes_.size() && !again; ++j) {
          bool in_order = j == i + 1;
          if (i == j || (ordered_ && axes_[i].axis.in_row && !in_order) || !mergeable(axes_[i], axes_[j])) continue;
          axes_[j].axis.size *= axes_[i].axis.size;
          axes_.erase(axes_.begin() + i);
          again = true;
        }
      }
    }
  }

  // Whether neighbours at that distance read into each other's row, as pooling windows do: together they read what lies between.
  bool windows_overlap(const DraftAccess& a, int64_t step) const {
    return !a.store && std::any_of(axes_.begin(), axes_.end(), [&](const MergedAxis& each) {
      return each.axis.in_row && std::abs(a.index.coeff[each.lead]) == 1 && each.axis.size > step;
    });
  }

  // Bytes that lie side by side along the axis, for each point of the kernel: what is the same for many points (the result of a
  // row, the index of a gathered row) hardly counts. For how many is not asked: another size would get another kernel.
  double score(const MergedAxis& axis) const {
    constexpr double kAlike = 64;
    double out = 0;
    for (const DraftAccess& a : d_.accesses) {
      const int64_t step = std::abs(a.index.coeff[axis.lead]);
      if (step == 0 || (step > 1 && !windows_overlap(a, step))) continue;
      const bool alike = a.indirects.empty() && std::any_of(axes_.begin(), axes_.end(), [&](const MergedAxis& each) {
                           return a.index.coeff[each.lead] == 0 && each.axis.size > 1;
                         });
      out += dtype_bytes(a.dtype) * (a.store ? 2.0 : 1.0) / (alike ? kAlike : 1) / static_cast<double>(step);
    }
    return out * static_cast<double>(std::min<int64_t>(axis.axis.size, 16)) / 16;
  }

  int best(bool in_row) const {
    int out = -1;
    double high = -1;
    for (int i = 0; i < static_cast<int>(axes_.size()); ++i) {
      if (axes_[i].axis.in_row != in_row || axes_[i].axis.pinned) continue;
      double s = score(axes_[i]);
      if (s >= high) high = s, out = i;
    }
    return out;
  }

  // The axis, or where it is too short to fill a vector, of its kind the one that is not and whose neighbours lie nearest.
  int long_enough(int axis) const {
    if (axis < 0 || axes_[axis].axis.size >= target_.short_inner) return axis;
    const auto step = [&](const MergedAxis& each) {
      int64_t sum = 0;
      for (const DraftAccess& a : d_.accesses) sum += std::abs(a.index.coeff[each.lead]);
      return sum;
    };
    int out = axis;
    for (int i = 0; i < static_cast<int>(axes_.size()); ++i) {
      if (axes_[i].axis.in_row != axes_[axis].axis.in_row || axes_[i].axis.pinned || axes_[i].axis.size < target_.short_inner) continue;
      if (out == axis || step(axes_[i]) < step(axes_[out])) out = i;
    }
    return out;
  }

  void choose_inner() {
    bool full_stores = false;
    for (const DraftStore& s : d_.stores) full_stores |= !s.per_row;
    int kept = best(false), row = best(true);
    if (d_.reduces.empty()) {
      inner_ = long_enough(kept);
      return;
    }
    if (d_.has_csr) {
      column_ = true;
      inner_ = kept;
      return;
    }
    double kept_score = kept >= 0 ? score(axes_[kept]) : -1, row_score = row >= 0 ? score(axes_[row]) : -1;
    column_ = !full_stores && kept >= 0 && (row < 0 || kept_score > row_score);
    inner_ = column_ ? kept : long_enough(row);
    if (!column_ && ordered_) {
      for (int i = 0; i < static_cast<int>(axes_.size()); ++i) {
        if (axes_[i].axis.in_row) inner_ = i;
      }
    }
  }

  // A column that is summed, and then the squares of what its elements are away from the mean: both in one pass. Two would read the column
  // twice, and no block but one could work on it.
  void join_deviations() {
    constexpr double kFewest = 64;  // fewer are there still when they are read again
    double count = 1;
    for (const DraftAxis& a : d_.axes)
      if (a.in_row) count *= static_cast<double>(a.size);
    if (count < kFewest) return;
    const auto node = [&](int32_t id) -> const Node& { return d_.dag.nodes[id]; };
    // Of which sum the node is the mean, or -1.
    const auto mean_of = [&](int32_t id) {
      const Node& n = node(id);
      if ((n.prim != Prim::kDiv && n.prim != Prim::kMul) || node(n.a).prim != Prim::kScalar) return -1;
      const std::optional<double> by = number_of(d_.dag, n.b);
      const double wanted = n.prim == Prim::kDiv ? count : 1 / count;
      const bool close = by && std::abs(*by - wanted) <= 1e-7 * wanted;  // as an f32 has it
      return close && reduces_[node(n.a).imm].monoid == Monoid::kSum ? static_cast<int>(node(n.a).imm) : -1;
    };
    for (DraftReduce& r : reduces_) {
      const Node& square = node(r.value);
      if (r.monoid != Monoid::kSum || r.accumulator != Kind::kF32 || square.prim != Prim::kMul || square.a != square.b) continue;
      const Node& away = node(square.a);
      if (away.prim != Prim::kSub) continue;
      const int sum = mean_of(away.b);
      if (sum >= 0 && reduces_[sum].accumulator == Kind::kF32 && reduces_[sum].value == away.a)
        r = {away.a, Monoid::kDeviations, Kind::kF32};
    }
  }

  Kernel build() {
    Kernel k;
    k.column = column_;
    k.has_csr = d_.has_csr;
    k.csr = d_.csr;
    auto take = [&](auto wanted, AxisKind kind) {
      for (int i = 0; i < static_cast<int>(axes_.size()); ++i) {
        if (i != inner_ && wanted(axes_[i].axis)) order_.push_back(i), k.axes.push_back({axes_[i].axis.size, kind});
      }
    };
    take([](const DraftAxis& a) { return !a.in_row && !a.pinned; }, AxisKind::kOuter);
    take([](const DraftAxis& a) { return !a.in_row && a.pinned; }, AxisKind::kOuter);
    take([](const DraftAxis& a) { return a.in_row && !a.segment; }, AxisKind::kSerial);
    take([](const DraftAxis& a) { return a.segment; }, AxisKind::kSegment);
    order_.push_back(inner_);
    k.axes.push_back({inner_ < 0 ? 1 : axes_[inner_].axis.size, AxisKind::kInner});
    copy_dag(k);
    for (const DraftAccess& a : d_.accesses) k.accesses.push_back(access(k, a));
    add_stages(k);
    find_inside(k);
    return k;
  }

  Linear linear(const Form& f) const {
    Linear out{f.offset, {}};
    for (int i : order_) out.coeff.push_back(i < 0 ? 0 : f.coeff[axes_[i].lead]);
    return out;
  }

  Access access(Kernel& k, const DraftAccess& a) const {
    Access out;
    out.dtype = a.dtype;
    uint32_t b = 0;
    while (b < k.buffers.size() && k.buffers[b].id != static_cast<uint32_t>(a.buffer)) ++b;
    if (b == k.buffers.size()) k.buffers.push_back({static_cast<uint32_t>(a.buffer), a.dtype, false});
    k.buffers[b].written |= a.store;
    out.buffer = b;
    out.index = linear(a.index);
    for (Access::Indirect i : a.indirects) {
      i.node = remap_[i.node];
      out.indirects.push_back(i);
    }
    for (const FormGuard& g : a.guards) out.guards.push_back({linear(g.form), g.limit});
    out.fill = a.fill;
    return out;
  }

  // Live nodes only, coordinates renumbered.
  void copy_dag(Kernel& k) {
    const std::vector<Node>& nodes = d_.dag.nodes;
    std::vector<bool> live(nodes.size(), false);
    for (const DraftStore& s : d_.stores) {
      live[s.node] = true;
      for (const Access::Indirect& in : d_.accesses[s.access].indirects) live[in.node] = true;
    }
    for (const DraftReduce& r : reduces_) live[r.value] = true;
    for (size_t i = nodes.size(); i-- > 0;) {
      if (!live[i]) continue;
      for (int32_t x : {nodes[i].a, nodes[i].b, nodes[i].c}) {
        if (x >= 0) live[x] = true;
      }
      if (nodes[i].prim != Prim::kLoad) continue;
      for (const Access::Indirect& in : d_.accesses[nodes[i].imm].indirects) live[in.node] = true;
    }
    remap_.assign(nodes.size(), -1);
    for (size_t i = 0; i < nodes.size(); ++i) {
      if (!live[i]) continue;
      Node n = nodes[i];
      for (int32_t* x : {&n.a, &n.b, &n.c}) {
        if (*x >= 0) *x = remap_[*x];
      }
      if (n.prim == Prim::kCoord) n.imm = position(static_cast<int>(n.imm));
      remap_[i] = k.dag.add(n);
    }
  }

  uint64_t position(int atom) const {
    for (size_t p = 0; p < order_.size(); ++p) {
      if (order_[p] >= 0 && axes_[order_[p]].lead == atom) return p;
    }
    return 0;
  }

  void add_stages(Kernel& k) {
    for (const DraftReduce& r : reduces_) {
      Stage s;
      s.reduce = true;
      s.monoid = r.monoid;
      s.accumulator = r.accumulator;
      s.value = remap_[r.value];
      k.stages.push_back(s);
    }
    Stage rows, all;
    rows.once = !column_;
    for (const DraftStore& s : d_.stores) (s.per_row ? rows : all).stores.push_back({remap_[s.node], s.access});
    if (!rows.stores.empty()) k.stages.push_back(rows);
    if (!all.stores.empty()) k.stages.push_back(all);
  }

  const Draft& d_;
  const TargetInfo& target_;
  std::vector<DraftReduce> reduces_;  // the draft's, or one pass for two of them
  std::vector<MergedAxis> axes_;
  std::array<bool, kMaxAxes> fixed_{};
  bool ordered_ = false;
  bool column_ = false;
  int inner_ = -1;
  std::vector<int> order_;
  std::vector<int32_t> remap_;
};

}  // namespace

Kernel shape_kernel(const Draft& draft, const TargetInfo& target) { return Shaper(draft, target).shape(); }

}  // namespace keirin::codegen
