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

const void* at(uintptr_t address) { return reinterpret_cast<const void*>(address); }

TEST(Places, AnInputStaysFromTheSecondCallOn) {
  Places places;
  EXPECT_FALSE(places.stays(0));
  places.see({at(64), at(128)});
  EXPECT_FALSE(places.stays(0));
  places.see({at(64), at(256)});
  EXPECT_TRUE(places.stays(0));
  EXPECT_FALSE(places.stays(1));
  EXPECT_FALSE(places.stays(2));
  places.see({at(64), at(256)});
  EXPECT_TRUE(places.stays(1));
}

TEST(Places, EachFurtherMoveDoublesHowLongItHasToStay) {
  Places places;
  uintptr_t address = 64;
  places.see({at(address)});
  for (int moves = 1; moves <= 8; ++moves) {
    places.see({at(address += 64)});
    EXPECT_FALSE(places.stays(0));
    const int needed = moves <= 2 ? 1 : 1 << (moves - 2);
    for (int call = 1; call <= needed; ++call) {
      EXPECT_FALSE(places.stays(0)) << moves << " moves, before call " << call;
      places.see({at(address)});
    }
    EXPECT_TRUE(places.stays(0)) << moves << " moves";
  }
}

TEST(Places, WhatMovesWithEachCallNeverStays) {
  Places places;
  for (uintptr_t call = 0; call < 200; ++call) {
    places.see({at(64 * call)});
    EXPECT_FALSE(places.stays(0));
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
