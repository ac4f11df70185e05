// SPDX-License-Identifier: Apache-2.0
//
// The rules between the parts of a decoded program, which no single JSON value shows: every name is defined once and
// before its use, tensors have a description, and the signature speaks of inputs that exist.
#pragma once

#include "core/capture/pt2/schema.h"

namespace keirin::pt2 {

Status check_program(const Program& program);

}  // namespace keirin::pt2
