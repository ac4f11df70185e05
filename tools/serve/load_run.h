// SPDX-License-Identifier: Apache-2.0
//
// Open-loop load: requests begin at times that were drawn before the first of them, whether or not earlier ones were
// answered, and each is timed from the moment at which it was meant to begin. So a server that stalls is charged for
// all that would have come meanwhile.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace keirin::tools {

struct LoadPlan {
  double rate = 10;  // requests a second, on average
  double seconds = 10;
  int callers =
      16;  // requests that may be under way at once; one that finds all busy begins late, and is charged for it
  uint64_t seed = 1;
  size_t kinds = 1;  // of requests, drawn alike
  const std::atomic<bool>* stop = nullptr;  // once it is true nothing more is asked; null: never
};

struct LoadResult {
  struct Request {
    double at = 0;       // its intended begin, in seconds from the first one's
    double seconds = 0;  // from there to its end
    size_t kind = 0;
    bool failed = false;
  };
  std::vector<Request> requests;             // that were asked, in the order of their intended begin
  double began = 0;                          // the intended begin of the first one, in seconds of Unix time
  std::vector<double> seconds;               // of those that were answered, from their intended begin, ascending
  std::map<std::string, uint64_t> failures;  // by what went wrong
  uint64_t late = 0;                         // began more than a millisecond late: no caller was free, or no processor
  double lasted = 0;                         // from the first intended begin to the last end
  double quantile(double q) const;           // seconds; 0 if nothing was answered
};

// Poisson arrivals: when each request is to begin, in seconds from the first, and its kind.
struct Arrival {
  double at = 0;
  size_t kind = 0;
};
std::vector<Arrival> draw_arrivals(const LoadPlan& plan);

// `make_caller` is called once on each caller's thread; the function that it returns does one request of a kind and
// says what went wrong, empty: nothing.
using Caller = std::function<std::string(size_t kind)>;
LoadResult run_load(const LoadPlan& plan, const std::function<Caller()>& make_caller);

}  // namespace keirin::tools
