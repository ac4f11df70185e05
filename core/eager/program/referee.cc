// SPDX-License-Identifier: Apache-2.0
#include "core/eager/program/referee.h"

#include <ATen/MemoryOverlap.h>

#include <algorithm>
#include <limits>

#include "core/base/end_flag.h"
#include "core/eager/at_tensor.h"
#include "core/eager/program/observer.h"
#include "core/eager/program/package_ops.h"
#include "core/eager/program/schema_effects.h"
#include "core/eager/rows/grouped_matmul.h"
#include "core/eager/tensor_services.h"

namespace keirin {
namespace {

using c10::IValue;
using c10::TypeKind;

at::ScalarType wide_type(at::ScalarType type) {
  if (c10::isComplexType(type)) return at::kComplexDouble;
  return c10::isFloatingType(type) ? at::kDouble : type;
}

bool is_scalar_type(const c10::Argument& argument) {
  c10::TypePtr type = argument.real_type();
  if (type->kind() == TypeKind::OptionalType) type = type->castRaw<c10::OptionalType>()->getElementType();
  return type->kind() == TypeKind::ScalarTypeType;
}

// What the dtype itself decides: bits shown as another type, code that is not LibTorch's.
bool belongs_to_its_dtype(const OperatorSite& site) {
  const std::string& name = site.op.schema().name();
  return (name == "aten::view" && site.op.schema().overload_name() == "dtype") || misreads_f64(site.op.schema()) ||
         !(name.starts_with("aten::") || name.starts_with("prim::") || name.starts_with("torchvision::") ||
           is_package_op(name));
}

double largest_of(at::ScalarType type) {
  switch (type) {
    case at::kHalf: return static_cast<double>(std::numeric_limits<at::Half>::max());
    case at::kBFloat16: return static_cast<double>(std::numeric_limits<at::BFloat16>::max());
    case at::kFloat: return static_cast<double>(std::numeric_limits<float>::max());
    default: return std::numeric_limits<double>::max();
  }
}

constexpr double kTf32Error = 1.0 / 2048;  // half a unit of the tenth bit

bool is_product(std::string_view op) {
  op.remove_prefix(std::min(op.size(), op.find("::") + 2));
  for (std::string_view name :
       {"conv", "_conv", "linear", "mm", "addmm", "matmul", "bmm", "baddbmm", "einsum", "grouped_mm", "_grouped_mm",
        "scaled_dot_product_attention", "lstm", "gru"})
    if (op.starts_with(name)) return true;
  return false;
}

// Rows in groups, each by its own weights.
bool is_grouped_product(const OperatorSite& site, const torch::jit::Stack& stack) {
  return site.op.schema().name() == "aten::_grouped_mm" && stack.size() == 5 && stack[2].isTensor() && stack[3].isNone() &&
         stack[0].toTensor().dim() == 2 && stack[1].toTensor().dim() == 3;
}

// Arguments that name a dtype, or stand for a number of it when they are absent.
void widen_arguments(const OperatorSite& site, torch::jit::Stack& stack, bool has_tensors) {
  const c10::FunctionSchema& schema = site.op.schema();
  const auto result = site.results.empty() ? at::ScalarType::Undefined : scalar_type_of(site.results[0].dtype);
  for (size_t i = 0; i < schema.arguments().size() && i < stack.size(); ++i) {
    if (!is_scalar_type(schema.arguments()[i])) continue;
    if (stack[i].isInt()) stack[i] = static_cast<int64_t>(wide_type(static_cast<at::ScalarType>(stack[i].toInt())));
    // A factory without a dtype makes LibTorch's default one, which is a float as narrow as the file's.
    else if (stack[i].isNone() && !has_tensors && wide_type(result) != result) stack[i] = static_cast<int64_t>(wide_type(result));
  }
  const auto own = site.operands.empty() ? at::ScalarType::Undefined : scalar_type_of(site.operands[0].dtype);
  if (schema.name() == "aten::rms_norm" && stack.size() == 4 && stack[3].isNone() && own == at::kFloat)
    stack[3] = static_cast<double>(std::numeric_limits<float>::epsilon());
  if (schema.name() == "aten::nan_to_num" && stack.size() >= 4) {
    if (stack[2].isNone()) stack[2] = largest_of(own);
    if (stack[3].isNone()) stack[3] = -largest_of(own);
  }
}

}  // namespace

at::Tensor wide(const at::Tensor& tensor) {
  const at::ScalarType type = wide_type(tensor.scalar_type());
  return type == tensor.scalar_type() ? tensor : tensor.to(type);
}

void WideCopies::add(const at::Tensor& tensor) {
  if (!tensor.has_storage() || tensor.storage().nbytes() == 0) return;
  const auto begin = reinterpret_cast<uintptr_t>(tensor.storage().data());
  Block block{begin, begin + tensor.storage().nbytes(), tensor, {}};
  std::erase_if(blocks_, [&](const Block& other) {
    if (other.end <= block.begin || block.end <= other.begin) return false;
    TORCH_CHECK(other.like.scalar_type() == tensor.scalar_type(), "two tensors share memory under different dtypes");
    block.begin = std::min(block.begin, other.begin);
    block.end = std::max(block.end, other.end);
    return true;
  });
  blocks_.push_back(std::move(block));
}

at::Tensor WideCopies::of(const at::Tensor& tensor) {
  if (!tensor.has_storage() || tensor.storage().nbytes() == 0) return wide(tensor.clone());
  const auto at = reinterpret_cast<uintptr_t>(tensor.storage().data());
  const auto found = std::find_if(blocks_.begin(), blocks_.end(), [&](const Block& b) { return b.begin <= at && at < b.end; });
  TORCH_CHECK(found != blocks_.end(), "a tensor is copied that was not named");
  Block& block = *found;
  const auto bytes = static_cast<uintptr_t>(tensor.itemsize());
  if (!block.elements.defined()) {
    const auto count = static_cast<int64_t>((block.end - block.begin) / bytes);
    const at::Tensor all = at::from_blob(reinterpret_cast<void*>(block.begin), {count}, tensor.options());
    block.elements = wide(all);
    if (block.elements.is_same(all)) block.elements = all.clone();
  }
  TORCH_CHECK((at - block.begin) % bytes == 0, "tensors share memory that their elements divide in different places");
  return block.elements.as_strided(tensor.sizes(), tensor.strides(),
                                   static_cast<int64_t>((at - block.begin) / bytes) + tensor.storage_offset());
}

void RefereeRunner::run(const OperatorSite& site, torch::jit::Stack& stack) {
  TORCH_CHECK(!is_to_end(), "stopped on request");
  std::vector<at::Tensor> operands;
  each_tensor(stack, [&](at::Tensor& tensor) {
    tensor = wide(tensor);  // weights come as they are
    operands.push_back(tensor);
  });
  for (const size_t i : written_arguments(site.op.schema(), stack)) {
    torch::jit::Stack written{stack[i]};
    each_tensor(written, [&](at::Tensor& tensor) {
      for (const at::Storage& storage : cut_off_)
        TORCH_CHECK(!storage.is_alias_of(tensor.storage()), "the operator writes a view that has no form in fp64");
    });
  }
  if (belongs_to_its_dtype(site)) return run_own(site, stack, operands);
  // One that draws random numbers would draw others in another dtype. Many that may do so do not with these arguments (dropout that is
  // off), so that the run itself tells; what it would have written must not be, then.
  const bool draws = site.op.hasTag(at::Tag::nondeterministic_seeded) && may_draw(site.op, stack);
  if (draws && !written_arguments(site.op.schema(), stack).empty()) {
    torch::jit::Stack copies = stack;
    for (const size_t i : written_arguments(site.op.schema(), stack))
      if (copies[i].isTensor()) copies[i] = copies[i].toTensor().clone();
    if (!leaves_generators([&] { site.call(copies); })) return run_own(site, stack, operands);
  }
  const torch::jit::Stack arguments = stack;
  const auto widely = [&] { run_wide(site, stack, operands); };
  try {
    if (!draws) return widely();
    if (leaves_generators(widely)) return;
  } catch (const c10::Error&) {  // it knows no f64, or mixes it with a dtype that is written in its arguments
  }
  stack = arguments;
  run_own(site, stack, operands);
}

// Whether the call draws no random number; one that does or that fails leaves the generators as they were.
bool RefereeRunner::leaves_generators(const std::function<void()>& call) {
  const auto before = random_state(device_);
  TORCH_CHECK(before.ok(), "the state of the random generators cannot be read");
  bool fails = false;
  try {
    call();
  } catch (const c10::Error&) {
    fails = true;
  }
  const auto after = random_state(device_);
  TORCH_CHECK(after.ok(), "the state of the random generators cannot be read");
  const bool same = *before == *after;
  if (!same) TORCH_CHECK(set_random_state(device_, *before).ok(), "the state of the random generators cannot be put back");
  return same && !fails;
}

void RefereeRunner::run_wide(const OperatorSite& site, torch::jit::Stack& stack, const std::vector<at::Tensor>& operands) {
  widen_arguments(site, stack, !operands.empty());
  std::vector<at::Tensor> untouched;  // operands that are only read: a result that shares their memory is a view
  if (roundings_.seed != 0) {
    torch::jit::Stack read = stack;
    for (const size_t i : written_arguments(site.op.schema(), stack)) read[i] = c10::IValue();
    each_tensor(read, [&](at::Tensor& tensor) { untouched.push_back(tensor); });
  }
  if (is_grouped_product(site, stack)) {  // LibTorch's takes no f64
    const at::Tensor product = grouped_matmul(stack[0].toTensor(), stack[1].toTensor(), stack[2].toTensor());
    stack.assign(1, product);
  } else {
    site.call(stack);
  }
  settle_results(site, stack, operands);
  if (roundings_.seed != 0) round_results(site, stack, untouched);
}

void RefereeRunner::round_results(const OperatorSite& site, torch::jit::Stack& stack, const std::vector<at::Tensor>& untouched) {
  const bool product = is_product(site.op.schema().name());
  std::vector<size_t> places;  // in the stack, of what is visited
  for (size_t i = 0; i < stack.size(); ++i)
    if (stack[i].isTensor() && stack[i].toTensor().defined()) places.push_back(i);
  const auto is_rounded = [&](size_t i) {
    const bool is_whole = roundings_.whole && i < places.size() && roundings_.whole->contains(whole_product_name(site.node, places[i]));
    return product && roundings_.tf32 && !is_whole;
  };
  size_t at = 0;
  each_tensor(stack, [&](at::Tensor& result) {
    const size_t i = at++;
    if (i >= site.results.size() || result.scalar_type() != at::kDouble || result.numel() == 0) return;
    if (at::has_internal_overlap(result) == at::MemOverlap::Yes) return;
    const at::ScalarType own = scalar_type_of(site.results[i].dtype);
    const auto shares = [&](const at::Tensor& operand) { return operand.has_storage() && result.is_alias_of(operand); };
    if (own == at::kDouble || std::any_of(untouched.begin(), untouched.end(), shares)) return;
    // A product's sums round at every term: some eight times what its result does, for sums of some hundred.
    at::Tensor error = own == at::kFloat && is_rounded(i) ? result * kTf32Error
                                                          : (result.to(own).to(at::kDouble) - result) * (product ? 8 : 1);
    error.nan_to_num_(0, 0, 0);
    const double phase = 78.233 * static_cast<double>(roundings_.seed) + 3.7 * static_cast<double>(++num_rounded_);
    const at::Tensor place = at::arange(result.numel(), result.options()).view(result.sizes());
    result.add_(error.mul_(place.mul_(12.9898).add_(phase).sin_().sign_()));
  });
}

void RefereeRunner::run_own(const OperatorSite& site, torch::jit::Stack& stack, const std::vector<at::Tensor>& operands) {
  own_dtype_.insert(site.op.schema().name());
  TORCH_CHECK(operands.size() == site.operands.size(), "the file does not name the dtypes of all operands");
  std::vector<at::Tensor> own;
  each_tensor(stack, [&](at::Tensor& tensor) {
    tensor = tensor.to(scalar_type_of(site.operands[own.size()].dtype));
    own.push_back(tensor);
  });
  std::vector<at::Tensor> written;
  for (const size_t i : written_arguments(site.op.schema(), stack)) {
    torch::jit::Stack argument{stack[i]};
    each_tensor(argument, [&](at::Tensor& tensor) { written.push_back(tensor); });
  }
  site.call(stack);
  for (size_t k = 0; k < own.size(); ++k)
    for (const at::Tensor& tensor : written)
      if (tensor.is_same(own[k]) && !own[k].is_same(operands[k])) {
        operands[k].copy_(own[k]);
        break;
      }
  each_tensor(stack, [&](at::Tensor& result) {
    for (size_t k = 0; k < own.size(); ++k) {
      if (own[k].is_same(operands[k]) || !result.is_alias_of(own[k])) continue;
      if (result.is_same(own[k])) {
        result = operands[k];
      } else {
        result = wide(result).clone();
        cut_off_.push_back(result.storage());
      }
      return;
    }
  });
  settle_results(site, stack, operands);
}

void RefereeRunner::settle_results(const OperatorSite& site, torch::jit::Stack& stack, const std::vector<at::Tensor>& operands) {
  size_t at = 0;
  each_tensor(stack, [&](at::Tensor& result) {
    const size_t i = at++;
    result = wide(result);
    if (i >= site.results.size() || operands.size() != site.operands.size()) return;
    for (size_t k = 0; k < operands.size(); ++k)
      if (site.operands[k].dtype != site.results[i].dtype && result.has_storage() && result.is_alias_of(operands[k])) {
        result = result.clone();
        return;
      }
  });
}

}  // namespace keirin
