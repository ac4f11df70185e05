// SPDX-License-Identifier: Apache-2.0
#include "core/tune/stats.h"

#include <algorithm>
#include <cmath>

namespace keirin {
namespace {

std::vector<double> walsh_averages(std::span<const double> d) {
  std::vector<double> walsh;
  walsh.reserve(d.size() * (d.size() + 1) / 2);
  for (size_t i = 0; i < d.size(); ++i)
    for (size_t j = i; j < d.size(); ++j) walsh.push_back((d[i] + d[j]) / 2);
  return walsh;
}

double middle_of_sorted(const std::vector<double>& sorted) {
  const size_t n = sorted.size();
  if (n == 0) return 0;
  return n % 2 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
}

}  // namespace

double median(std::span<const double> values) {
  std::vector<double> sorted(values.begin(), values.end());
  std::sort(sorted.begin(), sorted.end());
  return middle_of_sorted(sorted);
}

Shift signed_rank_shift(std::span<const double> d, int drop) {
  Shift shift;
  shift.blocks = static_cast<int>(d.size());
  if (d.empty()) return shift;
  std::vector<double> walsh = walsh_averages(d);
  std::sort(walsh.begin(), walsh.end());
  shift.estimate = middle_of_sorted(walsh);
  const size_t k = std::min(static_cast<size_t>(std::max(drop, 0)), (walsh.size() - 1) / 2);
  shift.low = walsh[k];
  shift.high = walsh[walsh.size() - 1 - k];
  return shift;
}

int exact_drop(int n, double miss) {
  // Under the true shift each rank 1..n is positive with probability 1/2: the distribution of their sum, by adding rank by rank.
  const size_t top = static_cast<size_t>(n) * (static_cast<size_t>(n) + 1) / 2;
  std::vector<double> p(top + 1);
  p[0] = 1;
  for (int rank = 1; rank <= n; ++rank)
    for (size_t sum = top + 1; sum-- > 0;)
      p[sum] = p[sum] / 2 + (sum >= static_cast<size_t>(rank) ? p[sum - static_cast<size_t>(rank)] / 2 : 0);
  // The interval from Walsh average k + 1 to the k + 1st from above misses the shift on one side exactly if the sum is at most k.
  double tail = 0;
  int drop = -1;
  for (size_t sum = 0; sum <= top / 2; ++sum) {
    tail += p[sum];
    if (2 * tail > miss) break;
    drop = static_cast<int>(sum);
  }
  return drop;
}

Finding SequentialTest::add(double d) {
  d_.push_back(d);
  for (const Look& look : kRaceLooks) {
    if (static_cast<int>(d_.size()) != look.blocks) continue;
    const Shift s = signed_rank_shift(d_, look.drop);
    if (s.low > threshold_) return Finding::kAbove;
    if (s.high < threshold_) return Finding::kBelow;
    if (&look == std::end(kRaceLooks) - 1) return Finding::kUndecided;
  }
  return Finding::kMore;
}

Shift SequentialTest::shift() const {
  int drop = 0;
  for (const Look& look : kRaceLooks)
    if (static_cast<int>(d_.size()) >= look.blocks) drop = look.drop;
  // Between looks: the drop of the last look over more blocks is wider than needed, never narrower.
  return signed_rank_shift(d_, drop);
}

}  // namespace keirin
