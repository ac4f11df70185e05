// SPDX-License-Identifier: Apache-2.0
//
// Where something was measured: the machine and the device, the class of those alike that ratios may be compared in, and
// whether times taken here can decide anything. Fingerprints hold no name of a person or host, only its hash.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "core/base/status.h"

namespace keirin::tools::matrix {

// What is measured of a machine: its processor, or one of its accelerators.
struct Place {
  std::string device = "cpu";  // as --device takes it: cuda:0, rocm:0
  std::string model, arch;     // an accelerator's, as its plugin says: "NVIDIA H200", "sm_90"
  std::string imagined;        // an instruction set that is only compiled for: its device is not here
};

// The device of that name, by the plugins that drive it. `unsupported` if it is not here, or no plugin drives it.
Result<Place> find_place(const std::string& device);

// Fields of a `machine` record.
nlohmann::json machine_fields(const Place& place);

// What may gate: `timing` all times; `counts` what is counted, times inform; numerics in both. `compile`: that there is code, and what of
// it is counted; nothing runs, so no answer is right. (A cell whose plugin is absent is "not run".)
enum class Fitness { kTiming, kCounts, kCompile };
const char* fitness_name(Fitness fitness);
// `gate`: the least of the cells', if one is known: above 5 % times say too little. A shared machine is declared unfit
// by whoever runs.
Fitness fitness_of(std::optional<double> gate, bool counts_only);

// What would spoil a sitting here, in words: the governor, the load. Empty: nothing that is seen.
std::string warnings_of_machine();
double machine_load();  // the last minute's

}  // namespace keirin::tools::matrix
