// SPDX-License-Identifier: Apache-2.0
//
// What the records say: one verdict per cell of a sitting, made of the raw samples by core/tune/stats.h and of nothing
// else. The invariant: the same records give the same bytes, whatever file or order they came in, and however often.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/tune/stats.h"
#include "tools/matrix/measure.h"
#include "tools/matrix/store.h"

namespace keirin::tools::matrix {

// Another compiler's row, which stands beside the others and decides nothing.
inline bool is_peer(const std::string& variant) { return variant.starts_with("peer:"); }

// What a hostile run could hold: intervals take the square of it. A pair has 48 at most.
inline constexpr size_t kMaxBlocks = 200;

// One block of a pair, as the statistics see it.
struct BlockShift {
  int launch = 0;
  double d = 0;        // mean log head - mean log base
  bool fresh = false;  // of the second stage
};

struct Verdict {
  std::string sitting, purpose;  // purpose: compare, selfcheck, run
  double time = 0;               // of the sitting, seconds since 1970
  int threads = 0;
  std::string machine, machine_class, fitness;
  std::string device, imagined;             // as --device and --imagine take them
  bool confirms = false;                    // the sitting measured what another host's report calls changed
  std::string item, variant, against;       // the case's text; what head and base ran
  std::string base_run, head_run, confirm;  // ids; confirm: of head's run that was measured once more, if it was
  std::string candidate;                    // that answered on head's side
  Shift shift;                              // log head - log base; of the fresh blocks if there are any
  std::optional<double> gate;
  double p = 1;                                      // of the direction that the shift has, against the gate
  int dropped = 0;                                   // blocks
  double base_ns = 0, head_ns = 0;                   // median slot
  std::vector<BlockShift> blocks;                    // of both stages
  std::vector<double> base_slots_ns, head_slots_ns;  // of the stage that the label is made of
  std::string label;                                 // as label_name, or "not_run"
  bool flagged = false;                              // has to be measured once more to be called
  // Wrong numbers, a crash or a hang of head, or nothing to offer where base had: never a pass.
  bool head_failed = false;
  std::vector<std::string> reasons;

  bool measured() const { return shift.blocks > 0; }
  // Whether its label decides the sitting's exit code: it is what the sitting asks, and times count here, with no gate
  // above the largest, or the label is made of counts. An unknown gate decides too: nothing was shown.
  bool gated() const;
  // Where times only inform, two builds are told apart by what is counted: the label is made of that alone.
  bool by_counts() const { return (fitness == "counts" || compiled_only()) && purpose == "compare" && !is_start(item); }
  // For a device that was not there: nothing ran.
  bool compiled_only() const { return fitness == "compile"; }
};

// All cells of all sittings, also those planned that no record is about ("not_run"); by sitting, case and variant.
std::vector<Verdict> judge(const Store& store);

// As a `verdict` record.
Record record_of(const Verdict& verdict);

// The gate of a series on one machine with so many threads (0: LibTorch's number), by the sittings of the same binary
// twice that are among the verdicts.
std::optional<double> gate_from(const std::vector<Verdict>& verdicts, const std::string& machine, int threads,
                                const std::string& item, const std::string& variant);

}  // namespace keirin::tools::matrix
