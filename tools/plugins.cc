// SPDX-License-Identifier: Apache-2.0
//
// keirin plugins: every plugin and device that was found, and for each one that is not used, why; of one of them, what it computes.
#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "core/host/plugins.h"
#include "tools/certify/sheet.h"
#include "tools/files.h"
#include "tools/options.h"
#include "tools/page/page.h"

namespace keirin::tools {
namespace {

struct Plugins {
  CommonOptions common;
  bool why = false;
  std::string sheet, html;  // of the plugin of this name; a file
  bool no_speed = false;
  double speed_limit = certify::SheetWords().seconds;
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

// What the plugin of that name computes, as Markdown, and as JSON or a page where that is asked for.
Status show_sheet(const Plugins& plugins, const std::vector<PluginReport>& reports) {
  std::string names;
  certify::SheetWords words{.library = {}, .beside = {}, .speed = !plugins.no_speed, .seconds = plugins.speed_limit};
  for (const PluginReport& report : reports) {
    if (report.name == plugins.sheet && !report.library.empty()) words.library = report.library;
    else if (report.used) words.beside.push_back(std::filesystem::path(report.library).parent_path());
    names += (names.empty() ? "" : ", ") + report.name;
  }
  if (words.library.empty())
    return Status(Code::k_invalid_input, {fmt::format("no plugin is called \"{}\"", plugins.sheet), {}, "nothing was run",
                                          names.empty() ? "no plugin was found: name a folder with --plugin" : "there are " + names});
  KRN_TRY_LET(const nlohmann::json sheet, certify::sheet_of(words));
  fmt::print(text_out(plugins.common.json), "{}", certify::sheet_text(sheet));
  if (!plugins.html.empty())
    KRN_TRY(write_text(plugins.html, page_html(fmt::format("Keirin: what {} computes", plugins.sheet), View::kSheet, sheet)));
  if (plugins.common.json.empty()) return {};
  return write_text(plugins.common.json, sheet.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

Status run(Plugins& plugins) {
  plugins.common.finish();
  KRN_TRY_LET(auto runtime, Runtime::open(plugins.common.runtime));
  if (!plugins.sheet.empty()) return show_sheet(plugins, runtime->plugins().reports());
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
  word->add_option("--sheet", state->sheet,
                   "what the plugin of this name computes, tried case by case, and how fast beside eager and the other plugins, as tables "
                   "in Markdown; minutes");
  word->add_flag("--no-speed", state->no_speed, "with --sheet: what it computes alone, nothing is timed");
  word->add_option("--speed-limit", state->speed_limit, "with --sheet: seconds that timing may take; what there was no time for is counted")
      ->capture_default_str();
  word->add_option("--html", state->html, "with --sheet: also write it as a page to this file");
  state->common.add_machine_to(*word);
  word->callback([state, &exit_code] {
    Status status = run(*state);
    if (!status.ok()) exit_code = fail(status);
  });
}

}  // namespace keirin::tools
