// SPDX-License-Identifier: Apache-2.0
//
// Moves and copies go by storage, never by weight: that is what keeps tied weights tied.
#include "core/eager/weights/weights.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

namespace keirin {

std::optional<uint32_t> WeightTable::find(std::string_view name) const {
  const auto found = positions_.find(name);
  return found == positions_.end() ? std::nullopt : std::optional(found->second);
}

uint32_t WeightTable::add(std::string name, TensorRef tensor) {
  return add_view(std::move(name), std::move(tensor), num_storages_, 0);
}

uint32_t WeightTable::add_view(std::string name, TensorRef tensor, uint32_t storage, int64_t byte_offset) {
  const auto position = static_cast<uint32_t>(weights_.size());
  positions_.emplace(name, position);
  num_storages_ = std::max(num_storages_, storage + 1);
  weights_.push_back({std::move(name), std::move(tensor), storage, byte_offset});
  return position;
}

int64_t WeightTable::storage_bytes() const {
  std::map<uint32_t, int64_t> storages;
  for (const Weight& weight : weights_) {
    int64_t& bytes = storages[weight.storage];
    bytes = std::max(bytes, weight.tensor->storage_bytes() + weight.byte_offset);
  }
  return std::accumulate(storages.begin(), storages.end(), int64_t{0},
                         [](int64_t sum, const auto& each) { return sum + each.second; });
}

template <class Copy>
Result<WeightTable> WeightTable::map_storages(TensorServices& services, Device device, Copy&& copy) const {
  std::map<uint32_t, TensorRef> moved;  // whole storages, as bytes
  WeightTable table;
  for (const Weight& weight : weights_) {
    const Tensor& from = *weight.tensor;
    const TensorSpec spec{from.dtype(),
                          {from.sizes(), from.sizes() + from.rank()},
                          {from.strides(), from.strides() + from.rank()},
                          device};
    const int64_t bytes = from.data() == nullptr ? 0 : from.storage_bytes() + weight.byte_offset;
    TensorRef to;
    if (bytes == 0) {
      KRN_TRY_LET(to, services.allocate(spec));
    } else {
      TensorRef& storage = moved[weight.storage];
      if (storage == nullptr) {
        KRN_TRY_LET(const TensorRef whole,
                    services.view(weight.tensor, {DType::k_u8, {bytes}, {}, from.device()}, -weight.byte_offset));
        KRN_TRY_LET(storage, copy(whole));
      }
      KRN_TRY_LET(to, services.view(storage, spec, weight.byte_offset));
    }
    table.add_view(weight.name, std::move(to), weight.storage, weight.byte_offset);
  }
  return table;
}

Result<WeightTable> WeightTable::to_device(TensorServices& services, Device device) const {
  const bool there =
      std::all_of(weights_.begin(), weights_.end(), [&](const Weight& w) { return w.tensor->device() == device; });
  if (there) return *this;
  return map_storages(services, device, [&](const TensorRef& bytes) { return services.to_device(bytes, device); });
}

Result<WeightTable> WeightTable::clone(TensorServices& services) const {
  const Device device = weights_.empty() ? Device{} : weights_[0].tensor->device();
  return map_storages(services, device, [&](const TensorRef& bytes) { return services.clone(bytes); });
}

Result<WeightTable> WeightTable::with_values(TensorServices& services, const Values& values) const {
  const auto refused = [](const std::string& what, const char* advice) {
    return Status(Code::k_invalid_input, {what, {}, "no weight was replaced", advice});
  };
  std::set<uint32_t> changed;
  for (const auto& [name, value] : values) {
    const std::optional<uint32_t> position = find(name);
    if (!position) return refused("the model has no weight \"" + name + "\"", "name weights as the model's state_dict does");
    const TensorSpec own = spec_of(*weights_[*position].tensor);
    const TensorSpec given = value ? spec_of(*value) : TensorSpec();
    if (!value || given.dtype != own.dtype || given.sizes != own.sizes)
      return refused("weight \"" + name + "\" is " + spec_text(own) + ", it cannot become " + (value ? spec_text(given) : "no tensor"),
                     "give the dtype and the sizes that the model was exported with");
    changed.insert(weights_[*position].storage);
  }
  WeightTable kept, copied;
  for (const Weight& weight : weights_)
    if (changed.contains(weight.storage)) copied.add_view(weight.name, weight.tensor, weight.storage, weight.byte_offset);
  KRN_TRY_LET(copied, copied.clone(services));
  for (const Weight& weight : weights_) {
    const auto copy = copied.find(weight.name);
    kept.add_view(weight.name, copy ? copied[*copy].tensor : weight.tensor, weight.storage, weight.byte_offset);
  }
  for (const auto& [name, value] : values) KRN_TRY(services.copy(kept[*kept.find(name)].tensor, value));
  return kept;
}

}  // namespace keirin
