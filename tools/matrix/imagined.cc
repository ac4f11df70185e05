// SPDX-License-Identifier: Apache-2.0
#include "tools/matrix/imagined.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <set>

#include "core/host/plugins.h"
#include "tools/files.h"
#include "tools/matrix/worker.h"
#include "tools/options.h"

namespace keirin::tools::matrix {
namespace {

using nlohmann::json;

Options imagining(const std::string& arch) {
  Options options;
  options.use_cache = false;
  options.imagine = arch;
  return options;
}

std::vector<std::string> plugins_of(Runtime& runtime, const std::string& arch) {
  std::vector<std::string> out;
  for (const PluginDevice* device : runtime.plugins().devices())
    if (device->arch() == arch) out.push_back(device->plugin_name());
  return out;
}

// What the list of launches says of the code (docs/launches.md).
Status count_code(const std::string& folder, json* counts) {
  KRN_TRY_LET(const std::string text, read_file(folder + "/launches.json"));
  const json list = json::parse(text, nullptr, false);
  if (!list.is_object() || !list.contains("launches") || !list["launches"].is_array())
    return Status(Code::k_corrupt, Message{"this is not a list of launches", folder, {}, {}});
  std::set<std::pair<std::string, std::string>> kernels;
  std::map<std::string, int64_t> spilled;  // by object
  for (const json& launch : list["launches"]) {
    const std::string code = launch.value("code", "");
    kernels.emplace(code, launch.value("kernel", ""));
    if (launch.contains("spilled")) spilled[code] = launch.value("spilled", int64_t{0});
  }
  (*counts)["launches"] = list["launches"].size(), (*counts)["kernels"] = kernels.size();
  if (spilled.empty()) return {};
  int64_t sum = 0;
  for (const auto& [code, registers] : spilled) sum += registers;
  (*counts)["spilled"] = sum;
  return {};
}

}  // namespace

Result<std::vector<std::string>> plugins_that_imagine(const std::string& arch) {
  const Options options = imagining(arch);
  tell_plugins(options);
  KRN_TRY_LET(const auto runtime, Runtime::open(options));
  std::vector<std::string> found = plugins_of(*runtime, arch);
  if (!found.empty()) return found;
  std::string said;
  for (const PluginReport& plugin : runtime->plugins().reports())
    for (const DeviceReport& device : plugin.devices)
      if (device.reason.find(arch) != std::string::npos && said.find(device.reason) == std::string::npos)
        said += "; " + plugin.name + ": " + device.reason;
  return Status(Code::k_unsupported, {"no plugin here compiles for this instruction set" + said, arch, "nothing was measured",
                                      "keirin plugins --why says what was found, and what is missing"});
}

Result<json> compile_only(const Case& item, const std::string& variant, const std::string& arch) {
  if (!variant.starts_with(kCompiled))
    return Status(Code::k_unsupported, "a device that is not here answers nothing: there are only cells of compiled:PLUGIN");
  const std::string plugin = variant.substr(kCompiled.size());
  const auto begin = std::chrono::steady_clock::now();
  KRN_TRY_LET(const ScratchFolder launches, ScratchFolder::make("launches"));
  Options options = imagining(arch);
  options.mode = item.mode;
  options.force = "compiled";
  options.race_seconds = 0;
  options.verify = false;  // what answers is the interpreter
  options.sample_rate = 0;
  options.launches_dir = launches.path();
  tell_plugins(options);
  KRN_TRY_LET(const auto runtime, Runtime::open(options));
  const std::vector<std::string> found = plugins_of(*runtime, arch);
  if (std::find(found.begin(), found.end(), plugin) == found.end())
    return Status(Code::k_unsupported, "the plugin " + plugin + " is not here, or does not compile for " + arch);
  options.plugins = {plugin};
  KRN_TRY_LET(const std::string path, find_model(item.model, item.zoo()));
  KRN_TRY_LET(const auto session, Session::open(*runtime, path, options));
  KRN_TRY_LET(const std::vector<TensorRef> inputs, item.free_sizes().empty() ? session->example_inputs(1)
                                                                             : session->example_inputs(1, item.free_sizes()));
  KRN_TRY_LET(const ModelReport report, session->compile(inputs));
  for (const StepReport& step : report.steps)
    if (step.reason == "compile_failed")
      return Status(Code::k_internal, "plugin " + plugin + " could not compile what it claimed: " + step.note);
  if (report.chosen == "eager")
    return Status(Code::k_unsupported, Message{"plugin " + plugin + " made nothing of it",
                                               report.reasons.empty() ? "" : report.reasons[0],
                                               {},
                                               {}});
  KRN_TRY(session->call(inputs).status());  // the first run of each region is written down
  json counts = counts_of(report);
  KRN_TRY(count_code(launches.path(), &counts));
  return json{{"chosen", report.chosen},
              {"disturbed", ""},
              {"counts", counts},
              {"fallbacks", fallbacks_of(report)},
              {"build_ns", static_cast<uint64_t>(std::chrono::nanoseconds(std::chrono::steady_clock::now() - begin).count())}};
}

}  // namespace keirin::tools::matrix
