// SPDX-License-Identifier: Apache-2.0
#include "core/eager/program/observer.h"

#include <algorithm>

#include "core/base/end_flag.h"
#include "core/base/overlap.h"
#include "core/eager/at_tensor.h"
#include "core/eager/program/schema_effects.h"

namespace keirin {
namespace {

bool is_value(const at::Tensor& tensor) { return tensor.defined() && !tensor.unsafeGetTensorImpl()->is_wrapped_number(); }

bool fills_storage(const at::Tensor& tensor) {
  return tensor.has_storage() && tensor.storage_offset() == 0 && tensor.is_contiguous() &&
         static_cast<size_t>(tensor.numel() * tensor.itemsize()) == tensor.storage().nbytes();
}

}  // namespace

void each_tensor(torch::jit::Stack& stack, const std::function<void(at::Tensor&)>& visit) {
  const auto one = [&](at::Tensor& tensor) {
    if (is_value(tensor)) visit(tensor);
  };
  for (c10::IValue& value : stack) {
    if (value.isTensor()) {
      at::Tensor tensor = value.toTensor();
      one(tensor);
      value = std::move(tensor);
    } else if (value.isTensorList()) {
      std::vector<at::Tensor> tensors = value.toTensorVector();
      for (at::Tensor& tensor : tensors) one(tensor);
      value = std::move(tensors);
    } else if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (std::optional<at::Tensor> tensor : value.toOptionalTensorVector()) {
        if (tensor) one(*tensor);
        list.push_back(std::move(tensor));
      }
      value = std::move(list);
    }
  }
}

at::Tensor storage_elements(const at::Tensor& tensor) {
  if (!tensor.has_storage() || tensor.storage().nbytes() == 0) return tensor;
  const auto count = static_cast<int64_t>(tensor.storage().nbytes() / tensor.itemsize());
  return at::empty({0}, tensor.options()).set_(tensor.storage(), 0, {count}, {1});
}

// Weights of a file may share a storage by the thousand.
Observer::Source& Observer::source_of(const at::Tensor& tensor) {
  const Storage storage = storage_of(tensor);
  const auto [known, is_new] = by_storage_.try_emplace(storage, sources_.size());
  if (is_new || storage == nullptr) {
    known->second = sources_.size();
    sources_.push_back({storage_elements(tensor), {}, {}, {}});
  }
  return sources_[known->second];
}

void Observer::note_write(const at::Tensor& tensor) {
  if (!written_.insert(storage_of(tensor)).second || !tensor.has_storage()) return;
  const AtTensor all(storage_elements(tensor));
  for (Source& source : sources_)
    if (!source.content.defined() && ranges_meet(AtTensor(source.all), all)) source.content = source.all.clone();
}

void Observer::run(const OperatorSite& site, torch::jit::Stack& stack) {
  TORCH_CHECK(!is_to_end(), "stopped on request");
  std::vector<at::Tensor> operands;
  each_tensor(stack, [&](at::Tensor& tensor) { operands.push_back(tensor); });
  note_writes(site, stack, operands);
  may_draw_ = may_draw_ || keirin::may_draw(site.op, stack);
  if (site.op.schema().name().starts_with("aten::as_strided") && !operands.empty() && operands[0].has_storage()) {
    const auto& parameters = site.op.schema().arguments();
    bool from_start = false;  // of the storage, not of the operand
    for (size_t i = 0; i < parameters.size() && i < stack.size(); ++i)
      from_start |= parameters[i].name() == "storage_offset" && !stack[i].isNone();
    const AtTensor all(storage_elements(operands[0]));
    const bool of_source =
        std::any_of(sources_.begin(), sources_.end(), [&](const Source& s) { return ranges_meet(AtTensor(s.all), all); });
    seen_.reads_storage |= of_source && (from_start || !operands[0].is_non_overlapping_and_dense());
  }
  const bool watched = products_.watches(site, stack);
  const torch::jit::Stack arguments = watched ? stack : torch::jit::Stack();
  site.call(stack);
  if (watched) products_.look(site, arguments, stack);
  std::vector<at::Tensor> results;
  each_tensor(stack, [&](at::Tensor& tensor) { results.push_back(tensor); });
  if (results.size() != site.results.size()) return;  // a result without a name in the file: nothing is known of them
  for (size_t i = 0; i < results.size(); ++i) {
    ObservedValue value{results[i].sizes().vec(),
                        results[i].layout() == at::kStrided ? results[i].strides().vec() : std::vector<int64_t>(),
                        {},
                        fills_storage(results[i])};
    if (operands.size() == site.operands.size() && results[i].has_storage())
      for (size_t k = 0; k < operands.size() && value.view_of.empty(); ++k)
        if (storage_of(operands[k]) == storage_of(results[i])) value.view_of = site.operands[k].name;
    seen_.values[site.results[i].name] = std::move(value);
  }
}

void Observer::note_writes(const OperatorSite& site, const torch::jit::Stack& stack, const std::vector<at::Tensor>& operands) {
  for (const size_t i : written_arguments(site.op.schema(), stack)) {
    torch::jit::Stack argument{stack[i]};
    each_tensor(argument, [&](at::Tensor& written) {
      note_write(written);
      if (!written.has_storage()) return;
      bool itself = false;  // once among the operands
      for (const at::Tensor& operand : operands) {
        if (!operand.has_storage() || storage_of(operand) != storage_of(written)) continue;
        const AtTensor to(written), from(operand);
        if (!itself && same_elements(to, from)) {
          itself = true;
          continue;
        }
        if (!same_elements(to, from) && shares_elements(to, from)) seen_.overlapping_writes.insert(site.node);
      }
    });
  }
}

void Observer::put_back() const {
  for (const Source& source : sources_)
    if (source.content.defined()) source.all.copy_(source.content);
}

void Observer::finish() {
  put_back();
  for (const Source& source : sources_) {
    if (!source.content.defined()) continue;
    seen_.written_weights.insert(seen_.written_weights.end(), source.weights.begin(), source.weights.end());
    seen_.written_inputs.insert(seen_.written_inputs.end(), source.inputs.begin(), source.inputs.end());
  }
  for (std::vector<size_t>* list : {&seen_.written_weights, &seen_.written_inputs}) {
    std::sort(list->begin(), list->end());
    list->erase(std::unique(list->begin(), list->end()), list->end());
  }
}

}  // namespace keirin
