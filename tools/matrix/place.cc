// SPDX-License-Identifier: Apache-2.0
#include "tools/matrix/place.h"

#include <fmt/format.h>
#include <unistd.h>

#include <fstream>

#include "core/api/devices.h"
#include "core/base/sha256.h"
#include "core/exec/report.h"
#include "core/host/plugins.h"
#include "core/tune/stats.h"
#include "tools/matrix/machine_class.h"
#include "tools/options.h"

namespace keirin::tools::matrix {

Result<Place> find_place(const std::string& device) {
  if (device == "cpu") return Place();
  Options options;
  options.use_cache = false;
  KRN_TRY_LET(const auto runtime, Runtime::open(options));
  KRN_TRY_LET(const NamedDevice named, find_device(device, runtime->plugins()));
  for (const PluginDevice* each : runtime->plugins().devices())
    if (each->torch_device() == named.device && named.device.kind != Device::kCpu)
      return Place{device_name(named.device), each->name(), each->arch(), {}};
  return Status(Code::k_unsupported, {"no plugin drives this device", device, "nothing was measured",
                                      "keirin plugins --why says what was found, and what is missing"});
}

nlohmann::json machine_fields(const Place& place) {
  nlohmann::json machine = machine_json();
  if (place.device != "cpu")
    machine["device"] = {{"name", place.device}, {"model", place.model}, {"arch", place.arch}};
  if (!place.imagined.empty()) machine["device"] = {{"name", "imagined"}, {"arch", place.imagined}};
  std::string name(256, '\0'), id;
  if (::gethostname(name.data(), name.size() - 1) != 0) name.clear();
  std::ifstream("/etc/machine-id") >> id;
  const std::string both = name.substr(0, name.find('\0')) + "/" + id;
  machine["host"] = hex(sha256(both.data(), both.size())).substr(0, 16);
  machine["class"] = class_of(machine);
  return machine;
}

const char* fitness_name(Fitness fitness) {
  switch (fitness) {
    case Fitness::kTiming:
      return "timing";
    case Fitness::kCounts:
      return "counts";
    case Fitness::kCompile:
      return "compile";
  }
  return "counts";
}

Fitness fitness_of(std::optional<double> gate, bool counts_only) {
  return counts_only || (gate && *gate > kCalls.largest_gate) ? Fitness::kCounts : Fitness::kTiming;
}

double machine_load() {
  double load = 0;
  std::ifstream("/proc/loadavg") >> load;
  return load;
}

std::string warnings_of_machine() {
  std::string out;
  std::string governor;
  if (std::ifstream file("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor");
      file >> governor && governor != "performance")
    out += "the CPU's governor is " + governor +
           ": times vary by several per cent (cpupower frequency-set -g performance). ";
  if (const double load = machine_load(); load > 0.5 * static_cast<double>(::sysconf(_SC_NPROCESSORS_ONLN)))
    out += fmt::format("the load is {:.1f}: others' work disturbs what is timed. ", load);
  return out;
}

}  // namespace keirin::tools::matrix
