// SPDX-License-Identifier: Apache-2.0
#include "core/capture/pt2/schema.h"

namespace keirin::pt2 {
namespace {

// Collects the names of one argument; the kinds without names fall to the template.
struct NameCollector {
  std::vector<std::string>& out;
  template <class T>
  void operator()(const T&) {}
  void operator()(const TensorArg& a) { out.push_back(a.name); }
  void operator()(const TensorsArg& a) { out.insert(out.end(), a.names.begin(), a.names.end()); }
  void operator()(const OptionalTensorsArg& a) {
    for (const auto& name : a.names)
      if (name) out.push_back(*name);
  }
  void operator()(const NestedTensorsArg& a) {
    for (const auto& names : a.names) out.insert(out.end(), names.begin(), names.end());
  }
  template <class S>
  void symbol(const S& s) {
    if (s.is_name()) out.push_back(s.name);
  }
  void operator()(const SymIntArg& a) { symbol(a); }
  void operator()(const SymFloatArg& a) { symbol(a); }
  void operator()(const SymBoolArg& a) { symbol(a); }
  void operator()(const std::vector<SymIntArg>& list) {
    for (const auto& a : list) symbol(a);
  }
  void operator()(const std::vector<SymFloatArg>& list) {
    for (const auto& a : list) symbol(a);
  }
  void operator()(const std::vector<SymBoolArg>& list) {
    for (const auto& a : list) symbol(a);
  }
  void operator()(const DictArg& a) {
    for (const auto& [key, value] : a.items) std::visit(*this, value.value);
  }
};

}  // namespace

std::vector<std::string> Argument::names() const {
  std::vector<std::string> out;
  std::visit(NameCollector{out}, value);
  return out;
}

uint64_t TreeSpec::num_leaves() const {
  if (kind == Kind::kLeaf) return 1;
  uint64_t leaves = 0;
  for (const TreeSpec& child : children) leaves += child.num_leaves();
  return leaves;
}

bool TreeSpec::has_other() const {
  if (kind == Kind::kOther) return true;
  for (const TreeSpec& child : children)
    if (child.has_other()) return true;
  return false;
}

std::vector<std::string> Node::reads() const {
  std::vector<std::string> out;
  for (const NamedArgument& input : inputs)
    for (std::string& name : input.arg.names()) out.push_back(std::move(name));
  return out;
}

std::vector<std::string> Node::defines() const {
  std::vector<std::string> out;
  for (const Argument& output : outputs)
    for (std::string& name : output.names()) out.push_back(std::move(name));
  return out;
}

}  // namespace keirin::pt2
