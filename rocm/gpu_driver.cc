// SPDX-License-Identifier: Apache-2.0
//
// The functions of the seam by their names in HIP, and what a launch is there.
#include "rocm/gpu_driver.h"

#include "abi/plugin.h"
#include "plugins/gpu/table_driver.h"
#include "rocm/driver.h"
#include "rocm/hiprtc.h"
#include "rocm/text.h"

namespace keirin::rocm {
namespace {

using gpu::Function;
using gpu::Result;
using gpu::Stream;

HipStream native(Stream s) { return reinterpret_cast<HipStream>(s); }

struct Calls {
  using Table = DriverApi;
  static constexpr auto retain = &DriverApi::hipDevicePrimaryCtxRetain;
  static constexpr auto release = &DriverApi::hipDevicePrimaryCtxRelease;
  static constexpr auto current = &DriverApi::hipCtxGetCurrent;
  static constexpr auto make_current = &DriverApi::hipCtxSetCurrent;
  static constexpr auto load = &DriverApi::hipModuleLoadData;
  static constexpr auto find = &DriverApi::hipModuleGetFunction;
  static constexpr auto allocate = &DriverApi::hipMalloc;
  static constexpr auto free = &DriverApi::hipFree;
  static constexpr auto allocate_on = &DriverApi::hipMallocAsync;
  static constexpr auto free_on = &DriverApi::hipFreeAsync;
  static constexpr auto fill = &DriverApi::hipMemsetD8Async;
  static constexpr auto fill_words = &DriverApi::hipMemsetD32Async;
  static constexpr auto copy = &DriverApi::hipMemcpyDtoDAsync;
  static constexpr auto copy_out = &DriverApi::hipMemcpyDtoHAsync;
  static constexpr auto make_stream = &DriverApi::hipStreamCreateWithFlags;
  static constexpr auto end_stream = &DriverApi::hipStreamDestroy;
  static constexpr auto wait_stream = &DriverApi::hipStreamSynchronize;
  static constexpr auto is_capturing = &DriverApi::hipStreamIsCapturing;
  static constexpr auto exchange_mode = &DriverApi::hipThreadExchangeStreamCaptureMode;
  static constexpr auto make_event = &DriverApi::hipEventCreateWithFlags;
  static constexpr auto end_event = &DriverApi::hipEventDestroy;
  static constexpr auto record = &DriverApi::hipEventRecord;
  static constexpr auto wait_event = &DriverApi::hipEventSynchronize;
  static constexpr auto elapsed = &DriverApi::hipEventElapsedTime;
  static constexpr auto query = &DriverApi::hipEventQuery;
  static constexpr int kStreamOfItsOwn = kStreamNonBlocking, kUntimed = kEventDisableTiming;
  static constexpr int kNotCapturing = rocm::kNotCapturing, kRelaxed = rocm::kRelaxed, kNotReady = rocm::kNotReady;
};

class HipDriver final : public gpu::TableDriver<Calls> {
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

 private:
  const gpu::Words words_;
};

}  // namespace

const gpu::Driver& gpu_driver(int wave) {
  static const auto *narrow = new HipDriver(32), *wide = new HipDriver(64);
  return wave == 64 ? *wide : *narrow;
}

}  // namespace keirin::rocm
