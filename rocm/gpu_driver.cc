// SPDX-License-Identifier: Apache-2.0
//
// One call of HIP for each function of the seam.
#include "rocm/gpu_driver.h"

#include "abi/plugin.h"
#include "rocm/driver.h"
#include "rocm/hiprtc.h"
#include "rocm/text.h"

namespace keirin::rocm {
namespace {

using gpu::Event;
using gpu::Function;
using gpu::Result;
using gpu::Stream;

HipStream native(Stream s) { return reinterpret_cast<HipStream>(s); }
HipEvent native(Event e) { return reinterpret_cast<HipEvent>(e); }

// Looked up once: launches come through here. Without a library a table of nothing, which nobody calls (`usable`).
const DriverApi& api() {
  static const DriverApi none;
  static const DriverApi& table = [&]() -> const DriverApi& {
    std::string ignored;
    const DriverApi* found = DriverApi::get(ignored);
    return found ? *found : none;
  }();
  return table;
}

class HipDriver final : public gpu::Driver {
 public:
  explicit HipDriver(int wave) : words_{{"hip", wave, text::prelude}, ".hip", "", "", "", text::rows} {}

  const gpu::Words& words() const override { return words_; }
  std::vector<char> compile(const std::string& text, const gpu::CodeTarget& target) const override {
    return compile_object(text, target);
  }
  std::string identity(const gpu::CodeTarget& target) const override { return hiprtc_identity(target); }

  bool usable(std::string& why_not) const override { return DriverApi::with_device(why_not) != nullptr; }
  int32_t status_of(Result result) const override { return code_of(result); }
  std::string words_of(Result result) const override {
    const char* words = api().hipGetErrorString(result);
    return words ? words : "unknown error";
  }

  Result retain(int device, gpu::ContextHandle& context) const override {
    return api().hipDevicePrimaryCtxRetain(reinterpret_cast<HipContext*>(&context), device);
  }
  void release(int device) const override { api().hipDevicePrimaryCtxRelease(device); }
  Result current(gpu::ContextHandle& context) const override {
    return api().hipCtxGetCurrent(reinterpret_cast<HipContext*>(&context));
  }
  Result make_current(gpu::ContextHandle context) const override {
    return api().hipCtxSetCurrent(reinterpret_cast<HipContext>(context));
  }

  Result load(const std::vector<char>& code, gpu::Module& module) const override {
    return api().hipModuleLoadData(reinterpret_cast<HipModule*>(&module), code.data());
  }
  Result find(gpu::Module module, const std::string& symbol, Function& function) const override {
    return api().hipModuleGetFunction(reinterpret_cast<HipFunction*>(&function), reinterpret_cast<HipModule>(module),
                                      symbol.c_str());
  }
  // A block may have all that there is without asking.
  Result allow_shared(Function, int64_t) const override { return kSuccess; }
  Result launch(const gpu::Launch& l, Stream stream, void** arguments) const override {
    const auto function = reinterpret_cast<HipFunction>(l.function);
    const auto blocks = static_cast<unsigned>(l.blocks), threads = static_cast<unsigned>(l.threads),
               shared = static_cast<unsigned>(l.shared_bytes);
    if (!l.together)
      return api().hipModuleLaunchKernel(function, blocks, 1, 1, threads, 1, 1, shared, native(stream), arguments,
                                         nullptr);
    if (!api().hipModuleLaunchCooperativeKernel) return kNotSupported;
    return api().hipModuleLaunchCooperativeKernel(function, blocks, 1, 1, threads, 1, 1, shared, native(stream),
                                                  arguments);
  }

  Result allocate(size_t bytes, void*& memory) const override { return api().hipMalloc(&memory, bytes); }
  Result free(void* memory) const override { return api().hipFree(memory); }
  Result allocate_on(Stream stream, size_t bytes, void*& memory) const override {
    return api().hipMallocAsync(&memory, bytes, native(stream));
  }
  Result free_on(Stream stream, void* memory) const override { return api().hipFreeAsync(memory, native(stream)); }
  Result fill(Stream stream, void* memory, unsigned char value, size_t bytes) const override {
    return api().hipMemsetD8Async(memory, value, bytes, native(stream));
  }
  Result fill_words(Stream stream, void* memory, uint32_t value, size_t words) const override {
    return api().hipMemsetD32Async(memory, static_cast<int>(value), words, native(stream));
  }
  Result copy(Stream stream, void* to, const void* from, size_t bytes) const override {
    return api().hipMemcpyDtoDAsync(to, const_cast<void*>(from), bytes, native(stream));
  }
  Result copy_out(Stream stream, void* to, const void* from, size_t bytes) const override {
    return api().hipMemcpyDtoHAsync(to, const_cast<void*>(from), bytes, native(stream));
  }

  Result make_stream(Stream& stream) const override {
    return api().hipStreamCreateWithFlags(reinterpret_cast<HipStream*>(&stream), kStreamNonBlocking);
  }
  void end_stream(Stream stream) const override { api().hipStreamDestroy(native(stream)); }
  Result wait(Stream stream) const override { return api().hipStreamSynchronize(native(stream)); }
  Result is_recording(Stream stream, bool& recording) const override {
    int capture = kNotCapturing;
    const Result result = api().hipStreamIsCapturing(native(stream), &capture);
    recording = capture != kNotCapturing;
    return result;
  }
  int permit_allocation() const override {
    int mode = kRelaxed;  // then the mode before
    api().hipThreadExchangeStreamCaptureMode(&mode);
    return mode;
  }
  void restore_permission(int former) const override { api().hipThreadExchangeStreamCaptureMode(&former); }

  Result make_event(Event& event, bool timed) const override {
    return api().hipEventCreateWithFlags(reinterpret_cast<HipEvent*>(&event),
                                         timed ? 0u : unsigned{kEventDisableTiming});
  }
  void end_event(Event event) const override { api().hipEventDestroy(native(event)); }
  Result record(Event event, Stream stream) const override {
    return api().hipEventRecord(native(event), native(stream));
  }
  Result wait(Event event) const override { return api().hipEventSynchronize(native(event)); }
  Result milliseconds(Event start, Event stop, float& ms) const override {
    return api().hipEventElapsedTime(&ms, native(start), native(stop));
  }
  bool is_lost(Event probe) const override {
    const int result = api().hipEventQuery(native(probe));
    return result != kSuccess && result != kNotReady;
  }

 private:
  const gpu::Words words_;
};

}  // namespace

const gpu::Driver& gpu_driver(int wave) {
  static const auto *narrow = new HipDriver(32), *wide = new HipDriver(64);
  return wave == 64 ? *wide : *narrow;
}

}  // namespace keirin::rocm
