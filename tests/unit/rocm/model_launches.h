// SPDX-License-Identifier: Apache-2.0
//
// A model's whole list of launches for a target that is not there. Each region is compiled for it as for a device, and run on the host:
// launches on emulated waves of the target, library calls by naive loops. What every launch got is written down, with what it and
// those before it left: all that a library call reads, and the region's outputs.
#pragma once

#include <span>
#include <string>

namespace keirin::test {

// `graphs`: files of graphs as plugins see them (KEIRIN_DUMP). 0, or 1 with words on standard error, also where the emulated waves
// disagree with node-by-node evaluation.
int write_models(const std::string& folder, const std::string& arch, std::span<char* const> graphs);

}  // namespace keirin::test
