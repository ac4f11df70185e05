// SPDX-License-Identifier: Apache-2.0
#include "tests/certify/memory.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <new>
#include <utility>

namespace keirin::certify {
namespace {

constexpr uint8_t kRed = 0xa5;
const size_t kPage = static_cast<size_t>(::sysconf(_SC_PAGESIZE));

size_t in_pages(size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

// `usable` bytes between two pages that nobody may touch.
char* map_between(size_t usable) {
  void* const all = ::mmap(nullptr, usable + 2 * kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (all == MAP_FAILED || ::mprotect(static_cast<char*>(all) + kPage, usable, PROT_READ | PROT_WRITE) != 0) throw std::bad_alloc();
  return static_cast<char*>(all);
}

bool all_red(const char* from, const char* to) {
  return std::all_of(from, to, [](char c) { return static_cast<uint8_t>(c) == kRed; });
}

}  // namespace

Memory::Memory(Type type, Place place) : type_(std::move(type)) {
  offsets_.resize(static_cast<size_t>(type_.num_elements()));
  int64_t last = -1;
  for (size_t k = 0; k < offsets_.size(); ++k) {
    auto rest = static_cast<int64_t>(k);
    for (size_t d = type_.sizes.size(); d-- > 0;) offsets_[k] += rest % type_.sizes[d] * type_.strides[d], rest /= type_.sizes[d];
    last = std::max(last, offsets_[k]);
  }
  span_ = static_cast<size_t>(last + 1) * sizeof(float);
  const bool red = place == Place::kRed || place == Place::kShifted;
  usable_ = in_pages(std::max<size_t>(span_ + (red ? 2 * kPage : 0), 1));
  mapped_ = usable_ + 2 * kPage;
  pages_ = map_between(usable_);
  first_ = pages_ + kPage;
  start_ = red ? first_ + kPage + (place == Place::kShifted ? sizeof(float) : 0)
               : place == Place::kEndOfPage ? first_ + usable_ - span_ : first_;
  memset(first_, kRed, usable_);
  fill(0);
  Gpu* const gpu = Gpu::here();
  if (!gpu) return;
  if (red) {
    device_first_ = on_device_.emplace(gpu->allocate(usable_)).data();
  } else {
    size_t bytes = 0;
    char* const first = on_device_.emplace(gpu->allocate_between(span_, bytes)).data();
    device_first_ = place == Place::kEndOfPage ? first + bytes - usable_ : first;  // pages there are not smaller than here
  }
  put();
}

char* Memory::data() const { return on_device_ ? device_first_ + (start_ - first_) : start_; }

void Memory::put() {
  if (!on_device_) return;
  Gpu::here()->wait("before memory is written");
  Gpu::here()->write(device_first_, first_, usable_);
}

void Memory::fetch(bool waits) {
  if (!on_device_) return;
  if (waits) Gpu::here()->wait("after the plugin's work");
  Gpu::here()->read(first_, device_first_, usable_);
}

Memory::Memory(Memory&& other) noexcept
    : type_(std::move(other.type_)), offsets_(std::move(other.offsets_)), pages_(std::exchange(other.pages_, nullptr)),
      first_(other.first_), start_(other.start_), mapped_(other.mapped_), usable_(other.usable_), span_(other.span_),
      on_device_(std::move(other.on_device_)), device_first_(other.device_first_) {}

Memory::~Memory() {
  if (pages_) ::munmap(pages_, mapped_);
}

float Memory::get(int64_t i) const {
  float out;
  memcpy(&out, start_ + offsets_[static_cast<size_t>(i)] * static_cast<int64_t>(sizeof(float)), sizeof out);
  return out;
}

void Memory::set(int64_t i, float value) {
  memcpy(start_ + offsets_[static_cast<size_t>(i)] * static_cast<int64_t>(sizeof(float)), &value, sizeof value);
}

void Memory::fill(uint8_t byte) {
  for (const int64_t offset : offsets_) memset(start_ + offset * static_cast<int64_t>(sizeof(float)), byte, sizeof(float));
}

krn_tensor Memory::view(uint32_t flags) const {
  krn_tensor out{};
  out.data = data();
  out.device_type = 1;  // the host's, in DLPack
  out.ndim = static_cast<int32_t>(type_.sizes.size());
  out.dtype_code = 2;  // a float
  out.dtype_bits = 32;
  out.dtype_lanes = 1;
  out.shape = type_.sizes.data();
  out.strides = type_.strides.data();
  out.flags = flags;
  out.memory = KRN_MEM_HOST;
  out.storage_bytes = span_;
  if (on_device_) Gpu::here()->label(out);
  return out;
}

std::string Memory::damage() {
  fetch();
  if (!all_red(first_, start_)) return "before the first element";
  if (!all_red(start_ + span_, first_ + usable_)) return "behind the last element";
  std::vector<bool> own(span_, false);
  for (const int64_t offset : offsets_)
    for (size_t b = 0; b < sizeof(float); ++b) own[static_cast<size_t>(offset) * sizeof(float) + b] = true;
  for (size_t b = 0; b < span_; ++b)
    if (!own[b] && static_cast<uint8_t>(start_[b]) != kRed) return "between the elements";
  return {};
}

AtPageEnd::AtPageEnd(const void* bytes, size_t size) {
  const size_t usable = in_pages(std::max<size_t>(size, 1));
  mapped_ = usable + 2 * kPage;
  pages_ = map_between(usable);
  data_ = static_cast<char*>(pages_) + kPage + usable - size;
  memcpy(data_, bytes, size);
}

AtPageEnd::~AtPageEnd() { ::munmap(pages_, mapped_); }

}  // namespace keirin::certify
