// SPDX-License-Identifier: Apache-2.0
//
// What certifying a plugin comes to: groups of checks and sheets of cases, what of them failed, and how to repeat it. The programs that
// find it out are tests/certify, tests/conformance and tests/graphs, each of which tries the plugin in processes of its own.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/host/find/manifest.h"

namespace keirin::tools::certify {

struct Words {
  std::string library, only, json, html, known;
  double deadline = 60;  // of one check, in seconds
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
  std::string name, asks, outcome, reason;  // outcome: passed, failed, not offered, not tried
  double seconds = 0;
};

// A letter's checks, or a sheet of cases. What nobody claims or offers is counted by itself and never as passed.
struct Group {
  std::string name;   // "A", "operators"
  std::string title;  // "A static", "operators"
  int64_t passed = 0, failed = 0, unclaimed = 0, known = 0, not_tried = 0;
  std::string ended{};  // why it did not come to its end; empty if it did
  std::vector<Operator> operators{};
  std::vector<Checked> checks{};
  std::vector<Failure> failures{}, known_failures{};
  bool right() const { return failed == 0 && ended.empty(); }
};

// What is certified: one library on one machine, by its bytes.
struct Subject {
  Manifest manifest;
  std::string library, folder, sha256;
};

// The programs of the groups, installed or in the build folder.
struct Programs {
  std::filesystem::path checks, conformance, graphs, worker, skips;  // skips: empty where the program knows its own
};

Result<std::string> hash_of(const std::string& path);
// The plugin that `typed` names: its library, or the folder with its manifest.
Result<Subject> find_subject(const std::string& typed);
Result<Programs> find_programs();

// All groups, in order, or what `words.only` names. Files go into `scratch`.
std::vector<Group> run_groups(const Subject& subject, const Programs& programs, const Words& words, const std::filesystem::path& scratch);
// "A", "A/one_export", "operators", "operators/...": what --case takes. Empty, or what is wrong with it.
std::string check_only(const std::string& text);
// The command that repeats it.
std::string repeat_of(const Words& words, const Failure& failure);

}  // namespace keirin::tools::certify
