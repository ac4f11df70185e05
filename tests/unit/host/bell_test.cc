// SPDX-License-Identifier: Apache-2.0
//
// Questions and answers by the bell: each question is given out once and in order, however host and worker fall asleep between, and no
// word of a worker's is an answer that is none.
#include "core/host/worker/bell.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <thread>
#include <vector>

#include "core/host/worker/channel.h"

namespace keirin {
namespace {

using std::chrono::microseconds;

Patience within(int ms) { return {std::chrono::steady_clock::now() + std::chrono::milliseconds(ms), nullptr}; }
Packet ring() {
  Packet packet;
  packet.number = Bell::kRings;
  return packet;
}

class Bells : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    int ends[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    here_ = Descriptor(ends[0]);
    there_ = Descriptor(ends[1]);
    Result<std::unique_ptr<Bell>> host = Bell::make(microseconds(GetParam()), &file_);
    ASSERT_TRUE(host.ok()) << host.status().text();
    Result<std::unique_ptr<Bell>> worker = Bell::open(microseconds(GetParam()), file_.get());
    ASSERT_TRUE(worker.ok()) << worker.status().text();
    host_ = std::move(*host), worker_ = std::move(*worker);
  }
  // As WorkerClient asks; nothing where no answer comes in time.
  std::optional<Bell::Answered> ask(uint32_t number) {
    const bool sleeps = host_->ask(number);
    EXPECT_TRUE(!sleeps || send_packet(here_.get(), ring(), within(5000)).ok());
    for (std::optional<Bell::Answered> how = host_->look_for_answer();; how = host_->answer()) {
      if (how) return how;
      if (!receive_packet(here_.get(), 1 << 20, within(5000)).ok()) return {};
    }
  }
  Descriptor here_, there_, file_;
  std::unique_ptr<Bell> host_, worker_;
};

TEST_P(Bells, EachQuestionIsAnsweredOnce) {
  constexpr uint32_t kQuestions = 20000;
  std::vector<uint32_t> asked;
  std::thread worker([&] {
    while (asked.size() < kQuestions) {
      if (const std::optional<uint32_t> number = worker_->look_for_question()) {
        asked.push_back(*number);
        if (*number % 977 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));  // so that the host falls asleep
        const bool sleeps = worker_->answer(*number % 2 ? Bell::Answered::kDone : Bell::Answered::kPacket);
        if (sleeps) (void)send_packet(there_.get(), ring(), within(5000));
        continue;
      }
      if (!receive_packet(there_.get(), 1 << 20, within(5000)).ok()) return;
    }
  });
  uint32_t wrong = 0;
  for (uint32_t i = 0; i < kQuestions && wrong == 0; ++i) {
    if (i % 991 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));  // so that the worker does
    wrong += ask(i) != (i % 2 ? Bell::Answered::kDone : Bell::Answered::kPacket);
  }
  worker.join();
  EXPECT_EQ(wrong, 0u);
  ASSERT_EQ(asked.size(), kQuestions);
  for (uint32_t i = 0; i < kQuestions; ++i) ASSERT_EQ(asked[i], i);
}

TEST_P(Bells, WhatAWorkerScribblesIsNoAnswer) {
  (void)host_->ask(1);
  ASSERT_TRUE(worker_->look_for_question().has_value());
  (void)worker_->answer(Bell::Answered::kDone);
  EXPECT_TRUE(host_->look_for_answer().has_value());
  (void)host_->ask(2);
  EXPECT_FALSE(host_->look_for_answer().has_value()) << "the answer to an earlier question";
  void* const words = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file_.get(), 0);
  ASSERT_NE(words, MAP_FAILED);
  for (size_t i = 0; i < 256; ++i) static_cast<unsigned char*>(words)[i] = 0xa7;
  EXPECT_FALSE(host_->look_for_answer().has_value());
  EXPECT_NE(::ftruncate(file_.get(), 0), 0) << "the words could be taken away from under the host";
  ::munmap(words, 4096);
}

INSTANTIATE_TEST_SUITE_P(All, Bells, testing::Values(1, 50));

}  // namespace
}  // namespace keirin
