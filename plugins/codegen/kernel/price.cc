// SPDX-License-Identifier: Apache-2.0
#include "plugins/codegen/kernel/price.h"

#include <algorithm>
#include <map>

#include "plugins/codegen/kernel/rows.h"
#include "plugins/codegen/kernel/shape_kernel.h"

namespace keirin::codegen {
namespace {

struct Work {
  double simple = 0, special = 0;
};

// Which axes a node's value changes along, as a bit set: what is invariant in the row is computed once for it.
std::vector<uint32_t> variance(const Kernel& k) {
  std::vector<uint32_t> out(k.dag.nodes.size(), 0);
  uint32_t outer = 0;
  for (size_t a = 0; a < k.axes.size(); ++a) {
    if (k.axes[a].kind == AxisKind::kOuter || (k.column && k.axes[a].kind == AxisKind::kInner)) outer |= 1u << a;
  }
  for (size_t i = 0; i < out.size(); ++i) {
    const Node& n = k.dag.nodes[i];
    for (int32_t x : {n.a, n.b, n.c}) {
      if (x >= 0) out[i] |= out[x];
    }
    if (n.prim == Prim::kCoord) out[i] |= 1u << n.imm;
    if (n.prim == Prim::kScalar) out[i] |= outer;
    if (n.prim != Prim::kLoad) continue;
    const Access& access = k.accesses[n.imm];
    for (size_t a = 0; a < k.axes.size(); ++a) {
      if (access.index.coeff[a] != 0) out[i] |= 1u << a;
    }
    for (const Access::Indirect& in : access.indirects) out[i] |= out[in.node];
  }
  return out;
}

double points(const Kernel& k, uint32_t axes) {
  double n = 1;
  size_t destination = 0;  // the last outer axis: its rows share the edges, so together they walk each edge once
  for (size_t a = 0; a < k.axes.size(); ++a) {
    if (k.axes[a].kind == AxisKind::kOuter) destination = a;
  }
  for (size_t a = 0; a < k.axes.size(); ++a) {
    if (!(axes >> a & 1)) continue;
    n *= static_cast<double>(k.axes[a].size);
    if (k.axes[a].kind == AxisKind::kSegment && (axes >> destination & 1)) {
      n /= static_cast<double>(std::max<int64_t>(k.axes[destination].size, 1));
    }
  }
  return n;
}

Work stage_work(const Kernel& k, const Stage& stage, const std::vector<uint32_t>& varies) {
  std::vector<bool> live(k.dag.nodes.size(), false);
  if (stage.reduce) live[stage.value] = true;
  for (const Stage::Store& s : stage.stores) live[s.node] = true;
  Work out;
  for (size_t i = live.size(); i-- > 0;) {
    if (!live[i]) continue;
    const Node& n = k.dag.nodes[i];
    for (int32_t x : {n.a, n.b, n.c}) {
      if (x >= 0) live[x] = true;
    }
    if (n.prim == Prim::kLoad) {
      for (const Access::Indirect& in : k.accesses[n.imm].indirects) live[in.node] = true;
    }
    if (n.prim == Prim::kLiteral || n.prim == Prim::kScalar) continue;
    (is_special(n.prim) ? out.special : out.simple) += points(k, varies[i]);
  }
  if (stage.reduce) out.simple += points(k, ~0u);
  return out;
}

// Bytes that lie side by side where the access begins, as the axes walk it.
int64_t run_bytes(const Kernel& k, const Access& a) {
  int64_t run = 1;
  for (size_t x = k.axes.size(); x-- > 0;) {
    if (k.axes[x].size == 1) continue;
    if (a.index.coeff[x] != run) break;
    run *= k.axes[x].size;
  }
  return run * dtype_bytes(a.dtype);
}

double bytes_moved(const Kernel& k, const std::vector<uint32_t>& varies, const TargetInfo& target) {
  constexpr double kMostWasted = 4;  // of what comes with it, caches keep some until it is asked for
  double total = 0;
  for (const Access& a : k.accesses) {
    uint32_t axes = 0;
    for (size_t x = 0; x < k.axes.size(); ++x) {
      if (a.index.coeff[x] != 0) axes |= 1u << x;
    }
    for (const Access::Indirect& in : a.indirects) axes |= varies[in.node];
    double bytes = points(k, axes) * dtype_bytes(a.dtype);
    int64_t along = std::abs(a.index.coeff.back());
    if (along > 1 && k.axes.back().size > 1) bytes *= std::min(kMostWasted, static_cast<double>(along));
    const int64_t run = along == 1 ? run_bytes(k, a) : target.sector_bytes;
    if (run < target.sector_bytes) bytes *= std::min(kMostWasted, static_cast<double>(target.sector_bytes) / static_cast<double>(run));
    total += bytes;
  }
  return total;
}

}  // namespace

int64_t iterations(const Kernel& k) {
  int64_t n = 1;
  for (const Axis& a : k.axes) n *= a.size;
  return n;
}

double price(const Kernel& k, const TargetInfo& target) {
  std::vector<uint32_t> varies = variance(k);
  Work work;
  int row_stages = 0;
  for (const Stage& s : k.stages) {
    Work w = stage_work(k, s, varies);
    work.simple += w.simple;
    work.special += w.special;
    row_stages += !s.once;
  }
  double bytes = bytes_moved(k, varies, target);
  // A row that does not fit the cache is fetched again by every stage.
  int64_t row = 1;
  for (const Axis& a : k.axes) {
    if (a.kind != AxisKind::kOuter) row *= a.size;
  }
  if (!k.column && row * 4 > target.cache_bytes) bytes *= std::max(1, row_stages);
  double seconds = std::max({bytes / target.bytes_per_s, work.simple / target.flops_per_s + work.special / target.special_per_s});
  return target.launch_ns + seconds * 1e9;
}

std::string veto(const Kernel& k, const TargetInfo& target) {
  if (static_cast<int>(k.buffers.size()) > target.max_kernel_buffers) return "too many buffers for one kernel";
  if (static_cast<int>(k.dag.nodes.size()) > target.max_kernel_nodes) return "too many operations for one kernel";
  return "";
}

}  // namespace keirin::codegen
