// SPDX-License-Identifier: Apache-2.0
//
// Turns go to those who wait in the order in which they asked, and who is to end waits no longer.
#include "core/base/turn.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace keirin {
namespace {

using namespace std::chrono_literals;

TEST(Turn, WhoAsksAgainStandsBehindThoseWhoWait) {
  Turn turn;
  std::vector<int> order;
  turn.lock();
  std::thread other([&] {
    const std::lock_guard mine(turn);
    order.push_back(2);
  });
  std::this_thread::sleep_for(100ms);  // it waits
  order.push_back(1);
  turn.unlock();
  turn.lock();  // at once, as a loop does
  order.push_back(3);
  turn.unlock();
  other.join();
  EXPECT_EQ(order, (std::vector<int>{1, 2, 3}));
}

TEST(Turn, WhoIsToEndLeavesTheLine) {
  Turn turn;
  std::atomic<bool> stop{false};
  turn.lock();
  std::thread ends([&] { EXPECT_FALSE(turn.lock_unless(stop)); });
  std::this_thread::sleep_for(20ms);
  bool had = false;
  std::thread behind([&] {
    const std::lock_guard mine(turn);
    had = true;
  });
  std::this_thread::sleep_for(20ms);
  stop = true;
  ends.join();
  turn.unlock();
  behind.join();
  EXPECT_TRUE(had);
  EXPECT_TRUE(turn.lock_unless(stop)) << "where nobody has it, it is there";
  turn.unlock();
}

}  // namespace
}  // namespace keirin
