// SPDX-License-Identifier: Apache-2.0
#include "core/ops/decompose.h"

#include "core/ops/infer_rules.h"

namespace keirin {
namespace {

using Body = ValueId (*)(Lowering&, const Op&, const Values&);

Body body_of(OpCode code) {
  switch (code) {
    case OpCode::k_batch_norm:
      return bodies::batch_norm;
    case OpCode::k_layer_norm:
      return bodies::layer_norm;
    case OpCode::k_group_norm:
      return bodies::group_norm;
    case OpCode::k_rms_norm:
      return bodies::rms_norm;
    case OpCode::k_softmax:
      return bodies::softmax;
    case OpCode::k_log_softmax:
      return bodies::log_softmax;
    case OpCode::k_mean:
      return bodies::mean;
    case OpCode::k_var:
      return bodies::var;
    default:
      return nullptr;
  }
}

}  // namespace

Result<Graph> decompose(const Graph& graph, const Op& op, bool by_channel) {
  Body body = by_channel && op.code == OpCode::k_group_norm ? bodies::group_norm_by_channel : body_of(op.code);
  if (body == nullptr) return rules::malformed(op, "the op has no decomposition");
  Graph out;
  Values operands;
  for (ValueId v : op.operands) {
    uint32_t number = static_cast<uint32_t>(out.inputs.size());
    operands.push_back(v == kNone ? kNone : out.add_input(graph.type(v), number));
  }
  Builder builder(out);
  builder.set_origin(op.origin);
  const std::vector<AtenArg> no_args;
  const std::vector<std::string> no_names;
  const AtenCall no_call{"decomposition", &no_args, &no_names, nullptr};
  Lowering lowering(builder, no_call);
  ValueId result = body(lowering, op, operands);
  if (lowering.failed()) return rules::malformed(op, "its decomposition failed: " + lowering.why());
  out.outputs.push_back({result, kNone, kNone});
  return out;
}

}  // namespace keirin
