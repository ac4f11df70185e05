// SPDX-License-Identifier: Apache-2.0
//
// What is measured: a case is a model under fixed conditions, written "bert/small/f32/infer/single/default". Sets of
// cases are text files, one case a line; a shard is the part of a set whose cases' hashes fall to it, so that no list
// has to be agreed on.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "tools/matrix/measure.h"

namespace keirin::tools::matrix {

inline constexpr std::string_view kCompiled = "compiled:";  // and the name of a plugin: a variant

struct Case {
  std::string model;     // of the zoo; trained: of bench/python/training_models.py
  std::string sizes;     // "tiny", "small", "full", "others": which zoo; "small@4x64": with those free sizes
  std::string dtype;     // of its floats, for people: the file fixes it
  std::string work;      // "infer"; "train": a step of forward, backward and optimiser
  // "single": one call after the other; "callers-4": four threads call at once; "cold-start", "cold-compile", "cold-call": what a new
  // process takes (measure.h).
  std::string scenario;
  std::string mode;      // Options::mode
  std::string text() const;
  std::string zoo() const;                  // the part of `sizes` that names it
  std::vector<int64_t> free_sizes() const;  // in the order of the inputs; empty: those of the export
  int callers() const;                      // threads
  bool trains() const { return work == "train"; }
  bool starts() const { return is_start(text()); }  // it is about a process's start
  Case warm() const;                                // the same model in calls, one after the other
  // Whether such a variant is a cell of it: training knows no replay, and which plugin answers is its backend's choice; of what is not
  // Keirin's no start is compared.
  bool has(const std::string& variant) const;
};

inline constexpr int kMostCallers = 64;

// `invalid_input` names the part that is not allowed.
Result<Case> parse_case(const std::string& text);

// Each case with each of these free sizes ("4x64"), then each with so many callers; what is empty changes nothing. Those that train
// or are about a start stay as they are.
Result<std::vector<Case>> grid_of(const std::vector<Case>& cases, const std::vector<std::string>& shapes,
                                  const std::vector<int>& callers);

// These, and what a process takes to start each that infers and has one caller.
std::vector<Case> with_starts(const std::vector<Case>& cases);

// The cases of a set that is shipped ("smoke", "ci", "full", "shapes"), or of a file. `#` begins a comment.
Result<std::vector<Case>> read_case_set(const std::string& name);

struct Shard {
  uint64_t number = 1, count = 1;
};
// "3/8"; from 1. "auto": what Slurm's array or Kubernetes' indexed job says of this process.
Result<Shard> parse_shard(const std::string& text);
bool in_shard(const Case& item, const Shard& shard);

// Shell patterns; an empty one matches all.
bool matches(const Case& item, const std::string& pattern);

}  // namespace keirin::tools::matrix
