// SPDX-License-Identifier: Apache-2.0
#include "core/host/worker/device_driver.h"

#include <dlfcn.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <span>
#include <type_traits>

// Function, its type, its name at NVIDIA's and at AMD's. Addresses of a device are pointers here, where one driver has them as integers of
// the same size.
#define KRN_DEVICE_DRIVER(X)                                                                                        \
  X(init, int(unsigned), "cuInit", "hipInit")                                                                       \
  X(by_bus, int(int*, const char*), "cuDeviceGetByPCIBusId", "hipDeviceGetByPCIBusId")                              \
  X(retain, int(void**, int), "cuDevicePrimaryCtxRetain", "hipDevicePrimaryCtxRetain")                              \
  X(get_current, int(void**), "cuCtxGetCurrent", "hipCtxGetCurrent")                                                \
  X(set_current, int(void*), "cuCtxSetCurrent", "hipCtxSetCurrent")                                                 \
  X(exchange_mode, int(int*), "cuThreadExchangeStreamCaptureMode", "hipThreadExchangeStreamCaptureMode")            \
  X(allocate, int(void**, size_t), "cuMemAlloc_v2", "hipMalloc")                                                    \
  X(free, int(void*), "cuMemFree_v2", "hipFree")                                                                    \
  X(lend, int(DeviceDriver::Handle*, void*), "cuIpcGetMemHandle", "hipIpcGetMemHandle")                             \
  X(open, int(void**, DeviceDriver::Handle, unsigned), "cuIpcOpenMemHandle_v2", "hipIpcOpenMemHandle")              \
  X(close, int(void*), "cuIpcCloseMemHandle", "hipIpcCloseMemHandle")                                               \
  X(copy, int(void*, const void*, size_t, void*), "cuMemcpyDtoDAsync_v2", "hipMemcpyDtoDAsync")                     \
  X(read, int(void*, const void*, size_t, void*), "cuMemcpyDtoHAsync_v2", "hipMemcpyDtoHAsync")                     \
  X(write, int(void*, const void*, size_t, void*), "cuMemcpyHtoDAsync_v2", "hipMemcpyHtoDAsync")                    \
  X(write_rows, int(const NvidiaRows*, void*), "cuMemcpy2DAsync_v2", "")                                            \
  X(write_rows_amd, int(void*, size_t, const void*, size_t, size_t, size_t, int, void*), "", "hipMemcpy2DAsync")    \
  X(pin, int(void*, size_t, unsigned), "cuMemHostRegister_v2", "hipHostRegister")                                   \
  X(unpin, int(void*), "cuMemHostUnregister", "hipHostUnregister")                                                  \
  X(fill, int(void*, unsigned char, size_t, void*), "cuMemsetD8Async", "hipMemsetD8Async")                          \
  X(make_stream, int(void**, unsigned), "cuStreamCreate", "hipStreamCreateWithFlags")                               \
  X(wait, int(void*), "cuStreamSynchronize", "hipStreamSynchronize")                                                \
  X(recorded, int(void*, int*), "cuStreamIsCapturing", "hipStreamIsCapturing")                                      \
  X(make_event, int(void**, unsigned), "cuEventCreate", "hipEventCreateWithFlags")                                  \
  X(lend_event, int(DeviceDriver::Handle*, void*), "cuIpcGetEventHandle", "hipIpcGetEventHandle")                   \
  X(open_event, int(void**, DeviceDriver::Handle), "cuIpcOpenEventHandle", "hipIpcOpenEventHandle")                 \
  X(wait_for, int(void*), "cuEventSynchronize", "hipEventSynchronize")                                              \
  X(query, int(void*), "cuEventQuery", "hipEventQuery")                                                             \
  X(end_event, int(void*), "cuEventDestroy_v2", "hipEventDestroy")                                                  \
  X(record, int(void*, void*), "cuEventRecord", "hipEventRecord")                                                   \
  X(await, int(void*, void*, unsigned), "cuStreamWaitEvent", "hipStreamWaitEvent")                                  \
  X(memory_info, int(size_t*, size_t*), "cuMemGetInfo_v2", "hipMemGetInfo")                                         \
  X(error_name, int(int, const char**), "cuGetErrorName", "hipDrvGetErrorName")

namespace keirin {
namespace {

// What NVIDIA's driver is told of a copy of rows.
struct NvidiaRows {
  enum : int { kHost = 1, kDevice = 2 };
  struct Side {
    size_t x = 0, y = 0;
    int type = 0;
    const void* host = nullptr;
    const void* device = nullptr;
    void* array = nullptr;
    size_t pitch = 0;
  };
  Side from, to;
  size_t width = 0, rows = 0;
};
static_assert(sizeof(NvidiaRows) == 128);
constexpr int kHostToDevice = 1;  // AMD's

// Numbers that both drivers have alike.
enum : int { kSuccess = 0, kNoMemory = 2, kRelaxed = 2, kNotReady = 600 };
enum : unsigned { kLazyPeerAccess = 1, kUntimed = 2, kInterprocess = 4, kBlocking = 0 };
// After these nothing more comes of the context: errors of memory, illegal addresses and instructions, a launch that timed out or failed.
constexpr int kLosing[] = {214, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719};

void* pointer(uint64_t stream) { return reinterpret_cast<void*>(static_cast<uintptr_t>(stream)); }

}  // namespace

struct DeviceDriver::Functions {
#define KRN_MEMBER(name, type, cuda, hip) std::add_pointer_t<type> name = nullptr;
  KRN_DEVICE_DRIVER(KRN_MEMBER)
#undef KRN_MEMBER

  // The function that is missing; empty if it has all. What an error is called may be missing.
  std::string take(void* library, bool nvidia) {
    std::string lacks;
#define KRN_TAKE(name, type, cuda, hip)                                                                             \
  name = reinterpret_cast<std::add_pointer_t<type>>(::dlsym(library, nvidia ? cuda : hip));                         \
  if (!name && lacks.empty() && std::string_view(#name) != "error_name") lacks = nvidia ? cuda : hip;  // "": not asked for
    KRN_DEVICE_DRIVER(KRN_TAKE)
#undef KRN_TAKE
    return lacks;
  }
};

// The calling thread in the device's context, and allowed what a recording of some other thread's would forbid.
class DeviceDriver::Use {
 public:
  explicit Use(const DeviceDriver& driver) : f_(*driver.functions_) {
    (void)f_.get_current(&former_);
    other_ = former_ != driver.context_;
    if (other_) (void)f_.set_current(driver.context_);
    (void)f_.exchange_mode(&mode_);
  }
  ~Use() {
    (void)f_.exchange_mode(&mode_);
    if (other_) (void)f_.set_current(former_);
  }
  Use(const Use&) = delete;

 private:
  const Functions& f_;
  void* former_ = nullptr;
  bool other_ = false;
  int mode_ = kRelaxed;
};

Result<std::shared_ptr<DeviceDriver>> DeviceDriver::of(const HardwareItem& item) {
  static std::mutex mutex;
  static auto* const known = new std::map<std::string, std::shared_ptr<DeviceDriver>>;  // for the life of the process
  const std::lock_guard guard(mutex);
  if (const auto at = known->find(item.uid); at != known->end()) return at->second;
  const auto cannot = [&](const std::string& why) {
    return Status(Code::k_unsupported,
                  Message{why, item.uid, "nothing of the plugin runs there", "for a plugin that you trust: --run-in process"});
  };
  if (!item.torch_device || item.torch_device->kind == Device::kCpu || !item.uid.starts_with("pci:"))
    return cannot("nobody here shares memory of this device");
  const bool nvidia = item.torch_device->kind == Device::kCuda;
  constexpr const char* kNvidia[] = {"libcuda.so.1"};
  constexpr const char* kAmd[] = {"libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5", "libamdhip64.so"};
  const auto names = nvidia ? std::span<const char* const>(kNvidia) : std::span<const char* const>(kAmd);
  void* library = nullptr;
  for (const int flag : {RTLD_NOLOAD, 0})  // what LibTorch uses, if it does
    for (const char* name : names)
      if (!library) library = ::dlopen(name, RTLD_NOW | RTLD_LOCAL | flag);
  if (!library) return cannot(std::string("its driver was not found: ") + ::dlerror());
  const std::shared_ptr<DeviceDriver> driver(new DeviceDriver);
  driver->functions_ = std::make_unique<Functions>();
  Functions& f = *driver->functions_;
  if (const std::string lacks = f.take(library, nvidia); !lacks.empty())
    return cannot("its driver is too old to share memory: it lacks " + lacks);
  driver->uid_ = item.uid;
  driver->device_ = *item.torch_device;
  int number = 0;
  void* stream = nullptr;
  const auto must = [&](int result, const char* what) {
    Status status = driver->failed(result, what);
    return status.ok() ? std::move(status) : Status(Code::k_unsupported, status.message());
  };
  KRN_TRY(must(f.init(0), "the driver's start"));
  KRN_TRY(must(f.by_bus(&number, item.uid.c_str() + 4), "looking for the device"));
  KRN_TRY(must(f.retain(&driver->context_, number), "making its context"));
  const Use use(*driver);
  KRN_TRY(must(f.make_stream(&stream, kBlocking), "making a stream"));
  driver->own_stream_ = static_cast<uint64_t>(reinterpret_cast<uintptr_t>(stream));
  (*known)[item.uid] = driver;
  return driver;
}

DeviceDriver::~DeviceDriver() = default;

Status DeviceDriver::failed(int result, const char* what) const {
  if (result == kSuccess) return {};
  const char* name = nullptr;
  if (functions_->error_name) (void)functions_->error_name(result, &name);
  const bool lost = std::find(std::begin(kLosing), std::end(kLosing), result) != std::end(kLosing);
  return Status(result == kNoMemory ? Code::k_exhausted : lost ? Code::k_device_lost : Code::k_internal,
                Message{std::string(what) + ": the device answers " + std::to_string(result) + (name ? std::string(" ") + name : ""), uid_,
                        {}, {}});
}

Result<DeviceMemoryRef> DeviceDriver::allocate(uint64_t bytes) const {
  const Use use(*this);
  void* data = nullptr;
  KRN_TRY(failed(functions_->allocate(&data, std::max<uint64_t>(bytes, 1)), "allocating"));
  return std::make_shared<DeviceMemory>(shared_from_this(), static_cast<char*>(data), bytes, false);
}

Result<DeviceDriver::Handle> DeviceDriver::lend(const DeviceMemory& memory) const {
  const Use use(*this);
  Handle handle{};
  KRN_TRY(failed(functions_->lend(&handle, memory.data()), "sharing memory with another process"));
  return handle;
}

Result<DeviceMemoryRef> DeviceDriver::open(const Handle& handle, uint64_t bytes) const {
  const Use use(*this);
  void* data = nullptr;
  KRN_TRY(failed(functions_->open(&data, handle, kLazyPeerAccess), "opening another process's memory"));
  return std::make_shared<DeviceMemory>(shared_from_this(), static_cast<char*>(data), bytes, true);
}

DeviceMemory::~DeviceMemory() {
  if (fork_count() != driver_->forks_) return;
  const DeviceDriver::Use use(*driver_);
  (void)(opened_ ? driver_->functions_->close : driver_->functions_->free)(data_);
}

Status DeviceDriver::copy(void* to, const void* from, uint64_t bytes, uint64_t stream) const {
  if (bytes == 0) return {};
  const Use use(*this);
  return failed(functions_->copy(to, from, bytes, pointer(stream)), "copying");
}

Status DeviceDriver::read(void* to_host, const void* from, uint64_t bytes, uint64_t stream) const {
  if (bytes == 0) return {};
  const Use use(*this);
  return failed(functions_->read(to_host, from, bytes, pointer(stream)), "copying from it");
}

Status DeviceDriver::write(void* to, const void* from_host, uint64_t bytes, uint64_t stream) const {
  if (bytes == 0) return {};
  const Use use(*this);
  return failed(functions_->write(to, from_host, bytes, pointer(stream)), "copying to it");
}

Status DeviceDriver::write_rows(void* to, const void* from_host, uint64_t pitch, uint64_t width, uint64_t rows, uint64_t stream) const {
  const Use use(*this);
  if (functions_->write_rows_amd)
    return failed(functions_->write_rows_amd(to, width, from_host, pitch, width, rows, kHostToDevice, pointer(stream)),
                  "copying rows to it");
  NvidiaRows all;
  all.from.type = NvidiaRows::kHost, all.from.host = from_host, all.from.pitch = pitch;
  all.to.type = NvidiaRows::kDevice, all.to.device = to, all.to.pitch = width;
  all.width = width, all.rows = rows;
  return failed(functions_->write_rows(&all, pointer(stream)), "copying rows to it");
}

Result<std::shared_ptr<void>> DeviceDriver::pin(std::shared_ptr<void> memory, uint64_t bytes) const {
  const Use use(*this);
  void* const at = memory.get();
  KRN_TRY(failed(functions_->pin(at, bytes, 0), "making memory of the host known to it"));
  return std::shared_ptr<void>(at, [driver = shared_from_this(), memory = std::move(memory)](void* p) {
    if (fork_count() != driver->forks_) return;
    const Use use(*driver);
    (void)driver->functions_->unpin(p);
  });
}

Status DeviceDriver::fill(void* at, uint8_t value, uint64_t bytes, uint64_t stream) const {
  if (bytes == 0) return {};
  const Use use(*this);
  return failed(functions_->fill(at, value, bytes, pointer(stream)), "filling memory");
}

Status DeviceDriver::wait(uint64_t stream) const {
  const Use use(*this);
  return failed(functions_->wait(pointer(stream)), "waiting for a stream");
}

bool DeviceDriver::is_recorded(uint64_t stream) const {
  const Use use(*this);
  int status = 0;
  return functions_->recorded(pointer(stream), &status) == kSuccess && status != 0;
}

DeviceDriver::Bytes DeviceDriver::bytes() const {
  const Use use(*this);
  size_t free = 0, all = 0;
  if (functions_->memory_info(&free, &all) != kSuccess) return {};
  return {free, all};
}

DeviceDriver::Point::~Point() {
  if (!event_ || fork_count() != driver_->forks_) return;
  const Use use(*driver_);
  (void)driver_->functions_->end_event(event_);
}

Status DeviceDriver::Point::make(unsigned flags) {
  if (event_) return {};
  return driver_->failed(driver_->functions_->make_event(&event_, kUntimed | flags), "making an event");
}

Status DeviceDriver::Point::reached_by(uint64_t stream) {
  const Use use(*driver_);
  KRN_TRY(make(0));
  stream_ = stream;
  return driver_->failed(driver_->functions_->record(event_, pointer(stream)), "recording an event");
}

Status DeviceDriver::Point::awaited_by(uint64_t stream) const {
  if (!event_ || (!opened_ && stream_ == stream)) return {};
  const Use use(*driver_);
  return driver_->failed(driver_->functions_->await(pointer(stream), event_, 0), "waiting for an event");
}

bool DeviceDriver::Point::is_reached() const {
  if (!event_) return true;
  const Use use(*driver_);
  return driver_->functions_->query(event_) != kNotReady;
}

Status DeviceDriver::Point::wait() const {
  if (!event_) return {};
  const Use use(*driver_);
  return driver_->failed(driver_->functions_->wait_for(event_), "waiting for an event");
}

Result<DeviceDriver::Handle> DeviceDriver::Point::lend() {
  const Use use(*driver_);
  Handle handle{};
  KRN_TRY(make(kInterprocess));
  KRN_TRY(driver_->failed(driver_->functions_->lend_event(&handle, event_), "sharing an event with another process"));
  return handle;
}

Status DeviceDriver::Point::open(const Handle& handle) {
  const Use use(*driver_);
  opened_ = true;
  return driver_->failed(driver_->functions_->open_event(&event_, handle), "opening another process's event");
}

}  // namespace keirin
