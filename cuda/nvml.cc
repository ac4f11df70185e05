// SPDX-License-Identifier: Apache-2.0
#include "cuda/nvml.h"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <type_traits>
#include <vector>

#include "plugins/gpu/driver.h"

namespace keirin::cuda {
namespace {

// NVML's C API, in its own words; declared here because its header travels with a toolkit that users do not have.
using NvmlDevice = struct nvml_device_opaque*;
struct NvmlProcess {  // nvmlProcessInfo_t of the functions that end in _v3
  unsigned pid;
  unsigned long long used_bytes;
  unsigned gpu_instance, compute_instance;
};
struct NvmlSample {  // nvmlProcessUtilizationSample_t: percent of the time since the moment that was asked for
  unsigned pid;
  unsigned long long time_us;
  unsigned units, memory, encoder, decoder;
};
constexpr int kUnitsClock = 1;                                    // NVML_CLOCK_SM
constexpr unsigned long long kSlowed =
    0x08 | 0x20 | 0x40 | 0x80;  // a hardware brake, heat as software and as hardware sees it, a power brake
constexpr unsigned long long kSecondUs = 1'000'000;
constexpr int kTooSmall = 7;  // NVML_ERROR_INSUFFICIENT_SIZE: the count says what would do
constexpr size_t kRoom = 128;
#define KRN_NVML(X)                                                                                   \
  X(nvmlInit_v2, int (*)())                                                                           \
  X(nvmlDeviceGetHandleByPciBusId_v2, int (*)(const char*, NvmlDevice*))                              \
  X(nvmlDeviceGetClockInfo, int (*)(NvmlDevice, int, unsigned*))                                      \
  X(nvmlDeviceGetCurrentClocksThrottleReasons, int (*)(NvmlDevice, unsigned long long*))              \
  X(nvmlDeviceGetComputeRunningProcesses_v3, int (*)(NvmlDevice, unsigned*, NvmlProcess*))            \
  X(nvmlDeviceGetProcessUtilization, int (*)(NvmlDevice, NvmlSample*, unsigned*, unsigned long long))

struct Nvml {
#define KRN_MEMBER(name, ...) std::type_identity_t<__VA_ARGS__> name = nullptr;
  KRN_NVML(KRN_MEMBER)
#undef KRN_MEMBER
  bool ok = false;

  Nvml() {
    std::string why_not;
    void* library = gpu::open_first({"libnvidia-ml.so.1", "libnvidia-ml.so"}, why_not);
    if (!library) return;
#define KRN_LOAD(name, ...)                                         \
  name = reinterpret_cast<decltype(name)>(dlsym(library, #name));   \
  if (!name) return;
    KRN_NVML(KRN_LOAD)
#undef KRN_LOAD
    ok = nvmlInit_v2() == 0;
  }
};

const Nvml& nvml() {
  static const Nvml table;
  return table;
}

// What a function of NVML lists; empty where it fails. It wants room for all that there may be: 72 samples on an H200, whatever there is.
template <class T, class Ask>
std::vector<T> list_of(Ask ask) {
  std::vector<T> out(kRoom);
  auto count = static_cast<unsigned>(out.size());
  int status = ask(&count, out.data());
  if (status == kTooSmall) {
    out.resize(count);
    status = ask(&count, out.data());
  }
  out.resize(status == 0 ? std::min<size_t>(count, out.size()) : 0);
  return out;
}

// Of the last second, by processes that are not this one. 0 where this process is not among those that the driver shows: it counts
// them by other numbers then (containers), and this one could not be told from others.
unsigned others_percent(const Nvml& api, NvmlDevice device) {
  const auto own = static_cast<unsigned>(::getpid());
  const auto running = list_of<NvmlProcess>(
      [&](unsigned* count, NvmlProcess* out) { return api.nvmlDeviceGetComputeRunningProcesses_v3(device, count, out); });
  if (std::none_of(running.begin(), running.end(), [&](const NvmlProcess& p) { return p.pid == own; })) return 0;
  timespec now;
  ::clock_gettime(CLOCK_REALTIME, &now);
  const unsigned long long since_us =
      static_cast<unsigned long long>(now.tv_sec) * kSecondUs + static_cast<unsigned long long>(now.tv_nsec) / 1000 - kSecondUs;
  unsigned sum = 0;  // over one sample for each process that had work since then
  for (const NvmlSample& sample : list_of<NvmlSample>([&](unsigned* count, NvmlSample* out) {
         return api.nvmlDeviceGetProcessUtilization(device, out, count, since_us);
       }))
    if (sample.pid != own && sample.pid != 0 && sample.units <= 100) sum += sample.units;
  return sum;
}

}  // namespace

std::function<void(krn_condition&)> condition_of(const std::string& pci) {
  const Nvml& api = nvml();
  NvmlDevice device = nullptr;
  if (!api.ok || api.nvmlDeviceGetHandleByPciBusId_v2(pci.c_str(), &device) != 0) return {};
  return [&api, device](krn_condition& out) {
    unsigned clock = 0;
    unsigned long long reasons = 0;
    if (api.nvmlDeviceGetClockInfo(device, kUnitsClock, &clock) == 0) out.clock_mhz = clock;
    if (api.nvmlDeviceGetCurrentClocksThrottleReasons(device, &reasons) == 0 && (reasons & kSlowed)) out.flags |= KRN_CONDITION_SLOWED;
    out.others_percent = others_percent(api, device);
  };
}

}  // namespace keirin::cuda
