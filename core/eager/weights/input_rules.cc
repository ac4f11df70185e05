// SPDX-License-Identifier: Apache-2.0
//
// The checks of input_rules.h and the words in which they fail.
#include "core/eager/weights/input_rules.h"

#include <algorithm>

#include "abi/planted.h"

namespace keirin {
namespace {

std::string range_text(const pt2::RangeConstraint& range) {
  return "[" + (range.min ? std::to_string(*range.min) : "-inf") + ", " +
         (range.max ? std::to_string(*range.max) : "inf") + "]";
}

// An argument of forward that a guard names: where its leaves begin among all, and how many steps into it the name has taken.
struct Root {
  const pt2::TreeSpec* node = nullptr;
  size_t position = 0, steps = 0;
};

// Of forward(x, *rest, **more) the file has each of `rest` as an argument of its own, rest_0 and so on, and each of `more` by its key;
// guards call them L['rest'][0] and L['more']['key'].
Root root_of(const pt2::Program& program, const pt2::SizeRef& size) {
  const pt2::TreeSpec& args = program.in_spec.children[0];
  const pt2::TreeSpec& kwargs = program.in_spec.children[1];
  const std::vector<std::string>& names = program.forward_arg_names;
  const auto* number = size.steps.empty() ? nullptr : std::get_if<int64_t>(&size.steps[0]);
  const auto* word = size.steps.empty() ? nullptr : std::get_if<std::string>(&size.steps[0]);
  const std::string of_rest = number ? size.input + "_" + std::to_string(*number) : std::string();
  const bool is_argument = std::find(names.begin(), names.end(), size.input) != names.end();
  Root own, rest, more;
  size_t position = 0;
  for (size_t i = 0; i < args.children.size(); ++i) {
    const Root here{&args.children[i], position, 0};
    if (i < names.size() && names[i] == size.input && !own.node) own = here;
    if (i < names.size() && number && names[i] == of_rest) rest = {here.node, position, 1};  // the last: it comes behind all others
    position += here.node->num_leaves();
  }
  for (size_t i = 0; i < kwargs.children.size(); ++i) {
    const auto* key = std::get_if<std::string>(&kwargs.keys.at(i));
    const Root here{&kwargs.children[i], position, 0};
    if (key && *key == size.input && !own.node) own = here;
    if (key && word && *key == *word) more = {here.node, position, 1};
    position += here.node->num_leaves();
  }
  if (own.node || is_argument) return own;
  return rest.node ? rest : more;
}

// The position among all leaves of L['name'][step]...; nullopt where the tree has no such leaf.
std::optional<size_t> leaf_position(const pt2::Program& program, const pt2::SizeRef& size) {
  if (!program.has_tree_specs || program.in_spec.children.size() != 2) return std::nullopt;
  const Root root = root_of(program, size);
  if (!root.node) return std::nullopt;
  const pt2::TreeSpec* node = root.node;
  size_t position = root.position;
  for (size_t s = root.steps; s < size.steps.size(); ++s) {
    const pt2::PathStep& step = size.steps[s];
    size_t chosen = node->children.size();
    for (size_t i = 0; i < node->children.size(); ++i) {
      const bool by_key = i < node->keys.size() && node->keys[i] == step;
      const bool by_index = node->keys.empty() && std::holds_alternative<int64_t>(step) &&
                            std::get<int64_t>(step) == static_cast<int64_t>(i);
      if (by_key || by_index) {
        chosen = i;
        break;
      }
      position += node->children[i].num_leaves();
    }
    if (chosen == node->children.size()) return std::nullopt;
    node = &node->children[chosen];
  }
  if (node->kind != pt2::TreeSpec::Kind::kLeaf) return std::nullopt;
  return position;
}

}  // namespace

std::optional<int64_t> symbol_of_size(const pt2::Expr& expr, int64_t size) {
  if (expr.symbols.size() != 1) return std::nullopt;
  const auto at = [&](int64_t s) { return pt2::evaluate_int(expr, {{expr.symbols[0], s}}); };
  const Result<int64_t> one = at(1), two = at(2);
  int64_t step = 0, off = 0;
  if (!one.ok() || !two.ok() || __builtin_sub_overflow(*two, *one, &step) || step == 0 || __builtin_sub_overflow(size, *one, &off) ||
      off % step != 0)
    return std::nullopt;
  const Result<int64_t> there = at(1 + off / step);
  return there.ok() && *there == size ? std::optional(1 + off / step) : std::nullopt;
}

InputRules::InputRules(const pt2::Program& program) : model_(program.name), ranges_(program.range_constraints) {
  std::vector<std::optional<size_t>> leaves;
  for (const pt2::InputSpec& spec : program.inputs) {
    const bool is_user = spec.kind == pt2::InputSpec::Kind::kUserInput;
    if (is_user || spec.kind == pt2::InputSpec::Kind::kConstantInput) leaves.emplace_back();
    if (!is_user) continue;
    Input input;
    std::string name;
    if (const auto* tensor = spec.arg.get<pt2::TensorArg>()) {
      name = tensor->name;
      const pt2::TensorMeta& meta = program.graph.tensor_values.at(name);
      input.dtype = meta.dtype;
      input.sizes = meta.sizes;
    } else if (const auto* number = spec.arg.get<pt2::SymIntArg>(); number != nullptr && number->is_name()) {
      name = number->name;
      input.dtype = DType::k_i64;
      input.is_number = true;
      const auto value = program.graph.sym_int_values.find(name);
      if (value != program.graph.sym_int_values.end()) input.number = value->second;
      symbolic_ = true;
    } else {
      continue;
    }
    for (const pt2::SymInt& size : input.sizes) symbolic_ = symbolic_ || !size.is_literal();
    leaves.back() = inputs_.size();
    names_.push_back(std::move(name));
    inputs_.push_back(std::move(input));
  }
  add_guards(program, leaves);
}

void InputRules::add_guards(const pt2::Program& program, const std::vector<std::optional<size_t>>& leaves) {
  for (const pt2::Guard& guard : program.guards) {
    std::vector<GuardSize> sizes;
    bool readable = guard.expr != nullptr;
    for (const pt2::SizeRef& size : guard.sizes) {
      const auto leaf = leaf_position(program, size);
      const std::optional<size_t> position = leaf && *leaf < leaves.size() ? leaves[*leaf] : std::nullopt;
      readable = readable && position &&
                 (size.dim < 0 ? inputs_[*position].is_number : size.dim < static_cast<int64_t>(inputs_[*position].sizes.size()));
      if (readable) sizes.push_back({size.symbol, *position, size.dim});
    }
    if (!readable) {
      pinned_by_ = guard.text;
    } else {
      guards_.emplace_back(guard, std::move(sizes));
    }
  }
}

Status InputRules::wrong_size(size_t input, int64_t dim, int64_t got, const std::string& wanted,
                              const std::string& symbol, std::string advice) const {
  const std::string subject =
      dim < 0 ? "input \"" + names_[input] + "\"" : "input \"" + names_[input] + "\" dim " + std::to_string(dim);
  return Status(Code::k_invalid_input,
                Message{subject + " is " + std::to_string(got) + ", the model was exported for " + wanted,
                        "model \"" + model_ + "\"" + (symbol.empty() ? "" : ", symbol " + symbol), "nothing was run",
                        std::move(advice)});
}

Status InputRules::check_static(const std::vector<InputView>& inputs) const {
  const auto wrong = [&](std::string what) {
    return Status(Code::k_invalid_input, Message{std::move(what), "model \"" + model_ + "\"", "nothing was run", {}});
  };
  if (inputs.size() != inputs_.size()) {
    return wrong(std::to_string(inputs.size()) + " inputs were given, the model takes " +
                 std::to_string(inputs_.size()));
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Input& rule = inputs_[i];
    if (inputs[i].dtype != rule.dtype) {
      return wrong("input \"" + names_[i] + "\" has dtype " + std::string(dtype_name(inputs[i].dtype)) +
                   ", the model was exported for " + std::string(dtype_name(rule.dtype)));
    }
    if (inputs[i].rank != static_cast<int64_t>(rule.sizes.size())) {
      return wrong("input \"" + names_[i] + "\" has rank " + std::to_string(inputs[i].rank) +
                   ", the model was exported for rank " + std::to_string(rule.sizes.size()));
    }
    if (rule.is_number && rule.number.is_literal() && rule.number.value != inputs[i].number) {
      return wrong_size(i, -1, inputs[i].number, std::to_string(rule.number.value), {}, "re-export with this number dynamic");
    }
    for (size_t dim = 0; dim < rule.sizes.size(); ++dim) {
      if (!rule.sizes[dim].is_literal() || rule.sizes[dim].value == inputs[i].sizes[dim]) continue;
      return wrong_size(i, static_cast<int64_t>(dim), inputs[i].sizes[dim], std::to_string(rule.sizes[dim].value), {},
                        "re-export with this dimension dynamic, or resize the input");
    }
  }
  return {};
}

Status InputRules::check_symbol(size_t input, int64_t dim, const std::string& symbol, int64_t value) const {
  const auto range = ranges_.find(symbol);
  if (range == ranges_.end() || (dim < 0 && KRN_PLANTED(number_range))) return {};
  if (range->second.min && value < *range->second.min) {
    return wrong_size(input, dim, value, range_text(range->second), symbol,
                      "re-export with min=" + std::to_string(value) + ", or pad");
  }
  if (range->second.max && value > *range->second.max && !KRN_PLANTED(symbol_range)) {
    return wrong_size(input, dim, value, range_text(range->second), symbol,
                      "re-export with max=" + std::to_string(value) + ", or split the input");
  }
  return {};
}

Status InputRules::check(const std::vector<InputView>& inputs) const {
  KRN_TRY(check_static(inputs));
  if (!symbolic_ && guards_.empty()) return {};
  std::vector<int64_t> sizes;
  for (const InputView& input : inputs) {
    sizes.insert(sizes.end(), input.sizes, input.sizes + input.rank);
    sizes.push_back(input.number);
  }
  {
    const std::lock_guard lock(mutex_);
    if (sizes == accepted_) return {};
  }
  KRN_TRY(bind(inputs).status());
  const std::lock_guard lock(mutex_);
  accepted_ = std::move(sizes);
  return {};
}

Result<pt2::SymbolValues> InputRules::bind(const std::vector<InputView>& inputs) const {
  KRN_TRY(check_static(inputs));
  pt2::SymbolValues symbols;
  const auto each = [&](auto&& visit) -> Status {
    for (size_t i = 0; i < inputs.size(); ++i) {
      for (size_t dim = 0; dim < inputs_[i].sizes.size(); ++dim) {
        if (!inputs_[i].sizes[dim].is_literal()) {
          KRN_TRY(visit(i, static_cast<int64_t>(dim), inputs_[i].sizes[dim], inputs[i].sizes[dim]));
        }
      }
      if (inputs_[i].is_number && !inputs_[i].number.is_literal()) {
        KRN_TRY(visit(i, int64_t{-1}, inputs_[i].number, inputs[i].number));
      }
    }
    return {};
  };
  const auto check_pinned = [&](size_t input, int64_t dim, const pt2::SymInt& wanted, int64_t got, const std::string& symbol) -> Status {
    if (pinned_by_.empty() || !wanted.hint || got == *wanted.hint) return {};
    return wrong_size(input, dim, got, std::to_string(*wanted.hint) + ", and a guard that cannot be read pins it: " + pinned_by_, symbol,
                      "re-export without the guard, or resize the input");
  };
  KRN_TRY(each([&](size_t input, int64_t dim, const pt2::SymInt& wanted, int64_t got) -> Status {
    const std::string* symbol = wanted.expr->bare_symbol();
    if (symbol == nullptr || symbols.contains(*symbol)) return {};
    KRN_TRY(check_symbol(input, dim, *symbol, got));
    KRN_TRY(check_pinned(input, dim, wanted, got, *symbol));
    symbols[*symbol] = got;
    return {};
  }));
  KRN_TRY(each([&](size_t input, int64_t dim, const pt2::SymInt& wanted, int64_t got) -> Status {
    if (wanted.expr->symbols.size() != 1 || symbols.contains(wanted.expr->symbols[0])) return {};
    const std::string& symbol = wanted.expr->symbols[0];
    const std::optional<int64_t> value = symbol_of_size(*wanted.expr, got);
    const auto range = ranges_.find(symbol);
    const bool known = range != ranges_.end();
    const auto inside = [&](const pt2::RangeConstraint& r) { return (!r.min || *value >= *r.min) && (!r.max || *value <= *r.max); };
    if (!value || (known && !inside(range->second)))
      return wrong_size(input, dim, got, wanted.expr->text + (known ? " of " + range_text(range->second) : std::string()), symbol,
                        "give another size, or pad");
    KRN_TRY(check_pinned(input, dim, wanted, got, symbol));
    symbols[symbol] = *value;
    return {};
  }));
  KRN_TRY(each([&](size_t input, int64_t dim, const pt2::SymInt& wanted, int64_t got) -> Status {
    KRN_TRY_LET(const int64_t value, pt2::evaluate_int(*wanted.expr, symbols));
    if (value == got) return {};
    return wrong_size(input, dim, got, std::to_string(value) + " = " + wanted.expr->text, {},
                      "give sizes that agree with each other");
  }));
  for (const auto& [guard, sizes] : guards_) {
    pt2::SymbolValues values = symbols;
    for (const GuardSize& size : sizes)
      values[size.symbol] = size.dim < 0 ? inputs[size.input].number : inputs[size.input].sizes[size.dim];
    KRN_TRY_LET(const bool holds, pt2::evaluate_bool(*guard.expr, values));
    if (holds) continue;
    return Status(Code::k_invalid_input,
                  Message{"the inputs break a guard of the export: " + guard.text, "model \"" + model_ + "\"",
                          "nothing was run", "give sizes that keep the guard, or re-export without it"});
  }
  return symbols;
}

}  // namespace keirin
