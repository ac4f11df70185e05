// SPDX-License-Identifier: Apache-2.0
#include "tools/certify/sheet.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/base/day.h"
#include "core/exec/report.h"
#include "core/host/find/hardware.h"
#include "tools/certify/group.h"
#include "tools/certify/report.h"
#include "tools/files.h"
#include "tools/program.h"

namespace keirin::tools::certify {
namespace {

using nlohmann::json;

constexpr const char* kDTypes[] = {"f32", "bf16", "f16", "f64", "i64", "i32", "i16", "i8", "u8", "bool"};

// "12" passed, "11 of 12" where one failed, "8, 4 eager" where some are not claimed.
std::string cell_of(const json& n) {
  const int64_t passed = n.at("passed"), failed = n.at("failed"), unclaimed = n.at("unclaimed"), skipped = n.at("skipped");
  if (passed + failed + skipped == 0) return unclaimed ? "eager" : "";
  std::string out = failed ? fmt::format("**{} of {}**", passed, passed + failed) : std::to_string(passed);
  if (unclaimed) out += fmt::format(", {} eager", unclaimed);
  if (skipped) out += fmt::format(", {} known", skipped);
  return out;
}

// What `program` wrote as JSON; an object, or an error that says how it ended.
Result<json> told_by(std::vector<std::string> run, const std::string& file, const std::string& log) {
  run.push_back("--json=" + file);
  const ProgramEnd end = run_program({.program = run[0], .words = run, .out = log});
  const Result<std::string> text = read_file(file);
  json told = text.ok() ? json::parse(*text, nullptr, false) : json();
  if (told.is_object()) return told;
  return Status(Code::k_internal, {"the program that tries operators " + end.how + " and told nothing", run[0], "there is no sheet",
                                   "run `keirin certify` on the plugin: that says which check fails"});
}

std::string speed_row(const json& timed, const json& own, const json& others) {
  const auto us = [](const json& of, const char* key) {
    const double ns = of.value(key, 0.0);
    return ns > 0 ? fmt::format("{:.4g}", ns / 1e3) : std::string();
  };
  std::string ratio;
  if (own.contains("ratio")) ratio = fmt::format("{:.2f}", own.at("ratio").get<double>());
  if (own.contains("low"))
    ratio += fmt::format(" [{:.2f}, {:.2f}]", own.at("low").get<double>(), own.at("high").get<double>());
  const std::string note = own.value("note", timed.value("note", ""));
  if (ratio.empty()) ratio = note.starts_with("disturbed") ? "disturbed" : note;
  std::string out = "|";
  for (const char* key : {"operator", "dtype", "sizes"}) out += " " + timed.at(key).get<std::string>() + " |";
  out += fmt::format(" {} | {} | {} |", us(timed, "eager_ns"), us(own, "ns"), ratio);
  for (const json& other : others) {
    const json plugins = timed.value("plugins", json::object()), one = plugins.value(other.get<std::string>(), json::object());
    const std::string time = us(one, "ns"), why = one.value("note", "");
    out += fmt::format(" {} |", !time.empty() ? time : why.starts_with("disturbed") ? "disturbed" : why.empty() ? "" : "wrong");
  }
  return out + "\n";
}

std::string speed_text(const json& sheet) {
  const json& speed = sheet.at("speed");
  const std::string name = sheet.at("plugin");
  std::string head = fmt::format("| operator | dtype | operands | eager us | {} us | eager / {} |", name, name);
  std::string line = "|---|---|---|---|---|---|";
  for (const json& other : speed.at("others")) head += fmt::format(" {} us |", other.get<std::string>()), line += "---|";
  std::string rows;
  for (const json& timed : speed.at("cases")) {
    const json plugins = timed.value("plugins", json::object());
    rows += speed_row(timed, plugins.value(name, json::object()), speed.at("others"));
  }
  const int64_t left_out = speed.at("left_out");
  constexpr const char* kSpeed =
      "\n## Speed\n\nOn {}, {} threads, in {:.0f} s. One case of each operator and dtype, large enough that its work outlasts what "
      "starting it takes; times are medians of calls in turns with eager's. The ratio is above 1 where {} is faster, with its 95 % "
      "interval where it was raced and none where a first look was enough. `disturbed`: others had the machine, and nothing is "
      "known.\n\n{}\n{}\n{}{}";
  return fmt::format(kSpeed, speed.at("arch").get<std::string>(), speed.at("threads").get<int>(), speed.at("seconds").get<double>(), name,
                     head, line, rows,
                     left_out ? fmt::format("\nThere was no time for {} more cases: `--speed-limit` gives more.\n", left_out) : "");
}

}  // namespace

Result<json> sheet_of(const SheetWords& words) {
  KRN_TRY_LET(const Subject subject, find_subject(words.library));
  KRN_TRY_LET(const Programs programs, find_programs());
  KRN_TRY_LET(const ScratchFolder scratch, ScratchFolder::make("sheet"));
  const std::vector<std::string> run{programs.conformance, "--name=" + subject.manifest.name, "--plugin=" + subject.folder,
                                     "--worker=" + programs.worker.string()};
  std::vector<std::string> tries = run, times = run;
  if (!programs.skips.empty()) tries.push_back("--skips=" + programs.skips.string());
  KRN_TRY_LET(json told, told_by(tries, scratch.path() + "/tries.json", scratch.path() + "/tries.log"));
  json sheet = {{"schema", "keirin/sheet/1"},          {"keirin", KEIRIN_VERSION},
                {"day", today()},                      {"machine", machine_json()},
                {"os_arch", std::string(host_os_arch())}, {"plugin", subject.manifest.name},
                {"version", subject.manifest.version}, {"library", subject.library},
                {"sha256", subject.sha256},            {"operators", std::move(told.at("operators"))},
                {"speed", nullptr}};
  if (!words.speed) return sheet;
  times.insert(times.end(), {"--suite=speed", fmt::format("--seconds={}", words.seconds)});
  for (const std::string& folder : words.beside) times.push_back("--beside=" + folder);
  KRN_TRY_LET(sheet["speed"], told_by(times, scratch.path() + "/times.json", scratch.path() + "/times.log"));
  return sheet;
}

std::string sheet_text(const json& sheet) {
  int64_t operators = 0, computed = 0, passed = 0, failed = 0;
  std::string rows, eager;
  for (const json& row : sheet.at("operators")) {
    ++operators;
    const int64_t right = row.at("passed"), wrong = row.at("failed");
    passed += right, failed += wrong;
    if (right + wrong == 0) {
      eager += (eager.empty() ? "" : ", ") + row.at("name").get<std::string>();
      continue;
    }
    ++computed;
    rows += fmt::format("| {} |", row.at("name").get<std::string>());
    const json& by_dtype = row.at("dtypes");
    for (const char* dtype : kDTypes) rows += fmt::format(" {} |", by_dtype.contains(dtype) ? cell_of(by_dtype.at(dtype)) : "");
    rows += "\n";
  }
  std::string head = "| operator |", line = "|---|";
  for (const char* dtype : kDTypes) head += fmt::format(" {} |", dtype), line += "---|";
  constexpr const char* kSheet =
      "# {} {}\n\n{} of {} operators of the table are computed, on {}: {} cases right, {} wrong. Library's SHA-256: `{}`.\n\n"
      "A cell is how many cases were compiled, run and found right, against a 64-bit formula, or within eager's own error of fp64; "
      "`eager`: what is not claimed, which eager computes; `known`: what is known to fail; empty: no case.\n\n{}\n{}\n{}{}";
  return fmt::format(kSheet, sheet.at("plugin").get<std::string>(), sheet.at("version").get<std::string>(), computed, operators,
                     sheet.at("os_arch").get<std::string>(), passed, failed, sheet.at("sha256").get<std::string>(), head, line, rows,
                     eager.empty() ? "" : fmt::format("\nEager's: {}.\n", eager)) +
         (sheet.at("speed").is_object() ? speed_text(sheet) : "");
}

}  // namespace keirin::tools::certify
