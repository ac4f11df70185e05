// SPDX-License-Identifier: Apache-2.0
#include "core/tune/race.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <fstream>
#include <thread>

#include "abi/planted.h"
#include "core/host/files.h"

namespace keirin {
namespace {

constexpr uint64_t kMinBatchNs = 200'000;   // below, the clock and the loop are part of the figure
constexpr uint64_t kMinBatchTicks = 100;
constexpr uint64_t kLongCallNs = 20'000'000;  // above, a sample is one call
constexpr double kAgree = 1.05;             // three warm-up batches within this are steady
constexpr int kMaxWarmBatches = 30;         // a noisy machine never agrees
constexpr uint64_t kMaxWarmNs = 2'000'000'000;
constexpr double kScreenRatio = 1.3;
constexpr double kOtherHintLoss = 1.05;
constexpr double kSameGain = 1.02;          // within this the smaller memory wins
constexpr int kContentionRetries = 3;
constexpr uint64_t kFirstBackOffNs = 1'000'000'000;

uint64_t steady_ns() {
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count());
}

double machine_load() {
  std::ifstream file("/proc/loadavg");
  double load = 0;
  file >> load;
  return load;
}

// Times batches of calls under one hint.
class Timer {
 public:
  explicit Timer(const RaceOptions& options) : options_(options) {
    if (!options_.now_ns) options_.now_ns = steady_ns;
    uint64_t tick = 0;
    for (int i = 0; i < 16; ++i) {
      const uint64_t a = now(), b = now();
      if (b > a && (tick == 0 || b - a < tick)) tick = b - a;
    }
    min_batch_ns_ = std::max(kMinBatchNs, kMinBatchTicks * tick);
  }

  uint64_t now() const { return options_.now_ns() - between_ns_; }
  uint64_t min_batch_ns() const { return min_batch_ns_; }
  bool cancelled() const { return options_.cancel && options_.cancel->load(std::memory_order_relaxed); }
  bool hints_differ() const { return options_.wait != nullptr; }

  // Nanoseconds per call.
  Result<double> batch(const Runner& runner, uint64_t calls, RaceHint hint) {
    if (options_.between) {
      const uint64_t end = now();
      options_.between();
      between_ns_ += now() - end;
    }
    const uint64_t begin = now();
    for (uint64_t i = 0; i < calls; ++i) {
      KRN_TRY(runner.call());
      if (hint == RaceHint::kLatency || i + 1 == calls) KRN_TRY(wait());
    }
    return static_cast<double>(now() - begin) / static_cast<double>(calls);
  }

 private:
  Status wait() const { return options_.wait ? options_.wait() : Status(); }
  RaceOptions options_;
  uint64_t min_batch_ns_;
  uint64_t between_ns_ = 0;
};

// One runner through the race.
struct Entry {
  const Runner* runner = nullptr;
  RaceRow* row = nullptr;
  uint64_t calls = 1;         // per batch
  double screen_ns = 0;       // median of the last three warm-up batches
  std::vector<double> samples;
  bool alive() const { return row->outcome == RaceOutcome::kUndecided; }
};

void fail(Entry* e, const Status& status) {
  e->row->outcome = RaceOutcome::kFailed;
  e->row->status = status;
  e->row->note = "a call failed: " + status.message().what;
}

Status warm_up(Timer& timer, RaceHint hint, Entry* e) {
  KRN_TRY_LET(const double first, timer.batch(*e->runner, 1, RaceHint::kLatency));
  const uint64_t begin = timer.now();
  std::vector<double> batches;
  const auto last = [&](int i) { return batches[batches.size() - static_cast<size_t>(i)]; };
  while (static_cast<int>(batches.size()) < kMaxWarmBatches && !timer.cancelled()) {
    KRN_TRY_LET(const double ns, timer.batch(*e->runner, e->calls, hint));
    const double lasted = ns * static_cast<double>(e->calls);
    if (lasted < static_cast<double>(timer.min_batch_ns())) {
      // A third more than needed by this batch; ten times at most, because the first batches are the slow ones.
      const double grow = std::min(10.0, 1.33 * static_cast<double>(timer.min_batch_ns()) / std::max(lasted, 1.0));
      e->calls = std::max(e->calls + 1, static_cast<uint64_t>(static_cast<double>(e->calls) * grow));
      batches.clear();
      if (timer.now() - begin > kMaxWarmNs) break;
      continue;
    }
    batches.push_back(ns);
    if (batches.size() < 3) continue;
    const auto [low, high] = std::minmax({last(1), last(2), last(3)});
    if (high <= low * kAgree || timer.now() - begin > kMaxWarmNs) break;
  }
  if (batches.empty()) batches.push_back(first);
  e->screen_ns = batches.size() < 3 ? median(batches) : median(std::array{last(1), last(2), last(3)});
  e->row->ns = e->screen_ns;
  e->row->first_over_steady = e->screen_ns > 0 ? first / e->screen_ns : 0;
  return {};
}

// A sample: the median of three batches, because outliers of single ones hide true gains; or one call where calls are long.
Result<double> sample(Timer& timer, RaceHint hint, bool long_calls, const Entry& e) {
  if (long_calls) return timer.batch(*e.runner, 1, hint);
  std::array<double, 3> batches{};
  for (double& b : batches) {
    KRN_TRY_LET(b, timer.batch(*e.runner, e.calls, hint));
  }
  return median(batches);
}

// The spread of one sample of the baseline, from the two that stand at the ends of each block: the median of their distance,
// which for two normal samples of deviation s is 0.954 s.
double spread_of(const std::vector<double>& samples) {
  std::vector<double> distances;
  for (size_t i = 0; i + 1 < samples.size(); i += 2) distances.push_back(std::abs(std::log(samples[i] / samples[i + 1])));
  return median(distances) / 0.954;
}

class Race {
 public:
  Race(const std::vector<Runner>& runners, const RaceOptions& options) : options_(options), timer_(options) {
    sheet_.rows.resize(runners.size());
    entries_.resize(runners.size());
    for (size_t i = 0; i < runners.size(); ++i) {
      sheet_.rows[i].name = runners[i].name;
      entries_[i].runner = &runners[i];
      entries_[i].row = &sheet_.rows[i];
    }
    threshold_ = std::log1p(std::max(options.threshold, 0.0));
  }

  Result<RaceSheet> hold(size_t replay) {
    sheet_.load_before = machine_load();
    for (size_t i = 0; i < entries_.size(); ++i) {
      Status status = warm_up(timer_, options_.hint, &entries_[i]);
      if (status.ok()) continue;
      if (i == 0) return status;
      fail(&entries_[i], status);
    }
    KRN_TRY(settle_baseline(replay));
    KRN_TRY(race_candidates());
    choose();
    sheet_.load_after = machine_load();
    return std::move(sheet_);
  }

 private:
  // Eager with replay is the baseline only after it won its own race against eager.
  Status settle_baseline(size_t replay) {
    sheet_.baseline = 0;
    if (replay != 0 && replay < entries_.size() && entries_[replay].alive()) {
      screen({replay}, entries_[0].screen_ns);
      if (entries_[replay].alive()) KRN_TRY(race_group(0, {replay}));
      if (entries_[replay].row->outcome == RaceOutcome::kAccept) {
        sheet_.baseline = replay;
        entries_[0].row->outcome = RaceOutcome::kReject;
        entries_[0].row->note = "eager with replay is faster";
        entries_[replay].row->note = "won its own race against eager";
      }
    }
    baseline().row->outcome = RaceOutcome::kBaseline;
    return {};
  }

  Status race_candidates() {
    std::vector<size_t> open;
    double best = baseline().screen_ns;
    for (size_t i = 0; i < entries_.size(); ++i) {
      if (!entries_[i].alive()) continue;
      open.push_back(i);
      best = std::min(best, entries_[i].screen_ns);
    }
    screen(open, best);
    std::erase_if(open, [&](size_t i) { return !entries_[i].alive(); });
    std::stable_sort(open.begin(), open.end(), [&](size_t a, size_t b) { return entries_[a].screen_ns < entries_[b].screen_ns; });
    if (!is_long(baseline())) {
      for (const size_t i : open) KRN_TRY(race_group(sheet_.baseline, {i}));
      return {};
    }
    for (size_t i = 2; i < open.size(); ++i) {
      entries_[open[i]].row->outcome = RaceOutcome::kScreened;
      entries_[open[i]].row->note = "calls are long: only the two best of the screen are raced";
    }
    open.resize(std::min<size_t>(open.size(), 2));
    return open.empty() ? Status() : race_group(sheet_.baseline, open);
  }

  Entry& baseline() { return entries_[sheet_.baseline]; }
  static bool is_long(const Entry& e) { return e.screen_ns > static_cast<double>(kLongCallNs); }

  void screen(const std::vector<size_t>& which, double best_ns) {
    for (const size_t i : which) {
      if (entries_[i].screen_ns <= kScreenRatio * best_ns) continue;
      entries_[i].row->outcome = RaceOutcome::kScreened;
      entries_[i].row->gain = baseline_gain(entries_[i]);
      entries_[i].row->note = "more than 1.3x the time of the best in the screen";
    }
  }

  double baseline_gain(const Entry& e) { return e.screen_ns > 0 ? baseline().screen_ns / e.screen_ns : 1; }

  // Races a group that shares the samples of A, again with back-off while the baseline itself is unsteady.
  Status race_group(size_t a, const std::vector<size_t>& group) {
    uint64_t pause = kFirstBackOffNs;
    for (int attempt = 0;; ++attempt, pause *= 2) {
      KRN_TRY(run_blocks(a, group));
      const double spread = spread_of(entries_[a].samples);
      const bool contended = options_.aa_spread > 0 && spread > 3 * options_.aa_spread;
      if (!contended || timer_.cancelled()) return {};
      for (const size_t i : group) {
        RaceRow& row = *entries_[i].row;
        if (row.outcome == RaceOutcome::kFailed) continue;
        row.outcome = RaceOutcome::kContended;
        row.note = "the baseline's own spread was " + std::to_string(100 * spread) + " %, more than 3x the machine's";
      }
      if (attempt == kContentionRetries) return {};
      if (options_.back_off) options_.back_off(pause);
      else std::this_thread::sleep_for(std::chrono::nanoseconds(pause));
    }
  }

  struct Lane {
    Entry* entry;
    SequentialTest test;
    bool open;
    double log_sum;  // of the current block's samples
  };

  // Blocks A B.. ..B A until every lane has its answer. In a group, B's order is mirrored, so drift cancels for each.
  Status run_blocks(size_t a, const std::vector<size_t>& group) {
    const uint64_t begin = timer_.now();
    Entry& base = entries_[a];
    base.samples.clear();
    std::vector<Lane> lanes;
    bool long_calls = is_long(base);
    for (const size_t i : group) {
      if (entries_[i].row->outcome == RaceOutcome::kFailed) continue;
      entries_[i].samples.clear();
      entries_[i].row->outcome = RaceOutcome::kUndecided;
      entries_[i].row->note = "not shown to be faster within the blocks or the time of a race";
      lanes.push_back({&entries_[i], SequentialTest(threshold_), true, 0});
      long_calls = long_calls || is_long(entries_[i]);
    }
    const auto any_open = [&] { return std::any_of(lanes.begin(), lanes.end(), [](const Lane& l) { return l.open; }); };
    for (int blocks = 0; any_open() || KRN_PLANTED(race_to_the_limit); ++blocks) {
      // A long call gets at least the blocks of its first look, or it could never be decided.
      if (blocks >= kRaceLooks[0].blocks && timer_.now() - begin > options_.limit_ns) break;
      if (timer_.cancelled()) {
        cancel(&lanes);
        break;
      }
      KRN_TRY(run_block(&base, &lanes, long_calls));
    }
    for (Lane& lane : lanes) finish(base, &lane);
    return {};
  }

  Status run_block(Entry* base, std::vector<Lane>* lanes, bool long_calls) {
    double log_a = 0;
    const auto sample_a = [&]() -> Status {
      KRN_TRY_LET(const double ns, sample(timer_, options_.hint, long_calls, *base));
      base->samples.push_back(ns);
      log_a += std::log(ns);
      return {};
    };
    const auto sample_b = [&](Lane* lane) {
      if (!lane->open) return;
      const Result<double> ns = sample(timer_, options_.hint, long_calls, *lane->entry);
      if (!ns.ok()) {
        lane->open = false;
        return fail(lane->entry, ns.status());
      }
      lane->entry->samples.push_back(*ns);
      lane->log_sum += std::log(*ns);
    };
    for (Lane& lane : *lanes) lane.log_sum = 0;
    KRN_TRY(sample_a());
    for (size_t i = 0; i < lanes->size(); ++i) sample_b(&(*lanes)[i]);
    for (size_t i = lanes->size(); i-- > 0;) sample_b(&(*lanes)[i]);
    KRN_TRY(sample_a());
    for (Lane& lane : *lanes)
      if (lane.open) judge(&lane, (log_a - lane.log_sum) / 2);
    return {};
  }

  void judge(Lane* lane, double d) {
    RaceRow& row = *lane->entry->row;
    switch (lane->test.add(d)) {
      case Finding::kMore: return;
      case Finding::kAbove:
        row.outcome = RaceOutcome::kAccept;
        row.note = "faster, beyond noise";
        break;
      case Finding::kBelow:
        row.outcome = RaceOutcome::kReject;
        row.note = lane->test.shift().high < 0 ? "slower" : "not faster by the threshold";
        break;
      case Finding::kUndecided: break;
    }
    lane->open = false;
  }

  void cancel(std::vector<Lane>* lanes) {
    for (Lane& lane : *lanes) {
      if (!lane.open) continue;
      lane.entry->row->outcome = RaceOutcome::kCancelled;
      lane.entry->row->note = "the race was cancelled";
    }
  }

  void finish(const Entry& base, Lane* lane) {
    RaceRow& row = *lane->entry->row;
    const Shift shift = lane->test.shift();
    row.blocks = shift.blocks;
    if (shift.blocks == 0) return;
    row.gain = std::exp(shift.estimate);
    row.gain_low = std::exp(shift.low);
    row.gain_high = std::exp(shift.high);
    row.ns = median(lane->entry->samples);
    sheet_.rows[static_cast<size_t>(&base - entries_.data())].ns = median(base.samples);
    if (row.outcome == RaceOutcome::kAccept && timer_.hints_differ() && loses_other_hint(base, *lane->entry)) {
      row.outcome = RaceOutcome::kReject;
      row.note = options_.hint == RaceHint::kLatency ? "faster by latency, but more than 5 % slower by throughput"
                                                     : "faster by throughput, but more than 5 % slower by latency";
    }
  }

  bool loses_other_hint(const Entry& base, const Entry& candidate) {
    const RaceHint other = options_.hint == RaceHint::kLatency ? RaceHint::kThroughput : RaceHint::kLatency;
    const bool long_calls = is_long(base) || is_long(candidate);
    std::vector<double> logs;
    for (int block = 0; block < 5; ++block) {
      double log_a = 0, log_b = 0;
      for (const Entry* e : {&base, &candidate, &candidate, &base}) {
        const Result<double> ns = sample(timer_, other, long_calls, *e);
        if (!ns.ok()) return true;
        (e == &base ? log_a : log_b) += std::log(*ns);
      }
      logs.push_back((log_b - log_a) / 2);
    }
    return median(logs) > std::log(kOtherHintLoss);
  }

  void choose() {
    sheet_.winner = sheet_.baseline;
    double best_gain = 0;
    for (size_t i = 0; i < entries_.size(); ++i)
      if (i != sheet_.baseline && entries_[i].row->outcome == RaceOutcome::kAccept)
        best_gain = std::max(best_gain, entries_[i].row->gain);
    for (size_t i = 0; i < entries_.size(); ++i) {
      const RaceRow& row = *entries_[i].row;
      if (i == sheet_.baseline || row.outcome != RaceOutcome::kAccept || row.gain * kSameGain < best_gain) continue;
      const bool first = sheet_.winner == sheet_.baseline;
      const int64_t held = entries_[sheet_.winner].runner->memory_bytes, own = entries_[i].runner->memory_bytes;
      const bool better = own < held || (own == held && row.gain > entries_[sheet_.winner].row->gain);
      if (first || better) sheet_.winner = i;
    }
    const auto failed = [](const Entry& e) { return e.row->outcome == RaceOutcome::kFailed; };
    if (KRN_PLANTED(winner_after_failed))
      sheet_.winner -= static_cast<size_t>(std::count_if(entries_.begin(), entries_.begin() + static_cast<ptrdiff_t>(sheet_.winner), failed));
  }

  RaceOptions options_;
  Timer timer_;
  double threshold_;
  RaceSheet sheet_;
  std::vector<Entry> entries_;
};

}  // namespace

std::string_view outcome_name(RaceOutcome outcome) {
  switch (outcome) {
    case RaceOutcome::kBaseline: return "baseline";
    case RaceOutcome::kAccept: return "accept";
    case RaceOutcome::kReject: return "reject";
    case RaceOutcome::kUndecided: return "undecided";
    case RaceOutcome::kScreened: return "screened";
    case RaceOutcome::kFailed: return "failed";
    case RaceOutcome::kContended: return "contended";
    case RaceOutcome::kCancelled: return "cancelled";
  }
  return "undecided";
}

Result<RaceSheet> race(const std::vector<Runner>& runners, size_t replay_of_eager, const RaceOptions& options) {
  if (runners.empty()) return Status(Code::k_invalid_input, "a race needs the baseline at least");
  std::optional<FileLock> lock;
  if (!options.lock_path.empty()) {
    // Without the lock file (a read-only disk) the race is still held: the noise check stands between it and a wrong verdict.
    const std::chrono::milliseconds wait(options.limit_ns / 1'000'000);
    Result<std::optional<FileLock>> taken = FileLock::take(options.lock_path, wait);
    if (taken.ok() && !*taken)
      return Status(Code::k_exhausted, Message{"another process is measuring on this device", options.lock_path,
                                               "the baseline answers", "the race is held again later"});
    if (taken.ok()) lock = std::move(*taken);
  }
  return Race(runners, options).hold(replay_of_eager);
}

Result<double> time_call(const Runner& runner, const RaceOptions& options) {
  RaceRow row;
  Entry entry;
  entry.runner = &runner;
  entry.row = &row;
  Timer timer(options);
  KRN_TRY(warm_up(timer, options.hint, &entry));
  return entry.screen_ns;
}

}  // namespace keirin
