// SPDX-License-Identifier: Apache-2.0
#include "core/tune/stats.h"

#include <algorithm>
#include <array>
#include <boost/math/distributions/students_t.hpp>
#include <cmath>
#include <numeric>

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

// Under the true shift each rank 1..n is positive with probability 1/2: the probability of each sum, by adding rank by rank.
std::vector<double> rank_sum_distribution(int n) {
  const size_t top = static_cast<size_t>(n) * (static_cast<size_t>(n) + 1) / 2;
  std::vector<double> p(top + 1);
  p[0] = 1;
  for (int rank = 1; rank <= n; ++rank)
    for (size_t sum = top + 1; sum-- > 0;)
      p[sum] = p[sum] / 2 + (sum >= static_cast<size_t>(rank) ? p[sum - static_cast<size_t>(rank)] / 2 : 0);
  return p;
}

double root_mean_square(std::span<const double> values) {
  const double squares = std::inner_product(values.begin(), values.end(), values.begin(), 0.0);
  return std::sqrt(squares / static_cast<double>(values.size()));
}

// A gate of 1 % is log 1.01 both ways, so that swapped sides mirror.
double log_gate(double gate) { return std::log1p(gate); }

std::vector<double> negated(std::span<const double> d) {
  std::vector<double> out(d.begin(), d.end());
  for (double& x : out) x = -x;
  return out;
}

// Nearest rank. Moves the values.
double quantile(std::vector<double>& values, double q) {
  const auto rank = static_cast<size_t>(std::ceil(q * static_cast<double>(values.size())));
  const auto at = values.begin() + static_cast<std::ptrdiff_t>(std::max<size_t>(rank, 1) - 1);
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

// The bootstrap's draws: splitmix64, the same on every machine.
struct Draws {
  uint64_t state = 0x6b656972696e;
  size_t below(size_t n) {
    state += 0x9e3779b97f4a7c15;
    uint64_t z = (state ^ (state >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return static_cast<size_t>((z ^ (z >> 31)) % n);
  }
};

// The split of x with the largest energy distance between its halves, weighted by their sizes (E-divisive with exponent 1).
size_t best_split(std::span<const double> x, size_t least) {
  const size_t n = x.size();
  // Sums of |x_i - x_j| inside the left half, inside the right one and between them; one point at a time changes sides.
  double left = 0, right = 0, between = 0;
  for (size_t i = 0; i < n; ++i)
    for (size_t j = 0; j < i; ++j) right += std::abs(x[i] - x[j]);
  size_t best = 0;
  double most = -1;
  for (size_t split = 1; split + least <= n; ++split) {
    double to_left = 0, to_right = 0;
    for (size_t j = 0; j < n; ++j) (j < split - 1 ? to_left : to_right) += std::abs(x[split - 1] - x[j]);
    left += to_left, right -= to_right, between += to_right - to_left;
    if (split < least) continue;
    const auto m = static_cast<double>(split), k = static_cast<double>(n - split);
    const double energy = 2 * between / (m * k) - 2 * left / (m * (m - 1)) - 2 * right / (k * (k - 1));
    if (const double weighted = m * k / (m + k) * energy; weighted > most) most = weighted, best = split;
  }
  return best;
}

struct Moments {
  double mean = 0, squares = 0;  // squares: of the distances from the mean, summed
  explicit Moments(std::span<const double> x) {
    mean = std::accumulate(x.begin(), x.end(), 0.0) / static_cast<double>(x.size());
    for (const double v : x) squares += (v - mean) * (v - mean);
  }
};

double t_test(std::span<const double> a, std::span<const double> b) {
  const Moments ma(a), mb(b);
  const auto n = static_cast<double>(a.size()), m = static_cast<double>(b.size());
  const double variance = (ma.squares + mb.squares) / (n + m - 2);
  const double apart = std::abs(ma.mean - mb.mean);
  if (variance <= 0) return apart > 0 ? 0 : 1;
  const double t = apart / std::sqrt(variance * (1 / n + 1 / m));
  return 2 * boost::math::cdf(boost::math::complement(boost::math::students_t(n + m - 2), t));
}

constexpr size_t kLeastSegment = 5;
// A split is the best of many, so its p is too small: on 100 points of noise alone the best of all has p < 1e-3 in one series of 20.
constexpr double kChangeLevel = 1e-5;

void split_segment(std::span<const double> series, size_t begin, size_t end, double least_step, std::vector<size_t>* out) {
  if (end - begin < 2 * kLeastSegment) return;
  const std::span<const double> x = series.subspan(begin, end - begin);
  const size_t split = best_split(x, kLeastSegment);
  if (t_test(x.first(split), x.subspan(split)) > kChangeLevel) return;
  if (std::abs(Moments(x.subspan(split)).mean - Moments(x.first(split)).mean) < least_step) return;
  split_segment(series, begin, begin + split, least_step, out);
  out->push_back(begin + split);
  split_segment(series, begin + split, end, least_step, out);
}

constexpr int kBootstrapRounds = 10'000;
constexpr double kSamplesBeyond = 10;  // that a quantile needs on its far side

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
  const std::vector<double> p = rank_sum_distribution(n);
  const size_t top = p.size() - 1;
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

Shift paired_shift(std::span<const double> d) {
  return signed_rank_shift(d, exact_drop(static_cast<int>(d.size()), kIntervalMiss));
}

double signed_rank_p(std::span<const double> d, double bound) {
  std::vector<double> apart;
  for (const double x : d)
    if (x != bound) apart.push_back(x - bound);
  if (apart.empty()) return 1;
  // By distance, of tied ones those above the bound first: they get the smaller ranks.
  std::sort(apart.begin(), apart.end(), [](double a, double b) {
    return std::abs(a) != std::abs(b) ? std::abs(a) < std::abs(b) : a > b;
  });
  size_t sum = 0;
  for (size_t i = 0; i < apart.size(); ++i)
    if (apart[i] > 0) sum += i + 1;
  const std::vector<double> p = rank_sum_distribution(static_cast<int>(apart.size()));
  return std::min(1.0, std::accumulate(p.begin() + static_cast<std::ptrdiff_t>(sum), p.end(), 0.0));
}

std::optional<double> gate_of(std::span<const double> own, std::span<const double> device, const Protocol& protocol) {
  std::span<const double> shifts = device;
  if (own.size() >= kSittingsForGate) shifts = own.last(kSittingsForGate);
  if (shifts.size() < kSittingsForGate) return {};
  return std::max(protocol.least_gate, 3 * root_mean_square(shifts));
}

std::string_view label_name(Label label) {
  switch (label) {
    case Label::kRegressed: return "regressed";
    case Label::kImproved: return "improved";
    case Label::kUnchanged: return "unchanged";
    case Label::kInconclusive: return "inconclusive";
    case Label::kInvalid: return "invalid";
  }
  return "invalid";
}

Label label_of(const Shift& shift, double gate) {
  const double bound = log_gate(gate);
  if (shift.blocks == 0) return Label::kInconclusive;
  if (shift.low > bound) return Label::kRegressed;
  if (shift.high < -bound) return Label::kImproved;
  if (shift.low > -bound && shift.high < bound) return Label::kUnchanged;
  return Label::kInconclusive;
}

std::string_view size_of_shift(double log_ratio) {
  const double apart = std::abs(log_ratio);
  return apart < std::log1p(0.03) ? "small" : apart < std::log1p(0.10) ? "medium" : "large";
}

bool needs_more_blocks(std::span<const double> d, double gate, const Protocol& protocol) {
  const auto n = static_cast<int>(d.size());
  if (n < protocol.first) return true;
  return n < protocol.most && label_of(paired_shift(d), gate) == Label::kInconclusive;
}

bool is_flagged(std::span<const double> d, double gate) {
  return signed_rank_p(d, log_gate(gate)) < kScreenLevel || signed_rank_p(negated(d), log_gate(gate)) < kScreenLevel;
}

std::vector<Label> confirmed_labels(std::span<const std::vector<double>> fresh, std::span<const double> gates) {
  std::vector<double> p;
  for (size_t i = 0; i < fresh.size(); ++i) {
    p.push_back(signed_rank_p(fresh[i], log_gate(gates[i])));
    p.push_back(signed_rank_p(negated(fresh[i]), log_gate(gates[i])));
  }
  const std::vector<bool> found = discoveries(p, kFalseDiscoveries);
  std::vector<Label> labels;
  for (size_t i = 0; i < fresh.size(); ++i) {
    Label label = label_of(paired_shift(fresh[i]), gates[i]);
    if ((label == Label::kRegressed && !found[2 * i]) || (label == Label::kImproved && !found[2 * i + 1]))
      label = Label::kInconclusive;
    labels.push_back(label);
  }
  return labels;
}

std::vector<bool> discoveries(std::span<const double> p, double rate) {
  std::vector<double> sorted(p.begin(), p.end());
  std::sort(sorted.begin(), sorted.end());
  double limit = -1;
  for (size_t i = 0; i < sorted.size(); ++i)
    if (sorted[i] <= rate * static_cast<double>(i + 1) / static_cast<double>(sorted.size())) limit = sorted[i];
  std::vector<bool> out;
  for (const double x : p) out.push_back(x <= limit);
  return out;
}

QuantileShift quantile_shift(std::span<const std::vector<double>> base, std::span<const std::vector<double>> head, double q) {
  const auto count = [](std::span<const std::vector<double>> side) {
    return std::accumulate(side.begin(), side.end(), size_t{0}, [](size_t n, const auto& block) { return n + block.size(); });
  };
  const auto needed = static_cast<size_t>(std::ceil(kSamplesBeyond / (1 - q) - 1e-9));
  const size_t least = std::min(count(base), count(head));
  if (least < needed || base.size() != head.size())
    return {{}, "p" + std::to_string(q * 100).substr(0, 4) + " needs " + std::to_string(needed) + " samples a side, there are " +
                    std::to_string(least)};
  // The blocks of both sides are drawn together: what disturbed one disturbed the other.
  std::vector<double> a, b;
  const auto log_ratio = [&](auto&& block_number) {
    a.clear(), b.clear();
    for (size_t i = 0; i < base.size(); ++i) {
      const size_t at = block_number(i);
      a.insert(a.end(), base[at].begin(), base[at].end());
      b.insert(b.end(), head[at].begin(), head[at].end());
    }
    return a.empty() || b.empty() ? 0.0 : std::log(quantile(b, q)) - std::log(quantile(a, q));
  };
  Shift shift;
  shift.blocks = static_cast<int>(base.size());
  shift.estimate = log_ratio([](size_t i) { return i; });
  Draws draws;
  std::vector<double> rounds(kBootstrapRounds);
  for (double& round : rounds) round = log_ratio([&](size_t) { return draws.below(base.size()); });
  std::sort(rounds.begin(), rounds.end());
  constexpr size_t kDrop = static_cast<size_t>(kBootstrapRounds * kIntervalMiss / 2);
  shift.low = rounds[kDrop];
  shift.high = rounds[rounds.size() - 1 - kDrop];
  return {shift, {}};
}

std::vector<ChangePoint> change_points(std::span<const double> series, double least_step) {
  std::vector<size_t> at;
  split_segment(series, 0, series.size(), least_step, &at);
  std::vector<ChangePoint> out;
  for (size_t i = 0; i < at.size(); ++i) {
    const size_t begin = i ? at[i - 1] : 0, end = i + 1 < at.size() ? at[i + 1] : series.size();
    const std::span<const double> before = series.subspan(begin, at[i] - begin), after = series.subspan(at[i], end - at[i]);
    out.push_back({at[i], Moments(after).mean - Moments(before).mean, t_test(before, after)});
  }
  return out;
}

}  // namespace keirin
