// SPDX-License-Identifier: Apache-2.0
#include "core/tune/instructions.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace keirin {

std::optional<InstructionCount> InstructionCount::of_environment() {
  const char* path = secure_getenv("KEIRIN_INSTRUCTIONS");
  if (!path) return {};
  InstructionCount count;
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  struct stat about;
  if (file >= 0 && fstat(file, &about) == 0 && about.st_size >= static_cast<off_t>(sizeof(uint64_t))) {
    void* at = mmap(nullptr, sizeof(uint64_t), PROT_READ, MAP_SHARED, file, 0);
    if (at != MAP_FAILED)
      count.at_.reset(static_cast<const uint64_t*>(at), [](const uint64_t* p) { munmap(const_cast<uint64_t*>(p), sizeof(uint64_t)); });
  }
  if (file >= 0) close(file);
  return count;
}

Result<RaceSheet> count_calls(const std::vector<Runner>& runners, const InstructionCount& count, double threshold) {
  RaceSheet sheet;
  for (const Runner& runner : runners) {
    RaceRow row;
    row.name = runner.name;
    row.status = runner.call();
    const uint64_t before = count.now();
    if (row.status.ok()) row.status = runner.call();
    row.ns = static_cast<double>(count.now() - before);
    const size_t number = sheet.rows.size();
    if (!row.status.ok()) {
      if (number == 0) return row.status;
      row.outcome = RaceOutcome::kFailed;
    } else if (row.ns <= 0) {
      return Status(Code::k_unsupported, "KEIRIN_INSTRUCTIONS is set and nobody counts instructions in its file");
    } else if (number == 0) {
      row.outcome = RaceOutcome::kBaseline;
    } else {
      row.baseline_ns = sheet.rows[0].ns;
      row.gain = row.gain_low = row.gain_high = row.baseline_ns / row.ns;
      row.blocks = 1;
      row.outcome = row.gain > 1 + threshold ? RaceOutcome::kAccept : RaceOutcome::kReject;
      if (row.outcome == RaceOutcome::kReject)
        row.note = row.gain < 1 ? "more instructions" : "fewer instructions, by less than what counts";
      const bool best = sheet.winner == 0 || row.ns < sheet.rows[sheet.winner].ns;
      if (row.outcome == RaceOutcome::kAccept && best) sheet.winner = number;
    }
    sheet.rows.push_back(std::move(row));
  }
  return sheet;
}

}  // namespace keirin
