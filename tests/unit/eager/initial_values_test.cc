// SPDX-License-Identifier: Apache-2.0
//
// Drawn tensors: the same for any number of threads, different for different names, and distributed as the rule says.
#include "core/eager/weights/initial_values.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/eager/tensor_services.h"

namespace keirin {
namespace {

using Kind = InitRule::Kind;

TEST(InitialValues, ParsesTheDocumentedForm) {
  auto rules = parse_initial_values(R"({"version":1,"seed":7,"tensors":{"w":{"kind":"normal","mean":0.5,"std":2}},
      "inputs":[{"kind":"integers","low":0,"high":9},{"kind":"edges","nodes":4,"self_loops":true}]})");
  ASSERT_TRUE(rules.ok()) << rules.status().text();
  EXPECT_EQ(rules->seed, 7u);
  EXPECT_EQ(rules->tensors.at("w").kind, Kind::kNormal);
  EXPECT_EQ(rules->tensors.at("w").b, 2);
  EXPECT_EQ(rules->inputs[1].b, 1);
}

// However many rows there are in a call whose sizes are free.
TEST(InitialValues, EdgesMayLieBetweenTheRowsOfAnInput) {
  const auto services = make_tensor_services();
  const auto rules = parse_initial_values(R"({"version":1,"seed":7,"inputs":[{"kind":"normal","mean":0,"std":1},
      {"kind":"edges","rows_of":0,"self_loops":false},{"kind":"edges","rows_of":3,"self_loops":false}]})");
  ASSERT_TRUE(rules.ok()) << rules.status().text();
  for (const int64_t rows : {3, 500}) {
    const TensorSpec nodes{DType::k_f32, {rows, 2}, {}, {}}, edges{DType::k_i64, {2, 1000}, {}, {}};
    const std::vector<TensorSpec> specs = {nodes, edges, edges};
    const auto rule = rule_at(rules->inputs, 1, specs);
    ASSERT_TRUE(rule.ok());
    const TensorRef tensor = *draw(*services, specs[1], *rule, 1, "input1");
    const auto* at = static_cast<const int64_t*>(tensor->data());
    EXPECT_GE(*std::min_element(at, at + 2000), 0);
    EXPECT_LT(*std::max_element(at, at + 2000), rows);
    EXPECT_GE(*std::max_element(at, at + 2000), rows * 9 / 10) << "all of them are met";
    EXPECT_EQ(rule_at(rules->inputs, 2, specs).status().code(), Code::k_corrupt) << "there is no input 3";
    EXPECT_EQ(rule_at(rules->inputs, 0, specs)->b, 1);
  }
}

TEST(InitialValues, RefusesOthers) {
  for (const char* text :
       {"", "[]", "{}", R"({"version":1})", R"({"version":1,"seed":0,"tensors":{"w":{"kind":"magic"}}})",
        R"({"version":1,"seed":0,"tensors":{"w":{"kind":"normal","mean":0}}})",
        R"({"version":1,"seed":0,"inputs":[3]})",
        R"({"version":1,"seed":0,"inputs":[{"kind":"edges","rows_of":-1,"self_loops":false}]})"}) {
    EXPECT_EQ(parse_initial_values(text).status().code(), Code::k_corrupt) << text;
  }
  EXPECT_EQ(parse_initial_values(R"({"version":2,"seed":0})").status().code(), Code::k_version);
}

TEST(Draw, DoesNotDependOnThreads) {
  const auto services = make_tensor_services();
  const TensorSpec spec{DType::k_f32, {100, 1000}, {}, {}};
  services->set_num_threads(1);
  const TensorRef one = *draw(*services, spec, {Kind::kNormal, 0, 1}, 3, "w");
  services->set_num_threads(2);
  const TensorRef two = *draw(*services, spec, {Kind::kNormal, 0, 1}, 3, "w");
  const TensorRef other = *draw(*services, spec, {Kind::kNormal, 0, 1}, 3, "v");
  EXPECT_EQ(std::memcmp(one->data(), two->data(), 400'000), 0);
  EXPECT_NE(std::memcmp(one->data(), other->data(), 400'000), 0);
}

TEST(Draw, HasTheMomentsOfItsRule) {
  const auto services = make_tensor_services();
  const auto moments = [&](InitRule rule) {
    const int64_t n = 200'000;
    const TensorRef tensor = *draw(*services, {DType::k_f64, {n}, {}, {}}, rule, 1, "w");
    const auto* x = static_cast<const double*>(tensor->data());
    double sum = 0, squares = 0;
    for (int64_t i = 0; i < n; ++i) {
      sum += x[i];
      squares += x[i] * x[i];
    }
    const double mean = sum / static_cast<double>(n);
    return std::pair(mean, std::sqrt(squares / static_cast<double>(n) - mean * mean));
  };
  const auto [normal_mean, normal_std] = moments({Kind::kNormal, 3, 0.5});
  EXPECT_NEAR(normal_mean, 3, 0.01);
  EXPECT_NEAR(normal_std, 0.5, 0.005);
  const auto [uniform_mean, uniform_std] = moments({Kind::kUniform, -1, 1});
  EXPECT_NEAR(uniform_mean, 0, 0.01);
  EXPECT_NEAR(uniform_std, 1 / std::sqrt(3.0), 0.005);
}

TEST(Draw, IntegersAndEdgesStayInRange) {
  const auto services = make_tensor_services();
  const TensorRef ids = *draw(*services, {DType::k_i64, {1000}, {}, {}}, {Kind::kIntegers, 2, 5}, 1, "ids");
  int seen = 0;
  for (int i = 0; i < 1000; ++i) {
    const int64_t id = static_cast<const int64_t*>(ids->data())[i];
    ASSERT_TRUE(id >= 2 && id < 5);
    seen |= 1 << id;
  }
  EXPECT_EQ(seen, 0b11100);
  const TensorRef edges = *draw(*services, {DType::k_i64, {2, 10}, {}, {}}, {Kind::kEdges, 4, 1}, 1, "edges");
  const auto* e = static_cast<const int64_t*>(edges->data());
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(e[6 + i] == i && e[16 + i] == i);
  for (int i = 0; i < 6; ++i) EXPECT_TRUE(e[i] >= 0 && e[i] < 4);
}

TEST(Draw, HalfTypesRound) {
  const auto services = make_tensor_services();
  for (const DType dtype : {DType::k_bf16, DType::k_f16}) {
    const TensorRef tensor = *draw(*services, {dtype, {3}, {}, {}}, {Kind::kConstant, 1.0 / 3, 0}, 1, "c");
    const TensorRef wide = *services->cast(tensor, DType::k_f32);
    EXPECT_NEAR(static_cast<const float*>(wide->data())[0], 1.0 / 3, dtype == DType::k_f16 ? 1e-4 : 1e-3);
  }
}

// A rule gives the same numbers in every dtype that holds them, and touches nothing behind the tensor.
TEST(Draw, EveryDtypeHoldsTheSameNumbers) {
  const auto services = make_tensor_services();
  for (const DType dtype : {DType::k_bool, DType::k_u8, DType::k_i8, DType::k_i16, DType::k_i32, DType::k_i64, DType::k_f16, DType::k_bf16,
                            DType::k_f32, DType::k_f64}) {
    const TensorRef tensor = *draw(*services, {dtype, {5}, {}, {}}, {Kind::kArange, 0, dtype == DType::k_u8 ? 60.0 : 3.0}, 1,
                                   "n");  // to 240 where that is in range
    const TensorRef wide = *services->cast(tensor, DType::k_f64);
    for (int i = 0; i < 5 && dtype == DType::k_bool; ++i)
      EXPECT_EQ(static_cast<const uint8_t*>(tensor->data())[i], i > 0) << "no other byte is a bool";
    for (int i = 0; i < 5; ++i)
      EXPECT_EQ(static_cast<const double*>(wide->data())[i], dtype == DType::k_bool ? i > 0
                                                             : dtype == DType::k_u8 ? 60 * i
                                                                                    : 3 * i)
          << dtype_name(dtype) << " element " << i;
  }
}

}  // namespace
}  // namespace keirin
