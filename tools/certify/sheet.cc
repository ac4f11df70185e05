// SPDX-License-Identifier: Apache-2.0
#include "tools/certify/sheet.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/host/find/hardware.h"
#include "tools/certify/group.h"
#include "tools/files.h"
#include "tools/program.h"

namespace keirin::tools::certify {
namespace {

constexpr const char* kDTypes[] = {"f32", "bf16", "f16", "f64", "i64", "i32", "i16", "i8", "u8", "bool"};

// "12" passed, "11 of 12" where one failed, "8, 4 eager" where some are not claimed.
std::string cell_of(const nlohmann::json& n) {
  const int64_t passed = n.at("passed"), failed = n.at("failed"), unclaimed = n.at("unclaimed"), skipped = n.at("skipped");
  if (passed + failed + skipped == 0) return unclaimed ? "eager" : "";
  std::string out = failed ? fmt::format("**{} of {}**", passed, passed + failed) : std::to_string(passed);
  if (unclaimed) out += fmt::format(", {} eager", unclaimed);
  if (skipped) out += fmt::format(", {} known", skipped);
  return out;
}

}  // namespace

Result<std::string> sheet_of(const std::string& library) {
  KRN_TRY_LET(const Subject subject, find_subject(library));
  KRN_TRY_LET(const Programs programs, find_programs());
  KRN_TRY_LET(const ScratchFolder scratch, ScratchFolder::make("sheet"));
  const std::string json = scratch.path() + "/sheet.json", log = scratch.path() + "/sheet.log";
  std::vector<std::string> run{programs.conformance, "--name=" + subject.manifest.name, "--plugin=" + subject.folder,
                               "--worker=" + programs.worker.string(), "--json=" + json};
  if (!programs.skips.empty()) run.push_back("--skips=" + programs.skips.string());
  const ProgramEnd end = run_program({.program = run[0], .words = run, .out = log});
  const Result<std::string> text = read_file(json);
  const nlohmann::json told = text.ok() ? nlohmann::json::parse(*text, nullptr, false) : nlohmann::json();
  if (!told.is_object())
    return Status(Code::k_internal, {"the program that tries operators " + end.how + " and told nothing", programs.conformance,
                                     "there is no sheet", "run `keirin certify` on it: that says which check fails"});
  int64_t operators = 0, computed = 0, passed = 0, failed = 0;
  std::string rows, eager;
  for (const nlohmann::json& row : told.at("operators")) {
    ++operators;
    const int64_t right = row.at("passed"), wrong = row.at("failed");
    passed += right, failed += wrong;
    if (right + wrong == 0) {
      eager += (eager.empty() ? "" : ", ") + row.at("name").get<std::string>();
      continue;
    }
    ++computed;
    rows += fmt::format("| {} |", row.at("name").get<std::string>());
    const nlohmann::json& by_dtype = row.at("dtypes");
    for (const char* dtype : kDTypes) rows += fmt::format(" {} |", by_dtype.contains(dtype) ? cell_of(by_dtype.at(dtype)) : "");
    rows += "\n";
  }
  std::string head = "| operator |", line = "|---|";
  for (const char* dtype : kDTypes) head += fmt::format(" {} |", dtype), line += "---|";
  constexpr const char* kSheet =
      "# {} {}\n\n{} of {} operators of the table are computed, on {}: {} cases right, {} wrong. Library's SHA-256: `{}`.\n\n"
      "A cell is how many cases were compiled, run and found right, against a 64-bit formula, or within eager's own error of fp64; "
      "`eager`: what is not claimed, which eager computes; `known`: what is known to fail; empty: no case.\n\n{}\n{}\n{}{}";
  return fmt::format(kSheet, subject.manifest.name, subject.manifest.version, computed, operators, host_os_arch(), passed, failed,
                     subject.sha256, head, line, rows, eager.empty() ? "" : fmt::format("\nEager's: {}.\n", eager));
}

}  // namespace keirin::tools::certify
