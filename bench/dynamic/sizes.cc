// SPDX-License-Identifier: Apache-2.0
//
// What sizes that change cost: a session that decides beside its calls meets sizes drawn so that one of size n is as likely as 1 / n, in
// each free dimension. The first two bring about ranges; then come the rest, each call beside eager's on the same inputs, in turns.
//
//   keirin_sizes [--sizes 1000] [--most 64,512] [--seed 1] [--race-limit 2] [--choice cpu/all] [--json FILE] MODEL.pt2
//
// It prints the ranges; time of all calls against eager's; the p99 of a call's time over eager's at that size; what the first call of a
// size took beyond eager's own (the median; nothing is made while it waits) and how long after it the plan of that size stood ready, on
// an idle machine, stage by stage; and kernels generated for one size and for all.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "core/api/session.h"
#include "core/base/request.h"

namespace keirin {
namespace {

using Clock = std::chrono::steady_clock;
using Tensors = std::vector<TensorRef>;
using Sizes = std::vector<int64_t>;

constexpr auto kLong = std::chrono::minutes(30);
constexpr int kTimedSizes = 100;  // whose way from the first call to the plan is looked at, one at a time

double ms_since(Clock::time_point start) { return std::chrono::duration<double, std::milli>(Clock::now() - start).count(); }

double quantile(std::vector<double> values, double q) {
  if (values.empty()) return 0;
  const auto index = static_cast<size_t>(q * static_cast<double>(values.size()));
  const auto at = values.begin() + static_cast<ptrdiff_t>(std::min(index, values.size() - 1));
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

class Drawn {
 public:
  Drawn(RangesReport ranges, Sizes most, uint32_t seed) : ranges_(std::move(ranges)), most_(std::move(most)), random_(seed) {}
  Sizes next() {
    for (;;) {
      Sizes out;
      int64_t volume = 1;
      for (size_t k = 0; k < ranges_.sizes.size(); ++k) {
        const SizeReport& size = ranges_.sizes[k];
        const auto high = static_cast<double>(k < most_.size() ? std::min(size.max, most_[k]) : size.max);
        const double at = std::uniform_real_distribution<double>(std::log(static_cast<double>(size.min)), std::log(high + 1))(random_);
        out.push_back(std::clamp(static_cast<int64_t>(std::exp(at)), size.min, static_cast<int64_t>(high)));
        volume *= out.back();
      }
      if (volume >= ranges_.ranges.front().least && volume <= ranges_.ranges.back().most) return out;
    }
  }

 private:
  const RangesReport ranges_;
  const Sizes most_;
  std::mt19937 random_;
};

struct Arguments {
  std::string model, json, choice;
  int sizes = 1000;
  uint32_t seed = 1;
  Sizes most;
  double race_seconds = 2;
};

bool parse(int argc, char** argv, Arguments& a) {
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word.rfind("--", 0) != 0) {
      a.model = word;
      continue;
    }
    if (++i == argc) return false;
    if (word == "--sizes") a.sizes = std::atoi(argv[i]);
    else if (word == "--seed") a.seed = static_cast<uint32_t>(std::atoi(argv[i]));
    else if (word == "--race-limit") a.race_seconds = std::atof(argv[i]);
    else if (word == "--choice") a.choice = argv[i];
    else if (word == "--json") a.json = argv[i];
    else if (word == "--most") {
      std::istringstream list(argv[i]);
      for (std::string each; std::getline(list, each, ',');) a.most.push_back(std::atoll(each.c_str()));
    } else return false;
  }
  return !a.model.empty() && a.sizes > 0;
}

Status answer(Session& session, const Tensors& inputs, double& plan_ms, double& eager_ms) {
  auto start = Clock::now();
  KRN_TRY(session.call(inputs).status());
  plan_ms = ms_since(start);
  start = Clock::now();
  KRN_TRY(session.call_eager(inputs).status());
  eager_ms = ms_since(start);
  return {};
}

Status measure(const Arguments& a, Runtime& runtime, const Options& options) {
  KRN_TRY_LET(auto session, Session::open(runtime, a.model, options));
  Sizes second;
  for (const Dimension& size : session->signature().inputs.at(0).sizes)
    if (size.free) second.push_back(std::min(size.size + 2, size.max > 0 ? size.max : size.size + 2));
  for (const Sizes& sizes : {Sizes(), second}) {
    KRN_TRY_LET(const Tensors inputs, session->example_inputs(1, sizes));
    KRN_TRY(session->call(inputs).status());
    if (!session->settle(kLong)) return Status(Code::k_timeout, "nothing was decided within half an hour");
  }
  const std::vector<ModelReport> reports = session->reports();
  if (reports.empty() || reports.back().ranges.ranges.empty())
    return Status(Code::k_unsupported, "no ranges: " + (reports.empty() ? "nothing was decided" : explain_text(reports.back())));
  const ModelReport known = reports.back();
  std::printf("%s\n", explain_text(known).c_str());
  Drawn drawn(known.ranges, a.most, a.seed);

  // One new size at a time, the machine idle.
  std::vector<double> beyond, ready;
  for (int i = 0; i < kTimedSizes; ++i) {
    KRN_TRY_LET(const Tensors inputs, session->example_inputs(1, drawn.next()));
    if (session->is_decided(inputs)) continue;
    double first = 0, eager = 0;
    KRN_TRY(session->call_eager(inputs).status());  // so that neither of the two is the first one of its sizes
    KRN_TRY(answer(*session, inputs, first, eager));
    const auto start = Clock::now();
    beyond.push_back(first - eager);
    while (!session->is_decided(inputs) && ms_since(start) < 60e3) std::this_thread::sleep_for(std::chrono::microseconds(100));
    ready.push_back(ms_since(start));
  }
  const RangesReport entered = session->reports().back().ranges;

  // Traffic.
  double plan_total = 0, eager_total = 0;
  std::vector<double> ratios;
  const Session::Activity before = session->activity();
  for (int i = 0; i < a.sizes; ++i) {
    KRN_TRY_LET(const Tensors inputs, session->example_inputs(1, drawn.next()));
    double plan = 0, eager = 0;
    KRN_TRY(answer(*session, inputs, plan, eager));
    plan_total += plan, eager_total += eager;
    ratios.push_back(plan / eager);
  }
  const Session::Activity after = session->activity();
  if (!session->settle(kLong)) return Status(Code::k_timeout, "sizes still wait for their plans");
  const RangesReport last = session->reports().back().ranges;
  std::printf("calls %d: %.1f ms, eager %.1f ms (%.3fx); by a plan %llu; a call over eager's at its size: median %.3f, p99 %.3f\n", a.sizes,
              plan_total, eager_total, eager_total / plan_total, static_cast<unsigned long long>(after.by_plan - before.by_plan),
              quantile(ratios, 0.5), quantile(ratios, 0.99));
  std::printf("entering a size (%zu): its first call %.3f ms beyond eager's (median), its plan ready %.2f ms later (median), %.2f (p99)\n",
              beyond.size(), quantile(beyond, 0.5), quantile(ready, 0.5), quantile(ready, 0.99));
  for (const auto& [stage, seconds] : entered.enter_seconds)
    std::printf("  %s %.3f ms a size\n", stage.c_str(), entered.entered ? seconds * 1e3 / static_cast<double>(entered.entered) : 0);
  std::printf(
      "sizes entered %llu, plans let go %llu; kernels generated: %d for the first size, %llu for all others; compiles on requests: %llu\n",
      static_cast<unsigned long long>(last.entered), static_cast<unsigned long long>(last.let_go), reports.front().kernels_generated,
      static_cast<unsigned long long>(last.kernels_generated), static_cast<unsigned long long>(compiles_on_requests()));
  if (!a.json.empty())
    std::ofstream(a.json) << nlohmann::json{{"schema", "keirin/sizes/1"},
                                            {"machine", machine_json()},
                                            {"model", known.model},
                                            {"calls", a.sizes},
                                            {"ms", plan_total},
                                            {"eager_ms", eager_total},
                                            {"p99_over_eager", quantile(ratios, 0.99)},
                                            {"first_call_beyond_eager_ms", quantile(beyond, 0.5)},
                                            {"ready_ms", quantile(ready, 0.5)},
                                            {"compiles_on_requests", compiles_on_requests()},
                                            {"row", to_json(session->reports().back())}}
                                 .dump(1)
                          << "\n";
  return {};
}

int run(int argc, char** argv) {
  Arguments a;
  if (!parse(argc, argv, a))
    return std::fprintf(stderr,
                        "usage: %s [--sizes N] [--most 64,512] [--seed S] [--race-limit S] [--choice NAME] [--json FILE] MODEL.pt2\n",
                        argv[0]),
           2;
  Options options;
  options.compile = When::kBackground;
  options.use_cache = false;
  options.race_seconds = a.race_seconds;
  options.only_candidate = a.choice;  // without a race: for what entering costs
  auto runtime = Runtime::open(options);
  const Status status = runtime.ok() ? measure(a, **runtime, options) : runtime.status();
  if (!status.ok()) return std::fprintf(stderr, "%s\n", status.text().c_str()), 1;
  return 0;
}

}  // namespace
}  // namespace keirin

int main(int argc, char** argv) { return keirin::run(argc, argv); }
