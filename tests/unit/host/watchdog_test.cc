// SPDX-License-Identifier: Apache-2.0
#include "core/host/guard/watchdog.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "core/host/plugins.h"

namespace keirin {
namespace {

using std::chrono::milliseconds;

class Watched final : public Executable {
 public:
  const ExecutableInfo& info() const override { return info_; }
  uint64_t workspace_bytes() const override { return 0; }
  uint64_t workspace_align() const override { return 1; }
  Status run(const krn_tensor*, uint32_t, const krn_tensor*, uint32_t, void*, uint64_t, bool) override { return {}; }
  PluginDevice& device() const override { std::abort(); }
  void still_running(milliseconds at_least) override { longest = at_least.count(); }
  std::atomic<int64_t> longest{0};

 private:
  ExecutableInfo info_;
};

TEST(Watchdog, SpeaksOfARunThatLastsAndOfNoOther) {
  Watched slow, quick, idle;
  Flight slow_flight, quick_flight, idle_flight;
  idle_flight.enter(idle);
  idle_flight.leave();
  slow_flight.enter(slow);
  const auto begin = std::chrono::steady_clock::now();
  while (slow.longest < 2000 && std::chrono::steady_clock::now() - begin < std::chrono::seconds(20)) {
    quick_flight.enter(quick);
    std::this_thread::sleep_for(milliseconds(1));
    quick_flight.leave();
  }
  const auto passed = std::chrono::duration_cast<milliseconds>(std::chrono::steady_clock::now() - begin).count();
  EXPECT_GE(slow.longest, 2000);
  EXPECT_LE(slow.longest, passed) << "never more than it lasted";
  EXPECT_EQ(quick.longest, 0) << "many short runs are not one long run";
  EXPECT_EQ(idle.longest, 0);
  slow_flight.leave();
  slow.longest = 0;
  slow_flight.enter(slow);  // a new run begins at nothing
  std::this_thread::sleep_for(Flight::kLook * 3 / 2);
  EXPECT_LE(slow.longest, 1000);
  slow_flight.leave();
}

TEST(Watchdog, IsNotInAForkedCopy) {
  auto flight = std::make_unique<Flight>();
  const pid_t copy = ::fork();
  if (copy == 0) {
    flight.reset();  // nobody to take leave of
    Flight of_its_own;
    ::_exit(0);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(copy, &status, 0), copy);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

}  // namespace
}  // namespace keirin
