// SPDX-License-Identifier: Apache-2.0
#include "tools/matrix/machine_class.h"

#include <fmt/format.h>

#include <cctype>
#include <string_view>

namespace keirin::tools::matrix {

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
  const std::string flags = " " + machine.value("flags", "") + " ", arch = machine.value("arch", "unknown");
  const auto has = [&](const char* flag) { return flags.find(std::string(" ") + flag + " ") != std::string::npos; };
  std::string out = arch == "x86_64" ? "x86" : arch;
  if (arch == "x86_64") out += has("avx512f") ? "-avx512" : has("avx2") ? "-avx2" : "-sse";
  return out + fmt::format("-{}c{}", machine.value("cores", 0), has("hypervisor") ? "-vm" : "");
}

}  // namespace keirin::tools::matrix
