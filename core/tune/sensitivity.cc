// SPDX-License-Identifier: Apache-2.0
#include "core/tune/sensitivity.h"

#include <algorithm>
#include <cmath>

#include "core/tune/elements.h"

namespace keirin {
namespace {

constexpr uint32_t kRuns = 4;
// A handful of draws does not find the worst case, and eager's errors are those of whole sums.
constexpr double kTimes = 4;

// How far apart two tensors of equal sizes are.
Result<Movement> distance(const TensorRef& a, const TensorRef& b, TensorServices& services) {
  if (const auto errors = errors_there(a, b, services)) return Movement{errors->second.worst, errors->changed};
  KRN_TRY_LET(const std::vector<double> x, read_values(a, services));
  KRN_TRY_LET(const std::vector<double> y, read_values(b, services));
  Movement out;
  for (size_t k = 0; k < x.size(); ++k) {
    const double p = x[k], q = y[k];
    if (p == q || (std::isnan(p) && std::isnan(q))) continue;
    ++out.changed;
    const double apart = std::abs(p - q);
    out.largest = std::isfinite(apart) ? std::max(out.largest, apart) : HUGE_VAL;
  }
  return out;
}

}  // namespace

Result<std::vector<Movement>> movements(std::span<const TensorRef> referee, TensorServices& services,
                                        const std::function<Result<std::vector<TensorRef>>(uint32_t seed)>& run) {
  std::vector<Movement> out(referee.size());
  for (uint32_t seed = 1; seed <= kRuns; ++seed) {
    KRN_TRY_LET(const std::vector<TensorRef> numbers, run(seed));
    if (numbers.size() != referee.size()) return Status(Code::k_internal, "another number of tensors");
    for (size_t i = 0; i < numbers.size(); ++i) {
      if (!numbers[i] || !referee[i]) continue;
      if (!same_sizes(*numbers[i], *referee[i])) return Status(Code::k_unsupported, "roundings change the sizes");
      KRN_TRY_LET(const Movement moved, distance(referee[i], numbers[i], services));
      // An infinity that comes and goes says nothing of how far a number may be.
      if (std::isfinite(moved.largest)) out[i].largest = std::max(out[i].largest, moved.largest);
      out[i].changed = std::max(out[i].changed, moved.changed);
    }
  }
  return out;
}

Result<std::vector<Movement>> movements_like(std::span<const TensorRef> referee, std::span<const TensorRef> eager, TensorServices& services,
                                             bool may_round, double sums,
                                             const std::function<Result<std::vector<TensorRef>>(uint32_t seed, bool tf32)>& run) {
  const auto with = [&](bool tf32) -> Result<std::vector<Movement>> {
    KRN_TRY_LET(std::vector<Movement> moved, movements(referee, services, [&](uint32_t seed) { return run(seed, tf32); }));
    for (Movement& each : moved) each.largest *= sums;
    return moved;
  };
  KRN_TRY_LET(std::vector<Movement> moved, with(false));
  if (!may_round) return moved;
  KRN_TRY_LET(const std::string why, unexplained(referee, eager, moved, services));
  return why.empty() ? moved : with(true);
}

Result<std::string> unexplained(std::span<const TensorRef> referee, std::span<const TensorRef> other,
                                std::span<const Movement> moved, TensorServices& services) {
  for (size_t i = 0; i < referee.size() && i < other.size(); ++i) {
    if (!referee[i] || !other[i]) continue;
    const std::string where = "output " + std::to_string(i);
    if (!same_sizes(*referee[i], *other[i])) return where + " has other sizes";
    KRN_TRY_LET(const Movement apart, distance(referee[i], other[i], services));
    const bool floats = is_float(other[i]->dtype());
    const bool explained = floats ? apart.largest <= kTimes * moved[i].largest
                                  : static_cast<double>(apart.changed) <= kTimes * static_cast<double>(moved[i].changed);
    if (apart.changed > 0 && !explained)
      return where +
             (floats ? " is " + number_text(apart.largest) + " away; roundings move it by " + number_text(moved[i].largest)
                     : " has " + std::to_string(apart.changed) + " other elements; roundings change " + std::to_string(moved[i].changed));
  }
  return std::string();
}

}  // namespace keirin
