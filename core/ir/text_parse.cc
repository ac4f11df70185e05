// SPDX-License-Identifier: Apache-2.0
//
// Recursive descent over the text form. Every failure names the line; nothing is guessed.
#include <cctype>
#include <charconv>
#include <cmath>
#include <limits>
#include <unordered_map>

#include "core/ir/rows.h"
#include "core/ir/text.h"

namespace keirin {
namespace {

constexpr int kMaxDepth = 64;

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  Result<Graph> run() {
    KRN_TRY(expect("graph"));
    KRN_TRY_LET(Graph graph, block(0));
    skip();
    if (at_ != text_.size()) return fail("text behind the graph");
    return graph;
  }

 private:
  // A graph under construction: names are resolved when its closing brace is reached, since ids are known only then.
  struct Scope {
    Graph graph;
    std::unordered_map<std::string, ValueId> ids;
    std::vector<std::string> names;  // by id
  };

  Status fail(std::string what) const {
    size_t line = 1;
    for (size_t i = 0; i < at_ && i < text_.size(); ++i) line += text_[i] == '\n';
    return Status(Code::k_invalid_input,
                  {"graph text: " + what, "line " + std::to_string(line), "nothing was read", ""});
  }

  void skip() {
    while (at_ < text_.size()) {
      if (std::isspace(static_cast<unsigned char>(text_[at_]))) {
        ++at_;
      } else if (text_[at_] == ';') {  // a comment to the end of the line
        while (at_ < text_.size() && text_[at_] != '\n') ++at_;
      } else {
        return;
      }
    }
  }

  bool peek(std::string_view token) {
    skip();
    if (text_.substr(at_, token.size()) != token) return false;
    size_t end = at_ + token.size();  // a word must end where the token ends
    return !is_word(token.back()) || end >= text_.size() || !is_word(text_[end]);
  }
  bool take(std::string_view token) {
    if (!peek(token)) return false;
    at_ += token.size();
    return true;
  }
  Status expect(std::string_view token) {
    if (take(token)) return {};
    return fail("expected '" + std::string(token) + "'");
  }

  static bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '.'; }

  Result<std::string> word() {
    skip();
    size_t begin = at_;
    while (at_ < text_.size() && is_word(text_[at_])) ++at_;
    if (begin == at_) return fail("expected a word");
    return std::string(text_.substr(begin, at_ - begin));
  }

  Result<std::string> string() {
    KRN_TRY(expect("\""));
    std::string s;
    while (at_ < text_.size() && text_[at_] != '"') {
      char c = text_[at_++];
      if (c == '\\' && at_ < text_.size()) {
        c = text_[at_++];
        if (c == 'n') c = '\n';
      }
      s += c;
    }
    if (at_ >= text_.size()) return fail("a string does not end");
    ++at_;
    return s;
  }

  Result<int64_t> integer() {
    skip();
    int64_t x = 0;
    auto [end, error] = std::from_chars(text_.data() + at_, text_.data() + text_.size(), x);
    if (error != std::errc()) return fail("expected an integer");
    at_ = static_cast<size_t>(end - text_.data());
    return x;
  }
  Result<uint32_t> index() {
    KRN_TRY_LET(int64_t x, integer());
    if (x < 0 || x >= static_cast<int64_t>(kNone)) return fail("index out of range");
    return static_cast<uint32_t>(x);
  }

  Result<double> number() {
    skip();
    double x = 0;
    auto [end, error] = std::from_chars(text_.data() + at_, text_.data() + text_.size(), x);
    if (error != std::errc()) return fail("expected a number");
    at_ = static_cast<size_t>(end - text_.data());
    return x;
  }

  Result<Dims> dims(std::string_view open, std::string_view close) {
    KRN_TRY(expect(open));
    Dims result;
    if (take(close)) return result;
    do {
      KRN_TRY_LET(int64_t x, integer());
      result.push_back(x);
    } while (take(","));
    KRN_TRY(expect(close));
    return result;
  }

  // A read of a value: it must be defined above.
  Result<ValueId> value_use(const Scope& scope) {
    if (take("_")) return kNone;
    KRN_TRY(expect("%"));
    KRN_TRY_LET(std::string name, word());
    auto at = scope.ids.find(name);
    if (at == scope.ids.end()) return fail("%" + name + " is not defined above");
    return at->second;
  }

  Status define(Scope& scope, const std::string& name, ValueId v) {
    if (!scope.ids.emplace(name, v).second) return fail("%" + name + " is defined twice");
    scope.names.push_back(name);
    return {};
  }

  Status facts(Value& value) {
    KRN_TRY_LET(std::string dtype, word());
    auto found = dtype_from_name(dtype);
    if (!found) return fail("unknown dtype '" + dtype + "'");
    value.type.dtype = *found;
    KRN_TRY_LET(value.type.sizes, dims("[", "]"));
    for (int64_t bytes = dtype_bytes(*found); const int64_t size : value.type.sizes)
      if (__builtin_mul_overflow(bytes, std::max<int64_t>(size, 1), &bytes)) return fail("a tensor of more bytes than can be counted");
    if (peek("{")) {
      KRN_TRY_LET(value.type.strides, dims("{", "}"));
    } else {
      value.type.strides = contiguous_strides(value.type.sizes);
    }
    value.observed = !take("unobserved");
    if (take("in")) {
      Range range{};
      KRN_TRY(expect("["));
      KRN_TRY_LET(range.low, number());
      KRN_TRY(expect(","));
      KRN_TRY_LET(range.high, number());
      if (take(",")) {
        KRN_TRY(expect("nan"));
        range.may_be_nan = true;
      }
      KRN_TRY(expect("]"));
      value.range = range;
    }
    if (peek("\"")) {
      KRN_TRY_LET(value.name, string());
    }
    return {};
  }

  Result<AttrValue> attr_value(AttrKey key) {
    switch (attr_kind(key)) {
      case 'i': {
        skip();
        bool named = key == AttrKey::k_dtype && at_ < text_.size() && std::isalpha(static_cast<unsigned char>(text_[at_]));
        if (!named) {
          KRN_TRY_LET(int64_t x, integer());
          return AttrValue(x);
        }
        KRN_TRY_LET(std::string name, word());
        auto dtype = dtype_from_name(name);
        if (!dtype) return fail("unknown dtype '" + name + "'");
        return AttrValue(static_cast<int64_t>(*dtype));
      }
      case 'd': {
        KRN_TRY_LET(double x, number());
        return AttrValue(x);
      }
      case 'b': {
        if (take("true")) return AttrValue(true);
        KRN_TRY(expect("false"));
        return AttrValue(false);
      }
      case 'I': {
        KRN_TRY_LET(Dims x, dims("[", "]"));
        return AttrValue(std::move(x));
      }
      default: {
        KRN_TRY_LET(std::string x, string());
        return AttrValue(std::move(x));
      }
    }
  }

  Status attributes(Op& op) {
    KRN_TRY(expect("{"));
    do {
      KRN_TRY_LET(std::string name, word());
      auto key = attr_from_name(name);
      if (!key) return fail("unknown attribute '" + name + "'");
      KRN_TRY(expect("="));
      KRN_TRY_LET(AttrValue value, attr_value(*key));
      op.set(*key, std::move(value));
    } while (take(","));
    return expect("}");
  }

  Status leaf(Scope& scope, const std::string& name, ValueKind kind) {
    ValueId id = static_cast<ValueId>(scope.graph.values.size());
    Value value;
    value.kind = kind;
    KRN_TRY_LET(value.index, index());
    KRN_TRY(expect(":"));
    KRN_TRY(facts(value));
    if (kind == ValueKind::kInput) scope.graph.inputs.push_back(id);
    scope.graph.values.push_back(std::move(value));
    return define(scope, name, id);
  }

  Status operation(Scope& scope, const std::vector<std::string>& results) {
    Op op;
    KRN_TRY_LET(std::string name, word());
    const OpRow* row = find_row(name);
    if (!row) return fail("unknown op '" + name + "'");
    op.code = row->code;
    if (take("#")) {
      KRN_TRY_LET(op.call, index());
    }
    op.effects = take("!");
    KRN_TRY(expect("("));
    if (!take(")")) {
      do {
        KRN_TRY_LET(ValueId v, value_use(scope));
        op.operands.push_back(v);
      } while (take(","));
      KRN_TRY(expect(")"));
    }
    if (peek("{")) KRN_TRY(attributes(op));
    OpId id = static_cast<OpId>(scope.graph.ops.size());
    for (uint32_t k = 0; k < results.size(); ++k) {
      KRN_TRY(expect(k ? "," : ":"));
      Value value;
      value.producer = id;
      value.index = k;
      KRN_TRY(facts(value));
      ValueId v = static_cast<ValueId>(scope.graph.values.size());
      scope.graph.values.push_back(std::move(value));
      KRN_TRY(define(scope, results[k], v));
      op.results.push_back(v);
    }
    // `body 0 {` on a line of its own opens a body; behind an op it names one.
    if (peek("body")) {
      size_t mark = at_;
      take("body");
      KRN_TRY_LET(uint32_t body, index());
      if (peek("{"))
        at_ = mark;
      else
        op.body = body;
    }
    if (take("@")) {
      KRN_TRY_LET(op.origin, string());
    }
    scope.graph.ops.push_back(std::move(op));
    return {};
  }

  Status output(Scope& scope) {
    Output output;
    KRN_TRY_LET(output.value, value_use(scope));
    if (take("updates")) {
      KRN_TRY_LET(output.updates, value_use(scope));
    }
    if (take("alias")) {
      KRN_TRY_LET(output.alias_of, value_use(scope));
    }
    scope.graph.outputs.push_back(output);
    return {};
  }

  Status statement(Scope& scope, int depth) {
    if (take("output")) return output(scope);
    if (take("body")) {
      KRN_TRY_LET(uint32_t number, index());
      if (number != scope.graph.bodies.size()) return fail("bodies are numbered from 0 in order");
      KRN_TRY_LET(Graph body, block(depth + 1));
      scope.graph.bodies.push_back(std::move(body));
      return {};
    }
    std::vector<std::string> results;
    if (peek("%")) {
      do {
        KRN_TRY(expect("%"));
        KRN_TRY_LET(std::string name, word());
        results.push_back(std::move(name));
      } while (take(","));
      KRN_TRY(expect("="));
    }
    if (results.size() == 1) {
      if (take("input")) return leaf(scope, results[0], ValueKind::kInput);
      if (take("constant")) return leaf(scope, results[0], ValueKind::kConstant);
      if (take("state")) return leaf(scope, results[0], ValueKind::kState);
    }
    return operation(scope, results);
  }

  Result<Graph> block(int depth) {
    if (depth > kMaxDepth) return fail("bodies are nested too deeply");
    KRN_TRY(expect("{"));
    Scope scope;
    while (!take("}")) {
      skip();
      if (at_ >= text_.size()) return fail("a graph does not end");
      KRN_TRY(statement(scope, depth));
    }
    renumber(scope);
    return std::move(scope.graph);
  }

  // Gives values the ids their names say, if those are exactly 0..n-1.
  static void renumber(Scope& scope) {
    size_t n = scope.names.size();
    std::vector<ValueId> to(n);
    std::vector<uint8_t> taken(n);
    for (size_t i = 0; i < n; ++i) {
      const std::string& name = scope.names[i];
      uint64_t id = 0;
      auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), id);
      if (error != std::errc() || end != name.data() + name.size() || id >= n || taken[id]) return;
      taken[id] = 1;
      to[i] = static_cast<ValueId>(id);
    }
    Graph& graph = scope.graph;
    std::vector<Value> values(n);
    for (size_t i = 0; i < n; ++i) values[to[i]] = std::move(graph.values[i]);
    graph.values = std::move(values);
    auto move_to = [&](ValueId& v) { v = v == kNone ? kNone : to[v]; };
    for (Op& op : graph.ops) {
      for (ValueId& v : op.operands) move_to(v);
      for (ValueId& v : op.results) move_to(v);
    }
    for (ValueId& v : graph.inputs) move_to(v);
    for (Output& output : graph.outputs) {
      move_to(output.value);
      move_to(output.updates);
      move_to(output.alias_of);
    }
  }

  std::string_view text_;
  size_t at_ = 0;
};

}  // namespace

Result<Graph> parse(std::string_view text) { return Parser(text).run(); }

}  // namespace keirin
