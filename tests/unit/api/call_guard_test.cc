// SPDX-License-Identifier: Apache-2.0
//
// Which calls a plan may answer: each thing that it assumes is changed alone. And what a check costs.
#include "core/api/call_guard.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <random>

#include "core/eager/tensor_services.h"

namespace keirin {
namespace {

using Tensors = std::vector<TensorRef>;

TensorServices& services() {
  static const std::unique_ptr<TensorServices> all = make_tensor_services();
  return *all;
}

TensorRef make(std::vector<int64_t> sizes, std::vector<int64_t> strides = {}, DType dtype = DType::k_f32) {
  auto tensor = services().allocate({dtype, std::move(sizes), std::move(strides), {}});
  EXPECT_TRUE(tensor.ok());
  return *tensor;
}

TensorRef view(const TensorRef& of, const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides, int64_t offset) {
  auto tensor = services().view(of, {of->dtype(), sizes, strides, of->device()}, offset * dtype_bytes(of->dtype()));
  EXPECT_TRUE(tensor.ok());
  return *tensor;
}

CallGuard guard_of(const Tensors& inputs, CallGuard::Writes writes = {}) {
  return CallGuard(inputs, {}, numeric_modes({}), writes);
}

TEST(CallGuard, AdmitsCallsLikeItsOwn) {
  const CallGuard guard = guard_of({make({4, 6}), make({6}, {}, DType::k_i64)});
  EXPECT_TRUE(guard.admits({make({4, 6}), make({6}, {}, DType::k_i64)}));
}

TEST(CallGuard, TellsDtypesSizesAndNumbersOfInputs) {
  const CallGuard guard = guard_of({make({4, 6})});
  EXPECT_FALSE(guard.admits({}));
  EXPECT_FALSE(guard.admits({nullptr}));
  EXPECT_FALSE(guard.admits({make({4, 6}), make({4, 6})}));
  EXPECT_FALSE(guard.admits({make({4, 6}, {}, DType::k_f64)}));
  EXPECT_FALSE(guard.admits({make({4, 7})}));
  EXPECT_FALSE(guard.admits({make({24})}));
}

TEST(CallGuard, TellsStridesExceptThoseThatNobodySees) {
  const CallGuard guard = guard_of({make({4, 6})});
  EXPECT_FALSE(guard.admits({make({4, 6}, {1, 4})}));
  EXPECT_FALSE(guard.admits({view(make({1, 6}), {4, 6}, {0, 1}, 0)}));
  const CallGuard row = guard_of({make({1, 6})});
  EXPECT_TRUE(row.admits({make({1, 6}, {77, 1})}));
  const CallGuard expanded = guard_of({view(make({1, 6}), {4, 6}, {0, 1}, 0)});
  EXPECT_FALSE(expanded.admits({make({4, 6})}));
}

TEST(CallGuard, TellsAddressesThatAreAlignedToLess) {
  const TensorRef storage = make({64});
  const CallGuard guard = guard_of({view(storage, {8}, {1}, 16)});  // 64 bytes
  EXPECT_TRUE(guard.admits({view(storage, {8}, {1}, 32)}));
  EXPECT_FALSE(guard.admits({view(storage, {8}, {1}, 17)}));
  const CallGuard loose = guard_of({view(storage, {8}, {1}, 17)});
  EXPECT_TRUE(loose.admits({view(storage, {8}, {1}, 16)}));
}

TEST(CallGuard, WhatIsWrittenIsReachedByOneNameOnly) {
  const TensorRef x = make({8}), y = make({8}), weight = make({8}), state = make({8});
  const CallGuard guard = guard_of({x, y}, {{0}, {state}, {weight, state}});
  EXPECT_TRUE(guard.admits({x, y}));
  EXPECT_FALSE(guard.admits({x, x}));
  EXPECT_FALSE(guard.admits({weight, y}));                       // the call writes a weight that it does not know of
  EXPECT_TRUE(guard.admits({x, weight}));                        // read twice
  EXPECT_FALSE(guard.admits({x, state}));                        // the state is written while it is read
  const TensorRef all = make({32});
  EXPECT_FALSE(guard.admits({view(all, {8}, {1}, 0), view(all, {8}, {1}, 0)}));
  const CallGuard loose = guard_of({view(all, {8}, {1}, 1), view(all, {8}, {1}, 17)}, {{0}, {}, {}});
  EXPECT_FALSE(loose.admits({view(all, {8}, {1}, 1), view(all, {8}, {1}, 5)}));
  EXPECT_TRUE(loose.admits({view(all, {8}, {1}, 1), view(all, {8}, {1}, 9)}));
  const CallGuard reads = guard_of({x, y});
  EXPECT_TRUE(reads.admits({x, x}));
}

TEST(CallGuard, WhatIsWrittenIsFoundAmongManyAsByLookingAtAllPairs) {
  const TensorRef all = make({400});
  std::mt19937 random(7);
  const auto below = [&](int n) { return static_cast<int64_t>(random() % static_cast<unsigned>(n)); };
  int admitted = 0;
  for (int trial = 0; trial < 2000; ++trial) {
    Tensors inputs;
    std::vector<std::pair<int64_t, int64_t>> ranges;
    CallGuard::Writes writes;
    const int64_t count = 2 + below(8);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t begin = below(380), size = below(20);
      ranges.emplace_back(begin, begin + size);
      inputs.push_back(view(all, {size}, {1}, begin));
      if (below(2)) writes.inputs.push_back(static_cast<size_t>(i));
    }
    bool apart = true;
    for (const size_t w : writes.inputs)
      for (size_t i = 0; i < ranges.size(); ++i)
        apart &= i == w || std::max(ranges[i].first, ranges[w].first) >= std::min(ranges[i].second, ranges[w].second);
    EXPECT_EQ(guard_of(inputs, writes).admits(inputs), apart);
    admitted += apart;
  }
  EXPECT_GT(admitted, 200);
  EXPECT_LT(admitted, 1800);
}

TEST(CallGuard, TellsOtherNumericSettings) {
  const Tensors inputs{make({8})};
  EXPECT_FALSE(CallGuard(inputs, {}, numeric_modes({}) ^ 1, {}).admits(inputs));
}

TEST(CallGuard, TheNewerOfTwoForTheSameLayoutsTakesTheOthersPlace) {
  const CallGuard guard = guard_of({make({4, 6})});
  EXPECT_TRUE(guard.same_inputs(guard_of({make({4, 6})})));
  EXPECT_FALSE(guard.same_inputs(guard_of({make({4, 6}, {1, 4})})));
  EXPECT_FALSE(guard.same_inputs(guard_of({make({4, 7})})));
}

TEST(CallGuard, CostsLessThanAMicrosecondForTenInputs) {
  struct {
    size_t inputs, written;
    double most_ns;  // a bound that a loaded machine keeps; the figure is printed
  } cases[] = {{10, 0, 1000}, {10, 1, 1000}, {150, 120, 40'000}};
  for (const auto& [count, written, most_ns] : cases) {
    Tensors inputs;
    for (size_t i = 0; i < count; ++i) inputs.push_back(make({2, 3, 4, 5}));
    CallGuard::Writes writes;
    for (size_t i = 0; i < written; ++i) writes.inputs.push_back(i);
    const CallGuard guard = guard_of(inputs, writes);
    double best = 1e9;
    for (int round = 0; round < 50; ++round) {
      constexpr int kCalls = 1000;
      int admitted = 0;
      const auto start = std::chrono::steady_clock::now();
      for (int i = 0; i < kCalls; ++i) admitted += guard.admits(inputs);
      best = std::min(best, std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count() / kCalls);
      ASSERT_EQ(admitted, kCalls);
    }
    std::printf("%zu inputs, %zu of them written: %.0f ns\n", count, written, best);
    EXPECT_LT(best, most_ns);
  }
}

}  // namespace
}  // namespace keirin
