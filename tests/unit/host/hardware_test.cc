// SPDX-License-Identifier: Apache-2.0
//
// Hardware is found in a /proc and /sys that the test wrote, so GPUs need not be there.
#include "core/host/find/hardware.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#if defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

#include <filesystem>
#include <fstream>

#include "tests/support/temp_folder.h"

namespace keirin {
namespace {

namespace fs = std::filesystem;

class Hardware : public testing::Test {
 protected:
  void SetUp() override {
    write("/proc/cpuinfo", "processor\t: 0\nmodel name\t: Test CPU 9000\n");
  }
  void write(const std::string& path, const std::string& text) {
    fs::create_directories(fs::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }
  void gpu(const std::string& address, int minor, const std::string& uuid, bool device_file) {
    write("/proc/driver/nvidia/gpus/" + address + "/information",
          "Model: \t\t NVIDIA H200\nIRQ:   \t\t 0\nGPU UUID: \t " + uuid + "\nDevice Minor: \t " + std::to_string(minor) + "\n");
    write("/sys/bus/pci/devices/" + address + "/device", "0x2335\n");
    write("/sys/bus/pci/devices/" + address + "/vendor", "0x10de\n");
    write("/sys/bus/pci/devices/" + address + "/class", "0x030200\n");
    if (device_file) write("/dev/nvidia" + std::to_string(minor), "");
  }
  test::TempFolder folder_;
  const std::string root_ = folder_.path();
};

TEST_F(Hardware, TheProcessorIsFirst) {
  const auto items = find_hardware(root_, nullptr);
  ASSERT_EQ(items.size(), 1u);
  EXPECT_EQ(items[0].uid, "cpu:0");
  EXPECT_EQ(items[0].description, "Test CPU 9000");
  EXPECT_EQ(items[0].torch_device, Device{});
#if defined(__x86_64__)
  EXPECT_EQ(has_cpu_feature(items[0], "sse3"), __builtin_cpu_supports("sse3") != 0);
  EXPECT_EQ(has_cpu_feature(items[0], "ssse3"), __builtin_cpu_supports("ssse3") != 0);
  EXPECT_EQ(has_cpu_feature(items[0], "sse4.1"), __builtin_cpu_supports("sse4.1") != 0);
  EXPECT_EQ(has_cpu_feature(items[0], "sse4.2"), __builtin_cpu_supports("sse4.2") != 0);
  EXPECT_EQ(has_cpu_feature(items[0], "popcnt"), __builtin_cpu_supports("popcnt") != 0);
  EXPECT_EQ(has_cpu_feature(items[0], "avx"), __builtin_cpu_supports("avx") != 0);
  EXPECT_EQ(has_cpu_feature(items[0], "bmi1"), __builtin_cpu_supports("bmi") != 0);
  EXPECT_EQ(has_cpu_feature(items[0], "bmi2"), __builtin_cpu_supports("bmi2") != 0);
  EXPECT_EQ(has_cpu_feature(items[0], "avx512dq"), __builtin_cpu_supports("avx512dq") != 0);
  EXPECT_EQ(has_cpu_feature(items[0], "avx512cd"), __builtin_cpu_supports("avx512cd") != 0);
  EXPECT_EQ(has_cpu_feature(items[0], "avx512bw"), __builtin_cpu_supports("avx512bw") != 0);
  EXPECT_EQ(has_cpu_feature(items[0], "avx512vl"), __builtin_cpu_supports("avx512vl") != 0);
  EXPECT_EQ(has_cpu_feature(items[0], "avx2"), __builtin_cpu_supports("avx2") != 0);
  EXPECT_EQ(has_cpu_feature(items[0], "fma"), __builtin_cpu_supports("fma") != 0);
  EXPECT_EQ(has_cpu_feature(items[0], "avx512f"), __builtin_cpu_supports("avx512f") != 0);
  EXPECT_EQ(has_cpu_feature(items[0], "avx512vnni"), __builtin_cpu_supports("avx512vnni") != 0);
  EXPECT_EQ(has_cpu_feature(items[0], "avx512bf16"), __builtin_cpu_supports("avx512bf16") != 0);
#endif
#if defined(__aarch64__)
  EXPECT_EQ(has_cpu_feature(items[0], "asimd"), (::getauxval(AT_HWCAP) & HWCAP_ASIMD) != 0);
  EXPECT_EQ(has_cpu_feature(items[0], "fp16"), (::getauxval(AT_HWCAP) & HWCAP_ASIMDHP) != 0);
  EXPECT_EQ(has_cpu_feature(items[0], "fphp"), has_cpu_feature(items[0], "asimdhp"));
  EXPECT_EQ(has_cpu_feature(items[0], "dotprod"), (::getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0);
  EXPECT_EQ(has_cpu_feature(items[0], "bf16"), (::getauxval(AT_HWCAP2) & HWCAP2_BF16) != 0);
  EXPECT_EQ(has_cpu_feature(items[0], "i8mm"), (::getauxval(AT_HWCAP2) & HWCAP2_I8MM) != 0);
  EXPECT_EQ(has_cpu_feature(items[0], "sve"), (::getauxval(AT_HWCAP) & HWCAP_SVE) != 0);
  EXPECT_EQ(has_cpu_feature(items[0], "sve2"), (::getauxval(AT_HWCAP2) & HWCAP2_SVE2) != 0);
  uint64_t sve_bytes = 0;
  if (has_cpu_feature(items[0], "sve").value()) __asm__(".inst 0x04bf5020\n\tmov %0, x0" : "=r"(sve_bytes) : : "x0");  // rdvl x0, #1
  EXPECT_EQ(items[0].cpu_features[2], sve_bytes) << "what the processor itself says";
#endif
  EXPECT_EQ(has_cpu_feature(items[0], "avx9"), std::nullopt);
}

TEST_F(Hardware, ArmProcessorsHaveTheNameOfTheirPart) {
  struct Row {
    const char *midr, *implementer, *part, *name;
  };
  const Row rows[] = {
      {"0x00000000413fd0c1\n", "0x41", "0xd0c", "Arm Neoverse N1"},
      {"0x00000000411fd401\n", "0x41", "0xd40", "Arm Neoverse V1"},
      {"0x00000000410fd490\n", "0x41", "0xd49", "Arm Neoverse N2"},
      {"0x00000000410fd4f0\n", "0x41", "0xd4f", "Arm Neoverse V2"},
      {"0x00000000611f0221\n", "0x61", "0x022", "Apple processor"},
      {"0x00000000480fd010\n", "0x48", "0xd01", "AArch64 processor (implementer 0x48, part 0xd01)"},
  };
  const std::string file = "/sys/devices/system/cpu/cpu0/regs/identification/midr_el1";
  for (const Row& row : rows) {
    write(file, row.midr);
    write("/proc/cpuinfo", "processor\t: 0\nCPU implementer\t: 0x99\nCPU part\t: 0x999\n");
    EXPECT_EQ(find_hardware(root_, nullptr)[0].description, row.name) << "by the register, which is asked first";
    fs::remove(root_ + file);
    write("/proc/cpuinfo", std::string("processor\t: 0\nCPU implementer\t: ") + row.implementer + "\nCPU variant\t: 0x1\nCPU part\t: " +
                               row.part + "\nCPU revision\t: 1\n");
    const HardwareItem cpu = find_hardware(root_, nullptr)[0];
    EXPECT_EQ(cpu.description, row.name) << "by what /proc says";
#if defined(__aarch64__)
    EXPECT_EQ(cpu.cpu_features[3] >> 4 & 0xfff, std::stoul(row.part, nullptr, 16));
#endif
  }
}

TEST_F(Hardware, GpusThatThisProcessMayOpen) {
  write("/sys/module/nvidia/version", "570.124.06\n");
  gpu("0000:3b:00.0", 1, "GPU-aaaa", true);
  gpu("0000:18:00.0", 0, "GPU-bbbb", true);
  gpu("0000:86:00.0", 2, "GPU-cccc", false);  // shown in /proc, not given to this container
  const auto items = find_hardware(root_, nullptr);
  ASSERT_EQ(items.size(), 3u);
  EXPECT_EQ(items[1].uid, "pci:0000:18:00.0");
  EXPECT_EQ(items[1].vendor_id, 0x10deu);
  EXPECT_EQ(items[1].device_id, 0x2335u);
  EXPECT_EQ(items[1].driver, "nvidia 570.124.06");
  EXPECT_EQ(items[1].description, "NVIDIA H200");
  EXPECT_EQ(items[1].torch_device, (Device{Device::kCuda, 0}));
  EXPECT_EQ(items[2].torch_device, (Device{Device::kCuda, 1}));
}

TEST_F(Hardware, VisibleDevicesChooseAndOrder) {
  write("/proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar\n");
  gpu("0000:18:00.0", 0, "GPU-aaaa", true);
  gpu("0000:3b:00.0", 1, "GPU-bbbb", true);
  const auto order = [&](const char* visible) {
    std::vector<int> indices;
    const auto items = find_hardware(root_, visible);
    for (size_t i = 1; i < items.size(); ++i) indices.push_back(items[i].torch_device ? items[i].torch_device->index : -1);
    return indices;
  };
  EXPECT_EQ(find_hardware(root_, nullptr)[1].driver, "nvidia 550.54.15");
  EXPECT_EQ(order("1,0"), (std::vector<int>{1, 0}));
  EXPECT_EQ(order("1"), (std::vector<int>{-1, 0}));
  EXPECT_EQ(order(""), (std::vector<int>{-1, -1}));
  EXPECT_EQ(order("-1"), (std::vector<int>{-1, -1}));
  EXPECT_EQ(order("0,9,1"), (std::vector<int>{0, -1})) << "cut at the first that names nothing";
  EXPECT_EQ(order("GPU-bb"), (std::vector<int>{-1, 0}));
}

TEST_F(Hardware, GpusOfOthersAreListedWithoutLibTorch) {
  write("/sys/bus/pci/devices/0000:01:00.0/class", "0x038000\n");
  write("/sys/bus/pci/devices/0000:01:00.0/vendor", "0x1002\n");
  write("/sys/bus/pci/devices/0000:01:00.0/device", "0x740f\n");
  write("/sys/bus/pci/devices/0000:02:00.0/class", "0x020000\n");  // a network card
  write("/sys/bus/pci/devices/0000:02:00.0/vendor", "0x8086\n");
  const auto items = find_hardware(root_, nullptr);
  ASSERT_EQ(items.size(), 2u);
  EXPECT_EQ(items[1].vendor_id, 0x1002u);
  EXPECT_EQ(items[1].device_id, 0x740fu);
  EXPECT_FALSE(items[1].torch_device);
}

TEST_F(Hardware, AmdGpusWithTheirDriverAreRocmInPciOrder) {
  for (const char* address : {"0000:01:00.0", "0000:05:00.0"}) {
    write("/sys/bus/pci/devices/" + std::string(address) + "/class", "0x030000\n");
    write("/sys/bus/pci/devices/" + std::string(address) + "/vendor", "0x1002\n");
    write("/sys/bus/pci/devices/" + std::string(address) + "/device", "0x744c\n");
  }
  write("/sys/module/amdgpu/version", "6.8.5\n");
  write("/dev/kfd", "");
  const auto items = find_hardware(root_, nullptr);
  ASSERT_EQ(items.size(), 3u);
  EXPECT_EQ(items[1].torch_device, (Device{Device::kHip, 0}));
  EXPECT_EQ(items[2].torch_device, (Device{Device::kHip, 1}));
  EXPECT_EQ(items[2].uid, "pci:0000:05:00.0");
  EXPECT_EQ(items[1].driver, "amdgpu 6.8.5");
  ::setenv("KEIRIN_HARDWARE_ROOT", root_.c_str(), 1);
  EXPECT_EQ(find_hardware(), items) << "the variable names the folder as well";
  ::unsetenv("KEIRIN_HARDWARE_ROOT");
}

}  // namespace
}  // namespace keirin
