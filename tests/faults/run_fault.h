// SPDX-License-Identifier: Apache-2.0
//
// What tests of worker mode share, whatever the device is: a fault costs the run in which it happens, and one judgement says so.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/host/plugins.h"
#include "tests/support/relu_region.h"

namespace keirin::test {

struct RunFault {
  const char* word;    // what the plugin is told to do
  Code code;           // how that run ends
  const char* reason;  // a part of what the status says
  enum After { kKept, kAWhile, kNotJudged } after;  // the region: on the list for good, at rest for a second, not at all
};

inline Result<std::shared_ptr<Executable>> make_relu(PluginDevice& device, int64_t n) {
  const RegionBytes region = relu_region(n);
  return device.compile({region.bytes, region.hash, {}}, {}, {});
}

// Processes of ours that play `role`.
inline std::vector<pid_t> workers(const std::string& role) {
  std::vector<pid_t> found;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream list(task.path() / "children");
    for (pid_t pid; list >> pid;) {
      std::ifstream file("/proc/" + std::to_string(pid) + "/cmdline");
      std::string program, argument;
      if (std::getline(std::getline(file, program, '\0'), argument, '\0') && argument == role) found.push_back(pid);
    }
  }
  return found;
}

// Of regions of 8, which meets the fault, and of 100 floats, both made and the first one run. `run` checks what a run leaves of its
// tensors, `turn` tells the plugin its word.
inline void expect_costs_one_run(const RunFault& fault, PluginHost& host, Executable& first, Executable& second,
                                 const std::function<Status(Executable&, int64_t n)>& run,
                                 const std::function<void(const std::string&)>& turn) {
  PluginDevice& device = *host.devices()[0];
  const bool judged = fault.after != RunFault::kNotJudged;
  turn(fault.word);
  const auto begin = std::chrono::steady_clock::now();
  const Status status = run(first, 8);
  std::printf("run %-10s %5lld ms  %s\n", fault.word,
              static_cast<long long>((std::chrono::steady_clock::now() - begin) / std::chrono::milliseconds(1)), status.text().c_str());
  EXPECT_EQ(status.code(), fault.code) << status.text();
  EXPECT_NE(status.text().find(fault.reason), std::string::npos) << status.text();
  turn("");
  const Status again = run(first, 8);
  EXPECT_EQ(again.ok(), !judged) << again.text();
  const Status other = run(second, 100);
  EXPECT_TRUE(other.ok()) << "another region: " << other.text();
  const auto third = make_relu(device, 9);
  ASSERT_TRUE(third.ok()) << third.status().text();
  EXPECT_TRUE(run(**third, 9).ok());
  EXPECT_EQ(make_relu(device, 8).ok(), !judged);
  EXPECT_EQ(host.take_incidents().size(), judged ? 1u : 0u);
}

}  // namespace keirin::test
