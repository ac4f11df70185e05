// SPDX-License-Identifier: Apache-2.0
//
// The matrix's statistics on simulated machines: six shapes of noise at four levels, fixed seeds. S1 to S6 and S8 to
// S10 of the design are its promises; each test prints the rates that it found. S7 and S11 are about stored records,
// S12 is a real machine.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <random>

#include "core/tune/stats.h"

namespace keirin {
namespace {

enum class Shape { kGaussian, kWalk, kTwoModes, kOutliers, kSpikes, kProcessBias };
constexpr Shape kShapes[] = {Shape::kGaussian, Shape::kWalk,   Shape::kTwoModes,
                             Shape::kOutliers, Shape::kSpikes, Shape::kProcessBias};
constexpr const char* kShapeNames[] = {"gaussian", "drift and walk", "two modes",
                                       "outliers", "long spikes",    "process bias"};
constexpr double kLevels[] = {0.005, 0.02, 0.05, 0.10};
constexpr int kBlocksPerLaunch = 3;

const char* name(Shape shape) { return kShapeNames[static_cast<int>(shape)]; }

// Blocks A B B A of two programs on one machine. A slot's log time is what the shape makes of the level, plus the
// head's loss.
class Machine {
 public:
  Machine(uint64_t seed, Shape shape, double level) : random_(seed), shape_(shape), level_(level) {}

  // What changes every slot's time, by its number since the machine was made.
  std::function<double(int)> common = [](int) { return 0.0; };
  bool swapped = false;  // the roles: what ran as base is head

  double block(double loss) {
    if (blocks_++ % kBlocksPerLaunch == 0)
      for (double& bias : bias_) bias = shape_ == Shape::kProcessBias ? 0.3 * level_ * normal_(random_) : 0;
    double sum[2] = {0, 0};
    for (const int side : {0, 1, 1, 0}) sum[side] += slot() + bias_[side] + (side == 1 ? std::log1p(loss) : 0);
    return (swapped ? sum[0] - sum[1] : sum[1] - sum[0]) / 2;
  }
  std::vector<double> blocks(int n, double loss) {
    std::vector<double> d;
    for (int i = 0; i < n; ++i) d.push_back(block(loss));
    return d;
  }

 private:
  double slot() {
    double x = common(slots_++);
    if (shape_ == Shape::kTwoModes) return x + level_ * (0.5 * normal_(random_) + (uniform_(random_) < 0.5 ? 2 : 0));
    if (shape_ == Shape::kOutliers) return x + level_ * 0.84 * normal_(random_) + median_of_repetitions();
    x += level_ * normal_(random_);
    switch (shape_) {
      case Shape::kWalk:
        return x + (walk_ += level_ * (0.02 + 0.3 * normal_(random_)));
      case Shape::kSpikes:
        if (spike_ == 0 && uniform_(random_) < 0.01) spike_ = 10;
        return x + (spike_ > 0 ? --spike_, 5 * level_ : 0);
      default:
        return x;
    }
  }

  // Five, of which one in twenty takes half as long again: what a slot's median is for.
  double median_of_repetitions() {
    double calls[5];
    for (double& call : calls) call = level_ * normal_(random_) + (uniform_(random_) < 0.05 ? std::log(1.5) : 0);
    return median(calls);
  }

  std::mt19937_64 random_;
  std::normal_distribution<double> normal_;
  std::uniform_real_distribution<double> uniform_;
  const Shape shape_;
  const double level_;
  double bias_[2] = {0, 0}, walk_ = 0;
  int blocks_ = 0, slots_ = 0, spike_ = 0;
};

// The gate after eight sittings of the same binary twice.
double gate_from_selfchecks(Machine& machine) {
  std::vector<double> shifts;
  for (size_t i = 0; i < kSittingsForGate; ++i)
    shifts.push_back(paired_shift(machine.blocks(kCalls.first, 0)).estimate);
  return *gate_of(shifts, {});
}

std::vector<double> grown(Machine& machine, double loss, double gate) {
  std::vector<double> d;
  while (needs_more_blocks(d, gate)) {
    const size_t next = d.size() < 12 ? 12 : 2 * d.size();
    while (d.size() < next) d.push_back(machine.block(loss));
  }
  return d;
}

// Both stages, as one cell alone goes through them.
Label label_one(Machine& machine, double loss, double gate) {
  const std::vector<double> d = grown(machine, loss, gate);
  if (!is_flagged(d, gate)) return label_of(paired_shift(d), gate);
  const std::vector<double> fresh[] = {machine.blocks(kCalls.confirm, loss)};
  return confirmed_labels(fresh, std::array{gate})[0];
}

struct Rates {
  double of[5] = {};
  double operator[](Label label) const { return of[static_cast<int>(label)]; }
};

Rates simulate(Shape shape, double level, double loss, int series) {
  Rates rates;
  for (int i = 0; i < series; ++i) {
    Machine machine(0x5eed + static_cast<uint64_t>(i) * 7919, shape, level);
    const double gate = gate_from_selfchecks(machine);
    rates.of[static_cast<int>(label_one(machine, loss, gate))] += 1.0 / series;
  }
  printf(
      "%-15s noise %4.1f %%, loss %4.1f %%: regressed %6.2f %%  improved %6.2f %%  unchanged %6.2f %%  inconclusive "
      "%6.2f %%\n",
      name(shape), 100 * level, 100 * loss, 100 * rates[Label::kRegressed], 100 * rates[Label::kImproved],
      100 * rates[Label::kUnchanged], 100 * rates[Label::kInconclusive]);
  return rates;
}

TEST(MatrixSimulation, S1NoChangeIsNeitherRegressedNorImproved) {
  for (const Shape shape : kShapes)
    for (const double level : kLevels) {
      const Rates rates = simulate(shape, level, 0, 1000);
      EXPECT_LE(rates[Label::kRegressed], 0.01) << name(shape) << level;
      EXPECT_LE(rates[Label::kImproved], 0.01) << name(shape) << level;
    }
}

TEST(MatrixSimulation, S2FivePercentAtTwoPercentNoiseIsFound) {
  for (const Shape shape : kShapes)
    EXPECT_GE(simulate(shape, 0.02, 0.05, 1000)[Label::kRegressed], 0.95) << name(shape);
}

TEST(MatrixSimulation, S3NoChangeAtTwoPercentNoiseIsShownToBeNone) {
  for (const Shape shape : kShapes) EXPECT_GE(simulate(shape, 0.02, 0, 1000)[Label::kUnchanged], 0.90) << name(shape);
}

TEST(MatrixSimulation, S4FivePercentIsNotUnchangedWithinAGateOfTwo) {
  for (const Shape shape : kShapes) {
    double unchanged = 0;
    for (int i = 0; i < 1000; ++i) {
      Machine machine(0x4eed + static_cast<uint64_t>(i) * 7919, shape, 0.02);
      unchanged += label_one(machine, 0.05, std::min(0.02, gate_from_selfchecks(machine))) == Label::kUnchanged;
    }
    printf("%-15s unchanged %.2f %%\n", name(shape), unchanged / 10);
    EXPECT_LE(unchanged, 10) << name(shape);
  }
}

TEST(MatrixSimulation, S5AThousandCellsWithFewLosses) {
  constexpr int kCells = 1000;
  for (const auto& [losses, matrices] : {std::pair{0, 10}, {1, 40}, {20, 10}}) {
    int found = 0, false_ones = 0, flagged = 0;
    for (int m = 0; m < matrices; ++m) {
      std::vector<Machine> machines;
      std::vector<double> shifts, gates;
      for (int c = 0; c < kCells; ++c)
        machines.emplace_back(static_cast<uint64_t>(m) * 1'000'003 + static_cast<uint64_t>(c) * 7919, Shape::kGaussian,
                              0.02);
      for (int c = 0; c < 100; ++c)
        shifts.push_back(paired_shift(machines[static_cast<size_t>(c)].blocks(kCalls.first, 0)).estimate);
      const double gate = *gate_of({}, shifts);
      std::vector<std::vector<double>> fresh;
      std::vector<int> cells;
      for (int c = 0; c < kCells; ++c) {
        Machine& machine = machines[static_cast<size_t>(c)];
        const double loss = c < losses ? 0.05 : 0;
        if (!is_flagged(grown(machine, loss, gate), gate)) continue;
        fresh.push_back(machine.blocks(kCalls.confirm, loss));
        cells.push_back(c), gates.push_back(gate), ++flagged;
      }
      const std::vector<Label> labels = confirmed_labels(fresh, gates);
      for (size_t i = 0; i < labels.size(); ++i)
        if (labels[i] == Label::kRegressed || labels[i] == Label::kImproved) ++(cells[i] < losses ? found : false_ones);
    }
    printf("%d matrices of %d cells, %d losses each: %d flagged, %d found, %d false\n", matrices, kCells, losses,
           flagged, found, false_ones);
    EXPECT_LE(false_ones, 0.01 * std::max(1, found));
    EXPECT_GE(found, 0.95 * losses * matrices);
  }
}

// Of new processes: one value a side, each with a bias of its own, so that all of the level is noise of the pair.
Label label_start(std::mt19937_64* random, double level, double loss, double gate) {
  std::normal_distribution<double> normal(0, level);
  const auto pairs = [&](int n) {
    std::vector<double> d;
    for (int i = 0; i < n; ++i) d.push_back(normal(*random) - normal(*random) + std::log1p(loss));
    return d;
  };
  std::vector<double> d;
  while (needs_more_blocks(d, gate, kStarts))
    for (const double each : pairs(d.empty() ? kStarts.first : static_cast<int>(d.size()))) d.push_back(each);
  if (!is_flagged(d, gate)) return label_of(paired_shift(d), gate);
  const std::vector<double> fresh[] = {pairs(kStarts.confirm)};
  return confirmed_labels(fresh, std::array{gate})[0];
}

TEST(MatrixSimulation, StartsAreToldApartFromThirtyPerCent) {
  constexpr int kSeries = 2000;
  for (const double level : {0.02, 0.05, 0.10}) {
    double found = 0, unchanged = 0, called = 0;
    std::mt19937_64 random(13);
    std::normal_distribution<double> normal;
    for (int i = 0; i < kSeries; ++i) {
      std::vector<double> shifts;
      for (size_t k = 0; k < kSittingsForGate; ++k) {
        std::vector<double> d;
        for (int pair = 0; pair < kStarts.first; ++pair) d.push_back(level * (normal(random) - normal(random)));
        shifts.push_back(paired_shift(d).estimate);
      }
      const double gate = *gate_of(shifts, {}, kStarts);
      const Label same = label_start(&random, level, 0, gate);
      unchanged += same == Label::kUnchanged, called += same == Label::kRegressed || same == Label::kImproved;
      found += label_start(&random, level, 0.3, gate) == Label::kRegressed;
    }
    printf("starts, noise %4.1f %%: the same unchanged %.1f %%, called otherwise %.2f %%; +30 %% found %.1f %%\n", 100 * level,
           100 * unchanged / kSeries, 100 * called / kSeries, 100 * found / kSeries);
    EXPECT_LE(called, 0.01 * kSeries);
    EXPECT_GE(found, (level <= 0.05 ? 0.95 : 0) * kSeries);
    EXPECT_GE(unchanged, (level <= 0.02 ? 0.95 : 0) * kSeries);
  }
}

TEST(MatrixSimulation, S6SwappedSidesMirror) {
  const auto mirrored = [](Label label) {
    return label == Label::kRegressed ? Label::kImproved : label == Label::kImproved ? Label::kRegressed : label;
  };
  int changed = 0;
  for (const Shape shape : kShapes)
    for (int i = 0; i < 200; ++i) {
      Machine one(static_cast<uint64_t>(i), shape, 0.02), other(static_cast<uint64_t>(i), shape, 0.02);
      other.swapped = true;
      const double loss = i % 2 ? 0.05 : -0.04;
      const Label label = label_one(one, loss, 0.02);
      changed += label == Label::kRegressed || label == Label::kImproved;
      ASSERT_EQ(label_one(other, loss, 0.02), mirrored(label)) << name(shape) << i;
    }
  EXPECT_GT(changed, 1000) << "the test compares nothing";
}

TEST(MatrixSimulation, S8ASlowerHostOrLinearDriftChangesNoLabel) {
  int differ = 0, series = 0;
  for (const Shape shape : kShapes)
    for (const double loss : {0.0, 0.05})
      for (int i = 0; i < 100; ++i, ++series) {
        const auto label = [&](std::function<double(int)> common) {
          Machine machine(static_cast<uint64_t>(i), shape, 0.02);
          machine.common = std::move(common);
          return label_one(machine, loss, 0.0175);
        };
        const Label plain = label([](int) { return 0.0; });
        differ += label([](int) { return std::log(1.1); }) != plain;
        differ += label([](int slot) { return 0.001 * slot; }) != plain;
      }
  printf("%d series, %d labels differ\n", series, differ);
  EXPECT_EQ(differ, 0);
}

TEST(MatrixSimulation, S9OneStepOfThreeTimesTheNoiseIsFoundAndNoneElsewhere) {
  constexpr int kSeries = 1000, kPoints = 60;
  constexpr double kNoise = 0.005;
  int near = 0, extra = 0, false_points = 0;
  for (int i = 0; i < kSeries; ++i) {
    std::mt19937_64 random(static_cast<uint64_t>(i) + 77);
    std::normal_distribution<double> normal(0, kNoise);
    std::vector<double> quiet, stepped;
    const size_t at = 5 + static_cast<size_t>(i) % (kPoints - 9);
    for (size_t k = 0; k < kPoints; ++k) {
      quiet.push_back(normal(random));
      stepped.push_back(normal(random) + (k >= at ? 3 * kNoise : 0));
    }
    false_points += static_cast<int>(change_points(quiet, kCalls.least_gate).size());
    const std::vector<ChangePoint> points = change_points(stepped, kCalls.least_gate);
    const bool found = std::any_of(points.begin(), points.end(),
                                   [&](const ChangePoint& p) { return p.at + 2 >= at && p.at <= at + 2; });
    near += found;
    extra += static_cast<int>(points.size()) - found;
  }
  printf("step found within 2 points: %.1f %%; %d other points beside it, %d in %d points without one\n",
         near * 100.0 / kSeries, extra, false_points, kSeries * kPoints);
  EXPECT_GE(near, 0.95 * kSeries);
  EXPECT_LE(false_points + extra, 2 * kSeries * kPoints / 1000);
}

TEST(MatrixSimulation, S10TooFewSamplesForATailGiveNoVerdict) {
  std::mt19937_64 random(7);
  std::lognormal_distribution<double> time(0, 0.02);
  const auto blocks = [&](int n, int each, double factor) {
    std::vector<std::vector<double>> out(static_cast<size_t>(n));
    for (auto& block : out)
      for (int i = 0; i < each; ++i) block.push_back(factor * time(random));
    return out;
  };
  const QuantileShift few = quantile_shift(blocks(10, 50, 1), blocks(10, 50, 2), 0.99);
  EXPECT_FALSE(few.shift);
  EXPECT_EQ(few.why_not, "p99.0 needs 1000 samples a side, there are 500");
  const QuantileShift enough = quantile_shift(blocks(12, 100, 1), blocks(12, 100, 1.1), 0.99);
  ASSERT_TRUE(enough.shift) << enough.why_not;
  EXPECT_LT(enough.shift->low, std::log(1.1));
  EXPECT_GT(enough.shift->high, std::log(1.1));
  EXPECT_GT(enough.shift->low, 0.03);
}

}  // namespace
}  // namespace keirin
