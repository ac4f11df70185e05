// SPDX-License-Identifier: Apache-2.0
//
// What is learned of where calls keep their memory. That recordings made of it answer as eager does is shown on a GPU
// (tests/python/test_places.py --device cuda).
#include "core/eager/rows/replay_in_place.h"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <thread>

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
}

TEST(Places, WhatHasMovedOnceOrTwiceIsTrustedWhereItStays) {
  Places places;
  places.see({at(64)});
  for (uintptr_t move = 1; move <= 2; ++move) {
    places.see({at(1064 * move)});
    EXPECT_EQ(places.staying(1e6), Flags({false}));
    EXPECT_TRUE(places.may_stay());
  }
  places.see({at(1064 * 2)});
  EXPECT_EQ(places.staying(1e6), Flags({true}));
}

// Of an input beside another one that never moves, as weights do.
TEST(Places, WhatMovesMoreOftenIsCopiedUntilThatTookAsLongAsARecording) {
  Places places;
  const Places::Input weight = at(8);
  for (uintptr_t place = 1; place <= 3; ++place) places.see({weight, at(64 * place)});
  for (uintptr_t place = 4; place <= 6; ++place) {
    places.see({weight, at(64 * place)});
    for (int call = 1; call <= 10; ++call) {
      places.see({weight, at(64 * place)});
      // What it lay for before counts as well: from the second such place on it is trusted at once.
      EXPECT_EQ(places.staying(kCopyUs * 10)[1], place > 4 || call == 10) << place << ", call " << call;
      EXPECT_EQ(places.staying(kCopyUs * 10 + 1)[1], false);
    }
  }
}

TEST(Places, WhatMovedTogetherIsCountedTogether) {
  Places places;
  for (uintptr_t call = 0; call < 4; ++call) places.see({at(1064 * (call + 1)), at(1128 * (call + 1)), at(192 * (call + 1))});
  places.see({at(1064 * 4), at(1128 * 4), at(192 * 5)});
  // The first two have lain there for a call, and as long as each other where they were before.
  EXPECT_EQ(places.staying(kCopyUs * 2), Flags({true, true, false}));
  EXPECT_EQ(places.staying(kCopyUs * 2 + 1), Flags({false, false, false}));
  EXPECT_EQ(places.staying(kCopyUs * 2, {true, false, false}), Flags({false, false, false})) << "one of them is read there already";
}

TEST(Places, WhatIsLargeIsTrustedSooner) {
  Places places;
  const int64_t large = 48'000'000;
  for (uintptr_t call = 1; call <= 4; ++call) places.see({at(8), at(64 * call), at(1000, large)});
  for (uintptr_t call = 1; call <= 3; ++call) places.see({at(8), at(64 * 4), at(1000 + 64 * call, large)});
  places.see({at(8), at(64 * 4), at(1000 + 64 * 3, large)});
  EXPECT_EQ(places.staying(4 * kCopyUs), Flags({true, true, true}));
  EXPECT_EQ(places.staying(7 * kCopyUs), Flags({true, false, true}));
}

TEST(Places, WhereAllMovesAtOnceNothingIsKnown) {
  Places places;
  for (uintptr_t call = 0; call < 6; ++call) places.see({at(64), at(128), at(64 * (call + 10))});
  places.hold(0), places.hold(0);
  places.see({at(1064), at(128), at(9000)});
  EXPECT_FALSE(places.comes_back(0)) << "one of two is where it was";
  places.see({at(2064), at(2128), at(9000)});
  EXPECT_TRUE(places.comes_back(0));
  places.see({at(2064), at(2128), at(9000)});
  EXPECT_EQ(places.staying(1e6), Flags({true, true, true}));
}

TEST(Places, WhatMovesWithEachCallNeverStays) {
  Places places;
  for (uintptr_t call = 0; call < 200; ++call) {
    places.see({at(64 + 64 * call)});
    EXPECT_EQ(places.staying(0), Flags({false}));
    EXPECT_EQ(places.may_stay(), call < 3) << "after its third move nobody waits for it";
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

// Calls of one graph, of this process's memory. What is recorded notes what it was told to keep in place, and answers from memory of its
// own, as a GPU's recording does.
class Calls {
 public:
  using Tensors = std::vector<TensorRef>;
  explicit Calls(size_t outputs, std::chrono::milliseconds takes = {}) : outputs_(outputs), takes_(takes) {}

  Tensors run(const Tensors& inputs) {
    auto out = replay_.run(inputs);
    EXPECT_TRUE(out.ok());
    return out.ok() ? *out : Tensors();
  }
  int plain = 0, replayed = 0;
  std::vector<LaunchReplay::InPlace> recorded;

 private:
  struct Replayed : RecordedCall {
    Replayed(Calls& calls, const Tensors& inputs, LaunchReplay::InPlace in_place)
        : calls(calls), in_place(std::move(in_place)), held(calls.outputs_) {
      for (const TensorRef& input : inputs) places.push_back(input->data());  // nothing of the caller's is kept
      for (size_t i = 0; i < calls.outputs_; ++i) own.push_back(calls.fresh());
    }
    Result<Tensors> run(const Tensors&) override {
      ++calls.replayed;
      Tensors out;
      for (size_t i = 0; i < own.size(); ++i) {
        if (!in_place.outputs[i]) {
          out.push_back(calls.fresh());
          continue;
        }
        const auto keep = std::make_shared<TensorRef>(own[i]);
        held[i] = keep;
        KRN_TRY_LET(out.emplace_back(), calls.services_->wrap(kSpec, own[i]->data(), keep));
      }
      return out;
    }
    bool lie_in_place(const Tensors& now) const override {
      for (size_t i = 0; i < now.size(); ++i)
        if (in_place.inputs[i] && now[i]->data() != places[i]) return false;
      return true;
    }
    std::vector<size_t> held_outputs() const override {
      std::vector<size_t> out;
      for (size_t i = 0; i < held.size(); ++i)
        if (!held[i].expired()) out.push_back(i);
      return out;
    }
    Calls& calls;
    std::vector<const void*> places;
    Tensors own;
    LaunchReplay::InPlace in_place;
    std::vector<std::weak_ptr<void>> held;
  };

  TensorRef fresh() { return *services_->allocate(kSpec); }

  static inline const TensorSpec kSpec{DType::k_f32, {256}, {1}, Device{}};
  size_t outputs_;
  std::chrono::milliseconds takes_;
  std::unique_ptr<TensorServices> services_ = make_tensor_services();
  ReplayInPlace replay_{[this](const Tensors&) -> Result<Tensors> {
                          ++plain;
                          Tensors out;
                          for (size_t i = 0; i < outputs_; ++i) out.push_back(fresh());
                          return out;
                        },
                        [this](const Tensors& inputs, const LaunchReplay::InPlace& in_place, const LaunchReplay::Specs&,
                               bool) -> Result<std::unique_ptr<RecordedCall>> {
                          std::this_thread::sleep_for(takes_);
                          recorded.push_back(in_place);
                          recorded.back().inputs.resize(inputs.size());
                          recorded.back().outputs.resize(outputs_);
                          return std::unique_ptr<RecordedCall>(new Replayed(*this, inputs, recorded.back()));
                        },
                        *services_, Device{}};
};

std::vector<TensorRef> tensors(size_t count) {
  static const std::unique_ptr<TensorServices> services = make_tensor_services();
  std::vector<TensorRef> out;
  for (size_t i = 0; i < count; ++i) out.push_back(*services->allocate({DType::k_f32, {256}, {1}, Device{}}));
  return out;
}

TEST(ReplayInPlace, WhatARaceSawIsNotTakenForTheCallersMemory) {
  Calls calls(1, std::chrono::milliseconds(5));
  const auto raced = tensors(3), callers = tensors(3);
  for (int i = 0; i < 25; ++i) calls.run(raced);
  EXPECT_EQ(calls.recorded.size(), 1u);
  for (int i = 0; i < 25; ++i) calls.run(callers);
  ASSERT_EQ(calls.recorded.size(), 2u);
  EXPECT_EQ(calls.recorded[1].inputs, Flags({true, true, true}));
  EXPECT_EQ(calls.plain, 2) << "the first of either";
}

// A forward, a backward that reads what the forward keeps, an update that reads the gradients: each is recorded once, as soon as what it
// reads is made by a recording.
TEST(ReplayInPlace, AStepsRecordingsFollowEachOther) {
  Calls forward(4, std::chrono::milliseconds(5)), backward(2, std::chrono::milliseconds(5)), update(1, std::chrono::milliseconds(5));
  const auto weights = tensors(3);
  const auto with = [&](std::vector<TensorRef> more) {
    more.insert(more.begin(), weights.begin(), weights.end());
    return more;
  };
  std::vector<TensorRef> others;  // what the allocator gives meanwhile to somebody else
  for (int step = 0; step < 40; ++step) {
    {
      auto saved = forward.run(weights);
      for (TensorRef& each : tensors(1)) others.push_back(each);
      auto gradients = backward.run(with(saved));
      saved.clear();
      update.run(with(gradients));
    }
    if (step < 5) continue;
    EXPECT_EQ(forward.recorded.size() + backward.recorded.size() + update.recorded.size(), 3u);
  }
  EXPECT_EQ(forward.recorded[0].inputs, Flags(3, true));
  EXPECT_EQ(backward.recorded[0].inputs, Flags(7, true));
  EXPECT_EQ(update.recorded[0].inputs, Flags(5, true));
  EXPECT_LE(forward.plain + backward.plain + update.plain, 1 + 2 + 3);
}

TEST(ReplayInPlace, RecordingsInVainComeToAnEnd) {
  Calls calls(1);
  const auto weights = tensors(2);
  std::vector<TensorRef> kept;
  for (int i = 0; i < 600; ++i) {
    if (i % 3 == 0) kept.push_back(tensors(1)[0]);
    calls.run({weights[0], weights[1], kept.back()});
  }
  EXPECT_LE(calls.recorded.size(), 11u);
  EXPECT_GE(calls.replayed, 500);
  EXPECT_FALSE(calls.recorded.back().inputs[2]) << "what moves is copied";
}

TEST(ReplayInPlace, AnOutputThatIsKeptIsCopiedOut) {
  Calls calls(2);
  const auto weights = tensors(2);
  std::vector<TensorRef> kept;
  for (int i = 0; i < 50; ++i) {
    auto outputs = calls.run(weights);
    kept.push_back(outputs[0]);
    for (size_t other = 0; other + 1 < kept.size(); ++other) ASSERT_NE(kept[other]->data(), kept.back()->data());
  }
  EXPECT_EQ(calls.recorded.back().outputs, Flags({false, true}));
  EXPECT_GE(calls.replayed, 40);
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
      [](const auto&, const auto&, const auto&, bool) -> Result<std::unique_ptr<RecordedCall>> {
        return Status(Code::k_unsupported, "nothing can be");
      },
      services, Device{});
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
