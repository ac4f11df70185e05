// SPDX-License-Identifier: Apache-2.0
#include "rocm/device.h"

#include <algorithm>

#include "abi/plugin.h"
#include "plugins/kit/error.h"
#include "rocm/clang.h"
#include "rocm/driver.h"
#include "rocm/gpu_driver.h"
#include "rocm/hiprtc.h"
#include "rocm/miopen.h"
#include "rocm/rocblas.h"
#include "rocm/text.h"

namespace keirin::rocm {
namespace {

constexpr Target kTargets[] = {
#define KRN_TARGET(arch, wave, f32, matrix_rate, special, unit, registers, since) \
  {#arch, wave, f32, matrix_rate, special, #unit, registers, since},
#include "rocm/target.def"
#undef KRN_TARGET
};

int attribute(const DriverApi& driver, int device, HipAttribute which) {
  int value = 0;
  return driver.hipDeviceGetAttribute(&value, which, device) == kSuccess ? value : 0;
}

int find_index(const DriverApi& driver, const std::string& pci, int index) {
  int count = 0;
  if (driver.hipGetDeviceCount(&count) != kSuccess) return -1;
  return gpu::device_number(count, pci, index, [&](int i) {
    char text[32] = {};
    return std::string(driver.hipDeviceGetPCIBusId(text, sizeof text, i) == kSuccess ? text : "");
  });
}

// What is known without a device.
void set_rates(gpu::Gpu& gpu, const Target& target, int units, double clock_hz, double bytes_per_s) {
  gpu.driver = &gpu_driver(target.wave);
  gpu.products = &hip_products();
  gpu.plans = &miopen();
  static const gpu::MatrixUnit narrow{16, 16, 16, 32, text::unit}, wide{16, 16, 16, 64, text::unit};
  gpu.matrix = target.wave == 64 ? &wide : &narrow;
  gpu.wave = gpu.facts.wave = target.wave;
  gpu.arch = target.arch;
  gpu.info.vector_bytes = 0;
  gpu.info.num_threads = units;
  gpu.info.bytes_per_s = bytes_per_s;
  gpu.info.flops_per_s = target.f32 * units * clock_hz;
  gpu.info.special_per_s = target.special * units * clock_hz;
  gpu.info.launch_ns = 5000;  // a prior: nobody has measured it
  gpu.info.max_grouped_products = 1 << 30;
  gpu.info.updates_rows = true;
  gpu.info.joins_deviations = true;
  gpu.info.sector_bytes = 32;
  gpu.matrix_flops_per_s = std::max(target.matrix_rate, target.f32) * units * clock_hz;
  gpu.facts.num_units = units;
  gpu.facts.parameter_bytes = 4096;  // what launches of every kind pass; more was not tried
  gpu.facts.registers = target.registers << 10;
  // Of a block of 1,024 threads each has 64 registers in waves of 32, 128 in waves of 64: too few for rows of the zoo's norms, whose values
  // then went to memory (`rocm_table`).
  gpu.facts.max_row_threads = 512;
  gpu.block_shared_bytes = 64 << 10;
}

void set_measures(gpu::Gpu& gpu, const DriverApi& driver) {
  gpu.facts.threads_per_unit = std::max(512, attribute(driver, gpu.device, kMaxThreadsPerUnit));
  if (const int bytes = attribute(driver, gpu.device, kMaxSharedPerBlock); bytes > 0) gpu.block_shared_bytes = bytes;
  gpu.info.cache_bytes = std::max(1 << 20, attribute(driver, gpu.device, kL2CacheSize));
  char name[256] = {};
  driver.hipDeviceGetName(name, sizeof name, gpu.device);
  gpu.name = name[0] ? name : "AMD " + gpu.arch;
  size_t bytes = 0;
  driver.hipDeviceTotalMem(&bytes, gpu.device);
  gpu.memory_bytes = bytes;
}

}  // namespace

std::span<const Target> targets() { return kTargets; }

const Target* target_named(const std::string& arch) {
  for (const Target& target : kTargets)
    if (target.arch == arch) return &target;
  return nullptr;
}

int wave_of(const std::string& arch) {
  const Target* target = target_named(arch);
  return target ? target->wave : 32;
}

bool could_look(std::string& why_not) {
  if (!DriverApi::get(why_not)) return false;
  if (Hiprtc::get(why_not)) return true;
  why_not = "no hipRTC, which compiles kernels: " + why_not + "; install ROCm's hiprtc or set KEIRIN_HIPRTC to libhiprtc.so";
  return false;
}

std::unique_ptr<gpu::Gpu> look_at_gpu(const std::string& pci, int index, std::string& why_not) {
  if (!could_look(why_not)) return nullptr;
  const DriverApi* driver = DriverApi::with_device(why_not);
  if (!driver) return nullptr;
  auto gpu = std::make_unique<gpu::Gpu>();
  gpu->index = find_index(*driver, pci, index);
  if (gpu->index < 0 || driver->hipDeviceGet(&gpu->device, gpu->index) != kSuccess) {
    why_not = "HIP does not show this device (HIP_VISIBLE_DEVICES or ROCR_VISIBLE_DEVICES may hide it)";
    return nullptr;
  }
  const std::string name = gcn_name(*driver, gpu->index);
  const Target* target = target_named(name.substr(0, name.find(':')));
  if (!target) {
    why_not = "no row for the instruction set \"" + name + "\" in rocm/target.def";
    return nullptr;
  }
  if (!compiles_for(target->arch, why_not)) return nullptr;
  const int units = std::max(1, attribute(*driver, gpu->device, kNumUnits));
  const double clock = 1e3 * attribute(*driver, gpu->device, kClockRate);
  // Two transfers a clock; nine tenths of that is what a copy gets. Some drivers state no clock: then a prior.
  const double memory = 0.9 * 2 * 1e3 * attribute(*driver, gpu->device, kMemoryClockRate) *
                        attribute(*driver, gpu->device, kMemoryBusWidth) / 8.0;
  set_rates(*gpu, *target, units, clock > 0 ? clock : 1.5e9, memory > 0 ? memory : 1e12);
  if (const int wave = attribute(*driver, gpu->device, kWave); wave != 0 && wave != target->wave) {
    why_not = "the device has waves of " + std::to_string(wave) + ", " + target->arch + " is compiled for " +
              std::to_string(target->wave);
    return nullptr;
  }
  set_measures(*gpu, *driver);
  gpu->fingerprint = "hip " + hip_version() + " " + name + " units " + std::to_string(units);
  return gpu;
}

gpu::Gpu imagine_gpu(const std::string& arch) {
  const Target* target = target_named(arch);
  if (!target) throw kit::Error(KRN_STATUS_unsupported, "no row for the instruction set " + arch);
  gpu::Gpu gpu;
  const bool large = target->wave == 64;
  set_rates(gpu, *target, large ? 228 : 80, 2.1e9, large ? 4.3e12 : 0.8e12);
  gpu.name = "imagined " + arch;
  gpu.fingerprint = "none";
  return gpu;
}

std::unique_ptr<gpu::Gpu> imagine_for_launches(const std::string& arch, std::string& why_not) {
  if (!target_named(arch)) return why_not = "no row for the instruction set \"" + arch + "\" in rocm/target.def", nullptr;
  std::string ignored;
  const bool known = Hiprtc::get(ignored) && compiles_for(arch, ignored);
  if (!known && clang_for(arch, why_not).empty()) return nullptr;
  auto gpu = std::make_unique<gpu::Gpu>(imagine_gpu(arch));
  gpu->products = nullptr, gpu->plans = nullptr;
  if (!known) gpu->driver = &clang_driver(wave_of(arch));
  return gpu;
}

}  // namespace keirin::rocm
