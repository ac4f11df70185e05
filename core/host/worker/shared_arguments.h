// SPDX-License-Identifier: Apache-2.0
//
// The arguments of one region's runs in memory that host and worker share: a memory file's, or a GPU's (device_arguments.h). Both lay it
// out from the region's bytes alone, so that no address crosses. Weights are not in it: in a memory file they stand in front of it, mapped
// read-only. The invariant: between two arguments there is a red zone, and what was written there is noticed before an output is believed.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/host/plugins.h"
#include "core/ir/graph.h"

namespace keirin {

class SharedArguments {
 public:
  struct Argument {
    Type type;
    uint64_t offset = 0, bytes = 0;  // within the shared memory; of a weight or an alias 0
    uint32_t weight = kNone;         // inputs: the weight's id
    uint32_t alias = kNone;          // outputs: the input that it is written into
    bool own() const { return weight == kNone && alias == kNone; }  // it has a place of its own
  };
  static constexpr uint8_t kPattern = 0xA7;  // of the red zones

  // On a GPU each begins where LibTorch's allocator would have it begin.
  static Result<SharedArguments> of_region(std::span<const uint8_t> region, Device device = {});
  const std::vector<Argument>& inputs() const { return inputs_; }
  const std::vector<Argument>& outputs() const { return outputs_; }
  uint64_t total_bytes() const { return total_bytes_; }

  // Maps `total_bytes` of the file from `offset` on, for reading and writing; `exhausted` if that cannot be done.
  Status map(int file, uint64_t offset);
  void lie_in(std::shared_ptr<void> memory) { memory_ = std::move(memory); }  // the same, of memory that is there already
  const std::shared_ptr<void>& held() const { return memory_; }
  char* memory() const { return static_cast<char*>(memory_.get()); }

  // The host's side: puts the pattern into the red zones; copies inputs in and outputs out.
  void mark_zones();
  void put(const krn_tensor* inputs) const;
  void take(const krn_tensor* outputs) const;
  // What was written past its end, in words; empty if nothing was.
  std::string overrun() const;
  // The same over the bytes of each zone, wherever they lie: `zone(begin, end)` gives a pointer to them.
  std::string overrun(const std::function<const char*(uint64_t begin, uint64_t end)>& zone) const;
  // The worker's side: the tensors of every run.
  krn_tensor view(const Argument& argument, uint32_t flags) const;

 private:
  uint64_t place(uint64_t bytes);
  uint64_t zone_end(uint64_t end) const { return (end + kLeastZone + align_ - 1) / align_ * align_; }
  static constexpr uint64_t kLeastZone = 64;

  Device device_;
  uint64_t align_ = 64;
  std::vector<Argument> inputs_, outputs_;
  uint64_t total_bytes_ = 0;
  std::shared_ptr<void> memory_;
};

}  // namespace keirin
