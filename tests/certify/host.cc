// SPDX-License-Identifier: Apache-2.0
#include "tests/certify/host.h"

#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "tests/certify/check.h"
#include "tests/certify/gpu.h"

namespace keirin::certify {
namespace {

TrialHost& of(krn_host* host) { return *reinterpret_cast<TrialHost*>(host); }

void KRN_CALL err_set(krn_err* err, krn_code code, krn_str text) {
  if (!err) return;
  err->code = code;
  err->size = static_cast<uint32_t>(std::min<uint64_t>(text.size, sizeof(err->text)));
  memcpy(err->text, text.data ? text.data : "", text.data ? err->size : 0);
}
void KRN_CALL err_attach(krn_err*, krn_str, krn_str) {}
void KRN_CALL log_text(krn_host*, int32_t, krn_str) {}

void* allocate(TrialHost& host, uint64_t size, uint64_t align) {
  const int64_t number = host.allocations++;
  if (host.fails_at >= 0 && number >= host.fails_at) return nullptr;
  align = std::max<uint64_t>(align, sizeof(void*));
  if ((align & (align - 1)) || size > UINT64_MAX - align) return nullptr;
  void* const p = ::aligned_alloc(align, std::max<uint64_t>((size + align - 1) / align * align, align));
  host.live += p != nullptr;
  return p;
}

void* KRN_CALL alloc(krn_host* host, uint64_t size, uint64_t align) { return allocate(of(host), size, align); }
void KRN_CALL release(krn_host* host, void* p) {
  of(host).live -= p != nullptr;
  ::free(p);
}
uint64_t KRN_CALL now_ns(krn_host*) { return host_now_ns(); }
uint32_t KRN_CALL cancelled(krn_host* host, uint64_t) { return of(host).cancels; }
void KRN_CALL breadcrumb(krn_host*, krn_str) {}

krn_code KRN_CALL open_weight(krn_host* host, uint64_t, uint32_t id, krn_tensor* out, krn_err* err) {
  const auto at = of(host).weights.find(id);
  if (at == of(host).weights.end()) {
    err_set(err, KRN_STATUS_unsupported, str_of("the values of the weights are not at hand in this process"));
    return KRN_STATUS_unsupported;
  }
  ++of(host).weights_open;
  *out = at->second;
  return KRN_STATUS_ok;
}
void KRN_CALL close_weight(krn_host* host, uint64_t, uint32_t) { --of(host).weights_open; }

// What was allocated on the GPU and not given back, by address. Memory of the host is not kept here.
std::mutex g_mutex;
std::map<void*, Gpu::Block> g_blocks;

void* allocate_on_gpu(TrialHost& host, uint64_t size) {
  const int64_t number = host.allocations++;
  if (host.fails_at >= 0 && number >= host.fails_at) return nullptr;
  try {
    Gpu::Block block = Gpu::here()->allocate(size);
    const std::lock_guard lock(g_mutex);
    ++host.live;
    void* const data = block.data();
    g_blocks.emplace(data, std::move(block));
    return data;
  } catch (const Failed&) {
    return nullptr;
  }
}

krn_code KRN_CALL alloc_device(krn_host* host, const krn_stream*, int32_t type, int32_t, uint64_t size, uint64_t align, void** out,
                               krn_err* err) {
  ++of(host).device_allocations;
  const bool on_gpu = Gpu::here() && type == Gpu::here()->type();  // aligned to 256
  if (void* const p = on_gpu ? allocate_on_gpu(of(host), size) : allocate(of(host), size, std::max<uint64_t>(align, 64))) {
    *out = p;
    return KRN_STATUS_ok;
  }
  err_set(err, KRN_STATUS_exhausted, str_of("no memory left"));
  return KRN_STATUS_exhausted;
}
void KRN_CALL free_device(krn_host* host, const krn_stream*, void* p) {
  {
    const std::lock_guard lock(g_mutex);
    if (const auto at = g_blocks.find(p); at != g_blocks.end()) return --of(host).live, static_cast<void>(g_blocks.erase(at));
  }
  release(host, p);
}

void KRN_CALL parallel_for(krn_host* host, int64_t n, int64_t grain, TrialHost::Slice fn, void* ctx) {
  if (n <= 0) return;
  if (of(host).slices) return of(host).slices(n, grain, fn, ctx);
  const int64_t half = n / 2 >= std::max<int64_t>(grain, 1) ? n / 2 : n;
  fn(ctx, 0, half, 0);
  if (half < n) fn(ctx, half, n, 0);
}
int32_t KRN_CALL num_threads(krn_host*) { return 2; }

constexpr krn_host_core kCore{{sizeof(krn_host_core), 1, 0}, err_set, err_attach, log_text, alloc, release, now_ns, cancelled, breadcrumb};
constexpr krn_host_consts kConsts{{sizeof(krn_host_consts), 1, 0}, open_weight, close_weight};
constexpr krn_host_memory kMemory{{sizeof(krn_host_memory), 1, 0}, alloc_device, free_device};
constexpr krn_host_threads kThreads{{sizeof(krn_host_threads), 1, 0}, parallel_for, num_threads};

const krn_table* KRN_CALL get_table(krn_host* host, const char* name, uint32_t major) {
  if (major != 1 || of(host).missing.count(name)) return nullptr;
  if (!strcmp(name, "krn.host.core")) return of(host).core;
  if (!strcmp(name, "krn.host.consts")) return &kConsts.table;
  if (!strcmp(name, "krn.host.memory")) return &kMemory.table;
  if (!strcmp(name, "krn.host.threads")) return &kThreads.table;
  return nullptr;
}

}  // namespace

TrialHost::TrialHost() : core(&kCore.table) {}

krn_offer TrialHost::offer(uint32_t role) {
  krn_offer out{};
  out.hdr.size = sizeof(out);
  out.abi_major_min = out.abi_major_max = KRN_ABI_MAJOR;
  out.abi_minor_min = out.abi_minor_max = KRN_ABI_MINOR;
  out.role = role;
  out.sanitizer = sanitizer_kind();
  out.host = handle();
  out.host_version = str_of(KEIRIN_VERSION);
  out.host_build_id = str_of("certify");
  out.get_table = get_table;
  return out;
}

}  // namespace keirin::certify
