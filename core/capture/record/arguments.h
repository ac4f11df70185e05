// SPDX-License-Identifier: Apache-2.0
//
// The argument of an operator call as a file would write it: the inverse of core/eager/program/bind.h.
#pragma once

#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>

#include <functional>
#include <optional>
#include <string>

#include "core/capture/pt2/schema.h"

namespace keirin {

// nullopt: it has no form in a file (a generator, a storage, a stream, a class). `name_of` says what a tensor is called; numbers that
// stand for tensors are written as numbers.
std::optional<pt2::Argument> argument_of(const c10::IValue& value, const c10::Argument& parameter,
                                         const std::function<std::string(const at::Tensor&)>& name_of);

}  // namespace keirin
