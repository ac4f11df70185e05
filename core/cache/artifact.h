// SPDX-License-Identifier: Apache-2.0
//
// What a plugin said of a region and what it made of it, as cache entries. An artifact's token comes first, so that a plugin can
// judge it before the body is used.
#pragma once

#include "core/cache/cache.h"
#include "core/host/plugins.h"

namespace keirin {

std::string artifact_bytes(const Artifact& artifact);
Result<Artifact> parse_artifact(std::string_view bytes);

std::string claims_text(const ClaimResult& claims);
Result<ClaimResult> parse_claims(std::string_view text);  // `corrupt`; what it says of the region is for check_claims

CacheKey claims_key(const PluginDevice& device, const Hash& region, const PolicyOptions& policy);
// Everything an artifact of the region on the device depends on. Of `options` that is which candidate, the level and the budget: what
// was made in another time of trying is another artifact.
CacheKey artifact_key(const PluginDevice& device, const Hash& region, const PolicyOptions& policy, const CompileOptions& options);

}  // namespace keirin
