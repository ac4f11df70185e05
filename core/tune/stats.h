// SPDX-License-Identifier: Apache-2.0
//
// The project's statistics, all of them: shift of paired samples by signed ranks, gates and labels, many tests at once, tails,
// change points. No distribution is assumed but where a function says so, nothing is random (the bootstrap's seed is fixed): the
// same numbers give the same verdict, and with base and head swapped the mirrored one. The race and the regression matrix share it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
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

// ---- The matrix: is head slower than base? Shifts are mean log head - mean log base, one d per block: positive is slower. ----

// How a series is taken. Whole processes are started again for more blocks, so they are looked at when there are `first` and then each
// time that they are twice as many, up to `most`.
struct Protocol {
  int first, most;
  int confirm;         // fresh blocks
  double least_gate;   // of a ratio, as all gates
  double largest_gate; // above, the cell only informs
};
inline constexpr Protocol kCalls{12, 48, 24, 0.01, 0.05};
// A block is one process a side, which is dear, and each start has a bias of its own: fewer blocks, and only what is large counts.
inline constexpr Protocol kStarts{8, 16, 16, 0.10, 0.30};
inline constexpr double kIntervalMiss = 0.05;    // of a matrix interval, both sides together
inline constexpr double kScreenLevel = 0.05;     // one-sided: a cell below it is measured once more
inline constexpr double kFalseDiscoveries = 0.01;
inline constexpr size_t kSittingsForGate = 8;

// The exact 95 % interval; the whole range of d where so few blocks have none (fewer than 6).
Shift paired_shift(std::span<const double> d);

// Probability of ranks that speak at least as much for a shift above `bound`, if it were `bound`: exact without ties, and of tied
// distances the smaller rank sum counts. 1 for no blocks. The other direction: negate d, keep the bound.
double signed_rank_p(std::span<const double> d, double bound);

// The largest difference of log ratios that counts as none: the larger of the least gate and three times the A/A noise, the root mean
// square of shifts between the same binary and itself. `own` are those of the series, oldest first, of which the last 8 count; with fewer
// `device` serves, of all series. Nothing if that holds fewer than 8 too: nothing is known of the noise.
std::optional<double> gate_of(std::span<const double> own, std::span<const double> device, const Protocol& protocol = kCalls);

enum class Label { kRegressed, kImproved, kUnchanged, kInconclusive, kInvalid };
std::string_view label_name(Label label);
// By the interval alone: what lies wholly beyond a gate, or wholly between both; else inconclusive. A gate is of a ratio: 0.01.
Label label_of(const Shift& shift, double gate);
// "small" below 3 %, "medium" below 10 %, "large": how much it is, apart from how sure.
std::string_view size_of_shift(double log_ratio);

// Whether this many blocks still need more. A look with something beyond the gate needs none either.
bool needs_more_blocks(std::span<const double> d, double gate, const Protocol& protocol = kCalls);
// Whether the cell has to be measured once more in fresh processes: shown by the first stage to be beyond the gate, to either side.
bool is_flagged(std::span<const double> d, double gate);
// The labels of all flagged cells of one comparison, from their fresh blocks alone; parallel to `fresh`. Benjamini-Hochberg over the
// p-values of both directions, so that one loss among a thousand cells is not one of ten by chance.
std::vector<Label> confirmed_labels(std::span<const std::vector<double>> fresh, std::span<const double> gates);

// Which of the p-values are discoveries at this rate of false ones (Benjamini-Hochberg); parallel to p.
std::vector<bool> discoveries(std::span<const double> p, double rate);

// Log ratio of a quantile, head over base, with its 95 % interval, by a bootstrap of blocks. One vector of samples per block.
struct QuantileShift {
  std::optional<Shift> shift;
  std::string why_not;  // too few samples: a side needs 10 / (1 - q)
};
QuantileShift quantile_shift(std::span<const std::vector<double>> base, std::span<const std::vector<double>> head, double q);

// Where a series steps: E-divisive splits, each kept if a t-test calls it real and it is at least `least_step` high; segments have
// at least 5 points. The t-test assumes normal noise. Ascending; `at` is the first point of the new segment.
struct ChangePoint {
  size_t at = 0;
  double step = 0;  // mean after less mean before, of the segments beside it
  double p = 1;
};
std::vector<ChangePoint> change_points(std::span<const double> series, double least_step);

}  // namespace keirin
