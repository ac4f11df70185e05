// SPDX-License-Identifier: Apache-2.0
//
// The functions of the seam by their names in the driver, and how a launch states its attributes.
#include "cuda/gpu_driver.h"

#include "abi/plugin.h"
#include "cuda/driver.h"
#include "cuda/nvrtc.h"
#include "cuda/text.h"
#include "plugins/gpu/table_driver.h"

namespace keirin::cuda {
namespace {

using gpu::Function;
using gpu::Result;
using gpu::Stream;

CUstream native(Stream s) { return reinterpret_cast<CUstream>(s); }
CUfunction native(Function f) { return reinterpret_cast<CUfunction>(f); }

struct Calls {
  using Table = DriverApi;
  KRN_SEAM(retain, cuDevicePrimaryCtxRetain) KRN_SEAM(release, cuDevicePrimaryCtxRelease)
  KRN_SEAM(current, cuCtxGetCurrent) KRN_SEAM(make_current, cuCtxSetCurrent) KRN_SEAM(load, cuModuleLoadData)
  KRN_SEAM(find, cuModuleGetFunction) KRN_SEAM(allocate, cuMemAlloc) KRN_SEAM(free, cuMemFree)
  KRN_SEAM(allocate_on, cuMemAllocAsync) KRN_SEAM(free_on, cuMemFreeAsync) KRN_SEAM(fill, cuMemsetD8Async)
  KRN_SEAM(fill_words, cuMemsetD32Async) KRN_SEAM(copy, cuMemcpyDtoDAsync) KRN_SEAM(copy_out, cuMemcpyDtoHAsync)
  KRN_SEAM(make_stream, cuStreamCreate) KRN_SEAM(end_stream, cuStreamDestroy) KRN_SEAM(wait_stream, cuStreamSynchronize)
  KRN_SEAM(is_capturing, cuStreamIsCapturing) KRN_SEAM(exchange_mode, cuThreadExchangeStreamCaptureMode)
  KRN_SEAM(make_event, cuEventCreate) KRN_SEAM(end_event, cuEventDestroy) KRN_SEAM(record, cuEventRecord)
  KRN_SEAM(wait_event, cuEventSynchronize) KRN_SEAM(elapsed, cuEventElapsedTime) KRN_SEAM(query, cuEventQuery)
  static constexpr int kStreamOfItsOwn = CU_STREAM_NON_BLOCKING, kUntimed = CU_EVENT_DISABLE_TIMING;
  static constexpr int kNotCapturing = CU_STREAM_CAPTURE_STATUS_NONE, kRelaxed = CU_STREAM_CAPTURE_MODE_RELAXED;
  static constexpr int kNotReady = CUDA_ERROR_NOT_READY;
};

class CudaDriver final : public gpu::TableDriver<Calls> {
 public:
  const gpu::Words& words() const override {
    static const gpu::Words words{
        {"cuda", 32, text::prelude}, ".cu", text::stream, text::recur, text::tiles, text::rows};
    return words;
  }
  std::vector<char> compile(const std::string& text, const gpu::CodeTarget& target) const override {
    return compile_cubin(text, target);
  }
  std::string identity(const gpu::CodeTarget& target) const override { return nvrtc_identity(target); }

  bool usable(std::string& why_not) const override { return DriverApi::get(why_not) != nullptr; }
  int32_t status_of(Result result) const override { return code_of(static_cast<CUresult>(result)); }
  std::string words_of(Result result) const override {
    const char* words = nullptr;
    api().cuGetErrorString(static_cast<CUresult>(result), &words);
    return words ? words : "unknown error";
  }

  // More than the 48 KB that every kernel may have must be asked for.
  Result allow_shared(Function function, int64_t bytes) const override {
    return api().cuFuncSetAttribute(native(function), CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                    static_cast<int>(bytes));
  }
  Result launch(const gpu::Launch& l, Stream stream, void** arguments) const override {
    const auto blocks = static_cast<unsigned>(l.blocks), threads = static_cast<unsigned>(l.threads),
               shared = static_cast<unsigned>(l.shared_bytes);
    if (!l.together && !l.early)
      return api().cuLaunchKernel(native(l.function), blocks, 1, 1, threads, 1, 1, shared, native(stream), arguments,
                                  nullptr);
    CUlaunchAttribute attribute{};
    CUlaunchConfig config{};
    config.attrs = &attribute;
    config.numAttrs = 1;
    if (l.together) {
      attribute.id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
      attribute.value.cooperative = 1;
    } else {
      attribute.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
      attribute.value.programmaticStreamSerializationAllowed = 1;
    }
    config.gridDimX = blocks, config.gridDimY = config.gridDimZ = 1;
    config.blockDimX = threads, config.blockDimY = config.blockDimZ = 1;
    config.sharedMemBytes = shared;
    config.hStream = native(stream);
    return api().cuLaunchKernelEx(&config, native(l.function), arguments, nullptr);
  }
};

}  // namespace

const gpu::Driver& gpu_driver() {
  static const auto* driver = new CudaDriver;
  return *driver;
}

const gpu::MatrixUnit& matrix_unit() {
  static const gpu::MatrixUnit unit{16, 8, 16, 32, text::product};
  return unit;
}

}  // namespace keirin::cuda
