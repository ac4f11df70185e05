// SPDX-License-Identifier: Apache-2.0
//
// Where something was measured: the machine, the class of machines alike that ratios may be compared in, and whether
// times taken here can decide anything. Fingerprints hold no name of a person or host, only its hash.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

namespace keirin::tools::matrix {

// Fields of a `machine` record.
nlohmann::json machine_fields();

// "x86-avx512-2c-vm", of a machine's fields.
std::string class_of(const nlohmann::json& machine);

// What may gate: `timing` everything; `counts` numerics alone, times inform. (A cell whose plugin is absent is "not
// run".)
enum class Fitness { kTiming, kCounts };
const char* fitness_name(Fitness fitness);
// `gate`: the least of the cells', if one is known: above 5 % times say too little. A shared machine is declared unfit
// by whoever runs.
Fitness fitness_of(std::optional<double> gate, bool counts_only);

// What would spoil a sitting here, in words: the governor, the load. Empty: nothing that is seen.
std::string warnings_of_machine();
double machine_load();  // the last minute's

}  // namespace keirin::tools::matrix
