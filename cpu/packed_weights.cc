// SPDX-License-Identifier: Apache-2.0
#include "cpu/packed_weights.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <map>
#include <mutex>
#include <new>

#include "abi/planted.h"
#include "plugins/codegen/kernel/rows.h"
#include "plugins/kit/error.h"

namespace keirin::cpu {
namespace {

std::atomic<int64_t> live_bytes{0};

struct Packs {
  std::mutex mutex;
  struct Known {
    dnnl::memory::desc plain;  // how the weight was read: a square one serves as itself and as its transpose
    std::weak_ptr<const PackedWeight> pack;
  };
  std::multimap<const void*, Known> by_address;
  size_t sweep_at = 256;

  // Addresses that nobody asks about again would stay.
  void sweep() {
    if (by_address.size() < sweep_at) return;
    std::erase_if(by_address, [](const auto& each) { return each.second.pack.expired(); });
    sweep_at = std::max<size_t>(256, 2 * by_address.size());
  }
};

Packs& packs() {
  static auto* all = new Packs;
  return *all;
}

constexpr uint64_t kAlign = 64;

uint64_t rounded(size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

}  // namespace

PackedWeight::PackedWeight(const dnnl::memory::desc& layout, const codegen::CompileContext& context) : layout_(layout) {
  const uint64_t bytes = rounded(layout.get_size());
  if (context.memory && context.memory->alloc && context.memory->free) {
    const krn_stream inline_stream{0, KRN_STREAM_KIND_NONE, 0};
    if (context.memory->alloc(context.host, &inline_stream, 1, 0, bytes, kAlign, &data_, nullptr) != KRN_STATUS_ok) {
      throw kit::Error(KRN_STATUS_exhausted, "the memory budget of the model has no room for packed weights; they stay as they are");
    }
    host_memory_ = context.memory;
    host_ = context.host;
  } else {
    data_ = std::aligned_alloc(kAlign, bytes);
    if (!data_) throw std::bad_alloc();
  }
  live_bytes += static_cast<int64_t>(bytes);
}

PackedWeight::~PackedWeight() {
  live_bytes -= static_cast<int64_t>(rounded(layout_.get_size()));
  if (host_memory_) {
    const krn_stream inline_stream{0, KRN_STREAM_KIND_NONE, 0};
    host_memory_->free(host_, &inline_stream, data_);
  } else {
    std::free(data_);
  }
}

ConstantView::ConstantView(uint32_t weight, const codegen::CompileContext& context) : context_(context), weight_(weight) {
  krn_tensor tensor{};
  if (!context.consts || !context.consts->open || weight == KRN_NONE_WEIGHT) return;
  if (context.consts->open(context.host, context.weights, weight, &tensor, nullptr) != KRN_STATUS_ok) return;
  data_ = tensor.data;
  bytes_ = tensor.storage_bytes;
}

ConstantView::~ConstantView() {
  if (data_ && context_.consts->close) context_.consts->close(context_.host, context_.weights, weight_);
}

std::shared_ptr<const PackedWeight> pack_weight(const codegen::TensorDesc& weight, const dnnl::memory::desc& plain,
                                                const dnnl::memory::desc& layout, const codegen::CompileContext& context) {
  const ConstantView values(weight.weight, context);
  if (!values.data()) return nullptr;
  const int64_t offset = weight.offset * codegen::dtype_bytes(weight.dtype);
  if (values.bytes() > 0 && static_cast<uint64_t>(offset) + plain.get_size() > values.bytes())
    throw kit::Error(KRN_STATUS_corrupt, "a constant is smaller than the region says; leave the node to eager");
  char* start = static_cast<char*>(values.data()) + offset;
  std::lock_guard lock(packs().mutex);
  auto [first, last] = packs().by_address.equal_range(start);
  for (auto it = first; it != last;) {
    std::shared_ptr<const PackedWeight> known = it->second.pack.lock();
    if (!known) {
      it = packs().by_address.erase(it);
      continue;
    }
    if (known->layout() == layout && (it->second.plain == plain || KRN_PLANTED(pack_of_transpose))) return known;
    ++it;
  }
  auto pack = std::make_shared<PackedWeight>(layout, context);
  dnnl::memory from(plain, vendor_engine(), start), to(layout, vendor_engine(), pack->data());
  dnnl::stream stream(vendor_engine());
  dnnl::reorder(from, to).execute(stream, from, to);
  stream.wait();
  packs().sweep();
  packs().by_address.emplace(start, Packs::Known{plain, pack});
  return pack;
}

int64_t packed_weight_bytes() { return live_bytes; }

}  // namespace keirin::cpu
