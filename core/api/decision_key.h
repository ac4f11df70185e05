// SPDX-License-Identifier: Apache-2.0
//
// Under what a decision is kept: everything that it depends on and that the next process may have otherwise. What this
// process finds about machine, plugins and files is in the record's fingerprints instead.
#pragma once

#include <map>
#include <string>

#include "core/api/options.h"
#include "core/base/sha256.h"
#include "core/cache/cache.h"

namespace keirin {

// `graph`: of the region bytes after the passes. `options`: complete, device and threads as they are in effect.
// `library`: LibTorch's settings by name (core/eager/program/library_settings.h). The rows of options.def and variables.def
// that decide are added, the latter as the environment has them. Any thread.
CacheKey decision_key(const Hash& graph, const Options& options, const std::map<std::string, std::string>& library);

}  // namespace keirin
