// SPDX-License-Identifier: Apache-2.0
#include "plugins/codegen/llvm/spills.h"

#include <algorithm>

#include "plugins/codegen/llvm/vector_math.h"

namespace keirin::codegen::native {
namespace {

// Rough price of one element, in loads: what lies below a node when it is computed again.
int price(const Kernel& kernel, const Node& node) {
  if (is_elementary(node.prim)) return 12;
  if (node.prim == Prim::kDiv || node.prim == Prim::kSqrt || node.prim == Prim::kRsqrt) return 4;
  if (node.prim != Prim::kLoad) return node.prim == Prim::kLiteral || node.prim == Prim::kScalar ? 0 : 1;
  const Access& access = kernel.accesses[node.imm];
  const int64_t stride = access.index.coeff.back();
  return !access.indirects.empty() || (stride != 0 && stride != 1) ? 8 : 1;
}

int cone_price(const Kernel& kernel, int32_t node) {
  std::vector<bool> in(kernel.dag.nodes.size());
  add_to_cone(kernel, node, in);
  int sum = 0;
  for (size_t n = 0; n < in.size(); ++n) sum += in[n] ? price(kernel, kernel.dag.nodes[n]) : 0;
  return sum;
}

bool reads_row(const Kernel& kernel, int32_t node) {
  std::vector<bool> in(kernel.dag.nodes.size());
  add_to_cone(kernel, node, in);
  for (size_t n = 0; n < in.size(); ++n) {
    const Node& at = kernel.dag.nodes[n];
    if (in[n] && at.prim == Prim::kLoad && kernel.accesses[at.imm].index.coeff.back() != 0) return true;
  }
  return false;
}

constexpr int kWorthASlot = 8;

// The highest nodes below `node` that were computed before and are worth a slot.
void collect(const Kernel& kernel, int32_t node, const std::vector<bool>& before, std::vector<bool>& seen,
             std::vector<int32_t>& out) {
  if (node < 0 || seen[node]) return;
  seen[node] = true;
  const Node& n = kernel.dag.nodes[node];
  if (before[node] && n.kind != Kind::kBool && reads_row(kernel, node) && cone_price(kernel, node) >= kWorthASlot) {
    out.push_back(node);
    return;
  }
  for (int32_t operand : {n.a, n.b, n.c}) collect(kernel, operand, before, seen, out);
  if (n.prim == Prim::kLoad) {
    for (const auto& i : kernel.accesses[n.imm].indirects) collect(kernel, i.node, before, seen, out);
  }
}

std::vector<int32_t> roots(const Kernel& kernel, const Stage& stage) {
  std::vector<int32_t> out;
  if (stage.reduce) out.push_back(stage.value);
  for (const Stage::Store& store : stage.stores) {
    out.push_back(store.node);
    for (const auto& i : kernel.accesses[store.access].indirects) out.push_back(i.node);
  }
  return out;
}

}  // namespace

void add_to_cone(const Kernel& kernel, int32_t node, std::vector<bool>& in) {
  if (node < 0 || in[node]) return;
  in[node] = true;
  const Node& n = kernel.dag.nodes[node];
  for (int32_t operand : {n.a, n.b, n.c}) add_to_cone(kernel, operand, in);
  if (n.prim == Prim::kLoad) {
    for (const auto& i : kernel.accesses[n.imm].indirects) add_to_cone(kernel, i.node, in);
  }
}

std::vector<bool> cone(const Kernel& kernel, const Stage& stage) {
  std::vector<bool> in(kernel.dag.nodes.size());
  for (int32_t root : roots(kernel, stage)) add_to_cone(kernel, root, in);
  return in;
}

SpillPlan::SpillPlan(const Kernel& kernel) : stored(kernel.stages.size()), loaded(kernel.stages.size()) {
  if (kernel.column) return;
  std::vector<int32_t> computed_in(kernel.dag.nodes.size(), -1);
  for (size_t s = 0; s < kernel.stages.size(); ++s) {
    const Stage& stage = kernel.stages[s];
    if (stage.once) continue;
    std::vector<bool> before(kernel.dag.nodes.size()), seen(kernel.dag.nodes.size());
    for (size_t n = 0; n < before.size(); ++n) before[n] = computed_in[n] >= 0;
    for (int32_t root : roots(kernel, stage)) collect(kernel, root, before, seen, loaded[s]);
    for (int32_t node : loaded[s]) {
      if (slots.emplace(node, static_cast<int32_t>(slots.size())).second) stored[computed_in[node]].push_back(node);
    }
    for (size_t n = 0; n < seen.size(); ++n) {
      if (seen[n] && computed_in[n] < 0) computed_in[n] = static_cast<int32_t>(s);
    }
  }
}

bool SpillPlan::loads(size_t stage, int32_t node) const {
  return std::find(loaded[stage].begin(), loaded[stage].end(), node) != loaded[stage].end();
}

bool splits_rows(const Kernel& kernel) {
  if (kernel.column) return true;
  for (const Axis& axis : kernel.axes) {
    if (axis.kind == AxisKind::kSerial || axis.kind == AxisKind::kSegment) return false;
  }
  return std::none_of(kernel.stages.begin(), kernel.stages.end(), [](const Stage& s) { return s.reduce || s.once; });
}

bool walks_down(const Kernel& kernel) {
  if (kernel.column || !splits_rows(kernel) || kernel.axes.size() < 2) return false;
  return std::any_of(kernel.accesses.begin(), kernel.accesses.end(), [](const Access& a) {
    const int64_t stride = a.index.coeff.back();
    return stride != 0 && stride != 1;
  });
}

}  // namespace keirin::codegen::native
