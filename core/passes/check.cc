// SPDX-License-Identifier: Apache-2.0
#include "core/passes/check.h"

#include "core/ir/text.h"
#include "core/ir/verify.h"
#include "core/ops/infer.h"

namespace keirin {
namespace {

Status check_types(const Graph& graph, OpId id) {
  const Op& op = graph.ops[id];
  if (op.code == OpCode::kOpaque) return {};
  std::vector<const Type*> operands;
  for (ValueId v : op.operands) operands.push_back(v == kNone ? nullptr : &graph.type(v));
  KRN_TRY_LET(std::vector<Type> types, infer_types(op, operands));
  bool same = types.size() == op.results.size();
  for (size_t k = 0; same && k < types.size(); ++k)
    same = types[k].dtype == graph.type(op.results[k]).dtype && types[k].sizes == graph.type(op.results[k]).sizes;
  if (same) return {};
  return Status(Code::k_internal, {"graph: an op has other result types than its row gives", print_op(graph, id), "",
                                   "report it with a dump of the graph (KEIRIN_DUMP=dir)"});
}

}  // namespace

Status check(const Graph& graph) {
  KRN_TRY(verify(graph));
  for (const Graph& body : graph.bodies) KRN_TRY(check(body));
  for (OpId id = 0; id < graph.ops.size(); ++id) KRN_TRY(check_types(graph, id));
  return {};
}

}  // namespace keirin
