// SPDX-License-Identifier: Apache-2.0
//
// The same front door with every option of core/api/options.def: for tests and tools.
#pragma once

#include "core/api/options.h"
#include "core/capture/record/capture.h"

namespace keirin {

// Throws as the constructor does.
CapturedModel open_captured(CapturedModel::Source source, const Options& options);

}  // namespace keirin
