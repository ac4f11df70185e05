// SPDX-License-Identifier: Apache-2.0
#include "tools/matrix/machine_class.h"

#include <fmt/format.h>

#include <cctype>
#include <string_view>

namespace keirin::tools::matrix {

namespace {

bool has(const nlohmann::json& machine, const char* flag) {
  return (" " + machine.value("flags", "") + " ").find(std::string(" ") + flag + " ") != std::string::npos;
}

}  // namespace

bool is_emulated(const nlohmann::json& machine) { return machine.value("arch", "unknown") != "x86_64" && has(machine, "sse2"); }

std::string class_of(const nlohmann::json& machine) {
  if (const auto device = machine.find("device"); device != machine.end() && device->is_object()) {
    const std::string name = device->value("name", "");
    std::string model;  // its words, small, without the vendor's, which the device's kind says
    for (const char c : device->value("model", ""))
      if (std::isalnum(static_cast<unsigned char>(c)))
        model += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
      else if (!model.empty() && model.back() != '-')
        model += '-';
    for (const std::string_view vendor : {"nvidia-", "amd-"})
      if (model.starts_with(vendor)) model.erase(0, vendor.size());
    return fmt::format("{}-{}{}{}", name.substr(0, name.find(':')), device->value("arch", "unknown"), model.empty() ? "" : "-", model);
  }
  const std::string arch = machine.value("arch", "unknown");
  std::string out = arch == "x86_64" ? "x86" : arch;
  if (arch == "x86_64") out += has(machine, "avx512f") ? "-avx512" : has(machine, "avx2") ? "-avx2" : "-sse";
  out += fmt::format("-{}c", machine.value("cores", 0));
  return out + (is_emulated(machine) ? "-emulated" : has(machine, "hypervisor") ? "-vm" : "");
}

}  // namespace keirin::tools::matrix
