// SPDX-License-Identifier: Apache-2.0
//
// Plans of one region at any of its sizes: what planning made at some of them has one structure as a rule, and each number of it is a
// constant or a polynomial of the numbers in the region's bytes (abi/polynomial.h). Where that holds for plans that were made one by one,
// a plan at further sizes is written down.
//
// A number between is what the polynomial says, not what planning would have found. So sizes are answered that lie between two that were
// planned with one structure, and none with another between them; and every so often a plan is made as ever and compared.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "plugins/codegen/plan/plan_parts.h"

namespace keirin::codegen {

// Any thread. Keeps what was seen of the regions that were asked about last.
class SizedPlans {
 public:
  SizedPlans();
  ~SizedPlans();

  struct Known {
    PlanParts parts;
    bool doubted = false;  // make it as ever, too, and tell `made`
  };
  // `asked`: all that a plan depends on beside the region. Nothing where too little was seen, or these sizes are not between what was.
  std::optional<Known> at(std::span<const uint8_t> region, const std::string& asked);

  // Takes in what planning made. A plan that `at` says otherwise ends what it says of this region.
  void made(std::span<const uint8_t> region, const std::string& asked, const PlanParts& parts);

  uint64_t num_answers() const;  // of `at`

 private:
  struct Family;
  Family* family_of(const std::string& structure);

  mutable std::mutex mutex_;
  uint64_t num_answers_ = 0;
  std::vector<std::unique_ptr<Family>> families_;  // the one that was asked about last at the end
};

}  // namespace keirin::codegen
