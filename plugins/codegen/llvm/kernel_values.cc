// SPDX-License-Identifier: Apache-2.0
//
// The value of a DAG node at a place in the loops: made once, on the node's own level, and broadcast where lanes need it.
#include "plugins/codegen/llvm/kernel_emitter.h"
#include "plugins/codegen/llvm/scalar_ops.h"

namespace keirin::codegen::native {

// Emits at `place` all that the stage will want from this level.
void KernelEmitter::prepare(const Stage& stage, Place& place) {
  std::vector<bool> seen(kernel_.dag.nodes.size());
  if (stage.reduce) prepare_node(stage.value, place, seen);
  for (const auto& s : stage.stores) {
    prepare_node(s.node, place, seen);
    prepare_access(s.access, place, seen);
  }
}

void KernelEmitter::prepare_node(int32_t node, Place& place, std::vector<bool>& seen) {
  if (node < 0 || seen[node]) return;
  seen[node] = true;
  if (node_level_[node] <= place.level) {
    if (kernel_.dag.nodes[node].prim != Prim::kLiteral) value(node, place);
    return;
  }
  if (spills_.loads(stage_, node)) return;
  const Node& n = kernel_.dag.nodes[node];
  for (int32_t operand : {n.a, n.b, n.c}) prepare_node(operand, place, seen);
  if (n.prim == Prim::kLoad) prepare_access(static_cast<uint32_t>(n.imm), place, seen);
}

void KernelEmitter::prepare_access(uint32_t number, Place& place, std::vector<bool>& seen) {
  const Access& access = kernel_.accesses[number];
  for (const auto& i : access.indirects) prepare_node(i.node, place, seen);
  if (access_level(access, true) == place.level) {
    base(number, place);
    condition(number, place);
  }
}

llvm::Value* KernelEmitter::value(int32_t node, Place& place) {
  auto known = place.values.find(node);
  if (known != place.values.end()) return known->second;
  const Node& n = kernel_.dag.nodes[node];
  Value* v = nullptr;
  if (n.prim == Prim::kLiteral) {
    const int32_t at = arguments_.literals[node];
    v = at < 0 ? literal(b_, n.kind, n.imm, place.lanes) : splat(b_, argument(at), place.lanes);
  } else if (place.parent && node_level_[node] <= place.parent->level) {
    v = splat(b_, value(node, *place.parent), place.lanes);
  } else {
    v = make_value(node, place);
  }
  place.values[node] = v;
  return v;
}

llvm::Value* KernelEmitter::make_value(int32_t node, Place& place) {
  const Node& n = kernel_.dag.nodes[node];
  if (place.level == kVectorLevel && spills_.loads(stage_, node)) {
    llvm::Type* type = with_lanes(kind_type(b_.getContext(), n.kind), place.lanes);
    return b_.CreateAlignedLoad(type, scratch_address(spills_.slots.at(node), n.kind, place), llvm::Align(1));
  }
  switch (n.prim) {
    case Prim::kLoad: return load(static_cast<uint32_t>(n.imm), n.kind, place);
    case Prim::kCoord: return convert(b_, coordinate(static_cast<uint32_t>(n.imm), place), Kind::kI64, n.kind);
    case Prim::kScalar: {
      const auto stage = static_cast<size_t>(n.imm);
      Value* v = kernel_.column ? place.scalars[stage] : row_scalars_[stage];
      const Stage& from = kernel_.stages[stage];
      const bool arg = from.monoid == Monoid::kArgMax || from.monoid == Monoid::kArgMin;
      return convert(b_, v, arg ? Kind::kI64 : value_kind(from), n.kind);
    }
    default: break;
  }
  Value* operands[3] = {};
  for (int k = 0; k < 3; ++k) {
    const int32_t operand = k == 0 ? n.a : k == 1 ? n.b : n.c;
    if (operand >= 0) operands[k] = value(operand, place);
  }
  return emit_primitive(b_, n, kernel_.dag.nodes[n.a].kind, operands[0], operands[1], operands[2]);
}

llvm::Value* KernelEmitter::coordinate(uint32_t axis, Place& place) {
  return is_inner(axis) ? inner_iota(place) : splat(b_, place.index[axis], place.lanes);
}

}  // namespace keirin::codegen::native
