// SPDX-License-Identifier: Apache-2.0
//
// What kernels of different sizes share (structure_key) and what tells them apart (size_arguments).
#include "plugins/codegen/kernel/loops.h"

#include <cstring>

#include "abi/planted.h"

namespace keirin::codegen {
namespace {

void append(std::string& out, const void* data, size_t size) { out.append(static_cast<const char*>(data), size); }
template <class T>
void append(std::string& out, T value) {
  append(out, &value, sizeof value);
}

// Along the vector axis code differs for 0, 1, -1 and other strides; along the others only absence matters.
char stride_class(int64_t stride, bool inner) {
  if (stride == 0) return '0';
  if (!inner) return 's';
  return stride == 1 && !KRN_PLANTED(key_without_strides) ? '1' : 's';
}

void append_linear(std::string& out, const Linear& form, const std::vector<Axis>& axes) {
  for (size_t a = 0; a < axes.size(); ++a) {
    append(out, stride_class(form.coeff[a], axes[a].kind == AxisKind::kInner));
  }
}

void push_linear(std::vector<int64_t>& out, const Linear& form) {
  out.push_back(form.offset);
  out.insert(out.end(), form.coeff.begin(), form.coeff.end());
}

}  // namespace

bool is_argument(const Node& node) {
  const auto value = static_cast<int64_t>(node.imm);
  return node.prim == Prim::kLiteral && node.kind == Kind::kI64 && value > 1 && value < INT32_MAX;
}

std::string structure_key(const Kernel& k) {
  std::string out;
  append(out, k.column ? 'c' : 'r');
  append(out, k.has_csr ? 'x' : '-');
  for (const Axis& axis : k.axes) append(out, static_cast<char>('0' + static_cast<int>(axis.kind)));
  append(out, static_cast<uint32_t>(k.buffers.size()));
  for (const Buffer& b : k.buffers) append(out, static_cast<char>(b.dtype)), append(out, static_cast<char>(b.written));
  append(out, static_cast<uint32_t>(k.accesses.size()));
  for (const Access& access : k.accesses) {
    append(out, access.buffer);
    append(out, access.dtype);
    append_linear(out, access.index, k.axes);
    append(out, static_cast<uint16_t>(access.indirects.size()));
    for (const Access::Indirect& i : access.indirects) append(out, i.node), append(out, i.inside);
    append(out, static_cast<uint16_t>(access.guards.size()));
    for (const Access::Guard& g : access.guards) append_linear(out, g.form, k.axes);
    if (!access.guards.empty()) append(out, access.fill);
  }
  append(out, static_cast<uint32_t>(k.dag.nodes.size()));
  for (const Node& n : k.dag.nodes) {
    append(out, static_cast<uint8_t>(n.prim)), append(out, static_cast<uint8_t>(n.kind));
    append(out, n.a), append(out, n.b), append(out, n.c);
    append(out, is_argument(n)), append(out, is_argument(n) ? uint64_t{0} : n.imm);
  }
  for (const Stage& s : k.stages) {
    append(out, static_cast<char>(s.reduce ? 'R' : s.once ? 'O' : 'M'));
    append(out, static_cast<uint8_t>(s.monoid)), append(out, static_cast<uint8_t>(s.accumulator)), append(out, s.value);
    append(out, static_cast<uint32_t>(s.stores.size()));
    for (const Stage::Store& store : s.stores) append(out, store.node), append(out, store.access);
  }
  return out;
}

std::vector<int64_t> size_arguments(const Kernel& k) {
  std::vector<int64_t> out;
  for (const Axis& axis : k.axes) out.push_back(axis.size);
  for (const Access& access : k.accesses) {
    push_linear(out, access.index);
    for (const Access::Indirect& i : access.indirects) out.push_back(i.stride), out.push_back(i.limit);
    for (const Access::Guard& g : access.guards) push_linear(out, g.form), out.push_back(g.limit);
  }
  for (const Node& n : k.dag.nodes) {
    if (is_argument(n)) out.push_back(static_cast<int64_t>(n.imm));
  }
  return out;
}

}  // namespace keirin::codegen
