// SPDX-License-Identifier: Apache-2.0
//
// What is learned of where calls keep their memory. That recordings made of it answer as eager does is shown on a GPU
// (tests/python/test_places.py --device cuda).
#include "core/eager/rows/replay_in_place.h"

#include <gtest/gtest.h>

#include <memory>

#include "core/eager/tensor_services.h"

namespace keirin {
namespace {

Places::Input at(uintptr_t address, int64_t bytes = 2'400'000) { return {reinterpret_cast<const void*>(address), bytes}; }

constexpr double kCopyUs = 3;  // of so many bytes
using Flags = std::vector<bool>;

TEST(Places, WhatHasNeverMovedStaysFromTheSecondCallOn) {
  Places places;
  places.see({at(64), at(128)});
  EXPECT_EQ(places.staying(1e6), Flags({false, false}));
  places.see({at(64), at(256)});
  EXPECT_EQ(places.staying(1e6), Flags({true, false}));
  places.see({at(64), at(256)});
  EXPECT_EQ(places.staying(1e6), Flags({true, false}));
}

TEST(Places, WhatHasMovedIsCopiedUntilThatTookAsLongAsARecording) {
  Places places;
  places.see({at(64)});
  for (uintptr_t place = 1; place <= 3; ++place) {
    places.see({at(64 + 64 * place)});
    for (int call = 1; call <= 10; ++call) {
      places.see({at(64 + 64 * place)});
      // What it lay for before counts as well: from the second place on it is trusted at once.
      EXPECT_EQ(places.staying(kCopyUs * 10)[0], place > 1 || call == 10) << place << ", call " << call;
      EXPECT_EQ(places.staying(kCopyUs * 10 + 1)[0], false);
    }
  }
}

TEST(Places, WhatMovedTogetherIsCountedTogether) {
  Places places;
  places.see({at(64), at(128), at(192)});
  places.see({at(1064), at(1128), at(192)});
  places.see({at(1064), at(1128), at(1192)});
  // The first two have lain there for a call, and as long as each other where they were before.
  EXPECT_EQ(places.staying(kCopyUs * 2), Flags({true, true, false}));
  EXPECT_EQ(places.staying(kCopyUs * 2 + 1), Flags({false, false, false}));
  EXPECT_EQ(places.staying(kCopyUs * 2, {true, false, false}), Flags({false, false, false})) << "one of them is read there already";
}

TEST(Places, WhatIsLargeIsTrustedSooner) {
  Places places;
  const int64_t large = 24'000'000;
  places.see({at(64), at(128, large)});
  places.see({at(1064), at(128, large)});
  places.see({at(1064), at(1128, large)});
  places.see({at(1064), at(1128, large)});
  EXPECT_EQ(places.staying(4 * kCopyUs), Flags({false, true}));
}

TEST(Places, WhatMovesWithEachCallNeverStays) {
  Places places;
  for (uintptr_t call = 0; call < 200; ++call) {
    places.see({at(64 + 64 * call)});
    EXPECT_EQ(places.staying(0), Flags({false}));
    EXPECT_EQ(places.may_stay(), call < 2) << "after its second move nobody waits for it";
  }
}

TEST(Places, AnOutputHeldTwiceDoesNotComeBack) {
  Places places;
  EXPECT_TRUE(places.comes_back(3));
  places.hold(3);
  EXPECT_TRUE(places.comes_back(3));
  places.hold(3);
  EXPECT_FALSE(places.comes_back(3));
  EXPECT_TRUE(places.comes_back(0));
  EXPECT_TRUE(places.comes_back(7));
}

TEST(ReplayInPlace, WhereNothingCanBeRecordedEachCallIsMade) {
  const std::unique_ptr<TensorServices> made = make_tensor_services();
  TensorServices& services = *made;
  int calls = 0;
  ReplayInPlace replay(
      [&](const std::vector<TensorRef>& inputs) -> Result<std::vector<TensorRef>> {
        ++calls;
        KRN_TRY_LET(TensorRef copy, services.clone(inputs[0]));
        return std::vector<TensorRef>{copy};
      },
      {}, services, Device{});
  auto input = services.allocate({DType::k_f32, {4}, {}, Device{}});
  ASSERT_TRUE(input.ok());
  for (int i = 1; i <= 5; ++i) {
    auto outputs = replay.run({*input});
    ASSERT_TRUE(outputs.ok());
    ASSERT_EQ(outputs->size(), 1u);
    EXPECT_NE((*outputs)[0]->data(), (*input)->data());
    EXPECT_EQ(calls, i);
  }
}

}  // namespace
}  // namespace keirin
