// SPDX-License-Identifier: Apache-2.0
//
// Moves and copies go by storage, never by weight: that is what keeps tied weights tied.
#include "core/eager/weights.h"

#include <algorithm>
#include <map>

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

template <class Copy>
Result<WeightTable> WeightTable::map_storages(TensorServices& services, Device device, Copy&& copy) const {
  struct Block {
    char* begin = nullptr;
    int64_t bytes = 0;
    TensorRef moved;
  };
  std::map<uint32_t, Block> blocks;
  for (const Weight& weight : weights_) {
    Block& block = blocks[weight.storage];
    if (weight.tensor->data() == nullptr) continue;
    block.begin = static_cast<char*>(weight.tensor->data()) - weight.byte_offset;
    block.bytes = std::max(block.bytes, weight.tensor->storage_bytes() + weight.byte_offset);
  }
  WeightTable table;
  for (const Weight& weight : weights_) {
    Block& block = blocks[weight.storage];
    const Tensor& from = *weight.tensor;
    TensorSpec spec{from.dtype(),
                    {from.sizes(), from.sizes() + from.rank()},
                    {from.strides(), from.strides() + from.rank()},
                    device};
    TensorRef to;
    if (block.bytes == 0) {
      KRN_TRY_LET(to, services.allocate(spec));
    } else {
      if (block.moved == nullptr) {
        const TensorSpec whole{DType::k_u8, {block.bytes}, {}, from.device()};
        KRN_TRY_LET(const TensorRef bytes, services.wrap(whole, block.begin, weight.tensor));
        KRN_TRY_LET(block.moved, copy(bytes));
      }
      KRN_TRY_LET(to, services.wrap(spec, static_cast<char*>(block.moved->data()) + weight.byte_offset, block.moved));
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

}  // namespace keirin
