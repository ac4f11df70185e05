// SPDX-License-Identifier: Apache-2.0
//
// Tries one plugin on the checks of this folder, each in a process of its own, so that no end of the plugin's is the end of the others.
// What it tells is for `keirin certify`, which knows manifests, known failures and certificates.
//
//   checks --library=FILE --guid=GUID --version=TEXT [--check=PATTERN] [--quick] [--deadline=SECONDS] [--json=FILE] [--jobs=N]
//   checks --list
//
// PATTERN is a check, a group's letter, or a pattern of the shell. What a check stands on is tried first, and told where it fails.
#include <fnmatch.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>

#include "tests/certify/child.h"
#include "tests/certify/trial.h"

namespace keirin::certify {
namespace {

using nlohmann::json;
using Clock = std::chrono::steady_clock;

struct Options {
  std::string library, guid, version, check = "*", json, deadline = "60", jobs;
  std::string device;  // the plugin's, once it is known
  bool quick = false, list = false;
};

std::vector<Check> all_checks() {
  std::vector<Check> out;
  for (const auto group : {static_checks(), abi_checks(), life_checks(), device_checks(), honesty_checks(), numerics_checks(),
                           memory_checks(), stream_checks(), thread_checks(), artifact_checks(), cost_checks()})
    out.insert(out.end(), group.begin(), group.end());
  return out;
}

// ---- in the child: standard input holds the request, descriptor 3 takes what is told, a line each.

constexpr int kTold = 3;

void tell(const std::string& line) { (void)!::write(kTold, (line + "\n").c_str(), line.size() + 1); }

void limit(int what, rlim_t most) {
  rlimit set{};
  ::getrlimit(what, &set);
  set.rlim_cur = std::min(set.rlim_max, most);
  ::setrlimit(what, &set);
}

int try_one() {
  std::string text;
  char part[4096];
  for (ssize_t n; (n = ::read(0, part, sizeof part)) > 0;) text.append(part, static_cast<size_t>(n));
  const json request = json::parse(text);
  limit(RLIMIT_CORE, 0);
  const auto machine = static_cast<rlim_t>(::sysconf(_SC_PHYS_PAGES)) * static_cast<rlim_t>(::sysconf(_SC_PAGE_SIZE));
  limit(RLIMIT_DATA, std::max<rlim_t>(machine / 2, rlim_t{4} << 30));
  std::string at;
  const std::string asked = request.at("check");
  Trial trial({request.at("library"), request.at("guid"), request.at("version"), request.at("device"), request.at("quick")},
              [&](const char* name) {
    if (at == name) return;
    at = name;
    tell("at " + at);
  });
  std::string outcome = "passed", reason;
  try {
    trial.start_driver();
    for (const Check& check : all_checks())
      if (asked == check.name) check.run(trial);
    if (asked == kSavesArtifact) tell("saved " + saved_artifact(trial));
  } catch (const Failed& failed) {
    outcome = "failed", reason = failed.what;
  } catch (const NotOffered& nothing) {
    outcome = "not offered", reason = nothing.why;
  } catch (const NotRun& missing) {
    outcome = "not run", reason = missing.why;
  } catch (const std::exception& error) {
    outcome = "failed", reason = std::string("the check itself ended in an error: ") + error.what();
  }
  tell("end " + json{{"outcome", outcome}, {"reason", reason}, {"device", trial.uid}}.dump(-1, ' ', false,
                                                                                           json::error_handler_t::replace));
  if (trial.ends_by_exit) ::exit(0);
  ::_exit(0);
}

// ---- in the program that asks

struct Outcome {
  std::string outcome = "not tried", reason;
  double seconds = 0;
};

Outcome ask(Options& o, const Check& check) {
  const auto begin = Clock::now();
  const std::chrono::milliseconds deadline(static_cast<int64_t>(std::stod(o.deadline) * 1000));
  const bool wants_device = check.needs > Rung::kDescribed;  // what stands lower starts none
  Result<ChildAnswer> answer = ask_child(json{{"library", o.library},
                                              {"guid", o.guid},
                                              {"version", o.version},
                                              {"check", check.name},
                                              {"device", wants_device ? o.device : ""},
                                              {"quick", o.quick}}.dump(),
                                         deadline);
  Outcome out;
  if (!answer.ok()) return out.outcome = "failed", out.reason = answer.status().text(), out;
  out.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  std::string at = "the check";
  const std::string& text = answer->told;
  json ended;
  for (size_t from = 0; from < text.size();) {
    const std::string line = text.substr(from, text.find('\n', from) - from);
    from += line.size() + 1;
    if (line.starts_with("at ")) at = line.substr(3);
    if (line.starts_with("end ")) ended = json::parse(line.substr(4), nullptr, false);
  }
  const bool whole = ended.is_object();
  const ChildEnd& end = answer->end;
  if (whole) out.outcome = ended.at("outcome"), out.reason = ended.at("reason");
  if (check.gives == Rung::kDescribed && out.outcome == "passed") o.device = ended.at("device");
  const bool ended_badly = end.timed_out || (end.status_known && end.status != 0);
  if (!whole || (out.outcome == "passed" && ended_badly))
    out.outcome = "failed", out.reason = "the plugin " + describe(end, whole ? "the end of the process" : at, deadline);
  return out;
}

bool is_asked_for(const Options& o, const std::string& name) {
  return o.check == name.substr(0, 1) || fnmatch(o.check.c_str(), name.c_str(), 0) == 0;
}

// What others on the machine or the device would spoil.
bool measures(std::string_view check) { return check.starts_with("K/") || check == "G/keeps_no_device_memory"; }

int run(Options& o) {
  const std::vector<Check> checks = all_checks();
  std::map<Rung, size_t> giver;  // of a rung: the check
  for (size_t i = 0; i < checks.size(); ++i)
    if (checks[i].gives != Rung::kFile) giver[checks[i].gives] = i;
  std::vector<Outcome> results(checks.size());
  std::vector<bool> tried(checks.size(), false);
  // What is in the way of a check: the lowest rung that the plugin does not reach. Asks for rungs where nobody has.
  const std::function<const Check*(Rung)> in_the_way = [&](Rung rung) -> const Check* {
    if (rung == Rung::kFile) return nullptr;
    const size_t i = giver.at(rung);
    if (const Check* lower = in_the_way(checks[i].needs)) return lower;
    if (!tried[i]) results[i] = ask(o, checks[i]), tried[i] = true;
    return results[i].outcome == "passed" ? nullptr : &checks[i];
  };
  const auto hinder = [&](size_t i, const Check& first) {
    const Outcome& it = results[static_cast<size_t>(&first - checks.data())];
    if (it.outcome == "failed") results[i] = {"not tried", std::string("it stands on ") + first.name + ", which failed", 0};
    else results[i] = {it.outcome, it.reason, 0};  // "not offered" or "not run", for the same reason
  };
  std::vector<size_t> together, alone;
  for (size_t i = 0; i < checks.size(); ++i) {
    if (!is_asked_for(o, checks[i].name)) continue;
    if (const Check* first = in_the_way(checks[i].needs)) hinder(i, *first);
    else if (!tried[i]) (measures(checks[i].name) ? alone : together).push_back(i);
  }
  std::atomic<size_t> next{0};
  const auto work = [&] {
    for (size_t k; (k = next++) < together.size();) results[together[k]] = ask(o, checks[together[k]]);
  };
  std::vector<std::thread> threads;
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  // A GPU's checks wait for its driver and its compiler more than they compute.
  const int jobs = !o.jobs.empty() ? std::stoi(o.jobs) : o.device.starts_with("pci:") ? std::clamp(cores, 2, 4) : 2;
  for (int t = 1; t < jobs; ++t) threads.emplace_back(work);
  work();
  for (std::thread& thread : threads) thread.join();
  for (const size_t i : alone) results[i] = ask(o, checks[i]);

  int failed = 0;
  json all = json::array();
  for (size_t i = 0; i < checks.size(); ++i) {
    if (!is_asked_for(o, checks[i].name) && results[i].outcome != "failed") continue;
    failed += results[i].outcome == "failed";
    all.push_back({{"name", checks[i].name}, {"asks", checks[i].asks}, {"outcome", results[i].outcome}, {"reason", results[i].reason},
                   {"seconds", results[i].seconds}});
    printf("%-12s %s%s%s\n", results[i].outcome.c_str(), checks[i].name, results[i].reason.empty() ? "" : ": ", results[i].reason.c_str());
  }
  const json told{{"checks", all}, {"device", o.device}};
  if (!o.json.empty()) std::ofstream(o.json) << told.dump(-1, ' ', false, json::error_handler_t::replace);
  return all.empty() ? 2 : failed ? 1 : 0;
}

bool read_option(const std::string& arg, const std::string& key, std::string& to) {
  if (arg.rfind("--" + key + "=", 0) != 0) return false;
  to = arg.substr(key.size() + 3);
  return true;
}

int run_program(int argc, char** argv) {
  Options o;
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    if (arg == "--quick") o.quick = true;
    else if (arg == "--list") o.list = true;
    else if (!read_option(arg, "library", o.library) && !read_option(arg, "guid", o.guid) && !read_option(arg, "version", o.version) &&
             !read_option(arg, "check", o.check) && !read_option(arg, "json", o.json) && !read_option(arg, "deadline", o.deadline) &&
             !read_option(arg, "jobs", o.jobs))
      return fprintf(stderr, "unknown argument %s\n", arg.c_str()), 2;
  }
  if (o.list) {
    json all = json::array();
    for (const Check& check : all_checks()) all.push_back({{"name", check.name}, {"asks", check.asks}});
    printf("%s\n", all.dump().c_str());
    return 0;
  }
  if (o.library.empty()) return fprintf(stderr, "checks: name a plugin's library with --library=\n"), 2;
  o.library = std::filesystem::absolute(o.library);  // a plugin may change the current folder
  return run(o);
}

}  // namespace
}  // namespace keirin::certify

int main(int argc, char** argv) {
  if (argc == 2 && std::string_view(argv[1]) == "--try-one") return keirin::certify::try_one();
  return keirin::certify::run_program(argc, argv);
}
