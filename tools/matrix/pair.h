// SPDX-License-Identifier: Apache-2.0
//
// How a pair is timed: two resident worker processes of which one sleeps while the other works, blocks A B B A, three a
// launch, fresh processes for more, because each launch has its own bias. Base is A in one launch and head in the next:
// who starts first was 1 % slower. What it makes is records: nothing is concluded here (judge.h). A slot in which
// others had the processor or the device is taken again, and its block counts for nothing if it stays disturbed. Nothing lasts beyond
// the end that the options name: a course that it cut off has failed as `cancelled`. Starts are timed in pairs of processes that are new
// and have nothing compiled (measure.h says what of them), A B, then B A.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/matrix/cases.h"
#include "tools/matrix/side.h"

namespace keirin::tools::matrix {

inline constexpr int kBlocksPerLaunch = 3;

// What one side runs.
struct Way {
  std::string program;    // of its workers
  std::string stack;      // id of its record
  std::string cache;      // folder
  std::string variant;    // eager, replay, compiled:<plugin>, auto, peer:<name>
  std::string candidate;  // that answers; empty: not found yet
  std::string package;    // folder of Keirin's Python package, for a worker that trains; empty: none
};

struct PairOptions {
  std::string device = "cpu";
  std::string imagine;   // an instruction set that is compiled for and not here; empty: none
  int threads = 0;       // 0: as many as LibTorch has
  double agree = 0.005;  // of two warm-up windows: half the gate
  uint64_t slot_ns = 20'000'000;
  int least_repetitions = 5;  // of a slot, unless they take longer than five slots
  std::chrono::steady_clock::time_point end = std::chrono::steady_clock::time_point::max();
};

// How the workers of one side did, over the launches.
struct Course {
  Status failed;  // the first failure; no further launch is made then
  // Until it was found what answers: compiled, verified and raced on an empty cache; 0: not asked here.
  uint64_t cold_ns = 0;
  std::vector<uint64_t> build_ns, first_ns, calls_to_settle, settle_ns;
  nlohmann::json counts = nlohmann::json::object();
  nlohmann::json fallbacks = nlohmann::json::array();  // why parts are eager
  nlohmann::json errors = nlohmann::json::object();    // of answers, where they were verified
};

struct TimedSlot {
  const Measure* measure = &kCallTimes;
  int launch = 0, block = 0, slot = 0;  // slot: 0 to 3 of the block, of a start 0 or 1
  bool is_base = true;
  bool kept = true;  // nothing disturbed any slot of its block
  uint64_t calls_per_value = 1;
  std::vector<uint64_t> ns;
};

struct PairTimes {
  Course base, head;
  std::vector<TimedSlot> slots;
  int taken = 0, dropped = 0;  // blocks
  int retaken = 0;             // slots
  std::string disturbance;     // the last that was seen: "others had the processor"
  std::string contended;       // why the rest was not tried; empty: it was
};

// Which candidate answers for this way: replay and eager by name, others by a race, held again if others disturbed it.
// The model is verified here, once; its status is wrong_result if that fails. The first try's time goes into `course`.
Result<std::string> find_candidate(const Case& item, const Way& way, const PairOptions& options, Course* course);

// Adds this many blocks in fresh process pairs.
void time_blocks(const Case& item, const Way& base, const Way& head, const PairOptions& options, int blocks,
                 PairTimes* times);

// Adds this many blocks of starts, each a pair of processes: a slot of every measure of kStartTimes. `base` and `head` name a candidate.
void time_starts(const Case& item, const Way& base, const Way& head, const PairOptions& options, int blocks,
                 PairTimes* times);

}  // namespace keirin::tools::matrix
