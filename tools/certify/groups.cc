// SPDX-License-Identifier: Apache-2.0
//
// Runs the programs that try a plugin, and reads what they tell. It judges nothing itself.
#include <fmt/format.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tools/certify/group.h"
#include "tools/files.h"
#include "tools/program.h"

namespace keirin::tools::certify {
namespace fs = std::filesystem;
namespace {

// The letters of the table of groups (docs/certify.md), in order; L is the test that each check catches a plugin made for it.
constexpr std::pair<char, const char*> kLetters[] = {{'A', "static"},   {'B', "abi"},      {'C', "life-cycle"}, {'D', "device"},
                                                     {'E', "honesty"},  {'F', "numerics"}, {'G', "memory"},     {'H', "streams"},
                                                     {'I', "threads"},  {'J', "artifacts"}, {'K', "cost"}};
constexpr const char* kSheets[] = {"operators", "bytes", "graphs"};

// Runs a program of a group; what it prints goes to `log`. Empty if it ended by itself, with whatever code, else how.
std::string run_group(const std::vector<std::string>& words, const fs::path& log) {
  const ProgramEnd end = run_program({.program = words[0], .words = words, .out = log});
  return end.code >= 0 ? std::string() : fmt::format("the program that tried the plugin {}", end.how);
}

// The last line that says something.
std::string last_line(const std::string& text) {
  std::string line, last;
  for (std::istringstream lines(text); std::getline(lines, line);)
    if (line.find_first_not_of(" \t") != std::string::npos) last = line;
  return last;
}

// Nothing, if it did not come to that.
std::string what_it_wrote(const fs::path& path) {
  Result<std::string> text = read_file(path);
  return text.ok() ? std::move(*text) : std::string();
}

void told_nothing(Group& group, const fs::path& log) {
  const std::string last = last_line(what_it_wrote(log));
  if (group.ended.empty()) group.ended = "it told nothing";
  if (!last.empty()) group.ended += "; its last words: " + last;
}

// The lettered groups: one program for all of them, because checks stand on checks of other groups.
std::vector<Group> run_checks(const Subject& subject, const Programs& programs, const Words& words, const fs::path& scratch) {
  const fs::path log = scratch / "checks.log", json = scratch / "checks.json";
  std::vector<std::string> run{programs.checks, "--library=" + subject.library, "--guid=" + subject.manifest.guid_text,
                               "--version=" + subject.manifest.version, "--json=" + json.string(),
                               fmt::format("--deadline={}", words.deadline)};
  if (words.quick) run.push_back("--quick");
  if (!words.only.empty()) run.push_back("--check=" + words.only);
  const std::string ended = run_group(run, log);
  std::vector<Group> groups;
  for (const auto& [letter, word] : kLetters)
    groups.push_back({.name = std::string(1, letter), .title = fmt::format("{} {}", letter, word)});
  const nlohmann::json told = nlohmann::json::parse(what_it_wrote(json), nullptr, false);
  if (!told.is_object()) {
    groups.resize(1);
    groups[0].ended = ended;
    told_nothing(groups[0], log);
    return groups;
  }
  for (const nlohmann::json& row : told.at("checks")) {
    const Checked check{row.at("name"), row.at("asks"), row.at("outcome"), row.at("reason"), row.at("seconds")};
    Group& group = groups[static_cast<size_t>(check.name[0] - 'A')];
    if (check.outcome == "passed") ++group.passed;
    else if (check.outcome == "failed") ++group.failed, group.failures.push_back({check.name, check.reason});
    else if (check.outcome == "not offered") ++group.unclaimed;
    else ++group.not_tried;
    group.checks.push_back(check);
  }
  std::erase_if(groups, [](const Group& group) { return group.checks.empty(); });
  return groups;
}

// Operator cases, run in workers, and damaged bytes, in the program's own process: one program, two suites.
Group run_conformance(const std::string& name, const Subject& subject, const Programs& programs, const Words& words,
                      const std::string& which, const fs::path& scratch) {
  Group group{.name = name, .title = name};
  const fs::path log = scratch / (name + ".log"), json = scratch / (name + ".json"), failures = scratch / (name + ".failures");
  std::vector<std::string> run{programs.conformance, "--name=" + subject.manifest.name, "--plugin=" + subject.folder,
                               "--worker=" + programs.worker.string(), "--json=" + json.string(), "--failures=" + failures.string()};
  if (!programs.skips.empty()) run.push_back("--skips=" + programs.skips.string());
  if (name == "operators") run.push_back("--run-in=worker");
  if (name == "bytes") run.push_back("--suite=bytes");
  const int every = name == "bytes" ? words.quick ? 100 : 10 : words.quick ? 20 : 1;
  // The set of values is not part of a case's name.
  const std::string pattern = which.empty() || which.ends_with("*") ? which : which.substr(0, which.rfind('/'));
  if (!pattern.empty()) run.push_back("--case=" + pattern);
  else if (every > 1) run.push_back(fmt::format("--every={}", every));
  group.ended = run_group(run, log);
  const nlohmann::json told = nlohmann::json::parse(what_it_wrote(json), nullptr, false);
  if (!told.is_object()) return told_nothing(group, log), group;
  for (const nlohmann::json& row : told.at("operators")) {
    Operator one{row.at("name"), row.at("passed"), row.at("failed"), row.at("unclaimed"), row.at("skipped")};
    group.passed += one.passed, group.failed += one.failed, group.unclaimed += one.unclaimed, group.known += one.skipped;
    group.operators.push_back(std::move(one));
  }
  // All of them, a line each: case, tab, reason.
  std::string line;
  for (std::istringstream lines(what_it_wrote(failures)); std::getline(lines, line);)
    if (const size_t tab = line.find('\t'); tab != std::string::npos)
      group.failures.push_back({name + "/" + line.substr(0, tab), line.substr(tab + 1)});
  return group;
}

// Random graphs, in workers. A case is `seed` or `seed/other-sizes`.
Group run_graphs(const Subject& subject, const Programs& programs, const Words& words, const std::string& which, const fs::path& scratch) {
  Group group{.name = "graphs", .title = "graphs"};
  const fs::path log = scratch / "graphs.log";
  std::vector<std::string> run{programs.graphs, "--cpu=" + subject.folder, "--worker=" + programs.worker.string(), "--run-in=worker",
                               "--no-shrink"};
  if (which.empty()) {
    run.push_back(fmt::format("--count={}", words.quick ? 60 : 400));
  } else {
    run.push_back("--seed=" + which.substr(0, which.find('/')));
    if (which.ends_with("/other-sizes")) run.push_back("--other-sizes");
  }
  group.ended = run_group(run, log);
  const std::string text = what_it_wrote(log);
  int64_t graphs = -1;
  std::string line;
  for (std::istringstream lines(text); std::getline(lines, line);) {
    std::sscanf(line.c_str(), "GRAPHS graphs=%" SCNd64 " ops=%*d compiled=%*d failed=%" SCNd64 " passed=%" SCNd64, &graphs, &group.failed,
                &group.passed);
    if (line.starts_with("FAILED seed ")) {
      group.failures.push_back(
          {"graphs/" + line.substr(12, line.find(' ', 12) - 12), line.substr(std::min(line.find("): ") + 3, line.size()))});
    } else if (!group.failures.empty() && line.ends_with(" --other-sizes")) {
      group.failures.back().which += "/other-sizes";
    }
  }
  if (graphs < 0) return told_nothing(group, log), group;
  group.unclaimed = graphs - group.passed - group.failed;  // of which nothing is the plugin's
  return group;
}

bool is_sheet(const std::string& name) { return std::find(std::begin(kSheets), std::end(kSheets), name) != std::end(kSheets); }

}  // namespace

std::string check_only(const std::string& text) {
  const std::string group = text.substr(0, text.find('/'));
  const bool letter = group.size() == 1 && group[0] >= 'A' && group[0] <= 'K';
  return letter || is_sheet(group) ? "" : "it begins with a group, A to K, or with operators, bytes or graphs";
}

std::string repeat_of(const Words& words, const Failure& failure) {
  return fmt::format("keirin certify {} --case '{}'", words.library, failure.which);
}

std::vector<Group> run_groups(const Subject& subject, const Programs& programs, const Words& words, const fs::path& scratch) {
  const size_t slash = words.only.find('/');
  const std::string only = words.only.substr(0, slash), which = slash == std::string::npos ? "" : words.only.substr(slash + 1);
  std::vector<Group> groups;
  if (!is_sheet(only)) groups = run_checks(subject, programs, words, scratch);
  for (const char* name : kSheets) {
    if (!only.empty() && only != name) continue;
    groups.push_back(std::string(name) == "graphs" ? run_graphs(subject, programs, words, which, scratch)
                                                   : run_conformance(name, subject, programs, words, which, scratch));
  }
  return groups;
}

}  // namespace keirin::tools::certify
