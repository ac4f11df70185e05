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
#include <thread>

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
constexpr const char* kDevice = "D/describe";  // the check that meets the plugin's device first
constexpr int kMostEnds = 3;                   // of a share's process, by the plugin
constexpr int kDeviceLost = 17;                // the exit code of `conformance` when a run cost it the device

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

// What the checks told of where the plugin works.
struct Place {
  std::string device;   // the hardware's uid; empty: none that it drives was met
  std::string not_run;  // why nothing can be asked on it; empty if it can
  bool on_gpu() const { return device.starts_with("pci:"); }
};

// The lettered groups: one program for all of them, because checks stand on checks of other groups. `pattern`: of --check; empty: all.
std::vector<Group> run_checks(const Subject& subject, const Programs& programs, const Words& words, const std::string& pattern,
                              const fs::path& scratch, Place& place) {
  const fs::path log = scratch / "checks.log", json = scratch / "checks.json";
  std::vector<std::string> run{programs.checks, "--library=" + subject.library, "--guid=" + subject.manifest.guid_text,
                               "--version=" + subject.manifest.version, "--json=" + json.string(),
                               fmt::format("--deadline={}", words.deadline)};
  if (words.quick) run.push_back("--quick");
  if (!pattern.empty()) run.push_back("--check=" + pattern);
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
  place.device = told.at("device");
  for (const nlohmann::json& row : told.at("checks")) {
    const Checked check{row.at("name"), row.at("asks"), row.at("outcome"), row.at("reason"), row.at("seconds")};
    Group& group = groups[static_cast<size_t>(check.name[0] - 'A')];
    if (check.outcome == "passed") ++group.passed;
    else if (check.outcome == "failed") ++group.failed, group.failures.push_back({check.name, check.reason});
    else if (check.outcome == "not offered") ++group.unclaimed;
    else if (check.outcome == "not run") ++group.not_run;
    else ++group.not_tried;
    if (check.name == kDevice && check.outcome == "not run") place.not_run = check.reason;
    group.checks.push_back(check);
  }
  std::erase_if(groups, [](const Group& group) { return group.checks.empty(); });
  return groups;
}

int shares_of(const Words& words, const Place& place) {
  if (!place.on_gpu()) return 1;  // a processor's plugin has all of it in each run
  return words.jobs > 0 ? words.jobs : std::clamp<int>(static_cast<int>(std::thread::hardware_concurrency()), 1, 16);
}

// `share(number)` on a thread each, added up in order.
Group in_shares(const std::string& name, int count, const std::function<Group(int)>& share) {
  std::vector<Group> parts(static_cast<size_t>(count));
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i) threads.emplace_back([&, i] { parts[static_cast<size_t>(i)] = share(i); });
  for (std::thread& thread : threads) thread.join();
  Group out{.name = name, .title = name};
  std::map<std::string, size_t> at;  // of an operator
  for (const Group& part : parts) {
    out.passed += part.passed, out.failed += part.failed, out.unclaimed += part.unclaimed, out.known += part.known;
    if (out.ended.empty()) out.ended = part.ended;
    out.failures.insert(out.failures.end(), part.failures.begin(), part.failures.end());
    for (const Operator& one : part.operators) {
      const auto [place, is_new] = at.emplace(one.name, out.operators.size());
      if (is_new) out.operators.push_back({.name = one.name});
      Operator& sum = out.operators[place->second];
      sum.passed += one.passed, sum.failed += one.failed, sum.unclaimed += one.unclaimed, sum.skipped += one.skipped;
    }
  }
  return out;
}

// What one process wrote into its log: counts go to `group` and the operators, the case that it was at to `at`. Whether it came to its end.
bool read_log(const fs::path& path, Group& group, std::map<std::string, Operator>& operators, std::string& at) {
  std::istringstream lines(what_it_wrote(path));
  bool whole = false;
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string what, name;
    words >> what >> name;
    whole = what == "end";
    if (what == "try") at = name;
    if (what == "try" || whole) continue;
    Operator& one = operators[name];
    if (what == "passed") ++one.passed, ++group.passed;
    else if (what == "failed") ++one.failed, ++group.failed;
    else if (what == "unclaimed") ++one.unclaimed, ++group.unclaimed;
    else ++one.skipped, ++group.known;
  }
  return whole;
}

// Operator cases, and damaged bytes: one program, two suites. A processor's plugin runs in workers of that program; a GPU's runs in the
// program itself, which begins again behind the case that was its end.
Group run_conformance(const std::string& name, const Subject& subject, const Programs& programs, const Words& words,
                      const std::string& which, const Place& place, const fs::path& scratch) {
  std::vector<std::string> run{programs.conformance, "--name=" + subject.manifest.name, "--plugin=" + subject.folder,
                               "--worker=" + programs.worker.string()};
  if (!programs.skips.empty()) run.push_back("--skips=" + programs.skips.string());
  if (name == "operators") run.push_back("--run-in=worker");
  if (name == "bytes") run.push_back("--suite=bytes");
  // On a GPU each case waits for the driver's compiler: of damaged bytes, which is the host's code, fewer are enough.
  const int every = name == "bytes" ? words.quick ? 100 : place.on_gpu() ? 40 : 10 : words.quick ? 20 : 1;
  // The set of values is not part of a case's name.
  const std::string pattern = which.empty() || which.ends_with("*") ? which : which.substr(0, which.rfind('/'));
  const int shares = pattern.empty() ? shares_of(words, place) : 1;
  if (!pattern.empty()) run.push_back("--case=" + pattern);
  else if (every * shares > 1) run.push_back(fmt::format("--every={}", every * shares));

  return in_shares(name, shares, [&](int number) {
    Group group;
    std::map<std::string, Operator> operators;
    const std::string file = fmt::format("{}.{}", name, number);
    const fs::path log = scratch / (file + ".log"), failures = scratch / (file + ".failures");
    std::vector<std::string> again = run;
    again.push_back("--failures=" + failures.string());
    if (number > 0) again.push_back(fmt::format("--first={}", number * every));
    std::string last;
    for (int ends = 0; group.ended.empty(); ++ends) {
      const fs::path cases = scratch / fmt::format("{}.cases.{}", file, ends);
      std::vector<std::string> now = again;
      now.push_back("--log=" + cases.string());
      if (!last.empty()) now.push_back("--after=" + last);
      const ProgramEnd end = run_program({.program = now[0],
                                          .words = now,
                                          .out = log,
                                          .diary = cases,
                                          .patience = place.on_gpu() ? std::max(words.deadline, 1.0) * 2 : 0});
      std::string at;
      if (read_log(cases, group, operators, at)) break;
      if (at.empty()) {  // not one case: the program, or what a case does not reach
        if (end.code < 0) group.ended = fmt::format("the program that tried the plugin {}", end.how);
        told_nothing(group, log);
        break;
      }
      if (end.code != kDeviceLost) {
        const std::string words_of_it = last_line(what_it_wrote(log));
        group.failures.push_back({name + "/" + at + "/any", fmt::format("the process that ran it {}: {}", end.how, words_of_it)});
        ++group.failed, ++operators[at.substr(0, at.find('/'))].failed;
      }
      last = at;
      if (ends + 1 == kMostEnds)
        group.ended = fmt::format("the plugin ended its process {} times, so that what comes after {} is left out", kMostEnds, at);
    }
    for (auto& [row, one] : operators) one.name = row, group.operators.push_back(std::move(one));
    // All of them, a line each: case, tab, reason.
    std::string line;
    for (std::istringstream lines(what_it_wrote(failures)); std::getline(lines, line);)
      if (const size_t tab = line.find('\t'); tab != std::string::npos)
        group.failures.push_back({name + "/" + line.substr(0, tab), line.substr(tab + 1)});
    return group;
  });
}

// Random graphs. A case is `seed` or `seed/other-sizes`. Where the plugin ends the program, which a GPU's can, it begins again with the
// next seed; what it had found right before is not counted.
Group run_graphs(const Subject& subject, const Programs& programs, const Words& words, const std::string& which, const Place& place,
                 const fs::path& scratch) {
  std::vector<std::string> run{programs.graphs, (place.on_gpu() ? "--cuda=" : "--cpu=") + subject.folder,
                               "--worker=" + programs.worker.string(), "--run-in=worker", "--no-shrink", "--tell-seeds"};
  const int64_t all = words.quick ? 60 : place.on_gpu() ? 200 : 400;
  const int shares = which.empty() ? shares_of(words, place) : 1;
  return in_shares("graphs", shares, [&](int number) {
    Group group;
    const fs::path log = scratch / fmt::format("graphs.{}.log", number);
    int64_t first = all * number / shares;
    const int64_t behind = all * (number + 1) / shares;
    for (int ends = 0; group.ended.empty() && first < behind; ++ends) {
      std::vector<std::string> now = run;
      if (which.empty()) {
        now.insert(now.end(), {fmt::format("--first={}", first), fmt::format("--count={}", behind - first)});
      } else {
        now.push_back("--seed=" + which.substr(0, which.find('/')));
        if (which.ends_with("/other-sizes")) now.push_back("--other-sizes");
      }
      const ProgramEnd end = run_program(
          {.program = now[0], .words = now, .out = log, .diary = log, .patience = place.on_gpu() ? std::max(words.deadline, 1.0) * 2 : 0});
      int64_t graphs = -1, failed = 0, passed = 0, seed = -1;
      std::string line;
      for (std::istringstream lines(what_it_wrote(log)); std::getline(lines, line);) {
        std::sscanf(line.c_str(), "GRAPHS graphs=%" SCNd64 " ops=%*d compiled=%*d failed=%" SCNd64 " passed=%" SCNd64, &graphs, &failed,
                    &passed);
        std::sscanf(line.c_str(), "at seed %" SCNd64, &seed);
        if (line.starts_with("FAILED seed ")) {
          group.failures.push_back(
              {"graphs/" + line.substr(12, line.find(' ', 12) - 12), line.substr(std::min(line.find("): ") + 3, line.size()))});
        } else if (!group.failures.empty() && line.ends_with(" --other-sizes") && !line.starts_with("at seed")) {
          group.failures.back().which += "/other-sizes";
        }
      }
      if (graphs >= 0) {
        group.failed += failed, group.passed += passed, group.unclaimed += graphs - passed - failed;  // of which nothing is the plugin's
        break;
      }
      if (seed < 0) {
        if (end.code < 0) group.ended = fmt::format("the program that tried the plugin {}", end.how);
        told_nothing(group, log);
        break;
      }
      group.failures.push_back({fmt::format("graphs/{}", seed), fmt::format("the process that ran it {}", end.how)});
      ++group.failed;
      first = seed + 1;
      if (ends + 1 == kMostEnds)
        group.ended = fmt::format("the plugin ended its process {} times, so that what comes after seed {} is left out", kMostEnds, seed);
    }
    return group;
  });
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

std::vector<Group> run_groups(const Subject& subject, const Programs& programs, const Words& words, const fs::path& scratch,
                              std::string& device) {
  const size_t slash = words.only.find('/');
  const std::string only = words.only.substr(0, slash), which = slash == std::string::npos ? "" : words.only.substr(slash + 1);
  Place place;
  std::vector<Group> groups;
  if (!is_sheet(only)) groups = run_checks(subject, programs, words, words.only, scratch, place);
  else (void)run_checks(subject, programs, words, kDevice, scratch, place);
  device = place.device;
  const bool sheets = only.empty() || is_sheet(only);
  if (sheets && place.not_run.empty() && place.on_gpu() && subject.why_no_memory) place.not_run = subject.why_no_memory(place.device);
  for (const char* name : kSheets) {
    if (!only.empty() && only != name) continue;
    if (!place.not_run.empty()) {
      groups.push_back({.name = name, .title = name, .not_run = 1, .not_run_because = place.not_run});
      continue;
    }
    groups.push_back(std::string(name) == "graphs" ? run_graphs(subject, programs, words, which, place, scratch)
                                                   : run_conformance(name, subject, programs, words, which, place, scratch));
  }
  return groups;
}

}  // namespace keirin::tools::certify
