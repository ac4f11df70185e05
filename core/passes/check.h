// SPDX-License-Identifier: Apache-2.0
//
// The whole verifier: core/ir's structure plus the shape rules of the table. Strides are not compared, layout carries no meaning.
#pragma once

#include "core/base/status.h"
#include "core/ir/graph.h"

namespace keirin {

Status check(const Graph& graph);

}  // namespace keirin
