// SPDX-License-Identifier: Apache-2.0
//
// Names of devices as users give them: what they stand for here, and one text for what is not here, whoever asks.
#include "core/api/devices.h"

#include <gtest/gtest.h>

#include "core/eager/tensor_services.h"
#include "core/host/plugins.h"
#include "tests/support/shared_runtime.h"

namespace keirin {
namespace {

const std::string kModel = std::string(KEIRIN_SOURCE_DIR) + "/bench/zoo/models/small/mlp.pt2";

PluginHost& plugins() { return test::shared_runtime().plugins(); }

TEST(Devices, WhatIsHereIsFoundByEachOfItsNames) {
  const std::vector<Device> here = devices_here();
  ASSERT_FALSE(here.empty());
  EXPECT_EQ(here[0], Device{});
  for (const Device& device : here) {
    const Result<NamedDevice> found = find_device(device_name(device), plugins());
    ASSERT_TRUE(found.ok()) << found.status().text();
    EXPECT_EQ(found->device, device);
    EXPECT_TRUE(found->plugin.empty());
  }
}

TEST(Devices, APluginsNameIsItsDeviceAndItAloneCompiles) {
  const Result<NamedDevice> found = find_device("reference", plugins());
  ASSERT_TRUE(found.ok()) << found.status().text();
  EXPECT_EQ(found->device, Device{});
  EXPECT_EQ(found->plugin, "reference");
  Options options;
  options.device = "reference";
  options.race_seconds = 0;
  const auto session = Session::open(test::shared_runtime(), kModel, options);
  ASSERT_TRUE(session.ok()) << session.status().text();
  EXPECT_EQ((*session)->device(), Device{});
  const auto inputs = (*session)->example_inputs(1);
  ASSERT_TRUE(inputs.ok());
  const auto report = (*session)->compile(*inputs);
  ASSERT_TRUE(report.ok()) << report.status().text();
  int compiled = 0;
  for (const CandidateReport& candidate : report->candidates) {
    compiled += candidate.plugin == "reference";
    EXPECT_TRUE(candidate.plugin.empty() || candidate.plugin == "reference") << candidate.plugin;
  }
  EXPECT_GT(compiled, 0);
}

// A name that means nothing, a device that could be there, and no name: the same sentence with the same list behind it.
TEST(Devices, OneTextSaysWhatThereIs) {
  std::string list;
  for (const Device& device : devices_here()) list += (list.empty() ? "" : ", ") + device_name(device);
  const std::vector<std::pair<std::string, Code>> names = {{"tpu", Code::k_invalid_input},   {"cuda:x", Code::k_invalid_input},
                                                           {"CPU", Code::k_invalid_input},   {"cpu:0", Code::k_invalid_input},
                                                           {"all", Code::k_invalid_input},   {"cuda:77", Code::k_unsupported}};
  for (const auto& [name, code] : names) {
    const Status status = find_device(name, plugins()).status();
    EXPECT_EQ(status.code(), code) << name;
    EXPECT_EQ(status.message().what.find("no such device: " + name + "; available: " + list), 0u) << status.text();
    EXPECT_NE(status.message().what.find("reference"), std::string::npos) << status.text();
    Options options;
    options.device = name;
    EXPECT_EQ(Session::open(test::shared_runtime(), kModel, options).status().message().what, status.message().what);
  }
  EXPECT_NE(find_device("", plugins()).status().text().find("no such device: \"\""), std::string::npos);
}

// A GPU that the kernel shows and LibTorch does not: what to do names it, where LibTorch's own GPU code is not what is missing.
TEST(Devices, HardwareThatNobodyAnswersForIsNamed) {
  HardwareItem gpu{.uid = "pci:0000:01:00.0", .description = "Imagined GPU", .torch_device = Device{Device::kCuda, 77}};
  const auto host = PluginHost::open({.search = false, .hardware = {{test::shared_runtime().plugins().hardware().front(), gpu}}});
  ASSERT_TRUE(host.ok()) << host.status().text();
  const Message message = find_device("cuda:77", **host).status().message();
  const bool no_gpu_code = message.what.find("LibTorch") != std::string::npos;
  EXPECT_NE(message.advice.find(no_gpu_code ? "LibTorch" : "Imagined GPU is in this machine"), std::string::npos) << message.advice;
  EXPECT_EQ(find_device("cuda:78", **host).status().message().advice.find("Imagined"), std::string::npos);
}

}  // namespace
}  // namespace keirin
