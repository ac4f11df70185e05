// SPDX-License-Identifier: Apache-2.0
//
// The functions of the seam by their names in HIP, and what a launch is there.
#include "rocm/gpu_driver.h"

#include <algorithm>
#include <string_view>

#include "abi/plugin.h"
#include "plugins/gpu/table_driver.h"
#include "rocm/clang.h"
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
  KRN_SEAM(retain, hipDevicePrimaryCtxRetain) KRN_SEAM(release, hipDevicePrimaryCtxRelease)
  KRN_SEAM(current, hipCtxGetCurrent) KRN_SEAM(make_current, hipCtxSetCurrent) KRN_SEAM(load, hipModuleLoadData)
  KRN_SEAM(find, hipModuleGetFunction) KRN_SEAM(allocate, hipMalloc) KRN_SEAM(free, hipFree)
  KRN_SEAM(allocate_on, hipMallocAsync) KRN_SEAM(free_on, hipFreeAsync) KRN_SEAM(fill, hipMemsetD8Async)
  KRN_SEAM(fill_words, hipMemsetD32Async) KRN_SEAM(copy, hipMemcpyDtoDAsync) KRN_SEAM(copy_out, hipMemcpyDtoHAsync)
  KRN_SEAM(make_stream, hipStreamCreateWithFlags) KRN_SEAM(end_stream, hipStreamDestroy)
  KRN_SEAM(wait_stream, hipStreamSynchronize) KRN_SEAM(is_capturing, hipStreamIsCapturing)
  KRN_SEAM(exchange_mode, hipThreadExchangeStreamCaptureMode) KRN_SEAM(make_event, hipEventCreateWithFlags)
  KRN_SEAM(end_event, hipEventDestroy) KRN_SEAM(record, hipEventRecord) KRN_SEAM(wait_event, hipEventSynchronize)
  KRN_SEAM(elapsed, hipEventElapsedTime) KRN_SEAM(query, hipEventQuery)
  static constexpr int kStreamOfItsOwn = kStreamNonBlocking, kUntimed = kEventDisableTiming;
  static constexpr int kNotCapturing = rocm::kNotCapturing, kRelaxed = rocm::kRelaxed, kNotReady = rocm::kNotReady;
};

class HipDriver : public gpu::TableDriver<Calls> {
 public:
  explicit HipDriver(int wave) : words_{{"hip", wave, text::prelude}, ".hip", "", text::recur, "", text::rows} {}

  const gpu::Words& words() const override { return words_; }
  std::vector<char> compile(const std::string& text, const gpu::CodeTarget& target) const override {
    return compile_object(text, target);
  }
  std::string identity(const gpu::CodeTarget& target) const override { return hiprtc_identity(target); }
  int64_t spilled(const std::vector<char>& code) const override { return spilled_registers(code); }

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

class ClangDriver final : public HipDriver {
 public:
  using HipDriver::HipDriver;
  std::vector<char> compile(const std::string& text, const gpu::CodeTarget& target) const override {
    return compile_by_clang(text, target);
  }
  std::string identity(const gpu::CodeTarget& target) const override { return "clang " + HipDriver::identity(target); }
};

template <class D>
const gpu::Driver& of_wave(int wave) {
  static const auto *narrow = new D(32), *wide = new D(64);
  return wave == 64 ? *wide : *narrow;
}

}  // namespace

// The notes are MessagePack: a string's bytes, then its value, which is a whole number of up to 32 bits here.
int64_t spilled_registers(const std::vector<char>& code) {
  static constexpr std::string_view kKey = ".vgpr_spill_count";
  const std::string_view bytes(code.data(), code.size());
  int64_t sum = -1;
  for (size_t at = bytes.find(kKey); at != std::string_view::npos; at = bytes.find(kKey, at + 1)) {
    const auto byte = [&](size_t i) -> int64_t {
      const size_t where = at + kKey.size() + i;
      return where < bytes.size() ? static_cast<unsigned char>(bytes[where]) : -1;
    };
    const int64_t head = byte(0);
    const size_t more = head == 0xcc ? 1 : head == 0xcd ? 2 : head == 0xce ? 4 : 0;
    if (head < 0 || (more == 0 && head >= 0x80) || byte(more) < 0) continue;
    int64_t value = more == 0 ? head : 0;
    for (size_t i = 1; i <= more; ++i) value = value << 8 | byte(i);
    sum = std::max<int64_t>(sum, 0) + value;
  }
  return sum;
}

const gpu::Driver& gpu_driver(int wave) { return of_wave<HipDriver>(wave); }
const gpu::Driver& clang_driver(int wave) { return of_wave<ClangDriver>(wave); }

}  // namespace keirin::rocm
