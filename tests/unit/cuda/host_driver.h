// SPDX-License-Identifier: Apache-2.0
//
// A host behind plugins/gpu's driver seam: text is compiled by the host's compiler and run on emulated blocks, memory
// is the host's, a stream does everything at once. It counts what is made, so that a test sees what is not given back.
#pragma once

#include <cstdlib>
#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "abi/plugin.h"
#include "plugins/gpu/device.h"
#include "plugins/kit/error.h"
#include "tests/unit/cuda/block_emulator.h"

namespace keirin::test {

// What plugins/gpu/text/rows.krn asks of a vendor, for one emulated block.
inline constexpr std::string_view kHostRows = R"(
#define KRN_APART static
KRN_FN int krn_up(int v, int d) { return krn_of_lane(v, KRN_THREAD % KRN_WAVE < d ? KRN_THREAD % KRN_WAVE : KRN_THREAD % KRN_WAVE - d); }
typedef unsigned long long KrnVotes;
KRN_FN KrnVotes krn_votes(bool x) {
  KrnVotes votes = 0;
  for (int lane = 0; lane < KRN_WAVE; ++lane) votes |= (KrnVotes)krn_of_lane(x, lane) << lane;
  return votes;
}
#define krn_count(votes) __builtin_popcountll(votes)
KRN_FN bool krn_sync_or(bool x) {
  KRN_SHARED bool any;
  krn_sync();
  if (KRN_THREAD == 0) any = false;
  krn_sync();
  if (x) any = true;
  krn_sync();
  return any;
}
template <class T> KRN_FN T krn_add_to(T* p, T v) { const T former = *p; *p += v; return former; }
template <class T> KRN_FN T krn_or_to(T* p, T v) { const T former = *p; *p |= v; return former; }
#define krn_fence()
#define krn_look(p) (*(volatile unsigned*)(p))
)";

class HostDriver : public gpu::Driver {
 public:
  struct Launched {
    std::string symbol;
    gpu::Launch launch;
    std::vector<void*> arguments;
  };
  // Counts, and what came last. Tests read them; one thread at a time.
  mutable int streams = 0, events = 0, retained = 0, permissions = 0, modules = 0;
  mutable std::set<void*> memory;
  mutable gpu::ContextHandle now = nullptr;
  mutable std::vector<Launched> launches;
  bool recording = false, lost = false, runs = true;
  gpu::Result refuses = 0;  // what every allocation answers

  const gpu::Words& words() const override {
    static const gpu::Words words{codegen::kHostDialect, ".cc", "", "", "", kHostRows};
    return words;
  }
  std::vector<char> compile(const std::string& text, const gpu::CodeTarget&) const override {
    return {text.begin(), text.end()};
  }
  std::string identity(const gpu::CodeTarget& target) const override {
    return "host " + target.arch + (target.contract ? "" : " strict");
  }
  bool usable(std::string&) const override { return true; }
  int32_t status_of(gpu::Result result) const override {
    return result == 0 ? KRN_STATUS_ok : result == 2 ? KRN_STATUS_exhausted : KRN_STATUS_internal;
  }
  std::string words_of(gpu::Result result) const override { return "host error " + std::to_string(result); }

  gpu::Result retain(int, gpu::ContextHandle& context) const override {
    ++retained;
    context = reinterpret_cast<gpu::ContextHandle>(const_cast<HostDriver*>(this));
    return 0;
  }
  void release(int) const override { --retained; }
  gpu::Result current(gpu::ContextHandle& context) const override { return context = now, 0; }
  gpu::Result make_current(gpu::ContextHandle context) const override { return now = context, 0; }

  gpu::Result load(const std::vector<char>& code, gpu::Module& module) const override {
    std::string error;
    auto made = std::make_unique<HostModule>(std::string(code.begin(), code.end()), error);
    if (!error.empty()) return 1;
    ++modules;
    return module = reinterpret_cast<gpu::Module>(made.release()), 0;  // as a store's modules: never unloaded
  }
  gpu::Result find(gpu::Module module, const std::string& symbol, gpu::Function& function) const override {
    return function = reinterpret_cast<gpu::Function>(new Found{reinterpret_cast<HostModule*>(module), symbol}), 0;
  }
  gpu::Result allow_shared(gpu::Function, int64_t) const override { return 0; }
  gpu::Result launch(const gpu::Launch& l, gpu::Stream, void** arguments) const override {
    const auto* found = reinterpret_cast<const Found*>(l.function);
    launches.push_back({found->symbol, l, {arguments, arguments + 2}});
    if (!runs) return 0;
    return found->module->launch(found->symbol, l.blocks, l.threads, arguments[0], arguments[1]).empty() ? 0 : 1;
  }

  gpu::Result allocate(size_t bytes, void*& out) const override {
    if (refuses) return refuses;
    memory.insert(out = std::malloc(bytes));
    return 0;
  }
  gpu::Result free(void* p) const override {
    if (memory.erase(p) == 0) return 1;
    std::free(p);
    return 0;
  }
  gpu::Result allocate_on(gpu::Stream, size_t bytes, void*& out) const override { return allocate(bytes, out); }
  gpu::Result free_on(gpu::Stream, void* p) const override { return free(p); }
  gpu::Result fill(gpu::Stream, void* p, unsigned char value, size_t bytes) const override {
    return std::memset(p, value, bytes), 0;
  }
  gpu::Result fill_words(gpu::Stream, void* p, uint32_t value, size_t words) const override {
    for (size_t i = 0; i < words; ++i) static_cast<uint32_t*>(p)[i] = value;
    return 0;
  }
  gpu::Result copy(gpu::Stream, void* to, const void* from, size_t bytes) const override {
    return std::memcpy(to, from, bytes), 0;
  }
  gpu::Result copy_out(gpu::Stream, void* to, const void* from, size_t bytes) const override {
    return std::memcpy(to, from, bytes), 0;
  }

  gpu::Result make_stream(gpu::Stream& stream) const override {
    ++streams;
    return stream = reinterpret_cast<gpu::Stream>(&streams), 0;
  }
  void end_stream(gpu::Stream) const override { --streams; }
  gpu::Result wait(gpu::Stream) const override { return 0; }
  gpu::Result is_recording(gpu::Stream, bool& out) const override { return out = recording, 0; }
  int permit_allocation() const override { return ++permissions, 7; }
  void restore_permission(int former) const override { permissions -= former == 7; }
  gpu::Result make_event(gpu::Event& event, bool) const override {
    ++events;
    return event = reinterpret_cast<gpu::Event>(&events), 0;
  }
  void end_event(gpu::Event) const override { --events; }
  gpu::Result record(gpu::Event, gpu::Stream) const override { return 0; }
  gpu::Result wait(gpu::Event) const override { return 0; }
  gpu::Result milliseconds(gpu::Event, gpu::Event, float& ms) const override { return ms = 0.25f, 0; }
  bool is_lost(gpu::Event) const override { return lost; }

 private:
  struct Found {
    HostModule* module;
    std::string symbol;
  };
};

inline gpu::Gpu host_gpu(const HostDriver& driver) {
  gpu::Gpu gpu;
  gpu.driver = &driver;
  gpu.name = "a host", gpu.arch = "host", gpu.fingerprint = "none";
  gpu.info.updates_rows = true;
  gpu.facts.num_units = 4;
  return gpu;
}

}  // namespace keirin::test
