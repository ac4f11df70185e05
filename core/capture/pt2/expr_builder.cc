// SPDX-License-Identifier: Apache-2.0
#include "core/capture/pt2/expr_builder.h"

namespace keirin::pt2 {

bool ExprBuilder::integer(int64_t* out) {
  skip_space();
  bool negative = at_ < text_.size() && text_[at_] == '-';
  if (negative) ++at_;
  size_t start = at_;
  int64_t value = 0;
  for (; at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9'; ++at_) {
    int64_t digit = text_[at_] - '0';
    if (__builtin_mul_overflow(value, 10, &value) ||
        __builtin_sub_overflow(value, digit, &value))  // downwards: INT64_MIN fits
      return fail(Code::k_corrupt, "an integer does not fit 64 bits");
  }
  if (at_ == start) return fail(Code::k_corrupt, "an expression lacks an integer");
  if (!negative && __builtin_sub_overflow(int64_t{0}, value, &value))
    return fail(Code::k_corrupt, "an integer does not fit 64 bits");
  *out = value;
  return true;
}

bool ExprBuilder::quoted(std::string* out) {
  char quote = peek();
  if (quote != '\'' && quote != '"') return fail(Code::k_corrupt, "an expression lacks a quoted name");
  size_t end = text_.find(quote, at_ + 1);
  if (end == std::string_view::npos) return fail(Code::k_corrupt, "a quoted name does not end");
  std::string_view name = text_.substr(at_ + 1, end - at_ - 1);
  if (name.empty() || name.find('\\') != std::string_view::npos)
    return fail(Code::k_corrupt, "a quoted name is empty or has an escape");
  *out = name;
  at_ = end + 1;
  return true;
}

bool ExprBuilder::add_symbol(const std::string& name, uint32_t* out) {
  auto [it, fresh] = symbol_index_.try_emplace(name, static_cast<int64_t>(expr.symbols.size()));
  if (fresh) expr.symbols.push_back(name);
  return add(ExprNode{ExprOp::kSymbol, it->second, 1, 0, {}}, out);
}

}  // namespace keirin::pt2
