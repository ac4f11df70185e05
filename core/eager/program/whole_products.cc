// SPDX-License-Identifier: Apache-2.0
#include "core/eager/program/whole_products.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <sstream>

#include "core/eager/program/observer.h"
#include "core/eager/program/schema_effects.h"

namespace keirin {
namespace {

// Of what rounded operands are away. Whole ones are away by roundings to f32, some thousandths of that, a few hundredths where a library
// transforms them (Winograd); rounded ones by as much.
constexpr double kWhole = 1.0 / 16;

enum class Kind { kOther, kConvolution, kProduct };

Kind kind_of(std::string_view op) {
  if (!op.starts_with("aten::")) return Kind::kOther;
  op.remove_prefix(6);
  if (op.starts_with("conv") || op == "_convolution") return Kind::kConvolution;
  for (const std::string_view name : {"mm", "addmm", "bmm", "baddbmm", "matmul", "linear"})
    if (op == name) return Kind::kProduct;
  return Kind::kOther;
}

// What a library chooses by.
std::string form_of(const OperatorSite& site, const torch::jit::Stack& arguments) {
  std::ostringstream out;
  out << site.op.schema().name() << '.' << site.op.schema().overload_name();
  for (const c10::IValue& value : arguments) {
    out << ';';
    if (!value.isTensor()) out << value;
    else if (value.toTensor().defined()) out << value.toTensor().scalar_type() << value.toTensor().sizes() << value.toTensor().strides();
  }
  return out.str();
}

// 10 bits behind the point, to the nearest.
at::Tensor rounded(const at::Tensor& tensor) {
  return tensor.contiguous().view(at::kInt).add(0x1000).bitwise_and(~0x1fff).view(at::kFloat);
}

torch::jit::Stack answers(const OperatorSite& site, torch::jit::Stack stack, bool rounds) {
  each_tensor(stack, [&](at::Tensor& tensor) {
    if (tensor.scalar_type() == at::kFloat) tensor = (rounds ? rounded(tensor) : tensor).to(at::kDouble);
  });
  site.call(stack);
  return stack;
}

double distance(const at::Tensor& a, const at::Tensor& b) { return (a.to(at::kDouble) - b).norm().item<double>(); }

}  // namespace

bool WholeProducts::watches(const OperatorSite& site, const torch::jit::Stack& arguments) const {
  const Kind kind = kind_of(site.op.schema().name());
  if (!(kind == Kind::kConvolution && allowed_.convolutions) && !(kind == Kind::kProduct && allowed_.products)) return false;
  bool floats = false, others = false;
  torch::jit::Stack copy = arguments;
  each_tensor(copy, [&](const at::Tensor& tensor) { (tensor.scalar_type() == at::kFloat ? floats : others) = true; });
  return floats && !others && written_arguments(site.op.schema(), arguments).empty();
}

void WholeProducts::look(const OperatorSite& site, const torch::jit::Stack& arguments, const torch::jit::Stack& results) {
  const auto [known, is_new] = known_.try_emplace(form_of(site, arguments));
  std::vector<bool>& whole = known->second;
  if (is_new) {
    try {
      const torch::jit::Stack referee = answers(site, arguments, false), off = answers(site, arguments, true);
      for (size_t i = 0; i < results.size(); ++i) {
        if (!results[i].isTensor() || !results[i].toTensor().defined() || !results[i].toTensor().is_floating_point()) {
          whole.push_back(false);
          continue;
        }
        const at::Tensor &own = results[i].toTensor(), &truth = referee.at(i).toTensor();
        // Of operands that are numbers of 10 bits nothing can be told: not the same as that nothing is rounded.
        whole.push_back(distance(own, truth) < kWhole * distance(off.at(i).toTensor(), truth));
      }
    } catch (const c10::Error&) {  // no f64 there, or no memory
      whole.assign(results.size(), false);
    }
  }
  for (size_t i = 0; i < whole.size(); ++i)
    if (whole[i]) found_.insert(whole_product_name(site.node, i));
}

}  // namespace keirin
