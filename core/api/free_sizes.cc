// SPDX-License-Identifier: Apache-2.0
#include "core/api/free_sizes.h"

#include <algorithm>
#include <set>

#include "core/api/session_impl.h"

namespace keirin {

Result<ExampleShapes> example_shapes(const pt2::Program& program, const std::vector<int64_t>& symbol_sizes) {
  ExampleShapes out;
  pt2::SymbolValues values;
  // Bare symbols bind; then those that only stand in sizes such as 4 * s, which the export's own size gives; then derived sizes follow.
  for (int round = 0; round < 3; ++round)
    for (const pt2::InputSpec& input : program.inputs) {
      const auto* tensor = input.kind == pt2::InputSpec::Kind::kUserInput ? input.arg.get<pt2::TensorArg>() : nullptr;
      if (!tensor) continue;
      const pt2::TensorMeta& meta = program.graph.tensor_values.find(tensor->name)->second;
      TensorSpec spec{meta.dtype, {}, {}, {}};
      for (const pt2::SymInt& size : meta.sizes) {
        if (size.is_literal()) {
          spec.sizes.push_back(size.value);
          continue;
        }
        if (const std::string* symbol = size.expr->bare_symbol(); symbol && round == 0 && !values.count(*symbol)) {
          size_t k = out.symbols.size();
          values[*symbol] = k < symbol_sizes.size() ? symbol_sizes[k] : size.hint.value_or(2);
          out.symbols.push_back(*symbol);
        }
        if (round == 1 && size.hint)
          if (const std::optional<int64_t> value = symbol_of_size(*size.expr, *size.hint)) values.emplace(size.expr->symbols[0], *value);
        if (round == 2) {
          KRN_TRY_LET(int64_t value, pt2::evaluate_int(*size.expr, values));
          spec.sizes.push_back(value);
        }
      }
      if (round == 2) out.specs.push_back(std::move(spec));
    }
  return out;
}

std::vector<SizeReport> Session::Impl::free_sizes(const std::vector<TensorSpec>& specs) const {
  const pt2::Program& program = model->program;
  std::vector<SizeReport> out;
  std::set<std::string> seen;
  size_t at = 0;
  for (const pt2::InputSpec& input : program.inputs) {
    const auto* tensor = input.kind == pt2::InputSpec::Kind::kUserInput ? input.arg.get<pt2::TensorArg>() : nullptr;
    if (!tensor || at == specs.size()) continue;
    const TensorSpec& spec = specs[at++];
    const pt2::TensorMeta& meta = program.graph.tensor_values.find(tensor->name)->second;
    for (size_t d = 0; d < meta.sizes.size() && d < spec.sizes.size(); ++d) {
      const std::string* symbol = meta.sizes[d].is_literal() ? nullptr : meta.sizes[d].expr->bare_symbol();
      if (!symbol || !seen.insert(*symbol).second) continue;
      SizeReport size{tensor->name + "[" + std::to_string(d) + "]", spec.sizes[d], 1, 0};
      if (auto range = program.range_constraints.find(*symbol); range != program.range_constraints.end()) {
        size.min = std::max(size.min, range->second.min.value_or(1));
        size.max = range->second.max.value_or(0);
      }
      out.push_back(std::move(size));
    }
  }
  return out;
}

// Sizes that somebody asked for by position, against what the export left free.
Status Session::Impl::check_sizes(const std::vector<int64_t>& symbol_sizes, const std::vector<TensorSpec>& specs) const {
  const std::vector<SizeReport> sizes = free_sizes(specs);
  const auto range = [](const SizeReport& s) {
    return s.name + " from " + std::to_string(s.min) + (s.max > 0 ? " to " + std::to_string(s.max) : " on");
  };
  std::string all;
  for (const SizeReport& size : sizes) all += (all.empty() ? "" : ", ") + range(size);
  if (symbol_sizes.size() > sizes.size())
    return Status(Code::k_invalid_input,
                  {std::to_string(symbol_sizes.size()) + " sizes were given, the export left " + std::to_string(sizes.size()) + " free",
                   name, "nothing was run", sizes.empty() ? "export the model with dynamic shapes" : "give " + all});
  for (size_t i = 0; i < symbol_sizes.size(); ++i)
    if (symbol_sizes[i] < sizes[i].min || (sizes[i].max > 0 && symbol_sizes[i] > sizes[i].max))
      return Status(Code::k_invalid_input, {"size " + std::to_string(symbol_sizes[i]) + " is outside of what the export allows", name,
                                            "nothing was run", "give " + range(sizes[i]) + ", or export the model with a wider range"});
  return {};
}

std::vector<std::vector<TensorSpec>> Session::Impl::other_structures(const std::vector<TensorSpec>& specs) const {
  constexpr size_t kMost = 8;
  const std::vector<SizeReport> sizes = free_sizes(specs);
  std::vector<std::vector<TensorSpec>> out;
  auto with = [&](size_t k, int64_t value) {
    if (value < sizes[k].min || (sizes[k].max > 0 && value > sizes[k].max) || out.size() == kMost) return;
    std::vector<int64_t> values;
    for (const SizeReport& size : sizes) values.push_back(size.value);
    values[k] = value;
    Result<ExampleShapes> shapes = example_shapes(model->program, values);
    if (!shapes.ok()) return;
    for (TensorSpec& spec : shapes->specs) spec.device = device;
    out.push_back(std::move(shapes->specs));
  };
  for (size_t k = 0; k < sizes.size(); ++k) {
    with(k, sizes[k].value == 1 ? 3 : 1);
    for (size_t j = 0; j < k; ++j) with(k, sizes[j].value == sizes[k].value ? sizes[k].value + 1 : sizes[j].value);
  }
  return out;
}

Sizes Session::Impl::range_sizes(const std::vector<TensorSpec>& specs) const {
  if (chain) return {};
  Sizes sizes;
  for (const SizeReport& size : free_sizes(specs)) sizes.push_back(size.value);
  if (sizes.empty()) return {};
  const Result<ExampleShapes> shapes = example_shapes(model->program, sizes);
  if (!shapes.ok() || shapes->specs.size() != specs.size()) return {};
  for (size_t i = 0; i < specs.size(); ++i) {
    if (specs[i].dtype != shapes->specs[i].dtype || specs[i].sizes != shapes->specs[i].sizes) return {};
    const std::vector<int64_t> dense = contiguous_strides(specs[i].sizes);
    for (size_t d = 0; d < dense.size(); ++d)
      if (specs[i].sizes[d] > 1 && !specs[i].strides.empty() && specs[i].strides[d] != dense[d]) return {};
  }
  return sizes;
}

SizeBox Session::Impl::bounds(const std::vector<TensorSpec>& specs) const {
  SizeBox box;
  for (const SizeReport& size : free_sizes(specs)) {
    box.least.push_back(size.min);
    box.most.push_back(size.max);
  }
  return box;
}

}  // namespace keirin
