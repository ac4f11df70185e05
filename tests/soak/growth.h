// SPDX-License-Identifier: Apache-2.0
//
// Whether something grows that goes up and down by itself: what a service holds depends on which of its models was replaced last, by what,
// and on how many plans there are at the time. So readings are compared with readings of the same phase of the cycle and at the same
// number of plans, and what is left over has to grow beyond its own spread. Plain least squares.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <map>
#include <vector>

namespace keirin::test {

struct Reading {
  size_t phase = 0;  // of the cycle
  double plans = 0;  // that there were
  double value = 0;
};

struct Growth {
  bool known = false;      // enough readings to say anything
  double a_reading = 0;    // by how much each reading is more than the one before, on average
  double uncertainty = 0;  // of that, such that growth beyond it is hardly chance: once in a thousand stretches that do not grow
  double in_all = 0;       // over all readings
  double in_all_uncertainty = 0;

  enum class Verdict { kGrows, kHolds, kTellsNothing };
  // kGrows: more than chance explains, and more than `allowed` over all readings. kHolds: not so, and it would have been seen; who grows
  // by twice what is allowed is let pass no more often than once in a thousand stretches. kTellsNothing: so much of what is allowed could
  // be chance that growth would hide in it.
  Verdict verdict(double allowed) const {
    if (known && a_reading > uncertainty && in_all > allowed) return Verdict::kGrows;
    return known && in_all_uncertainty <= allowed ? Verdict::kHolds : Verdict::kTellsNothing;
  }
};

// Of readings in the order in which they were taken, at even distances.
inline Growth growth_of(const std::vector<Reading>& readings) {
  struct Mean {
    double n = 0, time = 0, plans = 0, value = 0;
  };
  std::map<size_t, Mean> means;
  for (size_t i = 0; i < readings.size(); ++i) {
    Mean& mean = means[readings[i].phase];
    ++mean.n, mean.time += static_cast<double>(i), mean.plans += readings[i].plans, mean.value += readings[i].value;
  }
  double tt = 0, pp = 0, vv = 0, tp = 0, tv = 0, pv = 0;  // sums of products of what differs from the phase's mean
  for (size_t i = 0; i < readings.size(); ++i) {
    const Mean& mean = means[readings[i].phase];
    const double t = static_cast<double>(i) - mean.time / mean.n, p = readings[i].plans - mean.plans / mean.n,
                 v = readings[i].value - mean.value / mean.n;
    tt += t * t, pp += p * p, vv += v * v, tp += t * p, tv += t * v, pv += p * v;
  }
  // Without plans that differ, or where they only tell the time, nothing is put down to them.
  const bool by_plans = pp > 0 && tp * tp < 0.99 * tt * pp;
  const double freedom = static_cast<double>(readings.size()) - static_cast<double>(means.size()) - (by_plans ? 2 : 1);
  Growth out;
  if (freedom < 3 || tt <= 0) return out;
  const double t_alone = by_plans ? tt - tp * tp / pp : tt, v_alone = by_plans ? vv - pv * pv / pp : vv,
               tv_alone = by_plans ? tv - tp * pv / pp : tv;
  out.known = true;
  out.a_reading = tv_alone / t_alone;
  const double left = std::max(0.0, v_alone - out.a_reading * tv_alone);
  // Student's quantile of 0.999, nearly, for three and more.
  const double quantile = 3.09 * (1 + 2.2 / freedom + 4.2 / (freedom * freedom));
  out.uncertainty = quantile * std::sqrt(left / freedom / t_alone);
  out.in_all = out.a_reading * static_cast<double>(readings.size() - 1);
  out.in_all_uncertainty = out.uncertainty * static_cast<double>(readings.size() - 1);
  return out;
}

}  // namespace keirin::test
