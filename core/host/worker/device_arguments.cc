// SPDX-License-Identifier: Apache-2.0
#include "core/host/worker/device_arguments.h"

#include <stdlib.h>
#include <string.h>

#include <algorithm>

#include "core/base/overlap.h"

namespace keirin {
namespace {

constexpr uint64_t kWeightAlign = 512, kPage = 4096;
constexpr uint64_t kReadWhole = 64 << 10;  // a block of at most so many bytes is read whole for its zones, in one copy

uint64_t rounded(uint64_t bytes, uint64_t to) { return (bytes + to - 1) / to * to; }

Result<DeviceMemoryRef> lendable(const DeviceDriver& driver, uint64_t bytes) {
  return driver.allocate(rounded(std::max<uint64_t>(bytes, 1), DeviceDriver::kLentUnit));
}

}  // namespace

Result<std::unique_ptr<DeviceArguments>> DeviceArguments::make(std::shared_ptr<const DeviceDriver> driver, SharedArguments layout) {
  KRN_TRY_LET(DeviceMemoryRef block, lendable(*driver, layout.total_bytes()));
  // All of it: what the memory held before is nobody's business but this process's.
  KRN_TRY(driver->fill(block->data(), SharedArguments::kPattern, block->bytes(), driver->own_stream()));
  KRN_TRY(driver->wait(driver->own_stream()));
  layout.lie_in({block, block->data()});
  return std::unique_ptr<DeviceArguments>(new DeviceArguments(std::move(driver), std::move(layout), std::move(block), nullptr));
}

Result<std::unique_ptr<DeviceArguments>> DeviceArguments::make_through_host(std::shared_ptr<const DeviceDriver> driver,
                                                                            SharedArguments layout) {
  layout.mark_zones();
  KRN_TRY_LET(std::shared_ptr<void> pinned, driver->pin(layout.held(), layout.total_bytes()));
  std::unique_ptr<DeviceArguments> made(new DeviceArguments(std::move(driver), std::move(layout), nullptr, std::move(pinned)));
  KRN_TRY(made->stage());
  return made;
}

// Fewer bytes than kPlain, copied as they lie, are written by the unit that computes, for which the other process has to give way first;
// rows that lie apart are not.
Status DeviceArguments::stage() {
  constexpr uint64_t kPlain = 64 << 10, kRows = 16;
  uint64_t total = 0;
  for (const SharedArguments::Argument& output : layout_.outputs()) {
    std::vector<Piece>& pieces = pieces_.emplace_back();
    if (output.bytes == 0 || output.bytes >= kPlain) continue;
    const auto add = [&](uint64_t at, uint64_t width, uint64_t rows) {
      pieces.push_back({at, width, rows, total});
      total += rows * pieces.back().pitch();
    };
    if (output.bytes >= kRows) add(0, output.bytes / kRows, kRows);
    const uint64_t last = std::min(output.bytes, kRows);  // the end once more, byte by byte, where it does not fill a row
    if (output.bytes % kRows != 0) add(output.bytes - last, 1, last);
  }
  if (total == 0) return {};
  const std::shared_ptr<void> memory(::aligned_alloc(kPage, rounded(total, kPage)), ::free);
  if (!memory) return Status(Code::k_exhausted, "no memory for a region's outputs on their way to the device");
  KRN_TRY_LET(staged_, driver_->pin(memory, rounded(total, kPage)));
  return {};
}

DeviceArguments::DeviceArguments(std::shared_ptr<const DeviceDriver> driver, SharedArguments layout, DeviceMemoryRef block,
                                 std::shared_ptr<void> pinned)
    : driver_(std::move(driver)),
      layout_(std::move(layout)),
      block_(std::move(block)),
      pinned_(std::move(pinned)),
      there_(driver_),
      taken_(driver_) {
  if (Result<DeviceDriver::Handle> event = there_.lend(); event.ok()) event_ = *event;
}

Status DeviceArguments::put(const krn_tensor* inputs, uint64_t stream) {
  KRN_TRY(taken_.awaited_by(stream));
  for (size_t i = 0; i < layout_.inputs().size(); ++i) {
    const SharedArguments::Argument& a = layout_.inputs()[i];
    char* const to = layout_.memory() + a.offset;
    KRN_TRY(block_ ? driver_->copy(to, inputs[i].data, a.bytes, stream) : driver_->read(to, inputs[i].data, a.bytes, stream));
  }
  return event_ ? there_.reached_by(stream) : driver_->wait(stream);
}

Status DeviceArguments::take(const krn_tensor* outputs, uint64_t stream) {
  if (staged_) KRN_TRY(taken_.wait());  // the device may still read what the last run staged
  for (size_t i = 0; i < layout_.outputs().size(); ++i) {
    const SharedArguments::Argument& a = layout_.outputs()[i];
    const char* const from = layout_.memory() + a.offset;
    if (staged_ && !pieces_[i].empty()) {
      for (const Piece& piece : pieces_[i]) {
        char* const rows = static_cast<char*>(staged_.get()) + piece.staged;
        for (uint64_t row = 0; row < piece.rows; ++row)
          ::memcpy(rows + row * piece.pitch(), from + piece.at + row * piece.width, piece.width);
        KRN_TRY(driver_->write_rows(static_cast<char*>(outputs[i].data) + piece.at, rows, piece.pitch(), piece.width, piece.rows, stream));
      }
      continue;
    }
    KRN_TRY(block_ ? driver_->copy(outputs[i].data, from, a.bytes, stream) : driver_->write(outputs[i].data, from, a.bytes, stream));
  }
  return taken_.reached_by(stream);
}

Result<std::string> DeviceArguments::overrun(uint64_t stream) {
  if (!block_) return layout_.overrun();
  if (++runs_ > kFirstLooks && runs_ % kLookEvery != 0) return std::string();
  if (layout_.total_bytes() <= kReadWhole) {
    seen_.resize(layout_.total_bytes());
    KRN_TRY(driver_->read(seen_.data(), layout_.memory(), seen_.size(), stream));
    KRN_TRY(driver_->wait(stream));
    return layout_.overrun([this](uint64_t begin, uint64_t) { return seen_.data() + begin; });
  }
  Status failed;
  const std::string what = layout_.overrun([&](uint64_t begin, uint64_t end) {
    seen_.assign(end - begin, static_cast<char>(SharedArguments::kPattern));
    Status status = driver_->read(seen_.data(), layout_.memory() + begin, end - begin, stream);
    if (status.ok()) status = driver_->wait(stream);
    if (!status.ok() && failed.ok()) failed = std::move(status);
    return seen_.data();
  });
  KRN_TRY(std::move(failed));
  return what;
}

Result<std::vector<std::shared_ptr<LentWeight>>> DeviceWeights::lend(const std::shared_ptr<const DeviceDriver>& driver,
                                                                     const std::vector<TensorRef>& weights, uint64_t life) {
  if (life != std::exchange(life_, life)) lent_.clear();
  std::erase_if(lent_, [](const auto& each) { return each.second.expired(); });
  std::vector<std::shared_ptr<LentWeight>> all;
  std::vector<size_t> fresh;
  uint64_t total = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    const TensorRef& weight = weights[i];
    if (!weight || weight->device() != driver->device())
      return Status(Code::k_unsupported, "a weight does not lie on the region's device, so its worker cannot be given its values");
    const auto [begin, end] = byte_range(*weight);
    const auto at = lent_.find({weight->data(), end - begin});
    all.push_back(at == lent_.end() ? nullptr : at->second.lock());
    if (all.back()) continue;
    all.back() = std::make_shared<LentWeight>(LentWeight{nullptr, total, end - begin});
    total += rounded(end - begin, kWeightAlign);
    fresh.push_back(i);
  }
  if (fresh.empty()) return all;
  KRN_TRY_LET(const DeviceMemoryRef block, lendable(*driver, total));
  KRN_TRY(driver->fill(block->data(), SharedArguments::kPattern, block->bytes(), driver->own_stream()));
  for (const size_t i : fresh) {
    LentWeight& lent = *all[i];
    lent.block = block;
    KRN_TRY(driver->copy(block->data() + lent.offset, weights[i]->data(), lent.bytes, driver->own_stream()));
  }
  KRN_TRY(driver->wait(driver->own_stream()));
  for (const size_t i : fresh) lent_[{weights[i]->data(), all[i]->bytes}] = all[i];
  return all;
}

}  // namespace keirin
