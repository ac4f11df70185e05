// SPDX-License-Identifier: Apache-2.0
#include "tools/matrix/pair.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <thread>

#include "core/tune/interference.h"

namespace keirin::tools::matrix {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;

constexpr milliseconds kOpenDeadline{300'000}, kWarmDeadline{60'000}, kSlotDeadline{120'000};
constexpr int kPausesMs[] = {
    0,  0,   4,   16,  64,
    64, 128, 128, 256, 256};     // before a disturbed slot is taken again: longer than loads that come and go
constexpr int kDroppedPart = 5;  // one block in so many may stay disturbed
constexpr int kLeastTaken = 6;   // blocks, before that is asked
constexpr int kMostRaces = 3;
// Before a disturbed start is taken again. A host counts what it takes in steps of 10 ms, and one of them disturbs a short start: where it
// takes 2 % every fourth does, and several in a row are seldom.
constexpr int kStartPausesMs[] = {0, 16, 64, 128, 256, 512, 1'024};
constexpr milliseconds kDeviceMemory{1'100};

json open_question(const Case& item, const Way& way, const PairOptions& options, bool verify) {
  return {{"ask", "open"},
          {"case", item.text()},
          {"variant", way.variant},
          {"candidate", way.candidate},
          {"device", options.device},
          {"threads", options.threads},
          {"cache", way.cache},
          {"package", way.package},
          {"imagine", options.imagine},
          {"verify", verify}};
}

// Asks, and waits no longer than there is time: `cancelled` once that is over.
Result<json> ask(Side* side, const json& question, milliseconds deadline, const PairOptions& options) {
  const auto left = std::chrono::duration_cast<milliseconds>(options.end - std::chrono::steady_clock::now());
  if (left.count() <= 0) return Status(Code::k_cancelled, "the time to measure in was over");
  Result<json> answer = side->ask(question, std::min(deadline, left));
  if (!answer.ok() && answer.status().code() == Code::k_timeout && left < deadline)
    return Status(Code::k_cancelled, "the time to measure in was over");
  return answer;
}

// One worker, opened and warm.
Result<Side> launch(const Case& item, const Way& way, const PairOptions& options, Course* course) {
  KRN_TRY_LET(Side side, Side::start(way.program));
  KRN_TRY_LET(const json opened, ask(&side, open_question(item, way, options, false), kOpenDeadline, options));
  course->build_ns.push_back(opened.value("build_ns", uint64_t{0}));
  course->counts.update(opened.value("counts", json::object()));
  KRN_TRY_LET(const json warm, ask(&side, {{"ask", "warm"}, {"agree", options.agree}}, kWarmDeadline, options));
  // Of calls: what the least of the launches took, which nothing happened to beside.
  const json counted = warm.value("counts", json::object());
  for (const auto& [name, value] : counted.items()) {
    const auto known = course->counts.find(name);
    if (known == course->counts.end() || value < *known) course->counts[name] = value;
  }
  course->first_ns.push_back(warm.value("first_ns", uint64_t{0}));
  course->calls_to_settle.push_back(warm.value("settled", false) ? warm.value("calls", uint64_t{0}) : 0);
  course->settle_ns.push_back(warm.value("settle_ns", uint64_t{0}));
  return side;
}

// What others did while a slot was timed; empty: nothing that is seen.
std::string disturbance_of(const json& slot) {
  const double most = kDisturbedShare * slot.value("lasted_ns", 0.0);
  if (slot.value("waited_ns", 0.0) > most || slot.value("stolen_ns", 0.0) > most) return "others had the processor";
  return slot.value("disturbed", "");
}

// The last attempt, quiet or not.
Result<json> take_slot(Side* side, const PairOptions& options, PairTimes* times, bool* quiet) {
  json slot;
  uint64_t fill_ns = options.slot_ns;
  for (const int pause : kPausesMs) {
    if (!slot.is_null()) {
      ++times->retaken;
      fill_ns = std::max(fill_ns / 2, options.slot_ns / 8);  // a shorter stretch has a better chance
    }
    std::this_thread::sleep_for(milliseconds(pause));
    const json question = {{"ask", "slot"},
                           {"fill_ns", fill_ns},
                           {"least", options.least_repetitions},
                           {"most_ns", options.least_repetitions * fill_ns}};
    KRN_TRY_LET(slot, ask(side, question, kSlotDeadline, options));
    const std::string disturbance = disturbance_of(slot);
    if ((*quiet = disturbance.empty())) break;
    times->disturbance = disturbance;
  }
  return slot;
}

// Whether others have work on the device, which is told of its last second only: both sides sleep for longer before.
// What they do; empty: nothing.
Result<std::string> others_on_device(Side* side, const PairOptions& options) {
  std::string disturbed;
  for (int tries = 0; tries < kMostRaces && (tries == 0 || !disturbed.empty()); ++tries) {
    std::this_thread::sleep_for(kDeviceMemory);
    KRN_TRY_LET(const json answer, ask(side, {{"ask", "device"}}, kSlotDeadline, options));
    disturbed = answer.value("disturbed", "");
  }
  return disturbed;
}

// Whether so much was disturbed that the rest is not tried.
bool is_contended(PairTimes* times) {
  if (times->taken < kLeastTaken || times->dropped * kDroppedPart <= times->taken) return false;
  times->contended =
      times->disturbance + " in " + std::to_string(times->dropped) + " of " + std::to_string(times->taken) + " blocks";
  return true;
}

struct Start {
  uint64_t ns[std::size(kStartTimes)];
  bool quiet;
};

// One process on an empty cache, until it has answered a call. What it does before it can be asked is what the answer to the first question
// took beyond the work that the worker says it was.
Result<Start> start_once(const Case& item, Way way, const PairOptions& options, ProcessInterference* host, Course* course) {
  using Clock = std::chrono::steady_clock;
  const auto since = [](Clock::time_point begin) {
    return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - begin).count());
  };
  way.cache += "-starts";
  std::error_code error;
  std::filesystem::remove_all(way.cache, error);
  if (error) return Status(Code::k_exhausted, way.cache + " cannot be emptied: " + error.message());
  const uint64_t stolen = host->stolen_ns();
  const Clock::time_point begin = Clock::now();
  KRN_TRY_LET(Side side, Side::start(way.program));
  KRN_TRY_LET(const json opened, ask(&side, open_question(item, way, options, true), kOpenDeadline, options));
  const uint64_t until_open = since(begin), compile = opened.value("build_ns", uint64_t{0});
  KRN_TRY_LET(const json warm, ask(&side, {{"ask", "warm"}, {"agree", options.agree}, {"most_calls", 0}}, kWarmDeadline, options));
  const uint64_t call = warm.value("first_ns", uint64_t{0});
  if (compile == 0 || call == 0 || compile >= until_open)
    return Status(Code::k_corrupt, "the worker says that it took longer to compile than it was there, or no time");
  course->counts.update(opened.value("counts", json::object()));
  const double most = kDisturbedShare * static_cast<double>(since(begin));
  return Start{{until_open - compile, compile, call},
               warm.value("waited_ns", 0.0) <= most &&
                   static_cast<double>(host->stolen_ns() - stolen) <= most};
}

// False after a failure.
bool time_block(Side* base, Side* head, const PairOptions& options, int launch, PairTimes* times) {
  const size_t first = times->slots.size();
  bool kept = true;
  for (const int slot : {0, 1, 2, 3}) {
    const bool is_base = (slot == 0 || slot == 3) == (launch % 2 == 0);
    bool quiet = true;
    Result<json> taken = take_slot(is_base ? base : head, options, times, &quiet);
    if (!taken.ok()) {
      (is_base ? times->base : times->head).failed = std::move(taken).status();
      times->slots.resize(first);
      return false;
    }
    kept &= quiet;
    times->slots.push_back({&kCallTimes, launch, times->taken, slot, is_base, true, taken->value("calls", uint64_t{1}),
                            taken->value("ns", std::vector<uint64_t>())});
  }
  for (size_t i = first; i < times->slots.size(); ++i) times->slots[i].kept = kept;
  ++times->taken;
  times->dropped += !kept;
  return true;
}

}  // namespace

Result<std::string> find_candidate(const Case& item, const Way& way, const PairOptions& options, Course* course) {
  std::string disturbed;
  for (int race = 0; race < kMostRaces; ++race) {
    KRN_TRY_LET(Side side, Side::start(way.program));
    KRN_TRY_LET(const json opened, ask(&side, open_question(item, way, options, true), kOpenDeadline, options));
    // Launches after it count again what they see: not what they find cached, nor the steps of a plan that nobody timed.
    const json counts = opened.value("counts", json::object());
    if (race == 0) {
      course->cold_ns = opened.value("build_ns", uint64_t{0});
      course->counts = counts;
    } else {
      const json first = course->counts.value("kernels_generated", json());
      course->counts = counts;
      if (!first.is_null()) course->counts["kernels_generated"] = first;
    }
    course->fallbacks = opened.value("fallbacks", json::array());
    course->errors = opened.value("errors", json::object());
    disturbed = opened.value("disturbed", "");
    if (disturbed.empty()) return opened.value("chosen", "");
    std::this_thread::sleep_for(milliseconds(500));
  }
  return Status(Code::k_exhausted, "which candidate answers was not found: " + disturbed);
}

void time_blocks(const Case& item, const Way& base, const Way& head, const PairOptions& options, int blocks,
                 PairTimes* times) {
  const int wanted = times->taken - times->dropped + blocks;
  for (int number = times->slots.empty() ? 0 : times->slots.back().launch + 1; times->taken - times->dropped < wanted;
       ++number) {
    const bool head_first = number % 2 == 1;
    std::optional<Side> sides[2];  // base, head
    for (const bool is_head : {head_first, !head_first}) {
      Course& course = is_head ? times->head : times->base;
      Result<Side> side = launch(item, is_head ? head : base, options, &course);
      if (!side.ok()) {
        course.failed = std::move(side).status();
        return;
      }
      sides[is_head].emplace(std::move(*side));
    }
    if (options.device != "cpu") {
      Result<std::string> others = others_on_device(&*sides[0], options);
      if (!others.ok()) {
        times->base.failed = std::move(others).status();
        return;
      }
      if (!(times->contended = std::move(*others)).empty()) return;
    }
    const int end = std::min(wanted, times->taken - times->dropped + kBlocksPerLaunch);
    for (int tries = 0; tries < 2 * kBlocksPerLaunch && times->taken - times->dropped < end; ++tries) {
      if (!time_block(&*sides[0], &*sides[1], options, number, times)) return;
      if (is_contended(times)) return;
    }
  }
}

void time_starts(const Case& item, const Way& base, const Way& head, const PairOptions& options, int blocks,
                 PairTimes* times) {
  ProcessInterference host(false);
  const int wanted = times->taken - times->dropped + blocks;
  while (times->taken - times->dropped < wanted && !is_contended(times)) {
    bool kept = true;
    const size_t first = times->slots.size();
    for (const int slot : {0, 1}) {
      const bool is_base = (slot == 0) == (times->taken % 2 == 0);
      Course& course = is_base ? times->base : times->head;
      Result<Start> start = Status(Code::k_internal, "not started");
      for (const int pause : kStartPausesMs) {
        times->retaken += pause > 0;
        std::this_thread::sleep_for(milliseconds(pause));
        start = start_once(item, is_base ? base : head, options, &host, &course);
        if (!start.ok() || start->quiet) break;
        times->disturbance = "others had the processor";
      }
      if (!start.ok()) {
        course.failed = std::move(start).status();
        times->slots.resize(first);
        return;
      }
      kept &= start->quiet;
      for (size_t i = 0; i < std::size(kStartTimes); ++i)
        times->slots.push_back({&kStartTimes[i], times->taken, times->taken, slot, is_base, true, 1, {start->ns[i]}});
    }
    for (size_t i = first; i < times->slots.size(); ++i) times->slots[i].kept = kept;
    ++times->taken;
    times->dropped += !kept;
  }
}

}  // namespace keirin::tools::matrix
