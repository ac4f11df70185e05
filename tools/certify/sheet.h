// SPDX-License-Identifier: Apache-2.0
//
// What a plugin computes, for people who choose one: operators by dtypes, each cell tried and not only claimed.
#pragma once

#include <string>

#include "core/base/status.h"

namespace keirin::tools::certify {

// Markdown. Tries every case of the operator table on the plugin with this library, which takes minutes.
Result<std::string> sheet_of(const std::string& library);

}  // namespace keirin::tools::certify
