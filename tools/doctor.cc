// SPDX-License-Identifier: Apache-2.0
//
// keirin doctor: what this machine offers and what would spoil a measurement, with the fix. It measures the memory's copy rate,
// the roof that memory-bound speed is compared with.
#include <fmt/format.h>

#include <chrono>
#include <cstring>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "core/api/devices.h"
#include "core/cache/cache.h"
#include "core/host/plugins.h"
#include "tools/options.h"

namespace keirin::tools {
namespace {

struct Finding {
  const char* level;  // ok, warn, fail
  std::string text, fix;
};

// GB/s, counting bytes read and written, best of five over 256 MB on all threads of LibTorch's pool.
double copy_rate(TensorServices& services) {
  const int64_t bytes = int64_t{128} << 20;
  std::vector<char> from(bytes, 1), to(bytes, 2);
  double best = 0;
  for (int round = 0; round < 5; ++round) {
    auto start = std::chrono::steady_clock::now();
    services.parallel_for(bytes, int64_t{1} << 20, [&](int64_t begin, int64_t end) {
      std::memcpy(to.data() + begin, from.data() + begin, static_cast<size_t>(end - begin));
    });
    double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    best = std::max(best, 2.0 * static_cast<double>(bytes) / seconds / 1e9);
  }
  return best;
}

std::vector<Finding> examine(Runtime& runtime, const Status& device) {
  std::vector<Finding> findings;
  if (const Message& m = device.message(); !device.ok())
    findings.push_back({"fail", m.what + (m.where.empty() ? "" : ": " + m.where), m.advice});
  findings.push_back({"ok", fmt::format("LibTorch with {} threads, memory copies {:.1f} GB/s", runtime.tensors().num_threads(),
                                        copy_rate(runtime.tensors())), ""});
  size_t used = 0;
  for (const PluginReport& report : runtime.plugins().reports()) {
    used += report.used;
    for (const DeviceReport& device : report.devices)
      if (device.used) findings.push_back({"ok", fmt::format("plugin {} {} drives {}", report.name, report.version, device.name), ""});
    if (!report.used)
      findings.push_back({"warn", fmt::format("plugin {} is not used: {}", report.name.empty() ? report.path : report.name, report.reason),
                          report.advice});
  }
  if (!used) findings.push_back({"warn", "no plugin is usable: every model runs eagerly", "keirin plugins --why"});
  if (Cache* cache = runtime.cache(); cache && cache->usable()) findings.push_back({"ok", "cache in " + cache->dir(), ""});
  else findings.push_back({"warn", "no cache: every start compiles again", "set KEIRIN_CACHE to a folder of yours with mode 0700"});
  std::string governor;
  if (std::ifstream file("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"); file >> governor && governor != "performance")
    findings.push_back(
        {"warn", "CPU governor is " + governor + ": timings vary by several per cent", "cpupower frequency-set -g performance"});
  double load = 0;
  if (std::ifstream file("/proc/loadavg"); file >> load && load > 0.5 * runtime.tensors().num_threads())
    findings.push_back({"warn", fmt::format("load is {:.1f}: other work disturbs measurements", load), "wait until the machine is idle"});
  return findings;
}

Status run(CommonOptions& common) {
  common.finish();
  KRN_TRY_LET(auto runtime, Runtime::open(common.runtime));
  const Status device = find_device(common.runtime.device, runtime->plugins()).status();
  if (device.code() == Code::k_invalid_input) return device;  // a word that names nothing says nothing about the machine
  nlohmann::json all = nlohmann::json::array();
  for (const Finding& finding : examine(*runtime, device)) {
    fmt::print(text_out(common.json), "{:<5} {}\n", finding.level, finding.text);
    if (!finding.fix.empty()) fmt::print(text_out(common.json), "      fix: {}\n", finding.fix);
    all.push_back({{"level", finding.level}, {"text", finding.text}, {"fix", finding.fix}});
  }
  if (!common.json.empty())
    return write_text(common.json,
                      nlohmann::json{{"schema", "keirin/doctor/1"}, {"machine", machine_json()}, {"findings", all}}.dump(2) + "\n");
  return {};
}

}  // namespace

void add_doctor(CLI::App& app, int& exit_code) {
  auto common = std::make_shared<CommonOptions>();
  CLI::App* word = app.add_subcommand("doctor", "look at the machine, the plugins and the cache");
  common->add_machine_to(*word);
  word->callback([common, &exit_code] {
    Status status = run(*common);
    if (!status.ok()) exit_code = fail(status);
  });
}

}  // namespace keirin::tools
