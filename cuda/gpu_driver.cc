// SPDX-License-Identifier: Apache-2.0
//
// One call of the driver for each function of the seam, and nothing decided here but how a launch states its
// attributes.
#include "cuda/gpu_driver.h"

#include <memory>

#include "abi/plugin.h"
#include "cuda/driver.h"
#include "cuda/nvrtc.h"
#include "cuda/text.h"

namespace keirin::cuda {
namespace {

using gpu::Event;
using gpu::Function;
using gpu::Result;
using gpu::Stream;

CUstream native(Stream s) { return reinterpret_cast<CUstream>(s); }
CUevent native(Event e) { return reinterpret_cast<CUevent>(e); }
CUfunction native(Function f) { return reinterpret_cast<CUfunction>(f); }
CUdeviceptr address(const void* p) { return reinterpret_cast<CUdeviceptr>(p); }

// Looked up once: launches come through here. Without a driver a table of nothing, which nobody calls (`usable`).
const DriverApi& api() {
  static const DriverApi none;
  static const DriverApi& table = [&]() -> const DriverApi& {
    std::string ignored;
    const DriverApi* found = DriverApi::get(ignored);
    return found ? *found : none;
  }();
  return table;
}

class CudaDriver final : public gpu::Driver {
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

  Result retain(int device, gpu::ContextHandle& context) const override {
    return api().cuDevicePrimaryCtxRetain(reinterpret_cast<CUcontext*>(&context), device);
  }
  void release(int device) const override { api().cuDevicePrimaryCtxRelease(device); }
  Result current(gpu::ContextHandle& context) const override {
    return api().cuCtxGetCurrent(reinterpret_cast<CUcontext*>(&context));
  }
  Result make_current(gpu::ContextHandle context) const override {
    return api().cuCtxSetCurrent(reinterpret_cast<CUcontext>(context));
  }

  Result load(const std::vector<char>& code, gpu::Module& module) const override {
    return api().cuModuleLoadData(reinterpret_cast<CUmodule*>(&module), code.data());
  }
  Result find(gpu::Module module, const std::string& symbol, Function& function) const override {
    return api().cuModuleGetFunction(reinterpret_cast<CUfunction*>(&function), reinterpret_cast<CUmodule>(module),
                                     symbol.c_str());
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

  Result allocate(size_t bytes, void*& memory) const override {
    return api().cuMemAlloc(reinterpret_cast<CUdeviceptr*>(&memory), bytes);
  }
  Result free(void* memory) const override { return api().cuMemFree(address(memory)); }
  Result allocate_on(Stream stream, size_t bytes, void*& memory) const override {
    return api().cuMemAllocAsync(reinterpret_cast<CUdeviceptr*>(&memory), bytes, native(stream));
  }
  Result free_on(Stream stream, void* memory) const override {
    return api().cuMemFreeAsync(address(memory), native(stream));
  }
  Result fill(Stream stream, void* memory, unsigned char value, size_t bytes) const override {
    return api().cuMemsetD8Async(address(memory), value, bytes, native(stream));
  }
  Result fill_words(Stream stream, void* memory, uint32_t value, size_t words) const override {
    return api().cuMemsetD32Async(address(memory), value, words, native(stream));
  }
  Result copy(Stream stream, void* to, const void* from, size_t bytes) const override {
    return api().cuMemcpyDtoDAsync(address(to), address(from), bytes, native(stream));
  }
  Result copy_out(Stream stream, void* to, const void* from, size_t bytes) const override {
    return api().cuMemcpyDtoHAsync(to, address(from), bytes, native(stream));
  }

  Result make_stream(Stream& stream) const override {
    return api().cuStreamCreate(reinterpret_cast<CUstream*>(&stream), CU_STREAM_NON_BLOCKING);
  }
  void end_stream(Stream stream) const override { api().cuStreamDestroy(native(stream)); }
  Result wait(Stream stream) const override { return api().cuStreamSynchronize(native(stream)); }
  Result is_recording(Stream stream, bool& recording) const override {
    CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
    const CUresult result = api().cuStreamIsCapturing(native(stream), &capture);
    recording = capture != CU_STREAM_CAPTURE_STATUS_NONE;
    return result;
  }
  int permit_allocation() const override {
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;  // then the mode before
    api().cuThreadExchangeStreamCaptureMode(&mode);
    return mode;
  }
  void restore_permission(int former) const override {
    auto mode = static_cast<CUstreamCaptureMode>(former);
    api().cuThreadExchangeStreamCaptureMode(&mode);
  }

  Result make_event(Event& event, bool timed) const override {
    return api().cuEventCreate(reinterpret_cast<CUevent*>(&event), timed ? CU_EVENT_DEFAULT : CU_EVENT_DISABLE_TIMING);
  }
  void end_event(Event event) const override { api().cuEventDestroy(native(event)); }
  Result record(Event event, Stream stream) const override {
    return api().cuEventRecord(native(event), native(stream));
  }
  Result wait(Event event) const override { return api().cuEventSynchronize(native(event)); }
  Result milliseconds(Event start, Event stop, float& ms) const override {
    return api().cuEventElapsedTime(&ms, native(start), native(stop));
  }
  bool is_lost(Event probe) const override {
    const CUresult result = api().cuEventQuery(native(probe));
    return result != CUDA_SUCCESS && result != CUDA_ERROR_NOT_READY;
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
