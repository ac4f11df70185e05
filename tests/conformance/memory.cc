// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/memory.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace keirin::conformance {
namespace {

constexpr size_t kRedZone = 4096;
constexpr uint8_t kRed = 0xa5, kUnwritten = 0xff;

bool all_red(const uint8_t* p, size_t n) {
  return n == 0 || (p[0] == kRed && std::memcmp(p, p + 1, n - 1) == 0);
}

Result<TensorRef> as_bytes(TensorServices& services, const std::shared_ptr<void>& block, size_t bytes) {
  return services.wrap({DType::k_u8, {static_cast<int64_t>(bytes)}, {1}, {}}, block.get(), block);
}

// The bytes on the device, or nothing where it reads host memory.
Result<TensorRef> send(TensorServices& services, Device device, const std::shared_ptr<void>& block, size_t bytes) {
  if (device.kind == Device::kCpu) return TensorRef();
  KRN_TRY_LET(const TensorRef here, as_bytes(services, block, bytes));
  return services.to_device(here, device);
}

Status fetch(TensorServices& services, const Lent& lent, const std::shared_ptr<void>& block, size_t bytes) {
  if (lent.block == nullptr) return {};
  KRN_TRY_LET(const TensorRef here, as_bytes(services, block, bytes));
  return services.copy(here, lent.block);
}

}  // namespace

GuardedTensor::GuardedTensor(const Type& type, bool shifted) : type_(type) {
  const auto size = static_cast<size_t>(dtype_bytes(type.dtype));
  offsets_.resize(static_cast<size_t>(type.num_elements()));
  int64_t last = -1;
  for (size_t k = 0; k < offsets_.size(); ++k) {
    auto rest = static_cast<int64_t>(k);
    for (size_t d = type.sizes.size(); d-- > 0;) offsets_[k] += rest % type.sizes[d] * type.strides[d], rest /= type.sizes[d];
    last = std::max(last, offsets_[k]);
  }
  span_ = static_cast<size_t>(last + 1) * size;
  start_ = kRedZone + (shifted ? size : 0);
  total_ = (start_ + span_ + kRedZone + 63) / 64 * 64;
  block_ = std::shared_ptr<uint8_t[]>(static_cast<uint8_t*>(std::aligned_alloc(64, total_)), [](uint8_t* p) { std::free(p); });
  std::memset(block_.get(), kRed, total_);
  for (int64_t k = 0; k < num_elements(); ++k) std::memset(element(k), kUnwritten, size);
}

void GuardedTensor::set(int64_t i, const void* bytes) { std::memcpy(element(i), bytes, static_cast<size_t>(dtype_bytes(type_.dtype))); }
void GuardedTensor::get(int64_t i, void* bytes) const { std::memcpy(bytes, element(i), static_cast<size_t>(dtype_bytes(type_.dtype))); }
bool GuardedTensor::same_elements(const GuardedTensor& other) const {
  for (int64_t k = 0; k < num_elements(); ++k)
    if (std::memcmp(element(k), other.element(k), static_cast<size_t>(dtype_bytes(type_.dtype))) != 0) return false;
  return true;
}
void GuardedTensor::seal() { sealed_.assign(block_.get(), block_.get() + total_); }

std::string GuardedTensor::damage() const {
  if (!sealed_.empty()) return std::memcmp(sealed_.data(), block_.get(), total_) == 0 ? "" : "an input was changed";
  if (!all_red(block_.get(), start_)) return "memory before the output was written";
  if (!all_red(block_.get() + start_ + span_, total_ - start_ - span_)) return "memory behind the output was written";
  const auto size = static_cast<size_t>(dtype_bytes(type_.dtype));
  if (offsets_.size() * size == span_) return "";
  std::vector<bool> own(span_, false);
  for (int64_t offset : offsets_)
    for (size_t b = 0; b < size; ++b) own[static_cast<size_t>(offset) * size + b] = true;
  for (size_t b = 0; b < span_; ++b)
    if (!own[b] && block_[start_ + b] != kRed) return "memory between the output's elements was written";
  return "";
}

Result<TensorRef> GuardedTensor::view(TensorServices& services) const {
  return services.wrap({type_.dtype, type_.sizes.vec(), type_.strides.vec(), {}}, block_.get() + start_, block_);
}

Result<Lent> GuardedTensor::lend(TensorServices& services, Device device) const {
  Lent lent;
  KRN_TRY_LET(lent.block, send(services, device, block_, total_));
  lent.data = (lent.block ? static_cast<uint8_t*>(lent.block->data()) : block_.get()) + start_;
  const std::shared_ptr<void> owner = lent.block ? std::shared_ptr<void>(lent.block) : std::shared_ptr<void>(block_);
  KRN_TRY_LET(lent.view, services.wrap({type_.dtype, type_.sizes.vec(), type_.strides.vec(), device}, lent.data, owner));
  return lent;
}
Status GuardedTensor::take_back(TensorServices& services, const Lent& lent) const { return fetch(services, lent, block_, total_); }

GuardedBlock::GuardedBlock(size_t bytes) : bytes_(bytes), total_((bytes + 2 * kRedZone + 255) / 256 * 256) {
  block_ = std::shared_ptr<uint8_t>(static_cast<uint8_t*>(std::aligned_alloc(256, total_)), [](uint8_t* p) { std::free(p); });
  std::memset(block_.get(), kRed, total_);
  std::memset(block_.get() + kRedZone, kUnwritten, bytes);
}
Result<Lent> GuardedBlock::lend(TensorServices& services, Device device) const {
  Lent lent;
  KRN_TRY_LET(lent.block, send(services, device, block_, total_));
  lent.data = (lent.block ? static_cast<uint8_t*>(lent.block->data()) : block_.get()) + kRedZone;
  return lent;
}
Status GuardedBlock::take_back(TensorServices& services, const Lent& lent) const { return fetch(services, lent, block_, total_); }
bool GuardedBlock::intact() const { return all_red(block_.get(), kRedZone) && all_red(block_.get() + kRedZone + bytes_, kRedZone); }

}  // namespace keirin::conformance
