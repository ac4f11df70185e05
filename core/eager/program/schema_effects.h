// SPDX-License-Identifier: Apache-2.0
//
// What an operator does to its arguments, and what it hands on of them: by its schema's marks, and by what schemas leave unsaid.
// One place for both readers of a program, the importer and the eager frame.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>
#include <ATen/core/function_schema.h>
#include <ATen/core/stack.h>

#include <functional>
#include <string_view>
#include <vector>

namespace keirin {

// Positions of the arguments that the operator writes, by its schema or silently: the norms update their running statistics while
// training. `is_true` answers whether the argument at a position is the constant true.
inline std::vector<size_t> written_arguments(const c10::FunctionSchema& schema, const std::function<bool(size_t)>& is_true) {
  std::vector<size_t> written;
  for (size_t i = 0; i < schema.arguments().size(); ++i)
    if (const c10::AliasInfo* info = schema.arguments()[i].alias_info(); info != nullptr && info->isWrite()) written.push_back(i);
  const std::string_view op = schema.name();
  const bool norm = op == "aten::batch_norm" || op == "aten::instance_norm" || op == "aten::native_batch_norm" ||
                    op == "aten::cudnn_batch_norm" || op == "aten::miopen_batch_norm" || op == "aten::_batch_norm_impl_index";
  if (norm && written.empty() && is_true(5)) written = {3, 4};
  return written;
}

// The same of a call whose arguments are on the stack.
inline std::vector<size_t> written_arguments(const c10::FunctionSchema& schema, const torch::jit::Stack& stack) {
  return written_arguments(schema, [&](size_t i) { return i < stack.size() && stack[i].isBool() && stack[i].toBool(); });
}

// Whether a call with these arguments may draw from a generator. PyTorch marks its own operators that draw, with dropout that is off
// among them; what is not PyTorch's is not known to be marked.
inline bool may_draw(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  const c10::FunctionSchema& schema = op.schema();
  const std::string_view name = schema.name();
  if (!op.hasTag(at::Tag::nondeterministic_seeded)) return !name.starts_with("aten::") && !name.starts_with("prims::");
  for (size_t i = 0; i < schema.arguments().size() && i < stack.size(); ++i) {
    const std::string_view argument = schema.arguments()[i].name();
    if ((argument == "train" || argument == "training") && stack[i].isBool() && !stack[i].toBool()) return false;
    if (argument == "dropout_p" && stack[i].isDouble() && stack[i].toDouble() == 0) return false;
  }
  return true;
}

// Operators that may return an operand itself, unmarked.
inline bool returns_operand(std::string_view op) {
  return op == "aten::dropout" || op == "aten::feature_dropout" || op == "aten::alpha_dropout" ||
         op == "aten::feature_alpha_dropout" || op == "aten::type_as";
}

}  // namespace keirin
