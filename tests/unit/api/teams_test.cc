// SPDX-License-Identifier: Apache-2.0
//
// A thread that ran an operator in parallel keeps its team of OpenMP's, and where all teams have more threads than there are processors,
// no team spins any more: whoever calls pays a wake-up for each operator, eager's too. So none of our threads that stay may have one.
#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <string>
#include <thread>

#include "core/api/session.h"
#include "core/tune/interference.h"
#include "tests/support/others.h"
#include "tests/support/shared_runtime.h"
#include "tests/support/threads.h"

namespace keirin {
namespace {

using namespace std::chrono_literals;
using test::threads_by_name;

test::Others nobody;

std::string text(const std::map<std::string, int>& threads) {
  std::string out;
  for (const auto& [name, count] : threads) out += name + " " + std::to_string(count) + "; ";
  return out;
}

void expect_no_teams(const std::string& model, const std::vector<int64_t>& sizes) {
  Runtime& runtime = test::shared_runtime(2);
  Options options;
  options.compile = When::kBackground;
  options.force = "compiled";  // whatever is faster: its first calls are compared
  options.race_seconds = 0.2;
  options.interference = &nobody;
  auto session = Session::open(runtime, std::string(KEIRIN_SOURCE_DIR) + model, options);
  ASSERT_TRUE(session.ok()) << session.status().text();
  const auto inputs = (*session)->example_inputs(1, sizes);
  ASSERT_TRUE(inputs.ok());
  ASSERT_TRUE((*session)->call(*inputs).ok());
  const int callers = threads_by_name()["teams_test"];  // this one, its team, and what the libraries start when they are loaded
  ASSERT_TRUE((*session)->settle(60s));
  for (int i = 0; i < 8; ++i) ASSERT_TRUE((*session)->call(*inputs).ok());
  const auto reports = (*session)->reports();  // once the calls have been compared with eager
  ASSERT_FALSE(reports.empty());
  std::map<std::string, int> threads;
  for (int tries = 0; tries < 100; ++tries) {  // one that has ended is listed for a moment
    threads = threads_by_name();
    if (threads["keirin-decide"] == 1) break;
    std::this_thread::sleep_for(10ms);
  }
  EXPECT_EQ(threads["keirin-decide"], 1) << text(threads);
  EXPECT_EQ(threads["keirin-check"], 1) << text(threads);
  EXPECT_LE(threads["keirin-watch"], 1) << text(threads);
  EXPECT_LE(threads["teams_test"], callers) << text(threads);
}

TEST(Teams, NoneStaysWithAThreadOfOurs) { expect_no_teams("/bench/zoo/models/small/mlp.pt2", {}); }
// Which is not copied by the call that met it: who decides draws another one, in parallel.
TEST(Teams, NoneStaysWithWhoDecidedOnALargeInput) { expect_no_teams("/tests/data/import/both_free.pt2", {1024, 1024}); }

}  // namespace
}  // namespace keirin
