// SPDX-License-Identifier: Apache-2.0
//
// A packet arrives as it was sent; what is none ends with a status in time, whatever the other side does.
#include "core/host/worker/channel.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <thread>

#include "tests/support/mutants.h"

namespace keirin {
namespace {

using std::chrono::milliseconds;

Patience within(int ms) { return {std::chrono::steady_clock::now() + milliseconds(ms), nullptr}; }

class Channel : public testing::Test {
 protected:
  void SetUp() override {
    int ends[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    here_ = Descriptor(ends[0]);
    there_ = Descriptor(ends[1]);
  }
  Status received(uint64_t max_bytes = 1 << 20) { return receive_packet(here_.get(), max_bytes, within(200)).status(); }
  Descriptor here_, there_;
};

TEST_F(Channel, CarriesHeadBytesAndADescriptor) {
  Packet packet;
  packet.head = {{"n", 7}};
  packet.blobs = {std::string(3 << 20, 'a'), "", std::string("\0b", 2)};  // more than a socket buffer
  packet.file = Descriptor(::memfd_create("test", MFD_CLOEXEC));
  ASSERT_EQ(::write(packet.file.get(), "hello", 5), 5);
  std::thread sender([&] { EXPECT_TRUE(send_packet(there_.get(), packet, within(5000)).ok()); });
  Result<Packet> got = receive_packet(here_.get(), 8 << 20, within(5000));
  sender.join();
  ASSERT_TRUE(got.ok()) << got.status().text();
  EXPECT_EQ(got->head, packet.head);
  EXPECT_EQ(got->blobs, packet.blobs);
  char text[5] = {};
  EXPECT_EQ(::pread(got->file.get(), text, 5, 0), 5);
  EXPECT_EQ(std::string(text, 5), "hello");
}

TEST_F(Channel, WhatIsNoPacketIsCorrupt) {
  const std::string noise(4096, 'z');
  ASSERT_EQ(::write(there_.get(), noise.data(), noise.size()), 4096);
  EXPECT_EQ(received().code(), Code::k_corrupt);
}

TEST_F(Channel, DamageEndsInAPacketOrAStatus) {
  Packet packet;
  packet.head = {{"n", 7}, {"words", {"a", "b"}}};
  packet.blobs = {"0123456789", "x"};
  ASSERT_TRUE(send_packet(there_.get(), packet, within(200)).ok());
  std::string good(4096, '\0');
  const ssize_t bytes = ::read(here_.get(), good.data(), good.size());
  ASSERT_GT(bytes, 0);
  good.resize(static_cast<size_t>(bytes));
  int refused = 0;
  const auto judge = [&](const std::string& mutant) {
    SetUp();
    ASSERT_EQ(::write(there_.get(), mutant.data(), mutant.size()), static_cast<ssize_t>(mutant.size()));
    there_ = Descriptor();
    const Code code = received().code();
    refused += code != Code::k_ok;
    ASSERT_TRUE(code == Code::k_ok || code == Code::k_corrupt || code == Code::k_crashed);
  };
  test::MalformedInputs inputs;
  inputs.try_truncations(good, judge);
  EXPECT_EQ(refused, bytes) << "a part of a packet was taken for one";
  inputs.try_mutants(good, 1000, judge);
  EXPECT_GT(refused, bytes + 300);
}

TEST_F(Channel, LengthsAreBoundedBeforeAnythingIsAllocated) {
  Packet packet;
  packet.head = {{"n", 7}};
  packet.blobs = {std::string(2000, 'a')};
  ASSERT_TRUE(send_packet(there_.get(), packet, within(200)).ok());
  EXPECT_EQ(received(1000).code(), Code::k_corrupt);
}

TEST_F(Channel, AHeadThatIsNoObjectIsCorrupt) {
  Packet packet;
  packet.head = "text";
  ASSERT_TRUE(send_packet(there_.get(), packet, within(200)).ok());
  EXPECT_EQ(received().code(), Code::k_corrupt);
}

TEST_F(Channel, SilenceEndsAtTheDeadlineAndOnRequest) {
  EXPECT_EQ(received().code(), Code::k_timeout);
  ASSERT_EQ(::write(there_.get(), "K", 1), 1);  // the beginning of a header, and no more
  EXPECT_EQ(received().code(), Code::k_timeout);
  const std::atomic<bool> cancel{true};
  EXPECT_EQ(receive_packet(here_.get(), 1, {std::chrono::steady_clock::time_point::max(), &cancel}).status().code(), Code::k_cancelled);
}

TEST_F(Channel, AnOtherSideThatDoesNotReadIsATimeout) {
  Packet packet;
  packet.head = {{"n", 7}};
  packet.blobs = {std::string(8 << 20, 'a')};
  EXPECT_EQ(send_packet(there_.get(), packet, within(200)).code(), Code::k_timeout);
}

TEST_F(Channel, AnOtherSideThatIsGoneIsToldApart) {
  ASSERT_EQ(::write(there_.get(), "K", 1), 1);
  there_ = Descriptor();
  EXPECT_EQ(received().code(), Code::k_crashed);
  Packet packet;
  packet.head = {{"n", 7}};
  EXPECT_EQ(send_packet(here_.get(), packet, within(200)).code(), Code::k_crashed) << "and no SIGPIPE";
}

}  // namespace
}  // namespace keirin
