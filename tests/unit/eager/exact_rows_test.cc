// SPDX-License-Identifier: Apache-2.0
//
// Recipes that make integers of fp64: rows as LibTorch computes them, on numbers that fp64 does not hold, against LibTorch's own operator.
#include <gtest/gtest.h>

#include <limits>
#include <random>

#include "core/eager/at_tensor.h"
#include "core/eager/rows/graph_calls.h"
#include "core/ops/aten.h"

namespace keirin {
namespace {

at::Tensor floor_divided(const at::Tensor& x, int64_t divisor) {
  Graph graph;
  Builder builder(graph);
  const DType dtype = x.scalar_type() == at::kLong ? DType::k_i64 : DType::k_i32;
  graph.add_input({dtype, x.sizes().vec(), x.strides().vec()}, 0);
  const std::vector<AtenArg> args = {{AtenArg::Value{0, false}}, {divisor}};
  const std::vector<std::string> names = {"self", "other"};
  std::string why;
  const auto results = lower_aten(builder, {"aten::floor_divide", &args, &names, nullptr}, &why);
  EXPECT_TRUE(results.ok() && results->has_value()) << why;
  if (!results.ok() || !results->has_value()) return {};
  graph.outputs.push_back({(**results)[0], kNone, kNone});
  const auto eager = EagerGraph::make(graph, nullptr, {}, {});
  EXPECT_TRUE(eager.ok()) << eager.status().text();
  const auto outputs = (*eager)->run({from_at(x)});
  EXPECT_TRUE(outputs.ok()) << outputs.status().text();
  return outputs.ok() ? to_at(outputs->at(0)) : at::Tensor();
}

TEST(ExactRows, IntegersDividedDownwards) {
  std::mt19937_64 random(5);
  const int64_t least = std::numeric_limits<int64_t>::min(), most = std::numeric_limits<int64_t>::max();
  for (int64_t divisor : {int64_t{2}, int64_t{3}, int64_t{7}, int64_t{16}, int64_t{1000003}, (int64_t{1} << 31) - 1, (int64_t{1} << 49) + 1,
                          int64_t{1} << 50}) {
    std::vector<int64_t> values = {least, least + 1, most, most - 1, 0, 1, -1, divisor, divisor - 1, -divisor, -divisor - 1};
    for (int64_t near :
         {most / divisor * divisor, (most / divisor - 1) * divisor, least / divisor * divisor, (int64_t{1} << 53) / divisor * divisor})
      for (int64_t off : {-1, 0, 1}) values.push_back(near == most / divisor * divisor && off == 1 ? near : near + off);
    for (int i = 0; i < 2000; ++i) values.push_back(static_cast<int64_t>(random()) >> (random() % 64));
    const at::Tensor x = at::tensor(values, at::kLong), got = floor_divided(x, divisor), want = at::floor_divide(x, divisor);
    ASSERT_TRUE(got.defined());
    EXPECT_TRUE(got.equal(want)) << divisor << ": " << x.masked_select(got.ne(want)).slice(0, 0, 5);
    if (divisor > std::numeric_limits<int32_t>::max()) continue;
    const at::Tensor narrow = x.to(at::kInt), narrow_got = floor_divided(narrow, divisor);
    EXPECT_TRUE(narrow_got.equal(at::floor_divide(narrow, divisor))) << divisor;
  }
}

}  // namespace
}  // namespace keirin
