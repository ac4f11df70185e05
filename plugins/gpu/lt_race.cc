// SPDX-License-Identifier: Apache-2.0
#include "plugins/gpu/lt_race.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <vector>

#include "plugins/gpu/code_store.h"
#include "plugins/gpu/timer.h"

namespace keirin::gpu {
namespace {

constexpr int kRuns = 3;                          // timed; the best counts
constexpr unsigned char kCold = 0x3c;             // as the operands' memory
constexpr size_t kMostKnown = 4096;               // guesses that are remembered
constexpr size_t kColdBytes = size_t{128} << 20;  // more than any second-level cache

class Race {
 public:
  Race(const lt::Table& api, const Product& product, size_t workspace_bytes)
      : api_(api), product_(product), driver_(api.vendor->driver()), timer_(driver_), workspace_bytes_(workspace_bytes) {
    a_ = timer_.memory(product.a_bytes);
    b_ = timer_.memory(product.b_bytes);
    d_ = timer_.memory(product.d_bytes);
    c_ = product.c_bytes ? timer_.memory(product.c_bytes) : d_;
    workspace_ = timer_.memory(workspace_bytes);
    cold_ = timer_.memory(kColdBytes);
    // The address is part of the descriptor; every run of the step sets its own.
    if (void* bias = timer_.memory(product.bias_bytes))
      api_.MatmulDescSetAttribute(product.desc, api.vendor->bias_address, &bias, sizeof bias);
  }
  bool ready() const { return timer_.ok(); }

  // Microseconds of the best run, or a negative number if it does not run.
  float time(const lt::Guess& guess) {
    if (guess.workspace_bytes > workspace_bytes_ || !run(guess)) return -1;  // the first also loads the library's code
    float best = -1;
    for (int r = 0; r < kRuns; ++r) {
      driver_.fill(timer_.stream(), cold_, kCold, kColdBytes);
      const float ms = timer_.milliseconds_of([&] { return run(guess); });
      if (ms < 0) return -1;
      best = best < 0 ? ms * 1000 : std::min(best, ms * 1000);
    }
    return best;
  }

 private:
  bool run(const lt::Guess& guess) {
    const float one = 1, zero = 0;
    const double one64 = 1, zero64 = 0;
    const void* alpha = product_.f64 ? static_cast<const void*>(&one64) : &one;
    const void* none = product_.f64 ? static_cast<const void*>(&zero64) : &zero;
    return api_.Matmul(api_.handle, product_.desc, alpha, a_, product_.a, b_, product_.b, product_.c_bytes ? alpha : none, c_, product_.c,
                       d_, product_.d, &guess.algo, workspace_, guess.workspace_bytes, timer_.stream()) == 0;
  }

  const lt::Table& api_;
  const Product& product_;
  const Driver& driver_;
  Timer timer_;
  void *a_, *b_, *c_, *d_, *workspace_, *cold_;
  size_t workspace_bytes_;
};

Choice first_guess(std::span<const lt::Guess> found) { return {found[0].algo, found[0].workspace_bytes, 0, 0}; }

Choice run_race(const lt::Table& api, const Product& product, std::span<const lt::Guess> found) {
  std::string ignored;
  Choice best = first_guess(found);
  if (!api.vendor->driver().usable(ignored) || found.size() == 1) return best;
  static std::mutex one_at_a_time;  // races on one device would time each other
  std::lock_guard lock(one_at_a_time);
  size_t workspace = 0;
  for (const lt::Guess& guess : found) workspace = std::max(workspace, guess.workspace_bytes);
  Race race(api, product, workspace);
  if (!race.ready()) return best;
  for (size_t i = 0; i < found.size(); ++i) {
    const float us = race.time(found[i]);
    // A later guess must win clearly: the library orders them by its own model, and the clock is coarse.
    if (us > 0 && (best.microseconds == 0 || us < best.microseconds * 0.97f))
      best = {found[i].algo, found[i].workspace_bytes, static_cast<int32_t>(i), us};
  }
  return best;
}

}  // namespace

std::optional<lt::Guess> first_algorithm(const lt::Table& api, const Keys& keys, const std::function<std::vector<lt::Guess>()>& ask) {
  const std::lock_guard lock(api.known->mutex);
  auto& [mutex, first, of_such_sizes] = *api.known;
  if (first.size() >= kMostKnown) first.clear();
  const auto [at, is_new] = first.try_emplace(keys.problem);
  if (is_new)
    if (const std::vector<lt::Guess> found = ask(); !found.empty()) at->second = found[0];
  if (at->second && of_such_sizes.size() < kMostKnown) of_such_sizes.try_emplace(keys.such_sizes, *at->second);
  return at->second;
}

std::optional<lt::Guess> algorithm_like_others(const lt::Table& api, const Keys& keys,
                                               const std::function<std::optional<lt::Guess>(const lt::Guess&)>& checked) {
  const std::lock_guard lock(api.known->mutex);
  const auto at = api.known->of_such_sizes.find(keys.such_sizes);
  return at == api.known->of_such_sizes.end() ? std::nullopt : checked(at->second);
}

Choice choose_algorithm(const lt::Table& api, const Keys& keys, const Product& product, std::span<const lt::Guess> found) {
  const std::string name = kChoicePrefix + api.version + " " + keys.problem;
  Choice choice;
  if (const std::vector<char> known = code_store().recall(name); known.size() == sizeof choice) {
    std::memcpy(&choice, known.data(), sizeof choice);
  } else {
    choice = run_race(api, product, found);
    const char* bytes = reinterpret_cast<const char*>(&choice);
    code_store().remember(name, std::vector<char>(bytes, bytes + sizeof choice));
  }
  const std::lock_guard lock(api.known->mutex);
  if (api.known->of_such_sizes.size() < kMostKnown) api.known->of_such_sizes[keys.such_sizes] = {choice.algo, choice.workspace_bytes};
  return choice;
}

}  // namespace keirin::gpu
