// SPDX-License-Identifier: Apache-2.0
//
// The questions that the host asks its compile child and the answers, as packets. Both sides read and write them here; readers
// throw nlohmann's exceptions for what is not of the form.
#pragma once

#include "core/host/channel.h"
#include "core/host/plugins.h"

namespace keirin {

Packet claim_question(const std::string& device, const PluginRegion& region, const PolicyOptions& policy);
// `weights`: also their values, in a sealed memory file; `unsupported` if one is not in this process's memory.
Result<Packet> compile_question(const std::string& device, const PluginRegion& region, const PolicyOptions& policy,
                                const CompileOptions& options, bool weights);

// A question as the child reads it; the spans point into what it owns.
struct Question {
  std::string op;      // "claim", "compile"
  std::string device;  // uid of the hardware
  std::vector<uint64_t> bytes;  // of the region, aligned to 8
  PluginRegion region;
  PolicyOptions policy;
  CompileOptions options;
  bool dump = false;
};
Question read_question(Packet packet);

nlohmann::json claims_json(const ClaimResult& claims);
ClaimResult claims_from_json(const nlohmann::json& j);

}  // namespace keirin
