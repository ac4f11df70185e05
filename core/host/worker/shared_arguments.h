// SPDX-License-Identifier: Apache-2.0
//
// The arguments of one region's runs in memory that host and worker share. Both lay it out from the region's bytes alone, so that no
// address crosses. Weights are not in it: they stand in front of it in the same memory file, mapped read-only. The invariant: between
// two arguments there is a red zone, and what was written there is noticed before an output is believed.
#pragma once

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
  };

  static Result<SharedArguments> of_region(std::span<const uint8_t> region);
  const std::vector<Argument>& inputs() const { return inputs_; }
  const std::vector<Argument>& outputs() const { return outputs_; }
  uint64_t total_bytes() const { return total_bytes_; }

  // Maps `total_bytes` of the file from `offset` on, for reading and writing; `exhausted` if that cannot be done.
  Status map(int file, uint64_t offset);
  char* memory() const { return static_cast<char*>(memory_.get()); }

  // The host's side: puts the pattern into the red zones; copies inputs in and outputs out.
  void mark_zones();
  void put(const krn_tensor* inputs) const;
  void take(const krn_tensor* outputs) const;
  // What was written past its end, in words; empty if nothing was.
  std::string overrun() const;
  // The worker's side: the tensors of every run.
  krn_tensor view(const Argument& argument, uint32_t flags) const;

 private:
  uint64_t place(uint64_t bytes);

  std::vector<Argument> inputs_, outputs_;
  uint64_t total_bytes_ = 0;
  std::shared_ptr<void> memory_;
};

}  // namespace keirin
