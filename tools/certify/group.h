// SPDX-License-Identifier: Apache-2.0
//
// What certifying a plugin comes to: groups of checks and sheets of cases, what of them failed, and how to repeat it. The programs that
// find it out are tests/certify, tests/conformance and tests/graphs, each of which tries the plugin in processes of its own.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/host/find/manifest.h"

namespace keirin::tools::certify {

struct Words {
  std::string library{}, only{}, json{}, html{}, known{};
  double deadline = 60;  // of one check, and of a case of what runs on a GPU, in seconds
  int jobs = 0;          // processes of a GPU's cases at once; 0: as many as processors, and no more than 16
  bool quick = false;
};

struct Failure {
  std::string which, reason;  // which: GROUP/CASE, which --case takes
};

// A row of a sheet: an operator, with its cases.
struct Operator {
  std::string name;
  int64_t passed = 0, failed = 0, unclaimed = 0, skipped = 0;
};

// A lettered group's.
struct Checked {
  std::string name, asks, outcome, reason;  // outcome: passed, failed, not offered, not run, not tried
  double seconds = 0;
};

// A letter's checks, or a sheet of cases. What nobody claims or offers, and what this machine cannot ask, is counted by itself and never as
// passed.
struct Group {
  std::string name;   // "A", "operators"
  std::string title;  // "A static", "operators"
  int64_t passed = 0, failed = 0, unclaimed = 0, known = 0, not_tried = 0, not_run = 0;  // not_run: checks; 1 of a sheet that was not
  std::string ended{};    // why it did not come to its end; empty if it did
  std::string not_run_because{};  // of a sheet
  std::vector<Operator> operators{};
  std::vector<Checked> checks{};
  std::vector<Failure> failures{}, known_failures{};
  bool right() const { return failed == 0 && ended.empty(); }
};

// What is certified: one library on one machine, by its bytes.
struct Subject {
  Manifest manifest;
  std::string library, folder, sha256;
  // Of hardware that the plugin drives, by its uid: why LibTorch has no memory there; empty if it has. Sheets of a GPU need it.
  std::function<std::string(const std::string& uid)> why_no_memory{};
};

// The programs of the groups, installed or in the build folder.
struct Programs {
  std::filesystem::path checks, conformance, graphs, worker, skips;  // skips: empty where the program knows its own
};

Result<std::string> hash_of(const std::string& path);
// The plugin that `typed` names: its library, or the folder with its manifest.
Result<Subject> find_subject(const std::string& typed);
Result<Programs> find_programs();

// All groups, in order, or what `words.only` names. Files go into `scratch`. `device` becomes the uid of the hardware that the plugin was
// tried on; empty: none was met.
std::vector<Group> run_groups(const Subject& subject, const Programs& programs, const Words& words, const std::filesystem::path& scratch,
                              std::string& device);
// "A", "A/one_export", "operators", "operators/...": what --case takes. Empty, or what is wrong with it.
std::string check_only(const std::string& text);
// The command that repeats it.
std::string repeat_of(const Words& words, const Failure& failure);

}  // namespace keirin::tools::certify
