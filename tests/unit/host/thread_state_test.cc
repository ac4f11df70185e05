// SPDX-License-Identifier: Apache-2.0
//
// Each thing that a call may change is seen, named and put back, and alone.
#include "core/host/guard/thread_state.h"

#include <fenv.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

namespace keirin {
namespace {

TEST(ThreadState, AnUntouchedThreadHasNothingToPutBack) {
  const ThreadState state;
  volatile float x = 1e-30f;
  x = x * x;  // sets sticky flags, which are not part of a mode
  EXPECT_EQ(state.restore(), "");
}

TEST(ThreadState, RoundingIsPutBack) {
  const ThreadState state;
  ::fesetround(FE_UPWARD);
  EXPECT_EQ(state.restore(), "floating-point mode");
  EXPECT_EQ(::fegetround(), FE_TONEAREST);
  EXPECT_EQ(state.restore(), "");
}

TEST(ThreadState, BothLocalesArePutBack) {
  {
    const ProcessState state;
    ASSERT_NE(::setlocale(LC_ALL, "C.UTF-8"), nullptr);
    EXPECT_EQ(state.restore(), "locale");
    EXPECT_STREQ(::setlocale(LC_ALL, nullptr), "C");
  }
  const ThreadState state;
  const locale_t other = ::newlocale(LC_ALL_MASK, "C", nullptr);
  ::uselocale(other);
  EXPECT_EQ(state.restore(), "thread's locale");
  EXPECT_EQ(::uselocale(nullptr), LC_GLOBAL_LOCALE);
  ::freelocale(other);
}

TEST(ThreadState, TheSignalMaskIsPutBack) {
  const ThreadState state;
  sigset_t one;
  ::sigemptyset(&one);
  ::sigaddset(&one, SIGRTMIN + 1);
  ::pthread_sigmask(SIG_BLOCK, &one, nullptr);
  EXPECT_EQ(state.restore(), "signal mask");
  sigset_t now;
  ::pthread_sigmask(SIG_SETMASK, nullptr, &now);
  EXPECT_EQ(::sigismember(&now, SIGRTMIN + 1), 0);
}

TEST(ThreadState, TheCurrentFolderIsPutBack) {
  const std::filesystem::path before = std::filesystem::current_path();
  const ProcessState state;
  ASSERT_EQ(::chdir("/"), 0);
  EXPECT_EQ(state.restore(), "current folder");
  EXPECT_EQ(std::filesystem::current_path(), before);
}

// One call changes the folder while another plugin's begins and ends: the other is not blamed, and "as it was" is not what it saw.
TEST(ThreadState, CallsInFlightTogetherLeaveThingsAsTheFirstFoundThem) {
  const std::filesystem::path before = std::filesystem::current_path();
  {
    CallState alone;
    ASSERT_EQ(::chdir("/"), 0);
    EXPECT_EQ(alone.restore(), "current folder");
  }
  CallState rude;
  ASSERT_EQ(::chdir("/"), 0);
  CallState innocent;
  EXPECT_EQ(rude.restore(), "");
  EXPECT_EQ(std::filesystem::current_path(), "/") << "not while another call runs";
  EXPECT_EQ(innocent.restore(), "");
  EXPECT_EQ(std::filesystem::current_path(), before);
}

}  // namespace
}  // namespace keirin
