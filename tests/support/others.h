// SPDX-License-Identifier: Apache-2.0
//
// What a race is told that others took, instead of what the kernel says: nothing, unless a test says so. For tests that ask what is
// decided and not when; they run beside others.
#pragma once

#include <functional>

#include "core/tune/interference.h"

namespace keirin::test {

struct Others final : Interference {
  uint64_t waited_ns() override {
    waited += each_time;
    return static_cast<uint64_t>(waited);
  }
  uint64_t stolen_ns() override { return static_cast<uint64_t>(stolen); }
  uint64_t used_ns() override { return static_cast<uint64_t>(used); }
  bool is_crowded() override { return crowds && crowds(); }
  bool knows_all() const override { return all; }
  bool all = true;
  double waited = 0, stolen = 0, used = 0;
  std::function<bool()> crowds;
  double each_time = 0;  // that waited_ns() is asked: 1e12 disturbs everything
};

}  // namespace keirin::test
