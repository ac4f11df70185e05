// SPDX-License-Identifier: Apache-2.0
//
// Who wins where instructions are counted, and that a count which stands still decides nothing. The counter is this test's own.
#include "core/tune/instructions.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/support/temp_folder.h"

namespace keirin {
namespace {

class Instructions : public testing::Test {
 protected:
  Instructions() {
    test::spill(path_, std::string(sizeof(uint64_t), '\0'));
    const int file = open(path_.c_str(), O_RDWR | O_CLOEXEC);
    at_ = static_cast<uint64_t*>(mmap(nullptr, sizeof(uint64_t), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0));
    close(file);
    setenv("KEIRIN_INSTRUCTIONS", path_.c_str(), 1);
  }
  ~Instructions() override {
    unsetenv("KEIRIN_INSTRUCTIONS");
    munmap(at_, sizeof(uint64_t));
  }
  // Its first call costs more, as first calls do.
  Runner runner(const char* name, uint64_t cost, Status status = {}) {
    return {name, [this, cost, status, first = true]() mutable {
              *at_ += first ? 100 * cost : cost;
              first = false;
              return status;
            }};
  }

  const test::TempFolder folder_;
  const std::string path_ = folder_.path() + "/count";
  uint64_t* at_ = nullptr;
};

TEST_F(Instructions, TheFewestWin) {
  const auto count = InstructionCount::of_environment();
  ASSERT_TRUE(count.has_value());
  const auto sheet = count_calls(
      {runner("eager", 1000), runner("more", 1500), runner("few", 700), runner("fewest", 500), runner("same", 990)}, *count, 0.02);
  ASSERT_TRUE(sheet.ok()) << sheet.status().text();
  EXPECT_EQ(sheet->winner, 3u);
  EXPECT_EQ(sheet->rows[0].ns, 1000);
  EXPECT_EQ(sheet->rows[3].ns, 500);
  EXPECT_EQ(sheet->rows[3].gain, 2);
  EXPECT_EQ(sheet->rows[0].outcome, RaceOutcome::kBaseline);
  EXPECT_EQ(sheet->rows[1].outcome, RaceOutcome::kReject);
  EXPECT_EQ(sheet->rows[2].outcome, RaceOutcome::kAccept);
  EXPECT_EQ(sheet->rows[4].outcome, RaceOutcome::kReject) << "less than the least gain";
}

TEST_F(Instructions, WhatFailsDoesNotWin) {
  const auto count = InstructionCount::of_environment();
  const auto sheet = count_calls({runner("eager", 1000), runner("broken", 10, Status(Code::k_internal, "broken"))}, *count, 0.02);
  ASSERT_TRUE(sheet.ok());
  EXPECT_EQ(sheet->winner, 0u);
  EXPECT_EQ(sheet->rows[1].outcome, RaceOutcome::kFailed);
  EXPECT_EQ(count_calls({runner("eager", 1000, Status(Code::k_internal, "broken"))}, *count, 0.02).status().code(), Code::k_internal);
}

TEST_F(Instructions, NothingIsConcludedWhereNobodyCounts) {
  const std::vector<Runner> still = {runner("eager", 0), runner("other", 0)};
  EXPECT_EQ(count_calls(still, *InstructionCount::of_environment(), 0.02).status().code(), Code::k_unsupported);
  setenv("KEIRIN_INSTRUCTIONS", (path_ + ".none").c_str(), 1);
  EXPECT_EQ(count_calls(still, *InstructionCount::of_environment(), 0.02).status().code(), Code::k_unsupported) << "no such file";
  unsetenv("KEIRIN_INSTRUCTIONS");
  EXPECT_FALSE(InstructionCount::of_environment().has_value());
}

}  // namespace
}  // namespace keirin
