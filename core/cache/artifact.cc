// SPDX-License-Identifier: Apache-2.0
#include "core/cache/artifact.h"

#include <string.h>

#include "abi/graph.h"
#include "core/host/worker/compile_words.h"

namespace keirin {

std::string artifact_bytes(const Artifact& artifact) {
  const uint64_t token_bytes = artifact.token.size();
  std::string bytes(reinterpret_cast<const char*>(&token_bytes), sizeof(token_bytes));
  bytes += artifact.token;
  bytes += artifact.body;
  return bytes;
}

Result<Artifact> parse_artifact(std::string_view bytes) {
  uint64_t token_bytes = 0;
  if (bytes.size() < sizeof(token_bytes)) return Status(Code::k_corrupt, "the artifact is shorter than its header");
  memcpy(&token_bytes, bytes.data(), sizeof(token_bytes));
  bytes.remove_prefix(sizeof(token_bytes));
  if (token_bytes > bytes.size()) return Status(Code::k_corrupt, "the artifact is shorter than its token");
  return Artifact{std::string(bytes.substr(0, token_bytes)), std::string(bytes.substr(token_bytes))};
}

std::string claims_text(const ClaimResult& claims) {
  return claims_json(claims).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

Result<ClaimResult> parse_claims(std::string_view text) {
  try {
    return claims_from_json(nlohmann::json::parse(text));
  } catch (const nlohmann::json::exception& e) {
    return Status(Code::k_corrupt, Message{std::string("these are not claims: ") + e.what(), "claims", "the plugin is asked again", {}});
  }
}

CacheKey claims_key(const PluginDevice& device, const Hash& region, const PolicyOptions& policy) {
  CacheKey key;
  key.add("abi", std::to_string(KRN_ABI_MAJOR) + "." + std::to_string(KRN_ABI_MINOR));
  key.add("opset", KRN_OPSET_VERSION);
  key.add("region", hex(region));
  key.add("numerics", policy.numerics);
  key.add("deterministic", policy.deterministic);
  key.add("replay", policy.replay);
  key.add("memory_limit_bytes", static_cast<int64_t>(policy.memory_limit_bytes));
  key.add("tf32_convolutions", policy.tf32_convolutions);
  key.add("tf32_products", policy.tf32_products);
  key.add("tf32_recurrent", policy.tf32_recurrent);
  key.add("plugin_guid", device.plugin_guid());
  key.add("plugin_version", device.plugin_version());
  key.add("plugin_build", device.plugin_build_id());
  key.add("device_arch", device.arch());
  key.add("device_fingerprint", device.fingerprint());
  return key;
}

CacheKey artifact_key(const PluginDevice& device, const Hash& region, const PolicyOptions& policy, const CompileOptions& options) {
  return claims_key(device, region, policy)
      .add("candidate", options.candidate)
      .add("level", options.level)
      .add("tune_budget_ns", options.tune_budget.count());
}

}  // namespace keirin
