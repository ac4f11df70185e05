// SPDX-License-Identifier: Apache-2.0
//
// The built plugin through its one symbol, as a host meets it on a machine without a GPU: it negotiates, says why each piece of
// hardware gives no device, and refuses an ABI range it does not speak.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <string>

#include "abi/plugin.h"

namespace {

const krn_table* KRN_CALL no_table(krn_host*, const char*, uint32_t) { return nullptr; }

using Entry = krn_code(KRN_CALL*)(const krn_offer*, krn_answer*, krn_err*);

Entry entry() {
  void* library = dlopen(KEIRIN_CUDA_PLUGIN, RTLD_NOW | RTLD_LOCAL);
  EXPECT_NE(library, nullptr) << dlerror();
  return library ? reinterpret_cast<Entry>(dlsym(library, "krn_plugin_entry")) : nullptr;
}

krn_offer offer(uint16_t minor_min, uint16_t minor_max) {
  krn_offer out{};
  out.hdr.size = sizeof out;
  out.abi_major_min = out.abi_major_max = KRN_ABI_MAJOR;
  out.abi_minor_min = minor_min, out.abi_minor_max = minor_max;
  out.role = KRN_ROLE_RUN;
  out.get_table = no_table;
  return out;
}

TEST(CudaPlugin, SaysWhyHardwareGivesNoDevice) {
  const Entry negotiate = entry();
  ASSERT_NE(negotiate, nullptr);
  krn_answer answer{};
  answer.hdr.size = sizeof answer;
  const krn_offer good = offer(KRN_ABI_MINOR, KRN_ABI_MINOR), newer = offer(KRN_ABI_MINOR + 1, KRN_ABI_MINOR + 5);
  EXPECT_EQ(negotiate(&newer, &answer, nullptr), KRN_STATUS_version);
  ASSERT_EQ(negotiate(&good, &answer, nullptr), KRN_STATUS_ok);
  EXPECT_EQ(answer.guid.bytes[0], 0x6b);
  const auto* plugins = reinterpret_cast<const krn_plugin_table*>(answer.get_table("krn.plugin", 1));
  const auto* devices = reinterpret_cast<const krn_device_table*>(answer.get_table("krn.device", 1));
  ASSERT_TRUE(plugins && devices);
  EXPECT_NE(answer.get_table("krn.artifact", 1), nullptr);
  EXPECT_EQ(answer.get_table("krn.replay", 1), nullptr);
  krn_config config{};
  config.hdr.size = sizeof config;
  krn_plugin* plugin = nullptr;
  ASSERT_EQ(plugins->initialize(&config, &plugin, nullptr), KRN_STATUS_ok);
  krn_hw items[3] = {};
  for (krn_hw& item : items) item.hdr.size = sizeof item;
  items[0].torch_type = 1;  // a CPU
  items[1].torch_type = 10, items[1].vendor_id = 0x1002;
  const std::string nowhere = "pci:00ff:ff:1f.7";
  items[2].uid = {nowhere.data(), nowhere.size()};
  items[2].vendor_id = 0x10de, items[2].torch_type = -1, items[2].torch_index = -1;
  const krn_array hardware{items, 3, sizeof(krn_hw)};
  std::string words[3];
  auto emit = [](void* ctx, uint32_t index, krn_dev* device, krn_str why) {
    EXPECT_EQ(device, nullptr);
    static_cast<std::string*>(ctx)[index].assign(why.data, why.size);
  };
  ASSERT_EQ(devices->enumerate(plugin, &hardware, emit, words, nullptr), KRN_STATUS_ok);
  EXPECT_EQ(words[0], "not an NVIDIA GPU");
  EXPECT_EQ(words[1], "not an NVIDIA GPU");
  EXPECT_TRUE(words[2].find("driver") != std::string::npos || words[2].find("NVRTC") != std::string::npos) << words[2];
  EXPECT_EQ(plugins->shutdown(plugin, nullptr), KRN_STATUS_ok);
}

}  // namespace
