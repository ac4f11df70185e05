// SPDX-License-Identifier: Apache-2.0
//
// What sizes that change cost: a session that decides beside its calls meets sizes drawn so that one of size n is as likely as 1 / n, in
// each free dimension. The first two bring about ranges; then come the rest, each call beside eager's on the same inputs, in turns, each
// in a thread of its own.
//
//   keirin_sizes [--sizes 1000] [--most 64,512] [--longest 100] [--budget 240] [--seed 1] [--race-limit 2] [--choice cpu/all]
//                [--traffic decode|neighbours|values | --at 16,16 --at 24,24 ..] [--bucket x[0]=pow2] [--pad edges=x[0]]
//                [--device cpu] [--cache FOLDER] [--json FILE] MODEL.pt2
//
// Other traffic: `--at 16,16 --at 24,24` repeats these sizes in turn. `--traffic decode`, for a model whose free sizes are tokens and what
// is in its cache: prompts of any length, each followed by 24 tokens, one by one. `--traffic neighbours`, for one whose sizes are nodes and
// edges: batches of 8 to 64 seeds, their neighbours (10 each at most) and theirs (5), in a graph of 20,000 nodes with few hubs and many of
// few edges; edges of a batch are drawn among its nodes. `--traffic values`, for sizes that are fixed or follow from values: other values.
//
// Sizes are left out at which eager's call would last longer than `--longest` milliseconds, as the first decision's does per element of
// the product of the sizes; and `--budget` seconds after what is decided before it, no further size is begun. Both are
// said, and what was left out is not in the JSON.
//
// It prints the ranges; time of all calls against eager's; the p99 of a call's time over eager's at that size; how many answers were
// verified, each against eager's; what the first call of a size took beyond eager's own, and beyond its next one (medians; its plan
// included where it waits for one), and how long after it the plan of that size stood ready, on an idle machine, stage by stage; and
// kernels generated for one size and for all.
//
// With --bucket each bucket of the traffic is decided before it begins, and there are no ranges. With --cache the decisions are kept
// in that folder: a second run says how long a new process takes to its first plan. The sizes that were drawn are in the JSON file, for
// bench/dynamic/peers.py, which sends the same traffic through other compilers.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdio>
#include <fstream>
#include <functional>
#include <mutex>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "core/api/session.h"
#include "core/base/request.h"
#include "core/tune/elements.h"

namespace keirin {
namespace {

using Clock = std::chrono::steady_clock;
using Tensors = std::vector<TensorRef>;
using Sizes = std::vector<int64_t>;

constexpr auto kLong = std::chrono::minutes(30);
// Of an output's largest element: more is another answer. Of two that round to few bits each is off.
double far_off(DType dtype) { return dtype == DType::k_bf16 ? 1e-1 : dtype == DType::k_f16 ? 1e-2 : 1e-3; }
constexpr int kTimedSizes = 100;  // whose way from the first call to the plan is looked at, one at a time,
constexpr double kTimedShare = 0.25;  // in so much of the budget
constexpr std::chrono::milliseconds kPause(3);  // before each call: threads that wait for more to do look for it a while, on others' cores

double ms_since(Clock::time_point start) { return std::chrono::duration<double, std::milli>(Clock::now() - start).count(); }

double quantile(std::vector<double> values, double q) {
  if (values.empty()) return 0;
  const auto index = static_cast<size_t>(q * static_cast<double>(values.size()));
  const auto at = values.begin() + static_cast<ptrdiff_t>(std::min(index, values.size() - 1));
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

// How far an answer of floats is from eager's.
struct Difference {
  double of_largest = 0;   // element of an output, the worst; infinite where anything else differs
  bool is_another = false;
};

Result<Difference> difference(const Tensors& ours, const Tensors& eager, TensorServices& services) {
  Difference worst;
  bool alike = ours.size() == eager.size();
  for (size_t k = 0; alike && k < ours.size(); ++k) {
    alike = spec_text(spec_of(*ours[k])) == spec_text(spec_of(*eager[k])) && is_float(ours[k]->dtype());
    if (!alike) break;
    KRN_TRY_LET(const std::vector<double> x, read_values(ours[k], services));
    KRN_TRY_LET(const std::vector<double> y, read_values(eager[k], services));
    double off = 0, largest = 1e-30;
    for (size_t i = 0; i < x.size() && alike; ++i) {
      alike = std::fabs(x[i] - y[i]) < INFINITY;
      off = std::max(off, std::fabs(x[i] - y[i]));
      largest = std::max(largest, std::fabs(y[i]));
    }
    worst.of_largest = std::max(worst.of_largest, off / largest);
    worst.is_another |= off / largest > far_off(ours[k]->dtype());
  }
  return alike ? worst : Difference{INFINITY, true};
}

// The free sizes to draw, and the bounds of their product. most = 0: it has no upper one.
struct Field {
  std::vector<SizeReport> sizes;
  int64_t least = 0, most = 0;
};

class Drawn {
 public:
  Drawn(Field field, Sizes most, uint32_t seed) : field_(std::move(field)), most_(std::move(most)), random_(seed) {}
  Sizes next() {
    for (;;) {
      Sizes out;
      int64_t volume = 1;
      for (size_t k = 0; k < field_.sizes.size(); ++k) {
        const SizeReport& size = field_.sizes[k];
        const auto high = static_cast<double>(k < most_.size() ? std::min(size.max, most_[k]) : size.max);
        const double at = std::uniform_real_distribution<double>(std::log(static_cast<double>(size.min)), std::log(high + 1))(random_);
        out.push_back(std::clamp(static_cast<int64_t>(std::exp(at)), size.min, static_cast<int64_t>(high)));
        volume *= out.back();
      }
      if (volume >= field_.least && (field_.most == 0 || volume <= field_.most)) return out;
    }
  }

 private:
  const Field field_;
  const Sizes most_;
  std::mt19937 random_;
};

// Of a batch of seeds: how many nodes are sampled, and how many edges lead to those that were before. Like torch_geometric's sampler, which
// takes all neighbours of a node that has no more than asked for, and each node once.
class Neighbours {
 public:
  explicit Neighbours(uint32_t seed) : random_(seed), of_(kNodes) {
    std::vector<int32_t> ends;  // each node as often as it has edges: who has many gets more
    for (int32_t node = 0; node < kNodes; ++node)
      for (int k = 0; k < 8; ++k) {
        const int32_t to = ends.empty() ? 0 : ends[random_() % ends.size()];
        of_[static_cast<size_t>(node)].push_back(to);
        of_[static_cast<size_t>(to)].push_back(node);
        ends.push_back(node), ends.push_back(to);
      }
  }
  Sizes next() {
    std::set<int32_t> all;
    std::vector<int32_t> last;
    const size_t seeds = 8 + random_() % 57;
    while (all.size() < seeds)
      if (const auto node = static_cast<int32_t>(random_() % kNodes); all.insert(node).second) last.push_back(node);
    int64_t edges = 0;
    for (const size_t most : {10, 5}) {
      std::vector<int32_t> found;
      for (const int32_t node : last) {
        std::vector<int32_t> there = of_[static_cast<size_t>(node)];
        std::shuffle(there.begin(), there.end(), random_);
        there.resize(std::min(there.size(), most));
        edges += static_cast<int64_t>(there.size());
        for (const int32_t each : there)
          if (all.insert(each).second) found.push_back(each);
      }
      last = std::move(found);
    }
    return {static_cast<int64_t>(all.size()), edges};
  }

 private:
  static constexpr int32_t kNodes = 20000;
  std::mt19937 random_;
  std::vector<std::vector<int32_t>> of_;
};

constexpr int kTokens = 24;  // after each prompt

struct Arguments {
  std::string model, json, choice, cache, device = "cpu", traffic = "drawn";
  std::vector<Sizes> at;
  std::vector<std::string> buckets, pads;
  int sizes = 1000;
  uint32_t seed = 1;
  Sizes most;
  double race_seconds = 2, longest_ms = 100, budget_seconds = 240;
};

Sizes numbers_of(const char* text) {
  Sizes out;
  std::istringstream list(text);
  for (std::string each; std::getline(list, each, ',');) out.push_back(std::atoll(each.c_str()));
  return out;
}

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
    else if (word == "--longest") a.longest_ms = std::atof(argv[i]);
    else if (word == "--budget") a.budget_seconds = std::atof(argv[i]);
    else if (word == "--choice") a.choice = argv[i];
    else if (word == "--device") a.device = argv[i];
    else if (word == "--json") a.json = argv[i];
    else if (word == "--cache") a.cache = argv[i];
    else if (word == "--traffic") a.traffic = argv[i];
    else if (word == "--at") a.at.push_back(numbers_of(argv[i]));
    else if (word == "--bucket") a.buckets.emplace_back(argv[i]);
    else if (word == "--pad") a.pads.emplace_back(argv[i]);
    else if (word == "--most") a.most = numbers_of(argv[i]);
    else return false;
  }
  const bool known = a.traffic == "drawn" || a.traffic == "decode" || a.traffic == "neighbours" || a.traffic == "values";
  return !a.model.empty() && a.sizes > 0 && known;
}

// A thread that calls, and sleeps between. The session has one and eager another: what a device's libraries plan at a thread's first call
// of a size, LibTorch keeps for that thread, so that neither finds done what the other one did, and both wake to cold caches.
class Caller {
 public:
  Caller() : thread_([this] { work(); }) {}
  ~Caller() {
    {
      const std::lock_guard lock(mutex_);
      ends_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  Caller(const Caller&) = delete;
  Caller& operator=(const Caller&) = delete;

  // Until the session's device is done.
  Result<Tensors> call(Session& session, TensorServices& services, const std::function<Result<Tensors>()>& how, double& milliseconds) {
    std::unique_lock lock(mutex_);
    job_ = [&, this] {
      const auto start = Clock::now();
      answer_ = how();
      if (const Status done = services.synchronize(session.device()); !done.ok()) answer_ = done;
      milliseconds = ms_since(start);
    };
    changed_.notify_all();
    changed_.wait(lock, [&] { return !job_; });
    return std::move(answer_);
  }

 private:
  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return ends_ || job_; });
      if (ends_) return;
      job_();
      job_ = nullptr;
      changed_.notify_all();
    }
  }

  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::function<void()> job_;
  Result<Tensors> answer_ = Tensors();
  bool ends_ = false;
  std::thread thread_;
};

struct Callers {
  Caller ours, eager;
};

// In turns, `eager_first` or not: who comes second finds the inputs in the caches. A device's work is waited for.
Result<Difference> answer(Session& session, Callers& callers, TensorServices& services, const Tensors& inputs, bool eager_first,
                          double& plan_ms, double& eager_ms) {
  Tensors ours, eager;
  KRN_TRY(services.synchronize(session.device()));
  for (const bool own : {!eager_first, eager_first}) {
    std::this_thread::sleep_for(kPause);
    if (own) {
      KRN_TRY_LET(ours, callers.ours.call(session, services, [&] { return session.call(inputs); }, plan_ms));
    } else {
      KRN_TRY_LET(eager, callers.eager.call(session, services, [&] { return session.call_eager(inputs); }, eager_ms));
    }
  }
  return difference(ours, eager, services);
}

// As asked for; `drawn` where it says nothing else.
std::vector<Sizes> traffic_of(const Arguments& a, const Field& field, Drawn& drawn) {
  std::vector<Sizes> out;
  const auto size = static_cast<size_t>(a.sizes);
  if (!a.at.empty()) {
    while (out.size() < size) out.push_back(a.at[out.size() % a.at.size()]);
  } else if (a.traffic == "values") {
    out.resize(size);
  } else if (a.traffic == "neighbours") {
    Neighbours neighbours(a.seed);
    while (out.size() < size) out.push_back(neighbours.next());
  } else if (a.traffic == "decode") {
    std::mt19937 random(a.seed);
    while (out.size() < size) {
      const auto longest = static_cast<uint32_t>(std::max<int64_t>(2, std::min(field.sizes[0].max, field.sizes[1].max - kTokens)));
      const int64_t prompt = 1 + random() % (longest - 1);
      out.push_back({prompt, 1});  // the cache begins with one place that belongs to no token
      for (int64_t token = 0; token < kTokens && out.size() < size; ++token) out.push_back({1, 1 + prompt + token});
    }
  } else {
    while (out.size() < size) out.push_back(drawn.next());
  }
  return out;
}

// Every bucket of the traffic is decided, one after the other.
Status decide_buckets(Session& session, const std::vector<Sizes>& traffic) {
  for (const Sizes& sizes : traffic) {
    KRN_TRY_LET(const Tensors inputs, session.example_inputs(1, sizes));
    if (!session.is_decided(inputs)) KRN_TRY(session.compile(inputs).status());
  }
  return {};
}

// In the order of their appearance, each once.
Result<std::vector<Dimension>> free_sizes_of(const Session& session) {
  std::vector<Dimension> out;
  for (const Port& port : session.signature().inputs)
    for (const Dimension& size : port.sizes)
      if (size.free && std::none_of(out.begin(), out.end(), [&](const Dimension& d) { return d.symbol == size.symbol; }))
        out.push_back(size);
  if (out.empty()) return Status(Code::k_unsupported, "the model's sizes are fixed: `--traffic values` changes its values alone");
  return out;
}

// What the ranges hold, or with buckets all that the export allows.
Result<Field> bring_about(Session& session, const Arguments& a) {
  if (!a.buckets.empty() || a.traffic == "values") {
    KRN_TRY_LET(const Tensors inputs, session.example_inputs(1, Sizes()));
    KRN_TRY_LET(const ModelReport report, session.compile(inputs));
    std::printf("%s\n", explain_text(report).c_str());
    return Field{report.sizes, 0, 0};
  }
  Sizes second;
  KRN_TRY_LET(const std::vector<Dimension> free, free_sizes_of(session));
  for (const Dimension& size : free)
    second.push_back(std::min(size.size + 2, size.max > 0 ? size.max : size.size + 2));
  for (const Sizes& sizes : {Sizes(), second}) {
    KRN_TRY_LET(const Tensors inputs, session.example_inputs(1, sizes));
    KRN_TRY(session.call(inputs).status());
    if (!session.settle(kLong)) return Status(Code::k_timeout, "nothing was decided within half an hour");
  }
  const std::vector<ModelReport> reports = session.reports();
  if (reports.empty()) return Status(Code::k_unsupported, "nothing was decided");
  std::printf("%s\n", explain_text(reports.back()).c_str());
  const RangesReport& ranges = reports.back().ranges;
  if (ranges.ranges.empty()) return Status(Code::k_unsupported, "no ranges came about");
  return Field{ranges.sizes, ranges.ranges.front().least, ranges.ranges.back().most};
}

// The largest product of sizes whose call lasts no longer than `--longest`, by what eager took at the sizes decided first.
void leave_out_long_calls(Field& field, const ModelReport& first, double longest_ms) {
  double volume = 1;
  for (const SizeReport& size : first.sizes) volume *= static_cast<double>(size.value);
  if (first.eager_ms <= 0 || volume <= 0) return;
  const auto most = std::max(static_cast<int64_t>(longest_ms / first.eager_ms * volume), field.least);
  if (field.most > 0 && field.most <= most) return;
  std::printf("sizes whose product is above %lld are left out: a call of eager would last longer than %.0f ms\n",
              static_cast<long long>(most), longest_ms);
  field.most = most;
}

// How long after its opening a session of a process that finds everything in the cache answers by a plan: eager answers until then.
Status time_to_first_plan(Session& session, Clock::time_point opened) {
  KRN_TRY_LET(const Tensors inputs, session.example_inputs(1, Sizes()));
  KRN_TRY(session.call_eager(inputs).status());
  const auto start = Clock::now();
  KRN_TRY(session.call(inputs).status());
  const double first = ms_since(start);
  while (session.activity().by_plan == 0 && session.activity().eager_chosen == 0 && ms_since(start) < 60e3) {
    KRN_TRY(session.call(inputs).status());
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  std::printf("new process: opened in %.1f ms; its first call took %.1f ms, and the first that a decision answered came %.1f ms after it "
              "began\n",
              std::chrono::duration<double, std::milli>(start - opened).count(), first, ms_since(start));
  return {};
}

Status measure(const Arguments& a, Runtime& runtime, const Options& options) {
  const auto opened = Clock::now();
  KRN_TRY_LET(auto session, Session::open(runtime, a.model, options));
  if (!a.cache.empty()) KRN_TRY(time_to_first_plan(*session, opened));
  KRN_TRY_LET(Field field, bring_about(*session, a));
  const double decided_seconds = ms_since(opened) / 1e3;
  std::printf("what was decided before the traffic took %.1f s\n", decided_seconds);
  leave_out_long_calls(field, session->reports().front(), a.longest_ms);
  const ModelReport known = session->reports().back();
  Drawn drawn(field, a.most, a.seed);
  std::vector<Sizes> traffic = traffic_of(a, field, drawn);
  if (!a.buckets.empty()) KRN_TRY(decide_buckets(*session, traffic));

  const bool draws = a.buckets.empty() && a.traffic == "drawn" && a.at.empty();

  // One new size at a time, the machine idle.
  Callers callers;
  std::vector<double> beyond, beyond_next, ready;
  const auto began = Clock::now();
  const auto time_left = [&](double share) { return ms_since(began) < 1e3 * share * a.budget_seconds; };
  for (int i = 0; i < kTimedSizes && draws && time_left(kTimedShare); ++i) {
    KRN_TRY_LET(const Tensors inputs, session->example_inputs(1, drawn.next()));
    if (session->is_decided(inputs)) continue;
    double first = 0, next = 0, eager = 0;
    const uint64_t by_plan = session->activity().by_plan;
    KRN_TRY(answer(*session, callers, runtime.tensors(), inputs, false, first, eager).status());
    const auto start = Clock::now();
    beyond.push_back(first - eager);
    const bool had_plan = session->activity().by_plan > by_plan;
    while (!session->is_decided(inputs) && !session->settle({})) std::this_thread::sleep_for(std::chrono::microseconds(100));
    if (!session->is_decided(inputs)) continue;  // one call is not enough for a plan to pay
    ready.push_back(ms_since(start));
    if (!had_plan) continue;
    KRN_TRY(answer(*session, callers, runtime.tensors(), inputs, false, next, eager).status());
    beyond_next.push_back(first - next);
  }
  const RangesReport entered = session->reports().back().ranges;

  // Traffic.
  double plan_total = 0, eager_total = 0;
  std::vector<double> ratios;
  nlohmann::json each = nlohmann::json::array();
  const Session::Activity before = session->activity();
  double worst = 0;
  int wrong = 0;
  for (int i = 0; i < a.sizes; ++i) {
    if (!time_left(1)) {
      std::printf("the budget of %.0f s is spent: the last %d of %d sizes are left out\n", a.budget_seconds, a.sizes - i, a.sizes);
      traffic.resize(static_cast<size_t>(i));
      break;
    }
    KRN_TRY_LET(const Tensors inputs, session->example_inputs(1 + static_cast<uint64_t>(i), traffic[static_cast<size_t>(i)]));
    double plan = 0, eager = 0;
    const uint64_t by_plan = session->activity().by_plan;
    KRN_TRY_LET(const Difference off, answer(*session, callers, runtime.tensors(), inputs, i % 2 == 1, plan, eager));
    worst = std::max(worst, off.of_largest);
    wrong += off.is_another;
    plan_total += plan, eager_total += eager;
    ratios.push_back(plan / eager);
    each.push_back({plan, eager, session->activity().by_plan > by_plan});
  }
  if (ratios.empty()) return Status(Code::k_timeout, "no call was made in the budget: give --budget more");
  const Session::Activity after = session->activity();
  const int calls = static_cast<int>(traffic.size());
  if (!session->settle(kLong)) return Status(Code::k_timeout, "sizes still wait for their plans");
  const RangesReport last = session->reports().back().ranges;
  std::printf("calls %d: %.1f ms, eager %.1f ms (%.3fx); by a plan %llu; a call over eager's at its size: median %.3f, p99 %.3f\n", calls,
              plan_total, eager_total, eager_total / plan_total, static_cast<unsigned long long>(after.by_plan - before.by_plan),
              quantile(ratios, 0.5), quantile(ratios, 0.99));
  std::printf("entering a size (%zu): its first call %.3f ms beyond eager's (median); %zu plans ready %.2f ms later (median), %.2f (p99)\n",
              beyond.size(), quantile(beyond, 0.5), ready.size(), quantile(ready, 0.5), quantile(ready, 0.99));
  std::printf("  where a plan answered the first call (%zu): %.3f ms beyond its next one (median), %.3f (p90)\n", beyond_next.size(),
              quantile(beyond_next, 0.5), quantile(beyond_next, 0.9));
  std::printf("answers: %d of %d like eager's, the largest difference %.2g of an output's largest element; kinds decided: %zu, "
              "plans: %zu\n",
              calls - wrong, calls, worst, after.kinds, after.plans);
  const BucketsReport buckets = session->reports().back().buckets;
  for (const BucketSizeReport& size : buckets.sizes)
    std::printf("  %s to %s: %.1f %% of what ran was padding\n", size.name.c_str(), size.policy.c_str(),
                size.ran > 0 ? 100 * static_cast<double>(size.ran - size.asked) / static_cast<double>(size.ran) : 0);
  for (const auto& [stage, seconds] : entered.enter_seconds)
    std::printf("  %s %.3f ms a size\n", stage.c_str(), entered.entered ? seconds * 1e3 / static_cast<double>(entered.entered) : 0);
  std::printf(
      "sizes entered %llu, plans let go %llu; kernels generated: %d for the first size, %llu for all others; compiles on requests: %llu\n",
      static_cast<unsigned long long>(last.entered), static_cast<unsigned long long>(last.let_go),
      session->reports().front().kernels_generated,
      static_cast<unsigned long long>(last.kernels_generated), static_cast<unsigned long long>(compiles_on_requests()));
  std::printf("plans made at once: %llu, %.2f ms (median of the last); kinds of sizes whose graphs are known: %llu\n",
              static_cast<unsigned long long>(last.at_once), last.at_once_ms, static_cast<unsigned long long>(last.learned));
  for (const std::string& why : last.not_learned) std::printf("  graphs are captured size by size: %s\n", why.c_str());
  for (const auto& [why, times] : last.left_to_eager)
    std::printf("  calls left to eager: %llu, %s\n", static_cast<unsigned long long>(times), why.c_str());
  if (!a.json.empty())
    std::ofstream(a.json) << nlohmann::json{{"schema", "keirin/sizes/1"},
                                            {"machine", machine_json()},
                                            {"model", known.model},
                                            {"calls", calls},
                                            {"asked", a.sizes},
                                            {"left_out_above", field.most},
                                            {"decided_s", decided_seconds},
                                            {"ms", plan_total},
                                            {"eager_ms", eager_total},
                                            {"p99_over_eager", quantile(ratios, 0.99)},
                                            {"first_call_beyond_eager_ms", quantile(beyond, 0.5)},
                                            {"first_call_beyond_next_ms", quantile(beyond_next, 0.5)},
                                            {"ready_ms", quantile(ready, 0.5)},
                                            {"wrong", wrong},
                                            {"difference", worst},
                                            {"traffic", traffic},
                                            {"calls_ms", each},  // ours, eager's, whether a plan answered; as in `traffic`
                                            {"compiles_on_requests", compiles_on_requests()},
                                            {"row", to_json(session->reports().back())}}
                                 .dump(1)
                          << "\n";
  if (wrong > 0) return Status(Code::k_wrong_result, std::to_string(wrong) + " answers are not eager's");
  return {};
}

int run(int argc, char** argv) {
  Arguments a;
  if (!parse(argc, argv, a))
    return std::fprintf(stderr,
                        "usage: %s [--sizes N] [--most 64,512] [--longest MS] [--budget S] [--seed S] [--race-limit S] [--choice NAME] "
                        "[--traffic decode|neighbours|values] [--at SIZES] [--bucket SIZE=POLICY] "
                        "[--pad INPUT=VALUE] [--device NAME] [--cache FOLDER] [--json FILE] MODEL.pt2\n",
                        argv[0]),
           2;
  Options options;
  options.device = a.device;
  options.compile = When::kBackground;
  options.use_cache = !a.cache.empty();
  options.cache_dir = a.cache;
  options.buckets = a.buckets;
  options.pads = a.pads;
  if (!a.buckets.empty() || a.traffic == "values") options.max_shapes = 256, options.compile = When::kNow;
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
