// SPDX-License-Identifier: Apache-2.0
//
// What a run launches, as files for a simulator of the instruction set (docs/launches.md): code, arguments, memory before the first
// launch that names it, and what is expected after the last. A library's calls are not written down: where one changed memory that a
// later launch names, that launch gets a buffer of its own with what lies there then.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "plugins/gpu/driver.h"

namespace keirin::gpu {

class LaunchList {
 public:
  // Memory of one tensor or of a workspace, in the device's addresses.
  struct Memory {
    void* base;
    size_t bytes;
  };
  // What should lie at a place after the run.
  struct Expected {
    const void* at;
    std::vector<char> value;
    uint8_t dtype;
  };
  virtual ~LaunchList() = default;

  // The device's own driver with a pen: passes every call on.
  virtual const Driver& driver() const = 0;
  // Whether a run of this name is still to be written: the first time it is asked.
  virtual bool wants(const std::string& name) = 0;
  // Between the two all launches of the calling thread are written down, under that name; of other threads none. Memory may overlap.
  // One run at a time: further ones wait in `begin`.
  virtual void begin(const std::string& name, std::vector<Memory> memory, Stream stream) = 0;
  // Writes the manifest with all that is known so far, unless something could not be written, which it says.
  virtual std::string end(std::span<const Expected> expected) = 0;
};

// The process's list in a folder, which is made; the files are written when a run ends. Never destroyed: code that was loaded through its
// driver stays. `over` outlives it. `arch`: as the compiler names it. Throws kit::Error if the folder cannot be written, or is another
// device's.
LaunchList& launch_list(const Driver& over, const std::string& folder, const std::string& arch);

// Bytes from the base of one piece that holds each of the given ones: overlapping ones are one. Sorted by address.
std::vector<LaunchList::Memory> joined(std::vector<LaunchList::Memory> memory);

}  // namespace keirin::gpu
