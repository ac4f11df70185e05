// SPDX-License-Identifier: Apache-2.0
#include "tools/certify/report.h"

#include <fmt/format.h>

#include <map>

#include "abi/plugin.h"
#include "core/exec/report.h"
#include "core/host/find/hardware.h"

namespace keirin::tools::certify {
namespace {

constexpr size_t kShown = 3;  // failures of one operator

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

// "operators/mul": of what only a few failures are printed. Checks are all printed.
std::string row_of(const std::string& which) { return which.substr(0, which.find('/', which.find('/') + 1)); }

nlohmann::json failures_json(const std::vector<Failure>& failures, const Words& words) {
  nlohmann::json out = nlohmann::json::array();
  for (const Failure& failure : failures)
    out.push_back({{"case", failure.which}, {"reason", failure.reason}, {"repeat", repeat_of(words, failure)}});
  return out;
}

nlohmann::json group_json(const Group& group, const Words& words) {
  nlohmann::json operators = nlohmann::json::array(), checks = nlohmann::json::array();
  for (const Operator& one : group.operators)
    operators.push_back(
        {{"name", one.name}, {"passed", one.passed}, {"failed", one.failed}, {"unclaimed", one.unclaimed}, {"skipped", one.skipped}});
  for (const Checked& check : group.checks)
    checks.push_back({{"name", check.name}, {"asks", check.asks}, {"outcome", check.outcome}, {"reason", check.reason},
                      {"seconds", check.seconds}});
  return {{"name", group.name},           {"title", group.title},   {"passed", group.passed},
          {"failed", group.failed},       {"unclaimed", group.unclaimed}, {"known", group.known},
          {"not_tried", group.not_tried}, {"not_run", group.not_run}, {"not_run_because", group.not_run_because},
          {"ended", group.ended},         {"checks", checks},
          {"operators", operators},       {"failures", failures_json(group.failures, words)},
          {"known_failures", failures_json(group.known_failures, words)}};
}

}  // namespace

void print(std::FILE* out, const Group& group, const Words& words) {
  fmt::print(out, "{:<12} {} passed, {} failed, {} unclaimed", group.title, group.passed, group.failed, group.unclaimed);
  if (group.not_tried) fmt::print(out, ", {} not tried", group.not_tried);
  if (group.not_run) fmt::print(out, ", {}not run", group.checks.empty() ? "" : fmt::format("{} ", group.not_run));
  fmt::print(out, "{}\n", group.known ? fmt::format(", {} known to fail", group.known) : "");
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
  for (const auto& [outcome, word] : {std::pair{"not offered", "unclaimed"}, std::pair{"not run", "not run"}}) {
    std::map<std::string, std::string> nothing;  // by reason: the checks
    for (const Checked& check : group.checks)
      if (check.outcome == outcome) nothing[first_line(check.reason)] += " " + check.name.substr(2);
    for (const auto& [reason, checks] : nothing) fmt::print(out, "  {}:{}: {}\n", word, checks, reason);
  }
  if (!group.not_run_because.empty()) fmt::print(out, "  not run: {}\n", first_line(group.not_run_because));
  for (const Failure& failure : group.known_failures) fmt::print(out, "  known: {}: {}\n", failure.which, first_line(failure.reason));
  std::map<std::string, size_t> shown;
  for (const Failure& failure : group.failures) {
    if (group.checks.empty() && ++shown[row_of(failure.which)] > kShown) continue;
    fmt::print(out, "  FAIL {}: {}\n", failure.which, first_line(failure.reason));
    fmt::print(out, "    repeat: {}\n", repeat_of(words, failure));
  }
  for (const auto& [row, count] : shown)
    if (count > kShown) fmt::print(out, "  and {} more of {}\n", count - kShown, row);
}

nlohmann::json to_json(const Certificate& c) {
  nlohmann::json all = nlohmann::json::array(), device;
  for (const Group& group : c.groups) all.push_back(group_json(group, c.words));
  if (!c.device.uid.empty())
    device = {{"uid", c.device.uid}, {"description", c.device.description}, {"driver", c.device.driver}};
  return {{"schema", "keirin/certify/3"},
          {"keirin", KEIRIN_VERSION},
          {"abi", fmt::format("{}.{}", KRN_ABI_MAJOR, KRN_ABI_MINOR)},
          {"day", c.day},
          {"machine", machine_json()},
          {"device", device},
          {"os_arch", std::string(host_os_arch())},
          {"plugin", c.subject.manifest.name},
          {"publisher", c.subject.manifest.publisher},
          {"version", c.subject.manifest.version},
          {"guid", c.subject.manifest.guid_text},
          {"library", c.subject.library},
          {"sha256", c.subject.sha256},
          {"quick", c.words.quick},
          {"only", c.words.only},
          {"passed", c.passed},
          {"verdict", c.verdict},
          {"seconds", c.seconds},
          {"known", c.words.known},
          {"list_faults", c.list_faults},
          {"groups", all}};
}

}  // namespace keirin::tools::certify
