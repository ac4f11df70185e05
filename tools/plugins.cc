// SPDX-License-Identifier: Apache-2.0
//
// keirin plugins: every plugin and device that was found, and for each one that is not used, why.
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "core/host/plugins.h"
#include "tools/options.h"

namespace keirin::tools {
namespace {

struct Plugins {
  CommonOptions common;
  bool why = false;
};

nlohmann::json to_json(const PluginReport& report) {
  nlohmann::json devices = nlohmann::json::array();
  for (const DeviceReport& device : report.devices)
    devices.push_back({{"hardware", device.hardware}, {"used", device.used}, {"name", device.name}, {"reason", device.reason}});
  return {{"name", report.name},       {"version", report.version},         {"guid", report.guid}, {"path", report.path},
          {"library", report.library}, {"support", report.support},         {"used", report.used}, {"reason", report.reason},
          {"advice", report.advice},   {"quarantined", report.quarantined}, {"devices", devices}};
}

void print(std::FILE* out, const PluginReport& report, bool why) {
  std::string title = report.name.empty() ? report.path : report.name + " " + report.version;
  fmt::print(out, "{:<20} {}\n", title, report.used ? "used" : "not used: " + report.reason);
  if (!report.support.empty()) fmt::print(out, "  support: {}\n", report.support);
  if (!why) return;
  fmt::print(out, "  {}\n", report.library.empty() ? report.path : report.library);
  if (!report.used && !report.advice.empty()) fmt::print(out, "  advice: {}\n", report.advice);
  for (const std::string& region : report.quarantined) fmt::print(out, "  quarantined: {}\n", region);
  for (const DeviceReport& device : report.devices)
    fmt::print(out, "  {:<24} {}\n", device.hardware, device.used ? "used as " + device.name : "not used: " + device.reason);
}

Status run(Plugins& plugins) {
  plugins.common.finish();
  KRN_TRY_LET(auto runtime, Runtime::open(plugins.common.runtime));
  nlohmann::json all = nlohmann::json::array();
  for (const PluginReport& report : runtime->plugins().reports()) {
    print(text_out(plugins.common.json), report, plugins.why);
    all.push_back(to_json(report));
  }
  if (all.empty()) fmt::print(text_out(plugins.common.json), "no plugin was found: every model runs eagerly\n");
  if (!plugins.common.json.empty())
    return write_text(plugins.common.json, nlohmann::json{{"schema", "keirin/plugins/1"}, {"plugins", all}}.dump(2) + "\n");
  return {};
}

}  // namespace

void add_plugins(CLI::App& app, int& exit_code) {
  auto state = std::make_shared<Plugins>();
  CLI::App* word = app.add_subcommand("plugins", "list plugins and devices");
  word->add_flag("--why", state->why, "also paths, devices and what to do about each one that is not used");
  state->common.add_machine_to(*word);
  word->callback([state, &exit_code] {
    Status status = run(*state);
    if (!status.ok()) exit_code = fail(status);
  });
}

}  // namespace keirin::tools
