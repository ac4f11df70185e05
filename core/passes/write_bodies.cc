// SPDX-License-Identifier: Apache-2.0
//
// Last: gives each composite of kind `body` its decomposition, so that a plugin that does not know the name can compile the
// body. Equal composites on equal types share one.
#include <map>

#include "core/ir/rows.h"
#include "core/ir/text.h"
#include "core/ops/aten.h"
#include "core/passes/pass.h"

namespace keirin {
namespace {

// Everything that a decomposition can depend on, as text.
std::string body_key(const Graph& graph, const Op& op) {
  std::string key(op_name(op.code));
  for (ValueId v : op.operands) {
    key += v == kNone ? "|_" : "|" + std::string(dtype_name(graph.type(v).dtype));
    if (v == kNone) continue;
    for (int64_t size : graph.type(v).sizes) key += ',' + std::to_string(size);
    key += '/';
    for (int64_t stride : graph.type(v).strides) key += ',' + std::to_string(stride);
  }
  Graph holder;  // the printer is the one place that spells attributes
  holder.add_op(op.code, {}, op.attrs, {});
  return key + print_op(holder, 0);
}

// A group norm of an image that lies channels-last, whose groups are runs of few channels in each pixel.
bool walks_short_runs(const Graph& graph, const Op& op, int64_t least_bytes) {
  if (op.code != OpCode::k_group_norm) return false;
  const Type& type = graph.type(op.operands[0]);
  if (type.rank() < 4 || type.rank() > 5 || type.strides != channels_last_strides(type.sizes)) return false;
  return type.sizes[1] / op.i(AttrKey::k_groups) * dtype_bytes(type.dtype) < least_bytes;
}

}  // namespace

Status passes::write_bodies(Graph& graph, PassContext& context) {
  std::map<std::string, uint32_t> bodies;
  for (Op& op : graph.ops) {
    const OpRow& row = *find_row(op.code);
    if (row.kind != RowKind::kComposite || row.is_anchor() || op.body != kNone) continue;
    auto [at, fresh] = bodies.emplace(body_key(graph, op), static_cast<uint32_t>(graph.bodies.size()));
    if (fresh) {
      KRN_TRY_LET(Graph body, decompose(graph, op, walks_short_runs(graph, op, context.short_run_bytes)));
      body.drop_dead();
      graph.bodies.push_back(std::move(body));
    }
    op.body = at->second;
  }
  return {};
}

}  // namespace keirin
