// SPDX-License-Identifier: Apache-2.0
#include "tests/certify/gpu.h"

#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <span>
#include <string_view>
#include <thread>
#include <type_traits>
#include <utility>

#include "tests/certify/check.h"

// Function, its type, its name at NVIDIA's and at AMD's. The first half has to be there; what is missing of the second costs the checks
// that need it. Addresses of a device are pointers here, where one driver has them as integers of the same size.
#define KRN_CERTIFY_DRIVER(NEEDED, WANTED)                                                                                            \
  NEEDED(init, int(unsigned), "cuInit", "hipInit")                                                                                    \
  NEEDED(by_bus, int(int*, const char*), "cuDeviceGetByPCIBusId", "hipDeviceGetByPCIBusId")                                           \
  NEEDED(retain, int(void**, int), "cuDevicePrimaryCtxRetain", "hipDevicePrimaryCtxRetain")                                           \
  NEEDED(get_current, int(void**), "cuCtxGetCurrent", "hipCtxGetCurrent")                                                             \
  NEEDED(set_current, int(void*), "cuCtxSetCurrent", "hipCtxSetCurrent")                                                              \
  NEEDED(synchronize, int(), "cuCtxSynchronize", "hipDeviceSynchronize")                                                              \
  NEEDED(allocate, int(void**, size_t), "cuMemAlloc_v2", "hipMalloc")                                                                 \
  NEEDED(free, int(void*), "cuMemFree_v2", "hipFree")                                                                                 \
  NEEDED(write, int(void*, const void*, size_t), "cuMemcpyHtoD_v2", "hipMemcpyHtoD")                                                  \
  NEEDED(read, int(void*, const void*, size_t), "cuMemcpyDtoH_v2", "hipMemcpyDtoH")                                                   \
  NEEDED(copy_on, int(void*, const void*, size_t, void*), "cuMemcpyDtoDAsync_v2", "hipMemcpyDtoDAsync")                               \
  NEEDED(make_stream, int(void**, unsigned), "cuStreamCreate", "hipStreamCreateWithFlags")                                            \
  NEEDED(call_on, int(void*, void (*)(void*), void*), "cuLaunchHostFunc", "hipLaunchHostFunc")                                        \
  NEEDED(make_event, int(void**, unsigned), "cuEventCreate", "hipEventCreateWithFlags")                                               \
  NEEDED(record, int(void*, void*), "cuEventRecord", "hipEventRecord")                                                                \
  NEEDED(query, int(void*), "cuEventQuery", "hipEventQuery")                                                                          \
  WANTED(memory_info, int(size_t*, size_t*), "cuMemGetInfo_v2", "hipMemGetInfo")                                                      \
  WANTED(begin_capture, int(void*, int), "cuStreamBeginCapture_v2", "hipStreamBeginCapture")                                          \
  WANTED(end_capture, int(void*, void**), "cuStreamEndCapture", "hipStreamEndCapture")                                                \
  WANTED(instantiate, int(void**, void*, unsigned long long), "cuGraphInstantiateWithFlags", "hipGraphInstantiateWithFlags")          \
  WANTED(launch_graph, int(void*, void*), "cuGraphLaunch", "hipGraphLaunch")                                                          \
  WANTED(granularity, int(size_t*, const void*, int), "cuMemGetAllocationGranularity", "hipMemGetAllocationGranularity")              \
  WANTED(reserve, int(void**, size_t, size_t, void*, unsigned long long), "cuMemAddressReserve", "hipMemAddressReserve")              \
  WANTED(give_up, int(void*, size_t), "cuMemAddressFree", "hipMemAddressFree")                                                        \
  WANTED(make_pages, int(void**, size_t, const void*, unsigned long long), "cuMemCreate", "hipMemCreate")                             \
  WANTED(end_pages, int(void*), "cuMemRelease", "hipMemRelease")                                                                      \
  WANTED(map, int(void*, size_t, size_t, void*, unsigned long long), "cuMemMap", "hipMemMap")                                         \
  WANTED(unmap, int(void*, size_t), "cuMemUnmap", "hipMemUnmap")                                                                      \
  WANTED(set_access, int(void*, size_t, const void*, size_t), "cuMemSetAccess", "hipMemSetAccess")                                    \
  WANTED(error_name, int(int, const char**), "cuGetErrorName", "hipDrvGetErrorName")

namespace keirin::certify {
namespace {

// Numbers that both drivers have alike.
enum : int { kSuccess = 0, kNotReady = 600, kStrictly = 0 };  // strictly: whatever may not be recorded is refused, on any thread
enum : unsigned { kWaitsForNoOther = 1, kUntimed = 2 };

struct Location {
  int type = 1;  // a device
  int id = 0;
};
struct PagesOf {
  int type = 1;  // pinned, which is what a device's are
  int handles = 0;
  Location location;
  void* unused = nullptr;
  uint64_t flags = 0;
};
struct Access {
  Location location;
  int flags = 3;  // reading and writing
};

Gpu* g_here = nullptr;

}  // namespace

struct Gpu::Driver {
#define KRN_MEMBER(name, type, cuda, hip) std::add_pointer_t<type> name = nullptr;
  KRN_CERTIFY_DRIVER(KRN_MEMBER, KRN_MEMBER)
#undef KRN_MEMBER
  bool has_pages() const {
    return granularity && reserve && give_up && make_pages && end_pages && map && unmap && set_access;
  }
  bool has_graphs() const { return begin_capture && end_capture && instantiate && launch_graph; }

  // The function that is missing; empty if it has all.
  std::string take(void* library, bool nvidia) {
    std::string lacks;
    const auto find = [&](const char* name, bool needed) {
      void* const found = ::dlsym(library, name);
      if (!found && needed && lacks.empty()) lacks = name;
      return found;
    };
#define KRN_NEEDED(name, type, cuda, hip) name = reinterpret_cast<std::add_pointer_t<type>>(find(nvidia ? cuda : hip, true));
#define KRN_WANTED(name, type, cuda, hip) name = reinterpret_cast<std::add_pointer_t<type>>(find(nvidia ? cuda : hip, false));
    KRN_CERTIFY_DRIVER(KRN_NEEDED, KRN_WANTED)
#undef KRN_NEEDED
#undef KRN_WANTED
    return lacks;
  }
};

Gpu* Gpu::here() { return g_here; }

void Gpu::use(const HardwareItem& item) {
  if (g_here && g_here->uid_ == item.uid) return;
  if (g_here) throw NotRun{"one process certifies one device, and this one has " + g_here->uid_};
  if (!item.torch_device || !item.uid.starts_with("pci:")) throw NotRun{item.uid + ": nobody here reaches its memory"};
  const bool nvidia = item.torch_device->kind == Device::kCuda;
  auto* const gpu = new Gpu;  // for the life of the process
  gpu->uid_ = item.uid;
  gpu->type_ = nvidia ? 2 : 10;  // DLPack's
  gpu->kind_ = nvidia ? KRN_STREAM_KIND_CUDA : KRN_STREAM_KIND_HIP;
  gpu->index_ = item.torch_device->index;
  gpu->driver_ = std::make_unique<Driver>();
  void* library = nullptr;
  constexpr const char* kNvidia[] = {"libcuda.so.1"};
  constexpr const char* kAmd[] = {"libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5"};
  for (const char* name : nvidia ? std::span<const char* const>(kNvidia) : std::span<const char* const>(kAmd))
    if ((library = ::dlopen(name, RTLD_NOW | RTLD_LOCAL))) break;
  if (!library) throw NotRun{item.uid + ": its driver was not found: " + ::dlerror()};
  Driver& driver = *gpu->driver_;
  if (const std::string lacks = driver.take(library, nvidia); !lacks.empty())
    throw NotRun{item.uid + ": this driver is too old for the checks: it lacks " + lacks};
  const auto must = [&](int result, const char* function) {
    const char* name = nullptr;
    if (result != kSuccess && driver.error_name) (void)driver.error_name(result, &name);
    if (result != kSuccess) throw NotRun{fmt::format("{}: {} answers {} {}", item.uid, function, result, name ? name : "")};
  };
  must(driver.init(0), "the driver's start");
  must(driver.by_bus(&gpu->device_, item.uid.c_str() + 4), "looking for the device");
  must(driver.retain(&gpu->context_, gpu->device_), "making its context");
  must(driver.set_current(gpu->context_), "making its context current");
  must(driver.make_stream(&gpu->own_, kWaitsForNoOther), "making a stream");
  g_here = gpu;
}

void Gpu::check(int result, const char* function) const {
  if (result == kSuccess) return;
  const char* name = nullptr;
  if (driver_->error_name) (void)driver_->error_name(result, &name);
  fail("{}: the device answers {} {}", function, result, name ? name : "");
}

// Threads of a check begin without a context.
void Gpu::make_current() const { check(driver_->set_current(context_), "making its context current"); }

void* Gpu::current_context() const {
  void* now = nullptr;
  check(driver_->get_current(&now), "asking for the context");
  return now;
}

uint64_t Gpu::free_bytes() const {
  make_current();
  size_t free = 0, all = 0;
  return driver_->memory_info && driver_->memory_info(&free, &all) == kSuccess ? free : 0;
}

Gpu::Block Gpu::allocate(size_t bytes) {
  make_current();
  void* data = nullptr;
  check(driver_->allocate(&data, std::max<size_t>(bytes, 1)), "allocating");
  return {static_cast<char*>(data), [this, data] {
            (void)driver_->set_current(context_);
            (void)driver_->free(data);
          }};
}

Gpu::Block Gpu::allocate_between(size_t bytes, size_t& usable) {
  if (!driver_->has_pages()) throw NotRun{"this driver has no memory whose pages somebody can lay out, so that no end of it is known"};
  make_current();
  const PagesOf kind{.location = {.id = device_}};
  size_t page = 0;
  check(driver_->granularity(&page, &kind, 0), "asking for the size of a page");
  usable = (std::max<size_t>(bytes, 1) + page - 1) / page * page;
  void *all = nullptr, *pages = nullptr;
  check(driver_->reserve(&all, usable + 2 * page, 0, nullptr, 0), "reserving addresses");
  char* const first = static_cast<char*>(all) + page;
  check(driver_->make_pages(&pages, usable, &kind, 0), "allocating pages");
  check(driver_->map(first, usable, 0, pages, 0), "mapping pages");
  const Access access{.location = {.id = device_}};
  check(driver_->set_access(first, usable, &access, 1), "opening pages");
  return {first, [this, all, first, pages, page, size = usable] {
            (void)driver_->set_current(context_);
            (void)driver_->synchronize();
            (void)driver_->unmap(first, size);
            (void)driver_->end_pages(pages);
            (void)driver_->give_up(all, size + 2 * page);
          }};
}

void Gpu::write(void* to, const void* from, size_t bytes) {
  make_current();
  if (bytes > 0) check(driver_->write(to, from, bytes), "copying to it");
}

void Gpu::read(void* to, const void* from, size_t bytes) {
  make_current();
  if (bytes > 0) check(driver_->read(to, from, bytes), "copying from it");
}

void Gpu::wait(const char* after) {
  make_current();
  check(driver_->synchronize(), after);
}

krn_stream Gpu::stream_of(Stream stream, uint32_t flags) const {
  return {static_cast<uint64_t>(reinterpret_cast<uintptr_t>(stream)), kind_, flags | KRN_STREAM_HAS_NATIVE};
}

Gpu::Stream Gpu::make_stream() {
  make_current();
  Stream made = nullptr;
  check(driver_->make_stream(&made, kWaitsForNoOther), "making a stream");
  return made;
}

void Gpu::call_on(Stream stream, void (*then)(void*), void* context) {
  make_current();
  check(driver_->call_on(stream, then, context), "giving a stream a call");
}

void Gpu::copy_on(Stream stream, void* to, const void* from, size_t bytes) {
  make_current();
  check(driver_->copy_on(to, from, bytes, stream), "giving a stream a copy");
}

bool Gpu::is_done(Stream stream, int milliseconds) {
  make_current();
  void* event = nullptr;
  check(driver_->make_event(&event, kUntimed), "making an event");
  check(driver_->record(event, stream), "recording an event");
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(milliseconds);
  for (;;) {
    const int result = driver_->query(event);
    if (result != kNotReady) return check(result, "the work on a stream"), true;
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

std::function<void()> Gpu::record(const std::function<void()>& work) {
  if (!driver_->has_graphs()) throw NotRun{"this driver records no launches"};
  make_current();
  check(driver_->begin_capture(own_, kStrictly), "beginning to record");
  void *graph = nullptr, *ready = nullptr;
  try {
    work();
  } catch (...) {
    (void)driver_->end_capture(own_, &graph);
    throw;
  }
  make_current();
  check(driver_->end_capture(own_, &graph), "while it was recorded, the plugin did what cannot be: ending the recording");
  check(driver_->instantiate(&ready, graph, 0), "preparing the recording");
  return [this, ready] {
    make_current();
    check(driver_->launch_graph(ready, own_), "launching the recording");
  };
}

void Gpu::label(krn_tensor& tensor) const {
  tensor.device_type = type_;
  tensor.device_id = index_;
  tensor.memory = KRN_MEM_DEVICE;
}

}  // namespace keirin::certify
