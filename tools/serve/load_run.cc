// SPDX-License-Identifier: Apache-2.0
#include "tools/serve/load_run.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <mutex>
#include <random>
#include <thread>

namespace keirin::tools {

using Clock = std::chrono::steady_clock;

double LoadResult::quantile(double q) const {
  if (seconds.empty()) return 0;
  const auto rank = static_cast<size_t>(std::ceil(q * static_cast<double>(seconds.size())));
  return seconds[std::clamp<size_t>(rank, 1, seconds.size()) - 1];
}

std::vector<Arrival> draw_arrivals(const LoadPlan& plan) {
  std::mt19937_64 random(plan.seed);
  std::exponential_distribution<double> gap(plan.rate);
  std::uniform_int_distribution<size_t> kind(0, std::max<size_t>(plan.kinds, 1) - 1);
  std::vector<Arrival> arrivals;
  for (double at = 0; at < plan.seconds; at += gap(random)) arrivals.push_back({at, kind(random)});
  return arrivals;
}

namespace {

constexpr double kNotAsked = -1;

// False if it was stopped before.
bool sleep_until(Clock::time_point when, const std::atomic<bool>* stop) {
  constexpr auto kMost = std::chrono::milliseconds(50);
  while (!(stop && *stop)) {
    const Clock::time_point now = Clock::now();
    if (now >= when) return true;
    std::this_thread::sleep_until(std::min<Clock::time_point>(when, stop ? now + kMost : when));
  }
  return false;
}

}  // namespace

LoadResult run_load(const LoadPlan& plan, const std::function<Caller()>& make_caller) {
  const std::vector<Arrival> arrivals = draw_arrivals(plan);
  LoadResult result;
  result.requests.resize(arrivals.size(), {0, kNotAsked, 0, false});
  std::mutex mutex;  // guards result, but for its requests
  std::atomic<size_t> next{0}, ready{0};
  std::atomic<bool> go{false};
  Clock::time_point begin;
  const auto work = [&] {
    const Caller call = make_caller();
    ++ready;
    while (!go) std::this_thread::sleep_for(std::chrono::microseconds(100));
    std::vector<double> seconds;
    std::map<std::string, uint64_t> failures;
    uint64_t late = 0;
    for (size_t i = next++; i < arrivals.size(); i = next++) {
      const Clock::time_point intended =
          begin + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(arrivals[i].at));
      if (!sleep_until(intended, plan.stop)) break;
      late += Clock::now() - intended > std::chrono::milliseconds(1);
      const std::string failed = call(arrivals[i].kind);
      const double took = std::chrono::duration<double>(Clock::now() - intended).count();
      result.requests[i] = {arrivals[i].at, took, arrivals[i].kind, !failed.empty()};  // nobody else writes this one
      if (failed.empty())
        seconds.push_back(took);
      else
        ++failures[failed];
    }
    const std::lock_guard lock(mutex);
    result.seconds.insert(result.seconds.end(), seconds.begin(), seconds.end());
    for (const auto& [what, count] : failures) result.failures[what] += count;
    result.late += late;
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < std::max(1, plan.callers); ++i) threads.emplace_back(work);
  while (ready < threads.size()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  begin = Clock::now() + std::chrono::milliseconds(5);
  result.began = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count() + 5e-3;
  go = true;
  for (std::thread& thread : threads) thread.join();
  result.lasted = std::chrono::duration<double>(Clock::now() - begin).count();
  std::sort(result.seconds.begin(), result.seconds.end());
  std::erase_if(result.requests, [](const LoadResult::Request& request) { return request.seconds == kNotAsked; });
  return result;
}

}  // namespace keirin::tools
