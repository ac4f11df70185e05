// SPDX-License-Identifier: Apache-2.0
#include "rocm/driver.h"

#include <algorithm>
#include <cctype>
#include <cstring>
#include <iterator>
#include <vector>

#include "abi/plugin.h"
#include "plugins/gpu/driver.h"

namespace keirin::rocm {
namespace {

std::string open_hip(DriverApi& table) {
  const auto take = [&](void* library, std::string& lacks) {
#define KRN_LOAD(name, ...) &&gpu::take_function(library, #name, table.name, lacks)
    if (!(true KRN_HIP(KRN_LOAD))) return false;
#undef KRN_LOAD
    std::string ignored;
    gpu::take_function(library, "hipModuleLaunchCooperativeKernel", table.hipModuleLaunchCooperativeKernel, ignored);
    for (const char* name : {"hipGetDevicePropertiesR0600", "hipGetDeviceProperties"})
      if (!table.properties) gpu::take_function(library, name, table.properties, ignored);
    int version = 0;
    table.hipRuntimeGetVersion(&version);
    table.version = version / 10000000 * 100 + version / 100000 % 100;
    return true;
  };
  return gpu::open_library("HIP runtime", {"libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5", "libamdhip64.so"},
                           "install ROCm's hip-runtime-amd (Debian: libamdhip64-5)", take);
}

bool loses_device(int result) {
  const int lost[] = {kEccUncorrectable, kIllegalAddress, kLaunchTimeOut, kContextDestroyed, kAssert, kLaunchFailure};
  return std::find(std::begin(lost), std::end(lost), result) != std::end(lost);
}

}  // namespace

const DriverApi* DriverApi::get(std::string& why_not) {
  static const gpu::Opened<DriverApi> opened(open_hip);
  return opened.get(why_not);
}

const DriverApi* DriverApi::with_device(std::string& why_not) {
  const DriverApi* table = get(why_not);
  if (!table) return nullptr;
  static const int started = table->hipInit(0);
  int count = 0;
  if (started == kSuccess && table->hipGetDeviceCount(&count) == kSuccess && count > 0) return table;
  why_not = "libamdhip64 finds no AMD GPU (the amdgpu kernel driver, and the right to open /dev/kfd, are needed)";
  return nullptr;
}

// The layout of the properties has changed between releases; the only text in them that begins so is the instruction set.
std::string gcn_name(const DriverApi& driver, int device) {
  std::vector<char> bytes(16384);
  if (!driver.properties || driver.properties(bytes.data(), device) != kSuccess) return "";
  for (size_t i = 1; i + 64 < bytes.size(); ++i)
    if (std::memcmp(&bytes[i], "gfx", 3) == 0 && bytes[i - 1] == 0 && std::isdigit(static_cast<unsigned char>(bytes[i + 3])))
      return std::string(&bytes[i], strnlen(&bytes[i], 64));
  return "";
}

int32_t code_of(int result) {
  if (result == kSuccess) return KRN_STATUS_ok;
  if (result == kOutOfMemory) return KRN_STATUS_exhausted;
  return loses_device(result) ? KRN_STATUS_device_lost : KRN_STATUS_internal;
}

}  // namespace keirin::rocm
