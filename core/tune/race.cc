// SPDX-License-Identifier: Apache-2.0
#include "core/tune/race.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <fstream>
#include <functional>
#include <thread>

#include "abi/planted.h"
#include "core/base/files.h"
#include "core/tune/processors.h"

namespace keirin {
namespace {

constexpr uint64_t kMinBatchNs = 200'000;   // below, the clock and the loop are part of the figure
constexpr uint64_t kMinBatchTicks = 100;
constexpr uint64_t kLongCallNs = 20'000'000;  // above, a sample is one call
constexpr double kAgree = 1.05;             // three warm-up batches within this are steady
constexpr int kMaxWarmBatches = 30;         // a noisy machine never agrees
constexpr uint64_t kMaxWarmNs = 2'000'000'000;
constexpr double kScreenRatio = 1.3;
constexpr int kScreenPairs = 3;
constexpr double kHopeless = kScreenRatio * kScreenRatio;  // a long call so far behind is not timed again, to be screened out
constexpr double kOtherHintLoss = 1.05;
constexpr double kSameGain = 1.02;          // within this the smaller memory wins
constexpr uint64_t kFirstPauseNs = 2'000'000,
                   kLastPauseNs = 64'000'000;    // together longer than a load that comes and goes ten times a second
constexpr int kDisturbedPart = 5;                // one in so many slots may stay disturbed
constexpr int kSlotsToTell = 40;                 // before, a share says little
constexpr uint64_t kLeastStolenNs = 50'000'000;  // it is told in steps of 10 ms
constexpr double kStolenShare = 0.2;             // of the processor time that a group of runners used
constexpr double kContradiction = 0.15;          // between the medians and the pairs of one race, of their logarithm
constexpr double kPublished = 0.15;              // half of a published figure's interval, at most, as a share of it
constexpr Look kConfirmation = kRaceLooks[2];
constexpr uint64_t kBetweenPlacesNs = 100'000'000;  // each time the team goes to sleep
constexpr int kMostAsked = 5;    // with pauses of 4, 8, 16 and 32 ms
constexpr double kOnePlace = 0.6;  // of the blocks, where the machine's processors are moved
constexpr double kMiss = 0.004;    // of an interval, as of one look of the race
constexpr double kUnsteady = 0.2;  // deviation of the baseline's samples over a race, of their logarithm
constexpr int kMostRaces = 3;      // of one group, where the baseline is unsteady: bursts of a tenth of a second were seen
constexpr uint64_t kBetweenRacesNs = 100'000'000;

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

// The stretches that were timed for a purpose, and how many of them stayed disturbed.
struct Slots {
  int taken = 0, disturbed = 0;
  bool too_many() const { return disturbed * kDisturbedPart > taken; }
  Slots operator-(const Slots& before) const { return {taken - before.taken, disturbed - before.disturbed}; }
};

// Times batches of calls under one hint.
class Timer {
 public:
  explicit Timer(const RaceOptions& options) : options_(options) {
    if (!options_.now_ns) options_.now_ns = steady_ns;
    if (!options_.pause)
      options_.pause = [](uint64_t ns) { std::this_thread::sleep_for(std::chrono::nanoseconds(ns)); };
    if (!options_.interference) options_.interference = &own_interference_.emplace();
    patience_ns_ = std::min(options_.patience_ns, options_.limit_ns / 10);
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

  // Nothing is timed for so long.
  void rest(uint64_t ns) {
    if (ns == 0) return;
    const uint64_t begin = now();
    options_.pause(ns);
    between_ns_ += now() - begin;
  }

  const Slots& slots() const { return slots_; }
  bool is_patient() const { return patience_ns_ >= kFirstPauseNs; }
  // Rests, and takes it from the patience. False where that is spent.
  bool wait_out(uint64_t ns) {
    if (patience_ns_ < ns || cancelled()) return false;
    patience_ns_ -= ns;
    rest(ns);
    return true;
  }
  Interference& interference() { return *options_.interference; }
  DeviceCondition condition() const { return options_.condition ? options_.condition() : DeviceCondition(); }
  // Beside others that come and go it is asked again, until it is told.
  double apart_ns() {
    if (!options_.apart_ns) return 0;
    const uint64_t begin = now();
    double out = 0;
    for (int i = 0; i < kMostAsked && out == 0; ++i) {
      if (i > 0) options_.pause(kFirstPauseNs << i);
      out = options_.apart_ns();
    }
    between_ns_ += now() - begin;
    return out;
  }

  // Nanoseconds of one call, whatever else goes on: the first one may build something, and is not there twice.
  Result<double> first_call(const Runner& runner) {
    KRN_TRY(timed(runner, 1, RaceHint::kLatency).status());
    return last_ns_;
  }

  // Nanoseconds per call. A disturbed batch is taken again, at once (most disturbances are over by then) and after
  // pauses that grow, while patience lasts.
  Result<double> batch(const Runner& runner, uint64_t calls, RaceHint hint) {
    ++slots_.taken;
    for (uint64_t pause = 0;; pause = std::max(kFirstPauseNs, 2 * pause)) {
      for (int attempt = 0; attempt < (pause == 0 ? 2 : 1); ++attempt) {
        KRN_TRY_LET(const bool quiet, timed(runner, calls, hint));
        if (quiet || KRN_PLANTED(disturbed_counts)) return last_ns_;
        patience_ns_ -= std::min(patience_ns_, static_cast<uint64_t>(last_ns_ * static_cast<double>(calls)));
        if (patience_ns_ == 0) break;
      }
      const uint64_t next = std::max(kFirstPauseNs, 2 * pause);
      if (next > kLastPauseNs || next > patience_ns_ || cancelled()) {
        ++slots_.disturbed;
        return last_ns_;
      }
      patience_ns_ -= next;
      rest(next);
      KRN_TRY(timed(runner, 1, hint).status());  // a thread that slept is slow at first
    }
  }

 private:
  // Leaves nanoseconds per call in last_ns_. Whether nobody else had the processor meanwhile.
  Result<bool> timed(const Runner& runner, uint64_t calls, RaceHint hint) {
    if (options_.between) {
      const uint64_t end = now();
      options_.between();
      between_ns_ += now() - end;
    }
    const Stretch stretch(*options_.interference);
    const uint64_t begin = now();
    for (uint64_t i = 0; i < calls; ++i) {
      KRN_TRY(runner.call());
      if (hint == RaceHint::kLatency || i + 1 == calls) KRN_TRY(wait());
    }
    const auto lasted = static_cast<double>(now() - begin);
    last_ns_ = lasted / static_cast<double>(calls);
    return stretch.was_quiet(lasted);
  }

  Status wait() const { return options_.wait ? options_.wait() : Status(); }
  RaceOptions options_;
  std::optional<ProcessInterference> own_interference_;
  uint64_t min_batch_ns_;
  uint64_t patience_ns_;
  uint64_t between_ns_ = 0;
  double last_ns_ = 0;
  Slots slots_;
};

// One runner through the race.
struct Entry {
  const Runner* runner = nullptr;
  RaceRow* row = nullptr;
  uint64_t calls = 1;         // per batch
  double screen_ns = 0;       // median of the last three warm-up batches
  bool screen_disturbed = false;  // it says nothing then
  double apart_ns = 0;            // where its race was held (RaceOptions::apart_ns)
  bool was_moved = false;         // in more than one place
  std::vector<double> samples;
  bool alive() const { return row->outcome == RaceOutcome::kUndecided; }
};

void fail(Entry* e, const Status& status) {
  e->row->outcome = RaceOutcome::kFailed;
  e->row->status = status;
  e->row->note = "a call failed: " + status.message().what;
}

// `best_ns`: the least that any runner took until now. Of long calls two that agree are enough.
Status warm_up(Timer& timer, RaceHint hint, Entry* e, double best_ns = INFINITY) {
  KRN_TRY_LET(const double first, timer.first_call(*e->runner));
  const Slots before = timer.slots();
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
    const bool is_long = ns > static_cast<double>(kLongCallNs);
    if (is_long && ns > kHopeless * best_ns) break;
    if (batches.size() < (is_long ? 2 : 3)) continue;
    const auto [low, high] = std::minmax({last(1), last(2), last(is_long ? 2 : 3)});
    if (high <= low * kAgree || timer.now() - begin > kMaxWarmNs) break;
  }
  if (batches.empty()) batches.push_back(first);
  e->screen_ns = batches.size() < 3 ? median(batches) : median(std::array{last(1), last(2), last(3)});
  e->row->ns = e->screen_ns;
  e->row->first_over_steady = e->screen_ns > 0 ? first / e->screen_ns : 0;
  e->screen_disturbed = (timer.slots() - before).too_many();
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

// The quartiles of the samples' logarithms: outliers and a single step do not count.
struct Spread {
  double quick = 0, slow = 0;
  explicit Spread(const std::vector<double>& samples) {
    if (samples.empty()) return;
    std::vector<double> logs;
    for (const double ns : samples) logs.push_back(std::log(ns));
    std::sort(logs.begin(), logs.end());
    quick = logs[logs.size() / 4], slow = logs[logs.size() * 3 / 4];
  }
  double deviation() const { return (slow - quick) / 1.349; }
};

std::string others_had(const Slots& slots) {
  return "others had the processor in " + std::to_string(slots.disturbed) + " of " + std::to_string(slots.taken) +
         " timed stretches";
}

std::string seconds(double ns) { return std::to_string(static_cast<int>(std::lround(ns / 1e9))) + " s"; }
std::string percent(double share) { return std::to_string(static_cast<int>(std::lround(100 * share))) + " %"; }

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
    double best_ns = INFINITY;
    for (size_t i = 0; i < entries_.size(); ++i) {
      Status status = warm_up(timer_, options_.hint, &entries_[i], best_ns);
      if (status.ok() && !entries_[i].screen_disturbed) best_ns = std::min(best_ns, entries_[i].screen_ns);
      if (status.ok()) continue;
      if (i == 0) return status;
      fail(&entries_[i], status);
    }
    KRN_TRY(settle_baseline(replay));
    KRN_TRY(race_candidates());
    choose();
    KRN_TRY(confirm());
    sheet_.load_after = machine_load();
    return std::move(sheet_);
  }

 private:
  // Eager with replay is the baseline only after it won its own race against eager.
  Status settle_baseline(size_t replay) {
    sheet_.baseline = 0;
    if (replay != 0 && replay < entries_.size() && entries_[replay].alive()) {
      screen({replay}, 0);
      if (entries_[replay].alive()) KRN_TRY(race_group(0, {replay}, false));
      if (entries_[replay].row->outcome == RaceOutcome::kAccept) {
        sheet_.baseline = replay;
        entries_[0].row->outcome = RaceOutcome::kReject;
        entries_[0].row->note = "eager with replay is faster";
        entries_[replay].row->note = "won its own race against eager";
        entries_[replay].row->baseline_ns = 0;  // that was eager's
      }
      sheet_.baseline_disturbed = entries_[replay].row->outcome == RaceOutcome::kDisturbed;
    }
    baseline().row->outcome = RaceOutcome::kBaseline;
    return {};
  }

  Status race_candidates() {
    std::vector<size_t> open;
    size_t best = sheet_.baseline;
    for (size_t i = 0; i < entries_.size(); ++i) {
      if (!entries_[i].alive()) continue;
      open.push_back(i);
      const Entry &e = entries_[i], &b = entries_[best];
      if (!e.screen_disturbed && (b.screen_disturbed || e.screen_ns < b.screen_ns)) best = i;
    }
    const auto by_screen = [&](size_t a, size_t b) { return entries_[a].screen_ns < entries_[b].screen_ns; };
    std::vector<size_t> wanted = options_.one_must_race;
    std::erase_if(wanted, [&](size_t i) { return i >= entries_.size() || !entries_[i].alive(); });
    if (!wanted.empty()) must_race_ = *std::min_element(wanted.begin(), wanted.end(), by_screen);
    screen(open, best);
    std::erase_if(open, [&](size_t i) { return !entries_[i].alive(); });
    std::stable_sort(open.begin(), open.end(), by_screen);
    if (!is_long(baseline())) {
      for (const size_t i : open) {
        if (sheet_.disturbed.empty() || timer_.is_patient())
          KRN_TRY(race_group(sheet_.baseline, {i}, options_.confirm_ns > 0));
        else
          disturb(i, sheet_.disturbed);  // the others never rest: a further race would tell as little
      }
      return {};
    }
    std::stable_partition(open.begin(), open.end(), [&](size_t i) { return i == must_race_; });
    for (size_t i = 2; i < open.size(); ++i) {
      entries_[open[i]].row->outcome = RaceOutcome::kScreened;
      entries_[open[i]].row->note = "calls are long: only the two best of the screen are raced";
      if (entries_[open[i]].screen_disturbed) entries_[open[i]].row->ns = 0;
    }
    open.resize(std::min<size_t>(open.size(), 2));
    return open.empty() ? Status() : race_group(sheet_.baseline, open, options_.confirm_ns > 0);
  }

  Entry& baseline() { return entries_[sheet_.baseline]; }
  static bool is_long(const Entry& e) { return e.screen_ns > static_cast<double>(kLongCallNs); }

  // Not raced is what takes so much longer than the best, at its own time and again beside it.
  void screen(const std::vector<size_t>& which, size_t best) {
    if (entries_[best].screen_disturbed) return;
    for (const size_t i : which) {
      Entry& e = entries_[i];
      if (e.screen_disturbed || i == must_race_ || e.screen_ns <= kScreenRatio * entries_[best].screen_ns) continue;
      if (!stays_behind(entries_[best], &e) || !e.alive()) continue;
      e.row->outcome = RaceOutcome::kScreened;
      e.row->gain = baseline_gain(e);
      e.row->note = "more than 1.3x the time of the best in the screen";
      e.row->gain_low = e.row->gain_high = e.row->gain;
    }
  }

  // Whether a few batches of both in turn say the same as the screen, in which each had a time of its own: where neighbours slow a
  // machine down for tenths of a second, one and a half times the work was seen to take less. One that does not, or is disturbed, is
  // enough to race it.
  bool stays_behind(const Entry& best, Entry* e) {
    const bool long_calls = is_long(*e);
    if (long_calls && e->screen_ns > kHopeless * best.screen_ns) return true;
    for (int pair = 0; pair < (long_calls ? 1 : kScreenPairs); ++pair) {
      const int disturbed = timer_.slots().disturbed;
      const Result<double> best_ns = timer_.batch(*best.runner, best.calls, options_.hint);
      if (!best_ns.ok()) return false;  // its own race will say so
      const Result<double> own_ns = timer_.batch(*e->runner, e->calls, options_.hint);
      if (!own_ns.ok()) {
        fail(e, own_ns.status());
        return true;
      }
      if (timer_.slots().disturbed > disturbed || *own_ns <= kScreenRatio * *best_ns) return false;
    }
    return true;
  }

  double baseline_gain(const Entry& e) { return e.screen_ns > 0 ? baseline().screen_ns / e.screen_ns : 1; }

  // Races a group that shares the samples of A. Where A's own time is unsteady for no reason that is seen, the race is held again
  // after a rest, and at last tells what holds whichever of its times A takes. `published`: the gain will be, and has to be known.
  Status race_group(size_t a, const std::vector<size_t>& group, bool published) {
    Interference& interference = timer_.interference();
    const double known_ns = entries_[a].row->ns;
    std::string why;
    double deviation = 0;
    for (int races = 1;; ++races) {
      const Slots before = timer_.slots();
      const uint64_t stolen = interference.stolen_ns(), used = interference.used_ns(), begin = timer_.now();
      const DeviceCondition condition = timer_.condition();
      KRN_TRY(run_blocks(a, group));
      const std::string device = what_disturbed(condition, timer_.condition());
      const Slots slots = timer_.slots() - before;
      const auto had = static_cast<double>(std::max<uint64_t>(interference.used_ns() - used, 1));
      const uint64_t lost = interference.stolen_ns() - stolen;
      const double taken_away = lost < kLeastStolenNs ? 0 : static_cast<double>(lost) / had;
      deviation = interference.knows_all() ? 0 : Spread(entries_[a].samples).deviation();
      if (slots.too_many())
        why = others_had(slots);
      else if (taken_away > kStolenShare)
        why = "the hypervisor took " + percent(taken_away) + " as much time as this process had";
      else if (!device.empty())
        why = device;
      else if (deviation > kUnsteady && races < kMostRaces && timer_.now() - begin < options_.limit_ns / kMostRaces &&
               timer_.wait_out(kBetweenRacesNs))
        continue;
      break;
    }
    bool told = false;  // what the baseline takes
    for (const size_t i : group) {
      RaceRow& row = *entries_[i].row;
      if (row.outcome == RaceOutcome::kFailed || row.outcome == RaceOutcome::kCancelled) continue;
      std::string own = why;
      if (own.empty() && row.blocks > 0 && deviation > kUnsteady && !holds_at_all_times(a, i, published))
        own = "the baseline's own time deviates by " + percent(deviation);
      // The pairs of a block and the medians of all samples tell the same, or the machine changed meanwhile: then that the one is faster is
      // all that may be known.
      const double medians = row.ns > 0 ? std::log(median(entries_[a].samples) / row.ns) : 0;
      if (own.empty() && row.blocks > 0 && !interference.knows_all() && deviation <= kUnsteady &&
          std::abs(medians - std::log(row.gain)) > kContradiction && !holds_at_all_times(a, i, published))
        own = "the times' medians are " + std::to_string(std::exp(medians)) + "x apart, their pairs " +
              std::to_string(row.gain) + "x";
      if (own.empty()) {
        told = true;
        continue;
      }
      disturb(i, own);
    }
    if (!told) entries_[a].row->ns = entries_[a].screen_disturbed ? 0 : known_ns;
    return {};
  }

  // Whether runner i's outcome is the same at A's quick quartile and its own slow one, and the other way round. Its interval then
  // reaches from the one to the other.
  bool holds_at_all_times(size_t a, size_t i, bool published) {
    RaceRow& row = *entries_[i].row;
    const Spread base(entries_[a].samples), own(entries_[i].samples);
    const double least = base.quick - own.slow, most = base.slow - own.quick;
    row.gain_low = std::min(row.gain_low, std::exp(least));
    row.gain_high = std::max(row.gain_high, std::exp(most));
    if (published && most - least > 2 * kPublished) return false;
    return row.outcome == RaceOutcome::kAccept ? least > threshold_ : row.outcome == RaceOutcome::kReject && most < threshold_;
  }

  void disturb(size_t i, const std::string& why) {
    RaceRow& row = *entries_[i].row;
    row = {row.name, RaceOutcome::kDisturbed, 0, 0, 1, 1, 1, 0, row.first_over_steady, {}, why};
    if (sheet_.disturbed.empty()) sheet_.disturbed = why;
  }

  struct Lane {
    Entry* entry;
    SequentialTest test;
    bool open;
    double log_sum;  // of the current block's samples
  };

  // Blocks until every lane has its answer.
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
    const Slots before = timer_.slots();
    double place = timer_.apart_ns();
    uint64_t asked = timer_.now();
    bool was_moved = false;
    const auto look_where = [&] {
      const double apart_ns = timer_.apart_ns();
      was_moved = was_moved || !same_place(place, apart_ns);
      if (apart_ns > 0) place = apart_ns;
      asked = timer_.now();
    };
    for (int quiet = 0; any_open() || KRN_PLANTED(race_to_the_limit);) {
      // A long call gets at least the blocks of its first look, or it could never be decided.
      if (quiet >= kRaceLooks[0].blocks && timer_.now() - begin > options_.limit_ns) break;
      if (timer_.cancelled()) {
        cancel(&lanes);
        break;
      }
      KRN_TRY_LET(const bool counts, run_block(&base, &lanes, long_calls, quiet % 2 == 1));
      quiet += counts;
      if (timer_.now() - asked > kBetweenPlacesNs) look_where();
      const Slots slots = timer_.slots() - before;
      if (slots.taken >= kSlotsToTell && slots.too_many()) break;
    }
    look_where();
    for (Lane& lane : lanes) {
      lane.entry->apart_ns = place, lane.entry->was_moved = was_moved;
      finish(base, &lane);
    }
    return {};
  }

  // A B.. ..B A: the order of a group is mirrored, so that drift cancels for each. Long calls get half of that, A B.. or, `backwards`,
  // ..B A: drift cancels over two blocks. False: the block was disturbed and is not counted.
  Result<bool> run_block(Entry* base, std::vector<Lane>* lanes, bool long_calls, bool backwards) {
    const bool whole = !long_calls;
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
    const int disturbed = timer_.slots().disturbed;
    if (whole || !backwards) {
      KRN_TRY(sample_a());
      for (size_t i = 0; i < lanes->size(); ++i) sample_b(&(*lanes)[i]);
    }
    if (whole || backwards) {
      for (size_t i = lanes->size(); i-- > 0;) sample_b(&(*lanes)[i]);
      KRN_TRY(sample_a());
    }
    if (timer_.slots().disturbed > disturbed) return false;  // the next block may be quiet
    for (Lane& lane : *lanes)
      if (lane.open) judge(&lane, (log_a - lane.log_sum) / (whole ? 2 : 1));
    return true;
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
    row.baseline_ns = base.row->ns = median(base.samples);
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

  // What one block of the confirmation showed, and where.
  struct Block {
    double apart_ns = 0, log_gain = 0;
    std::vector<double> base_ns, own_ns;
  };

  // Those of the place that most of them were taken in.
  static std::vector<Block> of_one_place(std::vector<Block> blocks) {
    const auto is_here = [](double place) { return [place](const Block& other) { return same_place(place, other.apart_ns); }; };
    const auto num_like = [&](const Block& block) { return std::ranges::count_if(blocks, is_here(block.apart_ns)); };
    const auto place = std::ranges::max_element(blocks, {}, num_like);
    if (place != blocks.end()) std::erase_if(blocks, std::not_fn(is_here(double{place->apart_ns})));
    return blocks;
  }

  // The winner again, in blocks with rests between them.
  Status confirm() {
    if (sheet_.winner == sheet_.baseline || options_.confirm_ns == 0 || KRN_PLANTED(unconfirmed)) return {};
    const size_t w = sheet_.winner;
    Entry &base = baseline(), &winner = entries_[w];
    const bool long_calls = is_long(base) || is_long(winner);
    const double block_ns = long_calls ? base.row->ns + winner.row->ns
                                       : 2 * 3 * (base.row->ns * static_cast<double>(base.calls) +
                                                  winner.row->ns * static_cast<double>(winner.calls));
    const auto spread_ns = static_cast<double>(options_.confirm_ns);
    if (block_ns * winner.row->blocks > spread_ns && !winner.was_moved) {  // its race lasted as long
      sheet_.apart_ns = winner.apart_ns;
      return {};
    }
    const double rest_ns = std::max(0.0, spread_ns / kConfirmation.blocks - block_ns);
    std::vector<Lane> lanes;
    lanes.push_back({&winner, SequentialTest(threshold_), true, 0});
    std::vector<Block> blocks;
    int num_quiet = 0;
    const Slots before = timer_.slots();
    const DeviceCondition condition = timer_.condition();
    for (int i = 0; i < kConfirmation.blocks && !timer_.cancelled(); ++i) {
      timer_.rest(static_cast<uint64_t>(rest_ns));
      const double place = timer_.apart_ns();
      for (const Entry* e : {&base, &winner})
        KRN_TRY(timer_.batch(*e->runner, e->calls, options_.hint).status());  // awake, but not counted
      lanes[0].open = true;
      base.samples.clear();
      winner.samples.clear();
      KRN_TRY_LET(const bool counts, run_block(&base, &lanes, long_calls, i % 2 == 1));
      if (winner.row->outcome == RaceOutcome::kFailed) break;
      const double after = timer_.apart_ns();
      num_quiet += counts;
      if (counts && same_place(place, after))
        blocks.push_back({after, lanes[0].test.samples().back(), std::move(base.samples), std::move(winner.samples)});
    }
    RaceRow& row = *winner.row;
    blocks = of_one_place(std::move(blocks));
    const bool was_moved = static_cast<double>(blocks.size()) < kOnePlace * num_quiet;
    std::vector<double> d, base_ns, own_ns, places;
    for (const Block& block : blocks) {
      d.push_back(block.log_gain);
      if (block.apart_ns > 0) places.push_back(block.apart_ns);
      base_ns.insert(base_ns.end(), block.base_ns.begin(), block.base_ns.end());
      own_ns.insert(own_ns.end(), block.own_ns.begin(), block.own_ns.end());
    }
    const int drop = exact_drop(static_cast<int>(d.size()), kMiss);
    const auto no_more_than = [&](size_t count, int of) {
      return "no more than " + std::to_string(count) + " of " + std::to_string(of) + " blocks ";
    };
    if (row.outcome == RaceOutcome::kFailed || timer_.cancelled()) {
      // Its status says it, or who asked for the end.
    } else if (was_moved) {
      disturb(w, "the machine's processors were moved: " + no_more_than(blocks.size(), num_quiet) + "were timed in one place");
    } else if (drop < 0) {
      disturb(w, no_more_than(blocks.size(), kConfirmation.blocks) + "that would confirm it were quiet");
    } else {
      const Shift shift = signed_rank_shift(d, drop);
      row.gain = std::exp(shift.estimate), row.gain_low = std::exp(shift.low), row.gain_high = std::exp(shift.high);
      row.blocks += shift.blocks;
      row.ns = median(own_ns);
      row.baseline_ns = base.row->ns = median(base_ns);
      row.outcome = RaceOutcome::kAccept;
      sheet_.apart_ns = places.empty() ? 0 : median(places);
      const Slots slots = timer_.slots() - before;
      const double half = (shift.high - shift.low) / 2;
      const std::string device = what_disturbed(condition, timer_.condition());
      if (slots.too_many())
        disturb(w, others_had(slots));
      else if (!device.empty())
        disturb(w, device);
      else if (half > kPublished && !timer_.interference().knows_all())
        disturb(
            w, "blocks spread over " + seconds(spread_ns) + " tell the gain to " + percent(std::expm1(half)) + " only");
      else if (shift.low <= threshold_)
        row.outcome = RaceOutcome::kUndecided, row.note = "faster in its race, but not for " + seconds(spread_ns);
    }
    if (row.outcome != RaceOutcome::kAccept) sheet_.winner = sheet_.baseline;
    return {};
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
      sheet_.winner -=
          static_cast<size_t>(std::count_if(entries_.begin(), entries_.begin() + static_cast<ptrdiff_t>(sheet_.winner), failed));
  }

  RaceOptions options_;
  Timer timer_;
  double threshold_;
  size_t must_race_ = SIZE_MAX;
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
    case RaceOutcome::kDisturbed: return "disturbed";
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
