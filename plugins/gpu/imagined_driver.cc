// SPDX-License-Identifier: Apache-2.0
#include "plugins/gpu/imagined_driver.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>

#include "abi/plugin.h"

namespace keirin::gpu {
namespace {

constexpr Result kRefused = 1, kNoMemory = 2;
constexpr size_t kAlign = 256;

// Handles of what is kept nowhere.
template <class Handle>
Handle of_nothing() {
  static char nothing;
  return reinterpret_cast<Handle>(&nothing);
}

class ImaginedDriver final : public Driver {
 public:
  explicit ImaginedDriver(const Driver& vendor) : vendor_(vendor) {}

  const Words& words() const override { return vendor_.words(); }
  std::vector<char> compile(const std::string& text, const CodeTarget& target) const override { return vendor_.compile(text, target); }
  std::string identity(const CodeTarget& target) const override { return vendor_.identity(target); }
  int64_t spilled(const std::vector<char>& code) const override { return vendor_.spilled(code); }
  bool usable(std::string&) const override { return true; }
  int32_t status_of(Result result) const override {
    return result == 0 ? KRN_STATUS_ok : result == kNoMemory ? KRN_STATUS_exhausted : KRN_STATUS_internal;
  }
  std::string words_of(Result) const override { return "refused by a device that is not there"; }

  Result retain(int, ContextHandle& context) const override { return context = of_nothing<ContextHandle>(), 0; }
  void release(int) const override {}
  Result current(ContextHandle& context) const override { return context = of_nothing<ContextHandle>(), 0; }
  Result make_current(ContextHandle) const override { return 0; }
  Result load(const std::vector<char>&, Module& module) const override { return module = of_nothing<Module>(), 0; }
  Result find(Module, const std::string&, Function& function) const override { return function = of_nothing<Function>(), 0; }
  Result allow_shared(Function, int64_t) const override { return 0; }
  Result launch(const Launch& l, Stream, void**) const override { return l.blocks > 0 && l.threads > 0 ? 0 : kRefused; }

  Result allocate(size_t bytes, void*& memory) const override {
    memory = std::aligned_alloc(kAlign, std::max<size_t>(1, (bytes + kAlign - 1) / kAlign) * kAlign);
    return memory ? 0 : kNoMemory;
  }
  Result free(void* memory) const override { return std::free(memory), 0; }
  Result allocate_on(Stream, size_t bytes, void*& memory) const override { return allocate(bytes, memory); }
  Result free_on(Stream, void* memory) const override { return free(memory); }
  Result fill(Stream, void* memory, unsigned char value, size_t bytes) const override { return std::memset(memory, value, bytes), 0; }
  Result fill_words(Stream, void* memory, uint32_t value, size_t words) const override {
    return std::fill_n(static_cast<uint32_t*>(memory), words, value), 0;
  }
  Result copy(Stream, void* to, const void* from, size_t bytes) const override { return std::memcpy(to, from, bytes), 0; }
  Result copy_out(Stream, void* to, const void* from, size_t bytes) const override { return std::memcpy(to, from, bytes), 0; }

  Result make_stream(Stream& stream) const override { return stream = of_nothing<Stream>(), 0; }
  void end_stream(Stream) const override {}
  Result wait(Stream) const override { return 0; }
  Result is_recording(Stream, bool& recording) const override { return recording = false, 0; }
  int permit_allocation() const override { return 0; }
  void restore_permission(int) const override {}
  Result make_event(Event& event, bool) const override { return event = of_nothing<Event>(), 0; }
  void end_event(Event) const override {}
  Result record(Event, Stream) const override { return 0; }
  Result wait(Event) const override { return 0; }
  Result milliseconds(Event, Event, float& ms) const override { return ms = 0, kRefused; }  // nothing can be timed
  bool is_lost(Event) const override { return false; }

 private:
  const Driver& vendor_;
};

}  // namespace

const Driver& imagine_driver(const Driver& vendor) {
  static std::mutex mutex;
  static auto* made = new std::map<const Driver*, std::unique_ptr<const Driver>>;
  const std::lock_guard lock(mutex);
  std::unique_ptr<const Driver>& driver = (*made)[&vendor];
  if (!driver) driver = std::make_unique<ImaginedDriver>(vendor);
  return *driver;
}

}  // namespace keirin::gpu
