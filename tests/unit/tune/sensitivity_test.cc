// SPDX-License-Identifier: Apache-2.0
//
// What errors of single roundings explain, and what they do not.
#include "core/tune/sensitivity.h"

#include <gtest/gtest.h>

#include <cmath>

#include "core/tune/elements.h"
#include "tests/unit/host/heap_services.h"

namespace keirin {
namespace {

using Tensors = std::vector<TensorRef>;

test::HeapServices services;

TensorRef make(DType dtype, const std::vector<double>& values) {
  TensorRef t = *services.allocate({dtype, {static_cast<int64_t>(values.size())}, {}, {}});
  each_element(*t, [&](int64_t i, void* at) { store_element(dtype, at, values[static_cast<size_t>(i)]); });
  return t;
}

TEST(Movements, AreTheFarthestOfAllRuns) {
  const Tensors referee{make(DType::k_f64, {1, 2, 3}), make(DType::k_i64, {4, 5, 6}), nullptr};
  const auto moved = movements(referee, services, [](uint32_t seed) -> Result<Tensors> {
    const double by = seed == 2 ? 0.5 : 0.25;
    return Tensors{make(DType::k_f64, {1, 2 - by, 3}), make(DType::k_i64, {4, seed == 3 ? 9.0 : 5.0, 6}), nullptr};
  });
  ASSERT_TRUE(moved.ok()) << moved.status().text();
  EXPECT_EQ((*moved)[0].largest, 0.5);
  EXPECT_EQ((*moved)[1].changed, 1);
  const auto why = [&](const std::vector<double>& floats, const std::vector<double>& integers) {
    const Tensors other{make(DType::k_f32, floats), make(DType::k_i64, integers), nullptr};
    const Result<std::string> found = unexplained(referee, other, *moved, services);
    return found.ok() ? *found : found.status().text();
  };
  EXPECT_EQ(why({1, 2, 3}, {4, 5, 6}), "");
  EXPECT_EQ(why({2, 1, 3}, {4, 5, 7}), "") << "another element, four times as far";
  EXPECT_NE(why({1, 2, 6}, {4, 5, 6}).find("output 0 is 3 away; roundings move it by 0.5"), std::string::npos);
  EXPECT_NE(why({1, 2, std::nan("")}, {4, 5, 6}).find("output 0"), std::string::npos) << "nothing explains NaN";
  EXPECT_NE(why({1, 2}, {4, 5, 6}).find("other sizes"), std::string::npos);
}

TEST(Movements, ExplainNothingWhereNothingMoves) {
  const Tensors referee{make(DType::k_f64, {1, 2}), make(DType::k_bool, {1, 0})};
  const auto moved = movements(referee, services, [&](uint32_t) -> Result<Tensors> { return referee; });
  ASSERT_TRUE(moved.ok());
  EXPECT_NE(*unexplained(referee, Tensors{make(DType::k_f32, {1, 2.000001}), referee[1]}, *moved, services), "");
  EXPECT_NE(*unexplained(referee, Tensors{referee[0], make(DType::k_bool, {1, 1})}, *moved, services), "");
}

// A device that may round operands to TF32 may only where eager did.
TEST(Movements, AreNoCoarserThanEagers) {
  const Tensors referee{make(DType::k_f64, {1, 2})};
  const auto run = [&](uint32_t, bool tf32) -> Result<Tensors> { return Tensors{make(DType::k_f64, {1, tf32 ? 2.5 : 2.001})}; };
  const auto largest = [&](double eager, bool may_round, double sums) {
    const auto moved = movements_like(referee, Tensors{make(DType::k_f32, {1, eager})}, services, may_round, sums, run);
    return moved.ok() ? (*moved)[0].largest : -1;
  };
  EXPECT_NEAR(largest(2.002, true, 1), 0.001, 1e-6);
  EXPECT_NEAR(largest(2.3, true, 1), 0.5, 1e-6) << "eager rounds as well";
  EXPECT_NEAR(largest(2.3, false, 1), 0.001, 1e-6) << "nobody may";
  EXPECT_NEAR(largest(2.3, true, 100), 0.1, 1e-6) << "a long sum explains it";
}

TEST(Movements, OfOtherSizesAreNone) {
  const Tensors referee{make(DType::k_f64, {1, 2})};
  EXPECT_FALSE(movements(referee, services, [](uint32_t) -> Result<Tensors> { return Tensors{make(DType::k_f64, {1})}; }).ok());
  EXPECT_FALSE(movements(referee, services, [](uint32_t) -> Result<Tensors> { return Status(Code::k_internal, "no"); }).ok());
}

}  // namespace
}  // namespace keirin
