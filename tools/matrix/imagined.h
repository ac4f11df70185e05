// SPDX-License-Identifier: Apache-2.0
//
// Cells of a device that is not here: a plugin compiles for its instruction set and nothing runs, so that there are counts and no time, and
// no answer is right or wrong.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "tools/matrix/cases.h"

namespace keirin::tools::matrix {

// The plugins that compile for this instruction set here, by name. `unsupported` with what each says if there is none. For this process and
// its children the device is imagined from now on; before there is a second thread.
Result<std::vector<std::string>> plugins_that_imagine(const std::string& arch);

// A worker's answer to `open` (worker.h), of which `counts` are nodes, nodes_compiled, nodes_eager, nodes_opaque, and of the code: kernels,
// launches of one call, and registers `spilled` to memory where the plugin tells. `unsupported` where the plugin is not here or makes
// nothing of the model, `internal` with its words where it claimed a part and could not compile it.
Result<nlohmann::json> compile_only(const Case& item, const std::string& variant, const std::string& arch);

}  // namespace keirin::tools::matrix
