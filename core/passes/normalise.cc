// SPDX-License-Identifier: Apache-2.0
//
// Pass 1: one spelling for one meaning, so that later passes and the bytes compare by equality. Dead ops go, attributes that
// the row lists and the op lacks get their neutral value, and an absent optional operand is listed as absent.
#include "core/ir/rows.h"
#include "core/passes/pass.h"

namespace keirin {
namespace {

// What the accessors of Op answer where the attribute is absent.
AttrValue neutral(AttrKey key) {
  switch (attr_kind(key)) {
    case 'i': return int64_t{0};
    case 'd': return 0.0;
    case 'b': return false;
    case 'I': return Dims{};
    default: return std::string();
  }
}

// `scale` absent means 1/sqrt(D) and a missing `reduce` or `mode` is malformed: no neutral value says that.
bool has_neutral(AttrKey key) {
  return key != AttrKey::k_scale && key != AttrKey::k_reduce && key != AttrKey::k_mode && key != AttrKey::k_encoding &&
         key != AttrKey::k_aten && key != AttrKey::k_dtype;
}

void fill_attributes(Op& op, const OpRow& row) {
  std::string_view keys = row.attrs;
  while (!keys.empty()) {
    size_t end = keys.find(' ');
    auto key = attr_from_name(keys.substr(0, end));
    if (key && has_neutral(*key) && !op.find(*key)) op.set(*key, neutral(*key));
    if (end == std::string_view::npos) break;
    keys.remove_prefix(end + 1);
  }
}

// value_i and value_d: the one that the result's dtype does not read is 0.
void clear_unread_value(const Graph& graph, Op& op) {
  if (op.code != OpCode::k_full && op.code != OpCode::k_pad) return;
  if (is_float(graph.type(op.results[0]).dtype))
    op.set(AttrKey::k_value_i, int64_t{0});
  else
    op.set(AttrKey::k_value_d, 0.0);
}

}  // namespace

Status passes::normalise(Graph& graph, PassContext&) {
  for (Op& op : graph.ops) {
    const OpRow& row = *find_row(op.code);
    if (row.kind == RowKind::kOpaque) continue;
    fill_attributes(op, row);
    clear_unread_value(graph, op);
    if (static_cast<int>(op.operands.size()) < row.arity_max) op.operands.resize(static_cast<size_t>(row.arity_max), kNone);
  }
  graph.drop_dead();
  return {};
}

}  // namespace keirin
