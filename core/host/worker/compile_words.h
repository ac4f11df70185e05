// SPDX-License-Identifier: Apache-2.0
//
// The questions that the host asks a worker and the answers, as packets. Both sides read and write them here; readers
// throw nlohmann's exceptions for what is not of the form.
#pragma once

#include <optional>

#include "core/host/plugins.h"
#include "core/host/worker/channel.h"
#include "core/host/worker/device_driver.h"

namespace keirin {

Packet claim_question(const std::string& device, const PluginRegion& region, const PolicyOptions& policy);
// `weights`: also their values, in a sealed memory file; `unsupported` if one is not in this process's memory.
Result<Packet> compile_question(const std::string& device, const PluginRegion& region, const PolicyOptions& policy,
                                const CompileOptions& options, bool weights);

// The region as an executable of number `id` in a worker, to be loaded from the artifact, or compiled where there is none. The memory
// file that goes with it holds the weights' values and, behind them, `room` bytes at `room_at`.
Result<Packet> load_question(uint64_t id, const std::string& device, const PluginRegion& region, const Artifact* artifact,
                             const PolicyOptions& policy, const CompileOptions& options, uint64_t room);

// On a GPU the worker is lent memory of the device instead: for the arguments, and the blocks in which the weights' copies lie.
struct LentMemory {
  DeviceDriver::Handle handle{};
  uint64_t bytes = 0;
};
struct LentRegion {
  struct Weight {
    DType dtype;
    std::vector<int64_t> sizes, strides;
    uint32_t block;
    uint64_t offset, bytes;
  };
  std::optional<LentMemory> arguments;        // none: they lie in the memory file, and go to the device and back for each run
  std::optional<DeviceDriver::Handle> event;  // when a run's inputs are there; none: they are when it is asked for
  std::vector<LentMemory> blocks;
  std::vector<Weight> weights;  // by weight id
};
void put_lent(const LentRegion& lent, Packet* packet);
std::optional<LentRegion> lent_of(const Packet& packet);  // nothing: the memory file has it all

// A question as the child reads it; the region points into what it owns.
struct Question {
  std::string op;      // "claim", "compile", "load", "drop"
  std::string device;  // uid of the hardware
  std::vector<uint64_t> bytes;  // of the region, aligned to 8
  PluginRegion region;
  PolicyOptions policy;
  CompileOptions options;
  bool dump = false;
  uint64_t id = 0;                   // "load", "drop"
  std::optional<Artifact> artifact;  // "load"
};
Question read_question(const Packet& packet);

// Where the room begins in the memory file of a packet.
uint64_t room_at(const Packet& packet);

nlohmann::json info_json(const ExecutableInfo& info);
ExecutableInfo info_from_json(const nlohmann::json& j);

nlohmann::json claims_json(const ClaimResult& claims);
ClaimResult claims_from_json(const nlohmann::json& j);

}  // namespace keirin
