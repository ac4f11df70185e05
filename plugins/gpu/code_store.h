// SPDX-License-Identifier: Apache-2.0
//
// The process's store of generated code, by structure of the kernel, schedule and target: equal kernels compile once, whatever their sizes
// and whichever executable asks.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "plugins/codegen/kernel/loops.h"
#include "plugins/codegen/kernel/schedule.h"
#include "plugins/gpu/driver.h"

namespace keirin::gpu {

// The symbols of a kernel's code, which depend on its structure, on what it is compiled for, and on a schedule.
class CodeNames {
 public:
  CodeNames(const codegen::Kernel& kernel, const CodeTarget& target);
  std::string of(const codegen::Schedule& schedule) const;

 private:
  std::array<uint64_t, 2> begun_;  // the hashes of what no schedule changes
};

// One launchable kernel; `finish` is null unless the schedule is split.
struct Functions {
  Function whole = nullptr;
  Function finish = nullptr;
};

// Thread-safe. Modules stay loaded until the process ends: executables keep bare handles.
class CodeStore {
 public:
  struct Wanted {
    const codegen::Kernel* kernel;
    codegen::Schedule schedule;
    std::string name;  // CodeNames::of
  };
  // Compiles what is missing, several modules at a time, and counts it. `dump` gets each module's text.
  uint32_t compile(std::span<const Wanted> wanted, const CodeTarget& target,
                   const std::function<void(const std::string& name, const std::string& text)>& dump);
  // Whether there is code of that name (CodeNames).
  bool knows(const std::string& name) const;
  // A text of our own under one name; compiled if it is not known.
  uint32_t compile_text(const std::string& name, const std::string& text, const CodeTarget& target);
  // A function of what compile_text made. The device's context must be current.
  Function load_function(const Driver& driver, const std::string& name, const std::string& symbol);
  // The device's context must be current.
  Functions load(const Driver& driver, const Wanted& wanted);

  // Records [u32 number of names][u32 bytes][name]..[u64 bytes][code], one for each module that holds a wanted kernel.
  void save(std::span<const std::string> names, std::vector<uint8_t>& out) const;
  // Throws kit::Error(corrupt); what is known already is skipped.
  void take(std::span<const uint8_t> bytes);
  uint64_t code_bytes() const;

  // Bytes that are not code but travel with it under a name: choices made by measuring. Empty if not known.
  void remember(const std::string& name, std::vector<char> bytes);
  std::vector<char> recall(const std::string& name) const;
  std::vector<std::string> names_from(const std::string& prefix) const;

 private:
  struct Made {
    std::vector<std::string> names;
    std::vector<char> code;
    Module handle = nullptr;
  };
  void add(std::shared_ptr<Made> module);
  Module loaded(const Driver& driver, const std::string& name);  // mutex_ held

  mutable std::mutex mutex_;
  std::map<std::string, std::shared_ptr<Made>> modules_;  // by kernel name
  uint64_t bytes_ = 0;
};

CodeStore& code_store();

// Names of remembered choices of library algorithms begin so.
inline constexpr const char* kChoicePrefix = "choice ";

}  // namespace keirin::gpu
