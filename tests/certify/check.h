// SPDX-License-Identifier: Apache-2.0
//
// What a conformance check is: a name, what it asks, what it stands on, and a function that tries one plugin in a process of its own.
// A check throws Failed where the plugin is wrong, NotOffered where there is nothing to try and NotRun where it cannot be tried here; a
// crash or a hang fails it, too.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <span>
#include <string>

namespace keirin::certify {

class Trial;

struct Failed {
  std::string what;
};
struct NotOffered {
  std::string why;
};
// The machine, and not the plugin, is why the check could not be asked. Never a pass.
struct NotRun {
  std::string why;
};

template <class... Args>
[[noreturn]] void fail(fmt::format_string<Args...> text, Args&&... args) {
  throw Failed{fmt::format(text, std::forward<Args>(args)...)};
}
template <class... Args>
void expect(bool holds, fmt::format_string<Args...> text, Args&&... args) {
  if (!holds) throw Failed{fmt::format(text, std::forward<Args>(args)...)};
}

// How far a plugin has to come before a check means anything. A check that gives a rung asks for nothing but that; what stands on a rung
// that the plugin does not reach is not tried, so that one fault fails one check.
enum class Rung : uint8_t {
  kFile, kPlainStack,  // newer C libraries load nothing else
  kLoads, kEntry, kTables, kInitialized, kEnumerated, kDescribed, kShutDown, kOpened, kCycled, kClaimed, kCompiled, kRan, kAllSizes,
  kThreads, kArtifact
};

struct Check {
  const char* name;  // GROUP/WORDS, the group being a letter of the table in docs/certify.md
  const char* asks;  // one sentence: what a plugin has to do
  Rung needs;
  void (*run)(Trial&);
  Rung gives = Rung::kFile;  // kFile: nothing stands on it
};

std::span<const Check> static_checks();
std::span<const Check> abi_checks();
std::span<const Check> life_checks();
std::span<const Check> device_checks();
std::span<const Check> honesty_checks();
std::span<const Check> numerics_checks();
std::span<const Check> memory_checks();
std::span<const Check> stream_checks();
std::span<const Check> thread_checks();
std::span<const Check> artifact_checks();
std::span<const Check> cost_checks();

}  // namespace keirin::certify
