// SPDX-License-Identifier: Apache-2.0
#include "cuda/device.h"

#include <algorithm>
#include <cstdlib>

#include "abi/plugin.h"
#include "cuda/cublaslt.h"
#include "cuda/cudnn.h"
#include "cuda/driver.h"
#include "cuda/gpu_driver.h"
#include "cuda/nvml.h"
#include "cuda/nvrtc.h"
#include "plugins/kit/error.h"

namespace keirin::cuda {
namespace {

struct Row {
  int major, minor;
  double f32, matrix, special;
};

constexpr Row kRows[] = {
#define KRN_TARGET(major, minor, f32, matrix, special) {major, minor, f32, matrix, special},
#include "cuda/target.def"
#undef KRN_TARGET
};

const Row& row_of(int major, int minor) {
  const Row* best = nullptr;
  for (const Row& row : kRows)
    if (row.major == major && row.minor <= minor) best = &row;
  return best ? *best : kRows[std::size(kRows) - 1];
}

int attribute(const DriverApi& driver, CUdevice device, CUdevice_attribute which) {
  int value = 0;
  return driver.cuDeviceGetAttribute(&value, which, device) == CUDA_SUCCESS ? value : 0;
}

void set_rates(gpu::Gpu& gpu, int major, int minor, int units, double clock_hz, double bytes_per_s) {
  const Row& row = row_of(major, minor);
  gpu.driver = &gpu_driver();
  gpu.products = &cublas_products();
  gpu.plans = &cudnn();
  gpu.matrix = major >= 8 ? &matrix_unit() : nullptr;
  gpu.begins_early = major >= 9;
  gpu.arch = "sm_" + std::to_string(10 * major + minor);
  gpu.info.vector_bytes = 0;
  gpu.info.num_threads = units;
  gpu.info.bytes_per_s = bytes_per_s;
  gpu.info.flops_per_s = row.f32 * units * clock_hz;
  gpu.info.special_per_s = row.special * units * clock_hz;
  gpu.info.launch_ns = 2500;  // a kernel on a busy stream, start to start
  gpu.info.max_grouped_products = 1 << 30;
  gpu.matrix_flops_per_s = row.matrix * units * clock_hz;
  gpu.info.updates_rows = true;
  gpu.info.joins_deviations = true;
  gpu.info.sector_bytes = 32;
  gpu.info.wide_products = true;
  gpu.facts.num_units = units;
  gpu.facts.max_cluster = major >= 9 ? 8 : 1;  // what every device with clusters has
  gpu.facts.shared_bytes = major < 8 ? 0 : minor == 0 && major < 12 ? 128 << 10 : 64 << 10;
  gpu.facts.parameter_bytes = 32764;  // since CUDA 12.1
  gpu.block_shared_bytes = (major < 8 ? 64 : major >= 12 || minor != 0 ? 99 : major == 8 ? 163 : 227) << 10;
}

int find_index(const DriverApi& driver, const std::string& pci, int index) {
  int count = 0;
  if (driver.cuDeviceGetCount(&count) != CUDA_SUCCESS) return -1;
  return gpu::device_number(count, pci, index, [&](int i) {
    CUdevice device;
    char text[32] = {};
    const bool known =
        driver.cuDeviceGet(&device, i) == CUDA_SUCCESS && driver.cuDeviceGetPCIBusId(text, sizeof text, device) == CUDA_SUCCESS;
    return std::string(known ? text : "");
  });
}

}  // namespace

std::unique_ptr<gpu::Gpu> look_at_gpu(const std::string& pci, int index, std::string& why_not) {
  const DriverApi* driver = DriverApi::get(why_not);
  if (!driver) {
    why_not = "no usable NVIDIA driver: " + why_not;
    return nullptr;
  }
  if (!Nvrtc::get(why_not)) {
    why_not = "no NVRTC, which compiles kernels: " + why_not + "; install it or set KEIRIN_NVRTC to libnvrtc.so";
    return nullptr;
  }
  auto gpu = std::make_unique<gpu::Gpu>();
  gpu->index = find_index(*driver, pci, index);
  if (gpu->index < 0 || driver->cuDeviceGet(&gpu->device, gpu->index) != CUDA_SUCCESS) {
    why_not = "the NVIDIA driver does not show this device (CUDA_VISIBLE_DEVICES may hide it)";
    return nullptr;
  }
  const int major = attribute(*driver, gpu->device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
  const int minor = attribute(*driver, gpu->device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
  if (10 * major + minor < 75) {
    why_not = "compute capability " + std::to_string(major) + "." + std::to_string(minor) + ", 7.5 is needed";
    return nullptr;
  }
  const int units = std::max(1, attribute(*driver, gpu->device, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT));
  const double clock = 1e3 * attribute(*driver, gpu->device, CU_DEVICE_ATTRIBUTE_CLOCK_RATE);
  const double memory_clock = 1e3 * attribute(*driver, gpu->device, CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE);
  const double bus_bytes = attribute(*driver, gpu->device, CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH) / 8.0;
  // Two transfers a clock; nine tenths of that is what a copy gets. Some drivers state no clock: then a prior.
  const double bandwidth = memory_clock * bus_bytes > 0 ? 0.9 * 2 * memory_clock * bus_bytes : 1e12;
  set_rates(*gpu, major, minor, units, clock > 0 ? clock : 1.5e9, bandwidth);
  if (!compiles_for(gpu->arch)) {
    why_not = "NVRTC " + nvrtc_version() + " does not know " + gpu->arch + "; a newer one does";
    return nullptr;
  }
  gpu->facts.threads_per_unit = std::max(512, attribute(*driver, gpu->device, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR));
  if (const int bytes = attribute(*driver, gpu->device, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN); bytes > 0)
    gpu->block_shared_bytes = bytes;
  gpu->info.cache_bytes = std::max(1 << 20, attribute(*driver, gpu->device, CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE));
  char name[128] = {};
  driver->cuDeviceGetName(name, sizeof name, gpu->device);
  gpu->name = name;
  size_t bytes = 0;
  driver->cuDeviceTotalMem(&bytes, gpu->device);
  gpu->memory_bytes = bytes;
  char address[32] = {};
  if (driver->cuDeviceGetPCIBusId(address, sizeof address, gpu->device) == CUDA_SUCCESS) gpu->condition = condition_of(address);
  int version = 0;
  driver->cuDriverGetVersion(&version);
  if (version < 12010) gpu->facts.parameter_bytes = 4096;
  gpu->fingerprint = "cuda " + std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10) + " nvrtc " + nvrtc_version() +
                     " units " + std::to_string(units);
  return gpu;
}

gpu::Gpu imagine_gpu(const std::string& arch) {
  gpu::Gpu gpu;
  const int number = std::stoi(arch.substr(3));
  set_rates(gpu, number / 10, number % 10, 132, 1.98e9, 4.3e12);
  gpu.name = "imagined " + arch;
  gpu.fingerprint = "none";
  return gpu;
}

std::unique_ptr<gpu::Gpu> imagine_for_launches(const std::string& arch, std::string& why_not) {
  const int number = arch.rfind("sm_", 0) == 0 ? std::atoi(arch.c_str() + 3) : 0;
  if (number < 75) return why_not = "not an instruction set of NVIDIA's from sm_75 on: " + arch, nullptr;
  if (!Nvrtc::get(why_not)) return why_not = "no NVRTC: " + why_not, nullptr;
  if (!compiles_for(arch)) return why_not = "NVRTC " + nvrtc_version() + " does not know " + arch, nullptr;
  auto gpu = std::make_unique<gpu::Gpu>(imagine_gpu(arch));
  gpu->products = nullptr, gpu->plans = nullptr;
  return gpu;
}

gpu::CodeTarget target_of(const std::string& arch) { return gpu::code_target(imagine_gpu(arch), nullptr); }

}  // namespace keirin::cuda
