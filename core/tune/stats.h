// SPDX-License-Identifier: Apache-2.0
//
// The project's statistics, all of them: shift of paired samples by signed ranks. No distribution is assumed, nothing is
// random: the same numbers give the same verdict. The race and the regression matrix share it.
#pragma once

#include <optional>
#include <span>
#include <vector>

namespace keirin {

double median(std::span<const double> values);  // 0 for none

struct Shift {
  double estimate = 0;       // Hodges-Lehmann: the median of the Walsh averages
  double low = 0, high = 0;  // exact signed-rank interval
  int blocks = 0;
};

// Sorts the Walsh averages (d_i + d_j) / 2, i <= j, and drops the `drop` smallest and largest. 2 * drop < n (n + 1) / 2.
Shift signed_rank_shift(std::span<const double> d, int drop);

// The largest drop whose interval over n blocks misses the true shift with probability at most `miss` (both sides together),
// by the exact distribution of the signed-rank sum; -1 if there is none.
int exact_drop(int n, double miss);

// One look of the sequential plan: after `blocks` blocks, drop `drop`. Each look misses with probability 0.4 % at most.
struct Look {
  int blocks;
  int drop;
};
inline constexpr Look kRaceLooks[] = {{10, 1}, {20, 30}, {40, 199}, {80, 1025}};

enum class Finding { kMore, kAbove, kBelow, kUndecided };

// Is the true shift above the threshold? Fed block by block, it speaks at the looks only.
class SequentialTest {
 public:
  explicit SequentialTest(double threshold) : threshold_(threshold) {}
  Finding add(double d);
  Shift shift() const;  // at any time, for reports; before the first look the interval is the whole range of d
  const std::vector<double>& samples() const { return d_; }

 private:
  double threshold_;
  std::vector<double> d_;
};

}  // namespace keirin
