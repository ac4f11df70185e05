// SPDX-License-Identifier: Apache-2.0
//
// Durations, counted by size: for Prometheus, whose histograms have few limits, and for quantiles of a load, which want
// them narrow. A bucket is 1/16 of a power of two wide, from a microsecond to about an hour.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstdint>
#include <string>

namespace keirin::tools {

// Any number of threads may add while others read.
class Histogram {
 public:
  void add(double seconds) {
    counts_[bucket_of(seconds)].fetch_add(1, std::memory_order_relaxed);
    total_ns_.fetch_add(static_cast<uint64_t>(seconds > 0 ? seconds * 1e9 : 0), std::memory_order_relaxed);
  }
  uint64_t count() const {
    uint64_t n = 0;
    for (const auto& count : counts_) n += count.load(std::memory_order_relaxed);
    return n;
  }
  double sum() const { return static_cast<double>(total_ns_.load(std::memory_order_relaxed)) / 1e9; }
  // The upper limit of the bucket in which the quantile lies: at most 7 % too high. 0 if nothing was added.
  double quantile(double q) const {
    const uint64_t all = count();
    if (all == 0) return 0;
    const double wanted = q * static_cast<double>(all);
    uint64_t n = 0;
    for (size_t i = 0; i < counts_.size(); ++i) {
      n += counts_[i].load(std::memory_order_relaxed);
      if (static_cast<double>(n) >= wanted && n > 0) return limit_of(i);
    }
    return limit_of(counts_.size() - 1);
  }
  // How many took less than 2^power microseconds.
  uint64_t at_most(int power) const {
    uint64_t n = 0;
    for (size_t i = 0; i < static_cast<size_t>(power) * kParts && i < counts_.size(); ++i)
      n += counts_[i].load(std::memory_order_relaxed);
    return n;
  }

 private:
  static constexpr size_t kParts = 16, kPowers = 32;
  // Bucket p * 16 + k: microseconds from 2^p * (1 + k / 16) to the next one's, those of less than one in the first.
  static size_t bucket_of(double seconds) {
    const double us = seconds * 1e6;
    if (!(us >= 1)) return 0;
    const auto whole = static_cast<uint64_t>(us < 4e18 ? us : 4e18);
    const auto power = static_cast<size_t>(std::bit_width(whole) - 1);
    if (power >= kPowers) return kPowers * kParts - 1;
    const auto part = static_cast<size_t>((us / static_cast<double>(uint64_t{1} << power) - 1) * kParts);
    return power * kParts + (part < kParts ? part : kParts - 1);
  }
  static double limit_of(size_t bucket) {
    return static_cast<double>(uint64_t{1} << (bucket / kParts)) *
           (1 + static_cast<double>(bucket % kParts + 1) / kParts) / 1e6;
  }

  std::array<std::atomic<uint64_t>, kParts * kPowers> counts_{};
  std::atomic<uint64_t> total_ns_{0};
};

}  // namespace keirin::tools
