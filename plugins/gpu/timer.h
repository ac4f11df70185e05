// SPDX-License-Identifier: Apache-2.0
//
// Times work on a device: a stream of its own, two events, and memory that is given back at the end of the scope.
// Whoever records elsewhere meanwhile is not disturbed.
#pragma once

#include <vector>

#include "plugins/gpu/driver.h"

namespace keirin::gpu {

class Timer {
 public:
  // The device's context must be current, here and until the end.
  explicit Timer(const Driver& driver);
  ~Timer();
  Timer(const Timer&) = delete;

  // False once something could not be made or allocated; then nothing may be timed.
  bool ok() const { return ok_; }
  // Full of small numbers in every float dtype: zeros would run at a higher clock. Null without memory, and for 0
  // bytes.
  void* memory(size_t bytes);
  Stream stream() const { return stream_; }

  // Milliseconds of `run` on the stream, or a negative number if it does not run (false). Waits.
  template <class Run>
  float milliseconds_of(const Run& run) {
    begin();
    return run() ? end() : -1;
  }

 private:
  void begin();
  float end();

  const Driver& driver_;
  const AllocateWhileRecording allowed_;
  Stream stream_ = nullptr;
  Event events_[2] = {};
  std::vector<void*> memory_;
  bool ok_ = false;
};

}  // namespace keirin::gpu
