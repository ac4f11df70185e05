// SPDX-License-Identifier: Apache-2.0
#include "core/host/call/host_tables.h"

#include <stdlib.h>
#include <string.h>

#include <algorithm>

#include "core/host/call/tensor_view.h"
#include "core/host/guard/thread_state.h"

namespace keirin {
namespace {

void append(krn_err* err, std::string_view text) {
  const size_t room = sizeof(err->text) - err->size;
  const size_t n = std::min(room, text.size());
  memcpy(err->text + err->size, text.data(), n);
  err->size += static_cast<uint32_t>(n);
}

std::string_view view_of_str(krn_str s) { return s.data ? std::string_view(s.data, s.size) : std::string_view(); }

// ---- krn.host.core

void KRN_CALL err_set(krn_err* err, krn_code code, krn_str text) {
  if (!err) return;
  err->code = code;
  err->size = 0;
  append(err, view_of_str(text));
}

void KRN_CALL err_attach(krn_err* err, krn_str key, krn_str value) {
  if (!err) return;
  append(err, " [");
  append(err, view_of_str(key));
  append(err, "=");
  append(err, view_of_str(value));
  append(err, "]");
}

void KRN_CALL log_text(krn_host* host, int32_t level, krn_str text) {
  if (!host || !host->log) return;
  try {
    host->log(level, host->plugin.empty() ? std::string(view_of_str(text)) : host->plugin + ": " + text_of(text));
  } catch (...) {  // a user's callback must not throw into a plugin
  }
}

void* KRN_CALL alloc_host(krn_host*, uint64_t size, uint64_t align) {
  align = std::max<uint64_t>(align, sizeof(void*));
  if (align & (align - 1)) return nullptr;
  if (size > UINT64_MAX - align) return nullptr;
  return ::aligned_alloc(align, std::max<uint64_t>((size + align - 1) / align * align, align));
}

void KRN_CALL free_host(krn_host*, void* p) { ::free(p); }

uint64_t KRN_CALL now_ns(krn_host*) { return host_now_ns(); }

uint32_t KRN_CALL cancelled(krn_host* host, uint64_t token) {
  if (!host || token == 0) return 0;
  const std::lock_guard guard(host->mutex);
  const auto at = host->tokens.find(token);
  if (at == host->tokens.end()) return 1;  // the call it belonged to is over
  if (at->second.flag && at->second.flag->load(std::memory_order_relaxed)) return 1;
  return at->second.deadline_ns != 0 && host_now_ns() > at->second.deadline_ns;
}

void KRN_CALL breadcrumb(krn_host* host, krn_str text) {
  if (!host) return;
  const size_t n = std::min<size_t>(sizeof(host->last_words) - 1, text.data ? text.size : 0);
  memcpy(host->last_words, text.data ? text.data : "", n);
  host->last_words[n] = 0;
}

constexpr krn_host_core kCore{{sizeof(krn_host_core), kTableMajor, 0}, err_set, err_attach, log_text,  alloc_host,
                              free_host,                               now_ns,  cancelled,  breadcrumb};

// ---- krn.host.consts

krn_code fail(krn_err* err, krn_code code, std::string_view text) {
  err_set(err, code, str_of(text));
  return code;
}

krn_code KRN_CALL open_const(krn_host* host, uint64_t set, uint32_t id, krn_tensor* out, krn_err* err) {
  if (!host || !out) return fail(err, KRN_STATUS_invalid_input, "krn.host.consts.open: no host or no place for the tensor");
  const std::lock_guard guard(host->mutex);
  const auto at = host->weights.find(set);
  if (at == host->weights.end())
    return fail(err, KRN_STATUS_invalid_input, "krn.host.consts.open: the handle is not one of a call in progress");
  const std::vector<TensorRef>& tensors = at->second.tensors;
  if (tensors.empty()) {
    host->weights_missed = true;
    return fail(err, KRN_STATUS_unsupported, "the values of the weights are not at hand in this process");
  }
  if (id >= tensors.size() || !tensors[id])
    return fail(err, KRN_STATUS_invalid_input, "krn.host.consts.open: the region has no weight of that id");
  *out = keirin::view_of(*tensors[id], KRN_TENSOR_READ_ONLY);
  return KRN_STATUS_ok;
}

void KRN_CALL close_const(krn_host*, uint64_t, uint32_t) {}  // the tensors are held by the model

constexpr krn_host_consts kConsts{{sizeof(krn_host_consts), kTableMajor, 0}, open_const, close_const};

// ---- krn.host.memory

krn_code KRN_CALL alloc_device(krn_host* host, const krn_stream*, int32_t device_type, int32_t device_id, uint64_t size,
                               uint64_t align, void** out, krn_err* err) {
  if (!host || !out) return fail(err, KRN_STATUS_invalid_input, "krn.host.memory.alloc: no host or no place for the address");
  if (device_type == Device::kCpu) {
    *out = alloc_host(host, size, std::max<uint64_t>(align, 64));
    return *out ? KRN_STATUS_ok : fail(err, KRN_STATUS_exhausted, "no memory left on the host");
  }
  if (!host->services) return fail(err, KRN_STATUS_unsupported, "this process has no device memory to give");
  if (align > 256) return fail(err, KRN_STATUS_unsupported, "device memory is aligned to 256 bytes at most");
  try {
    const TensorSpec spec{DType::k_u8, {static_cast<int64_t>(std::max<uint64_t>(size, 1))}, {}, {device_type, device_id}};
    Result<TensorRef> block = host->services->allocate(spec);
    if (!block.ok()) return fail(err, KRN_STATUS_exhausted, block.status().text());
    void* const address = (*block)->data();
    const std::lock_guard guard(host->mutex);
    host->device_bytes += (*block)->storage_bytes();
    host->device_blocks.emplace(address, std::move(*block));
    *out = address;
    return KRN_STATUS_ok;
  } catch (...) {
    return fail(err, KRN_STATUS_exhausted, "the host ran out of memory while it allocated for the device");
  }
}

void KRN_CALL free_device(krn_host* host, const krn_stream*, void* p) {
  if (!host || !p) return;
  TensorRef block;  // released outside the lock: its destructor is LibTorch's
  {
    const std::lock_guard guard(host->mutex);
    const auto at = host->device_blocks.find(p);
    if (at != host->device_blocks.end()) {
      block = std::move(at->second);
      host->device_blocks.erase(at);
    }
  }
  if (!block) return ::free(p);  // it was host memory
  host->device_bytes -= block->storage_bytes();
}

constexpr krn_host_memory kMemory{{sizeof(krn_host_memory), kTableMajor, 0}, alloc_device, free_device};

// ---- krn.host.threads

int32_t KRN_CALL num_threads(krn_host* host) {
  return host && host->services ? std::max(1, host->services->num_threads()) : 1;
}

// Numbers the threads that are inside one parallel_for: LibTorch tells slices apart, plugins want scratch per thread. As many
// slices run at once as there are threads, so a free number below that is always found.
class ThreadNumbers {
 public:
  int take() {
    for (int word = 0;; word = (word + 1) % kWords) {
      uint64_t used = used_[word].load(std::memory_order_relaxed);
      while (~used) {
        const int bit = __builtin_ctzll(~used);
        if (used_[word].compare_exchange_weak(used, used | 1ull << bit, std::memory_order_acquire)) return word * 64 + bit;
      }
    }
  }
  void give(int number) { used_[number / 64].fetch_and(~(1ull << number % 64), std::memory_order_release); }

 private:
  static constexpr int kWords = 16;
  std::atomic<uint64_t> used_[kWords] = {};
};

struct ParallelCall {
  void(KRN_CALL* fn)(void*, int64_t, int64_t, int32_t);
  void* ctx;
  krn_host* host;
  ThreadNumbers numbers;
};

void KRN_CALL parallel_for(krn_host* host, int64_t n, int64_t grain, void(KRN_CALL* fn)(void*, int64_t, int64_t, int32_t),
                           void* ctx) {
  if (n <= 0) return;
  grain = std::max<int64_t>(grain, 1);
  if (!host || !host->services || n <= grain) return fn(ctx, 0, n, 0);
  ParallelCall call{fn, ctx, host, {}};
  ParallelCall* const at = &call;  // one pointer fits into std::function without allocating
  host->services->parallel_for(n, grain, [at](int64_t begin, int64_t end) {
    const int number = at->numbers.take();
    const FloatMode mode;  // the pool's threads serve eager calls too
    at->fn(at->ctx, begin, end, number);
    if (mode.restore()) at->host->slices_strayed.fetch_add(1, std::memory_order_relaxed);
    at->numbers.give(number);
  });
}

constexpr krn_host_threads kThreads{{sizeof(krn_host_threads), kTableMajor, 0}, parallel_for, num_threads};

}  // namespace

const krn_table* KRN_CALL host_table(krn_host* host, const char* name, uint32_t major) {
  if (!name || major != kTableMajor) return nullptr;
  const std::string_view n(name);
  if (n == "krn.host.core") return &kCore.table;
  if (n == "krn.host.consts") return &kConsts.table;
  if (n == "krn.host.memory") return host && host->services ? &kMemory.table : nullptr;
  if (n == "krn.host.threads") return &kThreads.table;
  return nullptr;
}

uint64_t host_now_ns() {
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count());
}

uint32_t sanitizer_kind() {
#if defined(__SANITIZE_ADDRESS__)
  return 1;
#elif defined(__SANITIZE_THREAD__)
  return 2;
#else
  return 0;
#endif
}

krn_offer make_offer(krn_host* host, uint32_t role) {
  static const std::string version = std::to_string(KRN_ABI_MAJOR) + "." + std::to_string(KRN_ABI_MINOR);
  krn_offer offer = make_struct<krn_offer>();
  offer.abi_major_min = offer.abi_major_max = KRN_ABI_MAJOR;
  offer.abi_minor_min = offer.abi_minor_max = KRN_ABI_MINOR;
  offer.role = role;
  offer.sanitizer = sanitizer_kind();
  offer.host = host;
  offer.host_version = str_of(version);
  offer.host_build_id = str_of("keirin");
  offer.get_table = host_table;
  return offer;
}

Status status_of(krn_code code, const krn_err& err, std::string where) {
  if (code == KRN_STATUS_ok) return {};
  const bool known = code > KRN_STATUS_ok && code <= KRN_STATUS_internal;
  std::string what(err.text, err.size);
  if (what.empty()) what = "the plugin gave no reason";
  if (!known) what += " (it returned the unknown code " + std::to_string(code) + ")";
  return Status(known ? static_cast<Code>(code) : Code::k_internal, Message{std::move(what), std::move(where), {}, {}});
}

std::vector<krn_hw> hardware_views(const std::vector<HardwareItem>& items) {
  std::vector<krn_hw> views;
  for (const HardwareItem& item : items) {
    krn_hw hw = make_struct<krn_hw>();
    hw.uid = str_of(item.uid);
    hw.vendor_id = item.vendor_id;
    hw.device_id = item.device_id;
    hw.torch_type = item.torch_device ? item.torch_device->kind : -1;
    hw.torch_index = item.torch_device ? item.torch_device->index : -1;
    hw.driver = str_of(item.driver);
    std::copy(item.cpu_features.begin(), item.cpu_features.end(), hw.cpu_features);
    views.push_back(hw);
  }
  return views;
}

CallScope::CallScope(krn_host* host, const std::vector<TensorRef>& weights, const std::atomic<bool>* cancel,
                     uint64_t deadline_ns)
    : host_(host) {
  const std::lock_guard guard(host_->mutex);
  weights_ = host_->next_handle++;
  host_->weights[weights_].tensors = weights;
  if (cancel || deadline_ns) {
    token_ = host_->next_handle++;
    host_->tokens[token_] = {cancel, deadline_ns};
  }
}

CallScope::~CallScope() {
  const std::lock_guard guard(host_->mutex);
  host_->weights.erase(weights_);
  host_->tokens.erase(token_);
}

}  // namespace keirin
