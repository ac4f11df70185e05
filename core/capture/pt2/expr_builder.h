// SPDX-License-Identifier: Apache-2.0
//
// What both expression parsers share: a cursor over text that never leaves it, a tree that never grows beyond the
// limits, and the first error with its position.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/capture/pt2/sym_expr.h"

namespace keirin::pt2 {

class ExprBuilder {
 public:
  ExprBuilder(std::string_view text, const ExprLimits& limits) : text_(text), limits_(limits) { expr.text = text; }

  Expr expr;
  Status status;

  bool fail(Code code, std::string what) {
    if (status.ok())
      status = Status(
          code, {std::move(what), "character " + std::to_string(at_) + " of the expression", "nothing was loaded",
                 code == Code::k_unsupported ? "save the model with a torch release that this version of Keirin knows"
                                             : "save the file again"});
    return false;
  }

  void skip_space() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\t' || text_[at_] == '\r'))
      ++at_;
  }
  bool at_end() {
    skip_space();
    return at_ == text_.size();
  }
  char peek() {
    skip_space();
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  // Takes `token` if it is next. Words must not run on: "or" does not match "order".
  bool take(std::string_view token) {
    skip_space();
    if (!text_.substr(at_).starts_with(token)) return false;
    size_t end = at_ + token.size();
    if (is_word(token.back()) && end < text_.size() && is_word(text_[end])) return false;
    at_ = end;
    return true;
  }
  bool expect(std::string_view token) {
    return take(token) || fail(Code::k_corrupt, "an expression lacks \"" + std::string(token) + "\"");
  }
  std::string_view word() {
    skip_space();
    size_t start = at_;
    while (at_ < text_.size() && is_word(text_[at_])) ++at_;
    return text_.substr(start, at_ - start);
  }
  // Whether the text goes on right here as a word or a float would.
  bool runs_on() const { return at_ < text_.size() && (is_word(text_[at_]) || text_[at_] == '.'); }
  bool integer(int64_t* out);
  bool quoted(std::string* out);

  bool enter() {
    return ++depth_ <= limits_.depth ||
           fail(Code::k_corrupt, "an expression is nested deeper than " + std::to_string(limits_.depth));
  }
  void leave() { --depth_; }

  bool add(ExprNode node, uint32_t* out) {
    if (expr.nodes.size() >= limits_.nodes)
      return fail(Code::k_corrupt, "an expression has more than " + std::to_string(limits_.nodes) + " terms");
    *out = static_cast<uint32_t>(expr.nodes.size());
    expr.nodes.push_back(std::move(node));
    return true;
  }
  bool add_integer(int64_t value, uint32_t* out) {
    ExprNode node{ExprOp::kInteger, value, 1, 0, {}};
    return add(std::move(node), out);
  }
  bool add_call(ExprOp op, std::vector<uint32_t> args, uint32_t* out) {
    return add(ExprNode{op, 0, 1, 0, std::move(args)}, out);
  }
  bool add_symbol(const std::string& name, uint32_t* out);

 private:
  static bool is_word(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
  }
  std::string_view text_;
  size_t at_ = 0;
  uint32_t depth_ = 0;
  ExprLimits limits_;
  std::map<std::string, int64_t> symbol_index_;
};

}  // namespace keirin::pt2
