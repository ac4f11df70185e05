// SPDX-License-Identifier: Apache-2.0
//
// What an operator does to its arguments, and what it hands on of them: by its schema's marks, and by what schemas leave unsaid.
// One place for both readers of a program, the importer and the eager frame.
#pragma once

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

// Operators that may return an operand itself, unmarked.
inline bool returns_operand(std::string_view op) {
  return op == "aten::dropout" || op == "aten::feature_dropout" || op == "aten::alpha_dropout" ||
         op == "aten::feature_alpha_dropout" || op == "aten::type_as";
}

}  // namespace keirin
