// SPDX-License-Identifier: Apache-2.0
//
// Products of groups of rows, group by group and all at once, against products of one row each, and LibTorch's own where it has one.
#include "core/eager/rows/grouped_matmul.h"

#include <gtest/gtest.h>

namespace keirin {
namespace {

at::Tensor row_by_row(const at::Tensor& x, const at::Tensor& weights, const std::vector<int64_t>& ends) {
  at::Tensor out = at::zeros({x.size(0), weights.size(2)}, x.options());
  int64_t row = 0;
  for (size_t group = 0; group < ends.size(); ++group)
    for (; row < ends[group]; ++row) out[row] = at::mv(weights[static_cast<int64_t>(group)].t(), x[row]);
  return out;
}

TEST(GroupedMatmul, IsThatOfEachRowWithItsGroupsWeights) {
  at::manual_seed(3);
  const std::vector<std::vector<int64_t>> cases = {{2, 2, 9}, {0, 0, 0}, {9, 9, 9}, {0, 4, 7}, {9}, {3}};
  for (at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf})
    for (at::ScalarType whole : {at::kInt, at::kLong})
      for (bool transposed : {false, true})
        for (const std::vector<int64_t>& ends : cases) {
          const auto groups = static_cast<int64_t>(ends.size());
          const at::Tensor x = at::randn({9, 8}).to(dtype);
          const at::Tensor w = transposed ? at::randn({groups, 16, 8}).to(dtype).transpose(1, 2) : at::randn({groups, 8, 16}).to(dtype);
          const at::Tensor known = at::tensor(ends, at::kLong).to(whole), want = row_by_row(x, w, ends);
          const double bound = dtype == at::kDouble ? 1e-12 : dtype == at::kFloat ? 1e-5 : dtype == at::kHalf ? 2e-2 : 0.15;
          const auto expect_near = [&](const at::Tensor& got) {
            ASSERT_EQ(got.sizes(), want.sizes());
            ASSERT_EQ(got.scalar_type(), dtype);
            EXPECT_LT((got - want).abs().max().item<double>(), bound) << at::toString(dtype) << ", " << groups << " groups";
          };
          expect_near(grouped_matmul(x, w, known));
          expect_near(grouped_matmul_of_all(x, w, known));
          if (ends.back() == 9 && dtype != at::kDouble && whole == at::kInt) expect_near(at::_grouped_mm(x, w, known));
        }
  EXPECT_EQ(grouped_matmul(at::empty({0, 8}), at::randn({2, 8, 4}), at::tensor({0, 0}, at::kInt)).sizes(), (std::vector<int64_t>{0, 4}));
  EXPECT_TRUE(grouped_matmul_of_all(at::ones({3, 8}), at::empty({0, 8, 4}), at::empty({0}, at::kInt)).eq(0).all().item<bool>());
}

}  // namespace
}  // namespace keirin
