// SPDX-License-Identifier: Apache-2.0
//
// manifest.toml: what a plugin says about itself before any of its code runs. Data from outside: every field is checked,
// unknown keys are ignored, an unknown manifest_version is refused.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "abi/plugin.h"
#include "core/base/status.h"
#include "core/host/find/hardware.h"

namespace keirin {

struct AbiVersion {
  uint16_t major = 0, minor = 0;
  auto operator<=>(const AbiVersion&) const = default;
};

struct ManifestVariant {
  std::string os_arch;
  std::string library;  // absolute
  std::string sha256;   // may be empty
  std::vector<std::string> requires_cpu;
  // Names of libraries that the plugin opens itself ("libcudnn.so.9"). Where the host's process holds one, the plugin's workers get the
  // same copy: what one release planned another one may not be able to do.
  std::vector<std::string> shares;
};

struct Manifest {
  std::string path;  // of the file
  std::string guid_text, name, publisher, version;
  std::string support;  // how far its publisher stands for it, for people; may be empty
  krn_guid guid{};
  AbiVersion abi_min, abi_max;
  uint32_t opset_min = 0, opset_max = 0;
  std::vector<ManifestVariant> variants;
};

// What could be read before the first mistake is kept in `out`, so that a report can name the plugin.
Status read_manifest(const std::string& path, Manifest* out);

// The first variant for this machine. `version` if ABI or op-set do not meet ours, `unsupported` with the reason otherwise.
Result<const ManifestVariant*> choose_variant(const Manifest& manifest, const HardwareItem& cpu);

std::optional<krn_guid> parse_guid(std::string_view text);
std::string guid_text(const krn_guid& guid);

}  // namespace keirin
