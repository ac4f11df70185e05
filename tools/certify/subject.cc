// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "core/base/sha256.h"
#include "core/host/find/discovery.h"
#include "core/host/find/hardware.h"
#include "tools/certify/group.h"
#include "tools/files.h"

namespace keirin::tools::certify {
namespace fs = std::filesystem;

Result<std::string> hash_of(const std::string& path) {
  KRN_TRY_LET(const std::string all, read_file(path));
  return hex(sha256(all.data(), all.size()));
}

Result<Subject> find_subject(const std::string& typed) {
  const std::string path = fs::absolute(typed).lexically_normal().string();
  const Discovery found = find_manifests({path}, false);
  if (found.manifests.size() != 1) {
    std::string what = found.manifests.empty() ? found.empty_paths.empty() ? "no plugin" : found.empty_paths[0].second : "several plugins";
    return Status(Code::k_invalid_input, {fmt::format("\"{}\" is not one plugin: {}", typed, what), path, "nothing was run",
                                          "name the library of a plugin, beside which its manifest.toml stands"});
  }
  Subject out;
  KRN_TRY(read_manifest(found.manifests[0].path, &out.manifest));
  const std::vector<HardwareItem> hardware = find_hardware();
  KRN_TRY_LET(const ManifestVariant* variant, choose_variant(out.manifest, hardware.front()));
  out.library = variant->library;
  out.folder = fs::path(found.manifests[0].path).parent_path();
  KRN_TRY_LET(out.sha256, hash_of(out.library));
  return out;
}

Result<Programs> find_programs() {
  std::error_code error;
  const fs::path self = fs::read_symlink("/proc/self/exe", error).parent_path(), installed = self.parent_path();
  Programs out;
  out.worker = find_worker();
  for (const fs::path& folder : {self, installed / "libexec/keirin/certify"}) {
    out.checks = folder / "certify_checks";
    out.conformance = folder / "conformance";
    out.graphs = folder / "graphs";
    if (folder != self) out.skips = folder / "skips.txt";
    if (fs::exists(out.checks, error) && fs::exists(out.conformance, error) && fs::exists(out.graphs, error) && !out.worker.empty())
      return out;
  }
  return Status(Code::k_exhausted, {"the programs that certify a plugin are not here", installed / "libexec/keirin/certify",
                                    "nothing was run", "build Keirin with -DBUILD_TESTING=ON, and install it again"});
}

}  // namespace keirin::tools::certify
