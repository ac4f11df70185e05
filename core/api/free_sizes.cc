// SPDX-License-Identifier: Apache-2.0
#include "core/api/free_sizes.h"

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <set>

#include "core/api/session_impl.h"

namespace keirin {

namespace {

// Where the value of a symbol is seen: in a size that is the symbol, or, of a symbol that nowhere stands by itself, in one such as 4 * s.
struct FreeSize {
  std::string symbol;
  size_t input = 0, dim = 0;  // of the tensors that the caller gives
  const pt2::Expr* expr = nullptr;

  std::optional<int64_t> value_of(int64_t size) const { return expr->bare_symbol() ? std::optional(size) : symbol_of_size(*expr, size); }
  // x[2], or x[2]/4.
  std::string name_in(const std::string& tensor) const {
    std::string name = tensor + "[" + std::to_string(dim) + "]";
    if (expr->bare_symbol()) return name;
    const int64_t one = pt2::evaluate_int(*expr, {{symbol, 1}}).value(), step = pt2::evaluate_int(*expr, {{symbol, 2}}).value() - one;
    if (one != step) name = "(" + name + (one > step ? "-" : "+") + std::to_string(std::abs(one - step)) + ")";
    return step == 1 ? name : name + "/" + std::to_string(step);
  }
};

std::vector<const pt2::TensorArg*> given_tensors(const pt2::Program& program) {
  std::vector<const pt2::TensorArg*> out;
  for (const pt2::InputSpec& input : program.inputs)
    if (const auto* tensor = input.kind == pt2::InputSpec::Kind::kUserInput ? input.arg.get<pt2::TensorArg>() : nullptr)
      out.push_back(tensor);
  return out;
}

const pt2::TensorMeta& meta_of(const pt2::Program& program, const pt2::TensorArg& tensor) {
  return program.graph.tensor_values.find(tensor.name)->second;
}

// In order of appearance: first those that stand by themselves somewhere.
std::vector<FreeSize> free_sizes_of(const pt2::Program& program) {
  const std::vector<const pt2::TensorArg*> tensors = given_tensors(program);
  std::vector<FreeSize> out;
  std::set<std::string> seen;
  for (const bool bare : {true, false})
    for (size_t i = 0; i < tensors.size(); ++i) {
      const std::vector<pt2::SymInt>& sizes = meta_of(program, *tensors[i]).sizes;
      for (size_t d = 0; d < sizes.size(); ++d) {
        const pt2::SymInt& size = sizes[d];
        if (size.is_literal() || (size.expr->bare_symbol() != nullptr) != bare) continue;
        if (!bare && !(size.hint && symbol_of_size(*size.expr, *size.hint))) continue;
        if (seen.insert(size.expr->symbols[0]).second) out.push_back({size.expr->symbols[0], i, d, &*size.expr});
      }
    }
  return out;
}

}  // namespace

Result<ExampleShapes> example_shapes(const pt2::Program& program, const std::vector<int64_t>& symbol_sizes) {
  ExampleShapes out;
  pt2::SymbolValues values;
  const std::vector<const pt2::TensorArg*> tensors = given_tensors(program);
  for (const FreeSize& free : free_sizes_of(program)) {
    const size_t k = out.symbols.size();
    const pt2::SymInt& size = meta_of(program, *tensors[free.input]).sizes[free.dim];
    values[free.symbol] = k < symbol_sizes.size() ? symbol_sizes[k] : free.value_of(size.hint.value_or(2)).value_or(2);
    out.symbols.push_back(free.symbol);
  }
  for (const pt2::TensorArg* tensor : tensors) {
    const pt2::TensorMeta& meta = meta_of(program, *tensor);
    TensorSpec spec{meta.dtype, {}, {}, {}};
    for (const pt2::SymInt& size : meta.sizes) {
      if (size.is_literal()) {
        spec.sizes.push_back(size.value);
        continue;
      }
      KRN_TRY_LET(const int64_t value, pt2::evaluate_int(*size.expr, values));
      spec.sizes.push_back(value);
    }
    out.specs.push_back(std::move(spec));
  }
  return out;
}

std::vector<SizeReport> Session::Impl::free_sizes(const std::vector<TensorSpec>& specs) const {
  const pt2::Program& program = model->program;
  const std::vector<const pt2::TensorArg*> tensors = given_tensors(program);
  std::vector<SizeReport> out;
  for (const FreeSize& free : free_sizes_of(program)) {
    if (free.input >= specs.size() || free.dim >= specs[free.input].sizes.size()) continue;
    SizeReport size{free.name_in(tensors[free.input]->name), free.value_of(specs[free.input].sizes[free.dim]).value_or(0), 1, 0};
    if (auto range = program.range_constraints.find(free.symbol); range != program.range_constraints.end()) {
      size.min = std::max(size.min, range->second.min.value_or(1));
      size.max = range->second.max.value_or(0);
    }
    out.push_back(std::move(size));
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
    const Dims dense = contiguous_strides(specs[i].sizes);
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
