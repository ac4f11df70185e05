// SPDX-License-Identifier: Apache-2.0
//
// How many instructions this process has executed, where something outside counts them: an emulator, whose times mean nothing
// (bench/counts). Which way of a call takes fewer of them is then known after one call of each, and no race is run.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "core/tune/race.h"

namespace keirin {

class InstructionCount {
 public:
  // Of the file that KEIRIN_INSTRUCTIONS names, whose first 8 bytes somebody else counts in; none without that variable. It stands
  // still where there is no such file.
  static std::optional<InstructionCount> of_environment();
  const uint64_t* address() const { return at_.get(); }  // null: there is no such file
  uint64_t now() const { return at_ ? __atomic_load_n(at_.get(), __ATOMIC_RELAXED) : 0; }

 private:
  std::shared_ptr<const uint64_t> at_;  // mapped
};

// One call of each after one that warms up. In the rows `ns` and `baseline_ns` are instructions, and there are no intervals. Accepted is
// what takes fewer than runners[0] by the threshold. `unsupported` where nobody counts, the status of runners[0] if it fails.
Result<RaceSheet> count_calls(const std::vector<Runner>& runners, const InstructionCount& count, double threshold);

}  // namespace keirin
