// SPDX-License-Identifier: Apache-2.0
//
// Operators that Python packages register and that a C++ process therefore lacks, as functions of our own over ATen: so
// that files which name them run everywhere. They live under names of their own ("keirin_torchvision::nms"), so that
// whoever loads the package's own library, before or after, meets no second registration. Made for any floating dtype,
// because the referee runs them in fp64.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <optional>
#include <string>

namespace keirin {

// Ours for the operator, registered at the first call that names it; nullopt if there is none. Any thread.
std::optional<c10::OperatorHandle> find_package_op(const std::string& space, const std::string& name,
                                                   const std::string& overload);

// Whether the operator is one of ours, by its schema's name.
bool is_package_op(const std::string& schema_name);

// What a reader can do about an operator of that namespace that nobody registered: a sentence without a full stop.
std::string package_advice(const std::string& space);

}  // namespace keirin
