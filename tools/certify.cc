// SPDX-License-Identifier: Apache-2.0
//
// keirin certify: a plugin before the operator table, damaged bytes and random graphs, each in a program of its own, so that no end of
// theirs is the end of this one. It judges nothing itself: it runs those programs, adds up what they tell, and says how to repeat what
// failed. What nobody claimed is counted by itself and never as passed.
#include <fmt/format.h>

#include <cinttypes>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>

#include "core/base/sha256.h"
#include "core/host/find/discovery.h"
#include "core/host/find/hardware.h"
#include "core/host/find/manifest.h"
#include "tools/files.h"
#include "tools/options.h"
#include "tools/program.h"

namespace keirin::tools {
namespace fs = std::filesystem;
namespace {

struct Words {
  std::string library, only, json;
  bool quick = false;
};

struct Failure {
  std::string which, reason;  // which: group/case
};

struct Operator {
  std::string name;
  int64_t passed = 0, failed = 0, unclaimed = 0, skipped = 0;
};

struct Group {
  std::string name;
  int64_t passed = 0, failed = 0, unclaimed = 0, skipped = 0;
  std::string ended{};  // why it did not come to its end; empty if it did
  std::vector<Operator> operators{};
  std::vector<Failure> failures{};  // the first ones of each operator
  bool right() const { return failed == 0 && ended.empty(); }
};

// What is certified: one library on one machine, by its bytes.
struct Subject {
  Manifest manifest;
  std::string library, folder, sha256;
};

// The programs of the groups, installed or in the build folder.
struct Programs {
  fs::path conformance, graphs, worker, skips;  // skips: empty where the program knows its own
};

Result<std::string> hash_of(const std::string& path) {
  KRN_TRY_LET(const std::string all, read_file(path));
  return hex(sha256(all.data(), all.size()));
}

Result<Subject> find_subject(const std::string& typed) {
  const std::string path = fs::absolute(typed).lexically_normal().string();
  const Discovery found = find_manifests({path}, false);
  if (found.manifests.size() != 1) {
    std::string what = found.manifests.empty() ? found.empty_paths.empty() ? "no plugin" : found.empty_paths[0].second : "several plugins";
    return Status(Code::k_invalid_input, {fmt::format("\"{}\" is not one plugin: {}", typed, what), path, "nothing was run",
                                          "name the library of a plugin, beside which its manifest.toml stands"});
  }
  Subject out;
  KRN_TRY(read_manifest(found.manifests[0].path, &out.manifest));
  const std::vector<HardwareItem> hardware = find_hardware();
  KRN_TRY_LET(const ManifestVariant* variant, choose_variant(out.manifest, hardware.front()));
  out.library = variant->library;
  out.folder = fs::path(found.manifests[0].path).parent_path();
  KRN_TRY_LET(out.sha256, hash_of(out.library));
  return out;
}

Result<Programs> find_programs() {
  std::error_code error;
  const fs::path self = fs::read_symlink("/proc/self/exe", error).parent_path(), installed = self.parent_path();
  Programs out;
  out.worker = find_worker();
  for (const fs::path& folder : {self, installed / "libexec/keirin/certify"})
    if (fs::exists(folder / "conformance", error) && fs::exists(folder / "graphs", error)) {
      out.conformance = folder / "conformance";
      out.graphs = folder / "graphs";
      if (folder != self) out.skips = folder / "skips.txt";
      if (!out.worker.empty()) return out;
    }
  return Status(Code::k_exhausted, {"the programs that certify a plugin are not here", installed / "libexec/keirin/certify",
                                    "nothing was run", "build Keirin with -DBUILD_TESTING=ON, and install it again"});
}

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

// Operator cases, run in workers, and damaged bytes, in the program's own process: one program, two suites.
Group run_conformance(const std::string& name, const Subject& subject, const Programs& programs, const Words& words,
                      const std::string& pattern, const fs::path& scratch) {
  Group group{.name = name};
  const fs::path log = scratch / (name + ".log"), json = scratch / (name + ".json");
  std::vector<std::string> run{programs.conformance, "--name=" + subject.manifest.name, "--plugin=" + subject.folder,
                               "--worker=" + programs.worker.string(), "--json=" + json.string()};
  if (!programs.skips.empty()) run.push_back("--skips=" + programs.skips.string());
  if (name == "operators") run.push_back("--run-in=worker");
  if (name == "bytes") run.push_back("--suite=bytes");
  const int every = name == "bytes" ? words.quick ? 100 : 10 : words.quick ? 20 : 1;
  if (!pattern.empty()) run.push_back("--case=" + pattern);
  else if (every > 1) run.push_back(fmt::format("--every={}", every));
  group.ended = run_group(run, log);
  const nlohmann::json told = nlohmann::json::parse(what_it_wrote(json), nullptr, false);
  if (!told.is_object()) {
    const std::string last = last_line(what_it_wrote(log));
    if (group.ended.empty()) group.ended = "it told nothing";
    if (!last.empty()) group.ended += "; its last words: " + last;
    return group;
  }
  for (const nlohmann::json& row : told.at("operators")) {
    Operator one{row.at("name"), row.at("passed"), row.at("failed"), row.at("unclaimed"), row.at("skipped")};
    group.passed += one.passed, group.failed += one.failed, group.unclaimed += one.unclaimed, group.skipped += one.skipped;
    for (const nlohmann::json& failure : row.at("failures"))
      group.failures.push_back({name + "/" + failure.at("case").get<std::string>(), failure.at("reason")});
    group.operators.push_back(std::move(one));
  }
  return group;
}

// Random graphs, in workers. A case is `seed` or `seed/other-sizes`.
Group run_graphs(const Subject& subject, const Programs& programs, const Words& words, const std::string& which, const fs::path& scratch) {
  Group group{.name = "graphs"};
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
  if (graphs < 0) {
    if (group.ended.empty()) group.ended = "it told nothing";
    group.ended += "; its last words: " + last_line(text);
    return group;
  }
  group.unclaimed = graphs - group.passed - group.failed;  // of which nothing is the plugin's
  return group;
}

void print(std::FILE* out, const Group& group, const std::string& library) {
  fmt::print(out, "{:<10} {} passed, {} failed, {} unclaimed", group.name, group.passed, group.failed, group.unclaimed);
  fmt::print(out, "{}\n", group.skipped ? fmt::format(", {} known to fail", group.skipped) : "");
  if (!group.ended.empty()) fmt::print(out, "  FAIL {}\n", group.ended);
  std::string claimed;
  int64_t others = 0;
  for (const Operator& one : group.operators) {
    const int64_t tried = one.passed + one.failed;
    if (tried > 0) claimed += fmt::format("  {} {}/{}", one.name, one.passed, tried);
    else ++others;
  }
  if (!group.operators.empty())
    fmt::print(out, "{}{}\n", claimed, others ? fmt::format("{}  {} operators unclaimed", claimed.empty() ? "" : ";", others) : "");
  for (const Failure& failure : group.failures) {
    fmt::print(out, "  FAIL {}: {}\n", failure.which, failure.reason.substr(0, failure.reason.find('\n')));
    fmt::print(out, "    repeat: keirin certify {} --case '{}'\n", library, failure.which);
  }
}

nlohmann::json to_json(const Group& group, const std::string& library) {
  nlohmann::json operators = nlohmann::json::array(), failures = nlohmann::json::array();
  for (const Operator& one : group.operators)
    operators.push_back(
        {{"name", one.name}, {"passed", one.passed}, {"failed", one.failed}, {"unclaimed", one.unclaimed}, {"skipped", one.skipped}});
  for (const Failure& failure : group.failures)
    failures.push_back({{"case", failure.which}, {"reason", failure.reason},
                        {"repeat", fmt::format("keirin certify {} --case '{}'", library, failure.which)}});
  return {{"name", group.name},       {"passed", group.passed}, {"failed", group.failed}, {"unclaimed", group.unclaimed},
          {"skipped", group.skipped}, {"ended", group.ended},   {"operators", operators}, {"failures", failures}};
}

Status certify(const Words& words, int& exit_code) {
  const size_t slash = words.only.find('/');
  const std::string only = words.only.substr(0, slash), which = slash == std::string::npos ? "" : words.only.substr(slash + 1);
  KRN_TRY_LET(const Subject subject, find_subject(words.library));
  KRN_TRY_LET(const Programs programs, find_programs());
  KRN_TRY_LET(const ScratchFolder scratch, ScratchFolder::make("certify"));
  const Manifest& m = subject.manifest;
  std::FILE* out = text_out(words.json);
  fmt::print(out, "{} {}  sha256 {}{}\n", m.name, m.version, subject.sha256, words.quick ? "  (quick: a part of the cases)" : "");
  std::vector<Group> groups;
  for (const char* name : {"operators", "bytes", "graphs"}) {
    if (!only.empty() && only != name) continue;
    std::fflush(out);
    // The set of values is not part of a case's name.
    const std::string pattern = which.empty() || which.ends_with("*") ? which : which.substr(0, which.rfind('/'));
    groups.push_back(std::string(name) == "graphs" ? run_graphs(subject, programs, words, which, scratch.path())
                                                   : run_conformance(name, subject, programs, words, pattern, scratch.path()));
    print(out, groups.back(), words.library);
  }
  int64_t passed = 0;
  bool right = true;
  for (const Group& group : groups) passed += group.passed, right = right && group.right();
  const Result<std::string> after = hash_of(subject.library);
  const bool same = after.ok() && *after == subject.sha256;
  const std::string verdict = !same         ? "nothing: the library was exchanged meanwhile; run it again"
                              : !right      ? "failed"
                              : passed == 0 ? "nothing: no case of what was tried is claimed"
                              : only.empty() ? "passed" : "passed, of what was asked for";
  fmt::print(out, "{}: {}\n", m.name, verdict);
  exit_code = right && same && passed > 0 ? kOk : kFailed;
  if (words.json.empty()) return {};
  nlohmann::json all = nlohmann::json::array();
  for (const Group& group : groups) all.push_back(to_json(group, words.library));
  return write_text(words.json, nlohmann::json{{"schema", "keirin/certify/1"},
                                               {"keirin", KEIRIN_VERSION},
                                               {"plugin", m.name},
                                               {"version", m.version},
                                               {"guid", m.guid_text},
                                               {"library", subject.library},
                                               {"sha256", subject.sha256},
                                               {"quick", words.quick},
                                               {"only", words.only},
                                               {"passed", exit_code == kOk},
                                               {"groups", all}}
                                        .dump(2, ' ', false, nlohmann::json::error_handler_t::replace) +
                                    "\n");
}

}  // namespace

void add_certify(CLI::App& app, int& exit_code) {
  auto words = std::make_shared<Words>();
  CLI::App* word =
      app.add_subcommand("certify", "try a plugin on all operators, damaged bytes and random graphs; exit 1 if anything is wrong");
  word->add_option("library", words->library, "the plugin's library, beside which its manifest stands, or its folder")->required();
  word->add_flag("--quick", words->quick, "one case in twenty, and fewer graphs");
  word->add_option("--case", words->only, "only this: operators, bytes, graphs, or one of them with /CASE, as a failure says it")
      ->check([](const std::string& text) {
        const std::string group = text.substr(0, text.find('/'));
        return group == "operators" || group == "bytes" || group == "graphs" ? "" : "it begins with operators, bytes or graphs";
      });
  word->add_option("--json", words->json,
                   "also write the result as JSON to this file; - is standard output, which then holds nothing else");
  word->callback([words, &exit_code] {
    Status status = certify(*words, exit_code);
    if (!status.ok()) exit_code = fail(status);
  });
}

}  // namespace keirin::tools
