// SPDX-License-Identifier: Apache-2.0
//
// The host's side of worker mode on a GPU: the arguments of one region's runs, and weights, in memory of the device that a worker is lent.
// Copies go on the caller's stream, so that nothing of them waits. What the worker is lent holds nothing but its own region's arguments and
// copies of its weights, whatever it writes there. Under the hold of the process that it is lent to.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/host/worker/device_driver.h"
#include "core/host/worker/shared_arguments.h"

namespace keirin {

// Arguments in a block of their own, every byte of which was the pattern before the first run; or, where they are few, in memory of the
// host that both share. Two processes' work takes turns on the device, which takes longer than a short run; copies between host and device
// are made beside it by other units.
class DeviceArguments {
 public:
  static constexpr uint64_t kMostThroughHost = 1 << 20;
  static Result<std::unique_ptr<DeviceArguments>> make(std::shared_ptr<const DeviceDriver> driver, SharedArguments layout);
  // In the room of a memory file, mapped.
  static Result<std::unique_ptr<DeviceArguments>> make_through_host(std::shared_ptr<const DeviceDriver> driver, SharedArguments layout);
  const SharedArguments& layout() const { return layout_; }
  const DeviceMemory* block() const { return block_.get(); }  // null: through the host

  // Copies inputs in, when what an earlier run left was copied out. The worker's stream waits for them by inputs_are_there(), or, where
  // the driver shares no events, this call does.
  Status put(const krn_tensor* inputs, uint64_t stream);
  const std::optional<DeviceDriver::Handle>& inputs_are_there() const { return event_; }
  bool device_is_busy() const { return !there_.is_reached(); }  // the inputs of the last run are not there yet
  // Copies outputs out; not before the worker has answered.
  Status take(const krn_tensor* outputs, uint64_t stream);
  // What was written past its end, in words; empty if nothing was, or if it is not this run's turn to be looked at: the first runs are, and
  // then each kLookEvery-th, because a look takes as long as a short run. It waits for the device.
  static constexpr uint64_t kFirstLooks = 32, kLookEvery = 64;
  Result<std::string> overrun(uint64_t stream);

 private:
  DeviceArguments(std::shared_ptr<const DeviceDriver> driver, SharedArguments layout, DeviceMemoryRef block, std::shared_ptr<void> pinned);
  // A few bytes of an output on their way through the host: rows that lie apart in `staged_`.
  struct Piece {
    uint64_t at = 0, width = 0, rows = 0;  // `at`: in the output
    uint64_t staged = 0;
    uint64_t pitch() const { return width + kGap; }
  };
  static constexpr uint64_t kGap = 16;
  Status stage();

  const std::shared_ptr<const DeviceDriver> driver_;
  const SharedArguments layout_;
  const DeviceMemoryRef block_;
  const std::shared_ptr<void> pinned_;
  std::vector<std::vector<Piece>> pieces_;  // by output; none: it is copied as it lies
  std::shared_ptr<void> staged_;
  DeviceDriver::Point there_, taken_;
  std::optional<DeviceDriver::Handle> event_;
  uint64_t runs_ = 0;
  std::vector<char> seen_;
};

// A weight's copy: bytes in a block that other weights lie in, too.
struct LentWeight {
  DeviceMemoryRef block;
  uint64_t offset = 0, bytes = 0;
};

// The weights that one process is lent, each once, whichever regions have it. Gone with the last region that has it.
class DeviceWeights {
 public:
  // Copies of them all, in order, for that life of the process: what an earlier one was lent it may have written to.
  Result<std::vector<std::shared_ptr<LentWeight>>> lend(const std::shared_ptr<const DeviceDriver>& driver,
                                                        const std::vector<TensorRef>& weights, uint64_t life);

 private:
  std::map<std::pair<const void*, uint64_t>, std::weak_ptr<LentWeight>> lent_;  // by where it lies; who has it keeps that alive
  uint64_t life_ = 0;
};

}  // namespace keirin
