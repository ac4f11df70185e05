// SPDX-License-Identifier: Apache-2.0
#include "core/host/find/hardware.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <algorithm>
#include <fstream>
#include <sstream>

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__)
#include <sys/auxv.h>
#include <sys/prctl.h>
#endif

namespace keirin {
namespace {

std::string read_text(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  if (file) text << file.rdbuf();
  return text.str();
}

std::string trimmed(std::string s) {
  const auto blank = [](unsigned char c) { return c <= ' '; };
  while (!s.empty() && blank(s.back())) s.pop_back();
  s.erase(s.begin(), std::find_if_not(s.begin(), s.end(), blank));
  return s;
}

// The value of a "Key: value" line of a /proc file; empty if there is none.
std::string field(const std::string& text, std::string_view key) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const size_t colon = line.find(':');
    if (colon != std::string::npos && trimmed(line.substr(0, colon)) == key) return trimmed(line.substr(colon + 1));
  }
  return {};
}

std::vector<std::string> folder_names(const std::string& path) {
  std::vector<std::string> names;
  DIR* dir = ::opendir(path.c_str());
  if (!dir) return names;
  while (const dirent* entry = ::readdir(dir))
    if (entry->d_name[0] != '.') names.emplace_back(entry->d_name);
  ::closedir(dir);
  std::sort(names.begin(), names.end());
  return names;
}

#if defined(__x86_64__)
constexpr uint64_t kAvxState = 0x6;      // XCR0: SSE and AVX registers are saved
constexpr uint64_t kAvx512State = 0xe6;  // and opmask, upper halves and the upper sixteen
constexpr uint64_t kTileState = 0x60000;

uint64_t read_xcr0() {
  uint32_t eax, edx;
  __asm__ volatile("xgetbv" : "=a"(eax), "=d"(edx) : "c"(0));
  return eax | static_cast<uint64_t>(edx) << 32;
}
#endif

// One row per feature that a manifest can require: where its bit is, and which register state the system must save.
struct CpuFeature {
  std::string_view name;
  int word;
  int bit;
  uint64_t state;
};

#if defined(__x86_64__)
constexpr CpuFeature kFeatures[] = {
    {"sse3", 0, 0, 0},
    {"ssse3", 0, 9, 0},
    {"fma", 0, 12, kAvxState},
    {"sse4.1", 0, 19, 0},
    {"sse4.2", 0, 20, 0},
    {"popcnt", 0, 23, 0},
    {"avx", 0, 28, kAvxState},
    {"f16c", 0, 29, kAvxState},
    {"bmi1", 1, 3, 0},
    {"avx2", 1, 5, kAvxState},
    {"bmi2", 1, 8, 0},
    {"avx512f", 1, 16, kAvx512State},
    {"avx512dq", 1, 17, kAvx512State},
    {"avx512ifma", 1, 21, kAvx512State},
    {"avx512cd", 1, 28, kAvx512State},
    {"avx512bw", 1, 30, kAvx512State},
    {"avx512vl", 1, 31, kAvx512State},
    {"avx512vbmi", 1, 32 + 1, kAvx512State},
    {"avx512vbmi2", 1, 32 + 6, kAvx512State},
    {"vaes", 1, 32 + 9, kAvxState},
    {"vpclmulqdq", 1, 32 + 10, kAvxState},
    {"avx512vnni", 1, 32 + 11, kAvx512State},
    {"avx512bitalg", 1, 32 + 12, kAvx512State},
    {"avx512vpopcntdq", 1, 32 + 14, kAvx512State},
    {"amx-bf16", 2, 22, kTileState},
    {"avx512fp16", 2, 23, kAvx512State},
    {"amx-tile", 2, 24, kTileState},
    {"amx-int8", 2, 25, kTileState},
    {"avxvnni", 2, 32 + 4, kAvxState},
    {"avx512bf16", 2, 32 + 5, kAvx512State},
    {"lzcnt", 3, 5, 0},
};
#elif defined(__aarch64__)
constexpr CpuFeature kFeatures[] = {
    {"asimd", 0, 1, 0},    {"aes", 0, 3, 0},      {"atomics", 0, 8, 0}, {"fphp", 0, 9, 0},  {"asimdhp", 0, 10, 0},
    {"fp16", 0, 10, 0},  // LLVM's name; a processor has the scalar and the vector half or neither
    {"asimddp", 0, 20, 0}, {"dotprod", 0, 20, 0}, {"sve", 0, 22, 0},    {"sve2", 1, 1, 0},  {"i8mm", 1, 13, 0},
    {"bf16", 1, 14, 0},
};
constexpr uint64_t kSve = 1ull << 22, kSve2 = 1ull << 1;
constexpr uint64_t kIdentifies = 1ull << 11;  // AT_HWCAP: the kernel answers reads of the registers that identify a processor
#else
constexpr CpuFeature kFeatures[] = {{"none", 0, 0, 0}};
#endif

std::array<uint64_t, 4> cpu_features() {
  std::array<uint64_t, 4> words{};
#if defined(__x86_64__)
  uint32_t a, b, c, d;
  const auto join = [](uint32_t low, uint32_t high) { return low | static_cast<uint64_t>(high) << 32; };
  uint64_t xcr0 = 0;
  if (__get_cpuid(1, &a, &b, &c, &d)) {
    words[0] = join(c, d);
    if (c & (1u << 27)) xcr0 = read_xcr0();  // OSXSAVE: without it XGETBV is an illegal instruction
  }
  uint32_t subleaves = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d)) {
    subleaves = a;
    words[1] = join(b, c);
    words[2] = d;
  }
  if (subleaves >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d)) words[2] |= static_cast<uint64_t>(a) << 32;
  if (__get_cpuid(0x80000001, &a, &b, &c, &d)) words[3] = join(c, d);
  for (const CpuFeature& f : kFeatures)
    if ((xcr0 & f.state) != f.state) words[f.word] &= ~(1ull << f.bit);
#elif defined(__aarch64__)
  words[0] = ::getauxval(AT_HWCAP);
  words[1] = ::getauxval(AT_HWCAP2);
  // The length is a setting of the process, anything from 16 to 256 bytes, and may be below what the processor can.
  if (words[0] & kSve) {
    const int length = ::prctl(PR_SVE_GET_VL);
    if (length > 0) words[2] = static_cast<uint64_t>(length) & PR_SVE_VL_LEN_MASK;
  }
  if (words[2] == 0) {
    words[0] &= ~kSve;
    words[1] &= ~kSve2;
  }
#endif
  return words;
}

uint64_t read_number(const std::string& text) { return ::strtoull(text.c_str(), nullptr, 0); }

// MIDR_EL1 of the first processor, as far as somebody tells it; 0 on processors that have none.
uint64_t find_midr(const std::string& root, const std::string& cpuinfo) {
  const uint64_t told = read_number(read_text(root + "/sys/devices/system/cpu/cpu0/regs/identification/midr_el1"));
  if (told) return told;
  const std::string implementer = field(cpuinfo, "CPU implementer");
  if (!implementer.empty()) return read_number(implementer) << 24 | read_number(field(cpuinfo, "CPU part")) << 4;
#if defined(__aarch64__)
  // Under an emulator both files are those of the machine beneath.
  if (root.empty() && ::getauxval(AT_HWCAP) & kIdentifies) {
    uint64_t midr;
    __asm__("mrs %0, midr_el1" : "=r"(midr));
    return midr;
  }
#endif
  return 0;
}

std::string name_of_midr(uint64_t midr) {
  struct Core {
    uint32_t implementer, part;
    const char* name;
  };
  constexpr uint32_t kAnyPart = 0x1000;
  constexpr Core kCores[] = {
      {0x41, 0xd08, "Arm Cortex-A72"},     {0x41, 0xd0b, "Arm Cortex-A76"},  {0x41, 0xd0c, "Arm Neoverse N1"},
      {0x41, 0xd40, "Arm Neoverse V1"},    {0x41, 0xd49, "Arm Neoverse N2"}, {0x41, 0xd4f, "Arm Neoverse V2"},
      {0x61, kAnyPart, "Apple processor"},
  };
  const uint32_t implementer = midr >> 24 & 0xff, part = midr >> 4 & 0xfff;
  for (const Core& core : kCores)
    if (core.implementer == implementer && (core.part == part || core.part == kAnyPart)) return core.name;
  char text[64];
  ::snprintf(text, sizeof text, "AArch64 processor (implementer 0x%02x, part 0x%03x)", implementer, part);
  return text;
}

HardwareItem find_cpu(const std::string& root) {
  HardwareItem cpu;
  cpu.uid = "cpu:0";
  cpu.torch_device = Device{};
  cpu.cpu_features = cpu_features();
  const std::string info = read_text(root + "/proc/cpuinfo");
  const uint64_t midr = find_midr(root, info);
#if defined(__aarch64__)
  cpu.cpu_features[3] = midr;
#endif
  cpu.description = midr ? name_of_midr(midr) : field(info, "model name");
  if (cpu.description.empty()) cpu.description = std::string(host_os_arch()) + " processor";
  return cpu;
}

struct NvidiaGpu {
  HardwareItem item;
  std::string uuid;
};

uint32_t read_hex(const std::string& path) {
  const std::string text = read_text(path);
  return static_cast<uint32_t>(::strtoul(text.c_str(), nullptr, 16));
}

// GPUs that NVIDIA's kernel driver shows and whose device file is there: a container sees all in /proc, but may open only some.
std::vector<NvidiaGpu> find_nvidia(const std::string& root) {
  std::vector<NvidiaGpu> found;
  std::string driver = trimmed(read_text(root + "/sys/module/nvidia/version"));
  if (driver.empty()) {
    std::istringstream words(read_text(root + "/proc/driver/nvidia/version"));
    for (std::string word; words >> word;)
      if (std::count(word.begin(), word.end(), '.') >= 1 && std::isdigit(static_cast<unsigned char>(word[0]))) {
        driver = word;
        break;
      }
  }
  const std::string gpus = root + "/proc/driver/nvidia/gpus";
  for (const std::string& address : folder_names(gpus)) {
    const std::string info = read_text(gpus + "/" + address + "/information");
    const std::string minor = field(info, "Device Minor");
    struct stat st {};
    if (minor.empty() || ::stat((root + "/dev/nvidia" + minor).c_str(), &st) != 0) continue;
    NvidiaGpu gpu;
    gpu.item.uid = "pci:" + address;
    gpu.item.description = field(info, "Model");
    gpu.item.driver = "nvidia " + driver;
    gpu.item.vendor_id = 0x10de;
    gpu.item.device_id = read_hex(root + "/sys/bus/pci/devices/" + address + "/device");
    gpu.uuid = field(info, "GPU UUID");
    found.push_back(std::move(gpu));
  }
  return found;
}

// The order and choice of CUDA_VISIBLE_DEVICES: numbers or prefixes of UUIDs, cut at the first that names nothing. Without it,
// PCI order. Mixed machines, which the vendor orders by speed unless CUDA_DEVICE_ORDER=PCI_BUS_ID, are told apart by the uid.
std::vector<size_t> visible_order(const std::vector<NvidiaGpu>& gpus, const char* visible) {
  std::vector<size_t> order;
  if (!visible) {
    for (size_t i = 0; i < gpus.size(); ++i) order.push_back(i);
    return order;
  }
  std::istringstream list(visible);
  for (std::string word; std::getline(list, word, ',');) {
    word = trimmed(word);
    size_t hit = gpus.size();
    if (!word.empty() && word.find_first_not_of("0123456789") == std::string::npos) {
      hit = std::min<size_t>(::strtoul(word.c_str(), nullptr, 10), gpus.size());
    } else if (word.rfind("GPU-", 0) == 0) {
      for (size_t i = 0; i < gpus.size(); ++i)
        if (gpus[i].uuid.rfind(word, 0) == 0) hit = i;
    }
    if (hit == gpus.size() || std::find(order.begin(), order.end(), hit) != order.end()) break;
    order.push_back(hit);
  }
  return order;
}

// GPUs of other vendors: shown to plugins by their PCI numbers. LibTorch drives AMD's where their kernel driver is there, in PCI order
// (should a variable hide some, the uid tells them apart), and a LibTorch that does not says so itself; of others nothing is claimed.
void find_other_gpus(const std::string& root, std::vector<HardwareItem>* items) {
  const std::string devices = root + "/sys/bus/pci/devices";
  struct stat st {};
  const bool amd_driver = ::stat((root + "/dev/kfd").c_str(), &st) == 0;
  int32_t num_amd = 0;
  for (const std::string& address : folder_names(devices)) {
    const std::string at = devices + "/" + address;
    const uint32_t class_code = read_hex(at + "/class") >> 16;
    const uint32_t vendor = read_hex(at + "/vendor");
    const bool display_or_accelerator = class_code == 0x03 || class_code == 0x12;
    if (!display_or_accelerator || vendor == 0x10de || vendor == 0) continue;
    HardwareItem item;
    item.uid = "pci:" + address;
    item.vendor_id = vendor;
    item.device_id = read_hex(at + "/device");
    item.description = "PCI device";
    if (vendor == 0x1002 && amd_driver) {
      item.driver = trimmed("amdgpu " + read_text(root + "/sys/module/amdgpu/version"));
      item.torch_device = Device{Device::kHip, num_amd++};
    }
    items->push_back(std::move(item));
  }
}

}  // namespace

std::string_view host_os_arch() {
#if defined(__x86_64__)
  return "linux-x86_64";
#elif defined(__aarch64__)
  return "linux-aarch64";
#else
  return "unknown";
#endif
}

std::vector<HardwareItem> find_hardware(const std::string& root, const char* visible_devices) {
  std::vector<HardwareItem> items{find_cpu(root)};
  std::vector<NvidiaGpu> gpus = find_nvidia(root);
  const std::vector<size_t> order = visible_order(gpus, visible_devices);
  for (size_t i = 0; i < order.size(); ++i)
    gpus[order[i]].item.torch_device = Device{Device::kCuda, static_cast<int32_t>(i)};
  for (NvidiaGpu& gpu : gpus) items.push_back(std::move(gpu.item));
  find_other_gpus(root, &items);
  return items;
}

std::vector<HardwareItem> find_hardware() {
  const char* root = ::secure_getenv("KEIRIN_HARDWARE_ROOT");
  return find_hardware(root ? root : "", ::getenv("CUDA_VISIBLE_DEVICES"));
}

std::optional<bool> has_cpu_feature(const HardwareItem& cpu, std::string_view name) {
  for (const CpuFeature& f : kFeatures)
    if (f.name == name) return (cpu.cpu_features[f.word] >> f.bit & 1) != 0;
  return {};
}

}  // namespace keirin
