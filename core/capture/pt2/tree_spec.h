// SPDX-License-Identifier: Apache-2.0
//
// Reads a pytree specification: JSON text that an exported program keeps in a string, with more JSON text inside for
// the keys of dictionaries. A container class that is not one of the five known kinds is kept as kOther, never an
// error.
#pragma once

#include <string_view>

#include "core/capture/pt2/limits.h"
#include "core/capture/pt2/schema.h"

namespace keirin::pt2 {

// `fields` holds the field names of namedtuple classes, as far as the file has them.
Result<TreeSpec> parse_tree_spec(std::string_view text, const Named<std::vector<std::string>>& fields,
                                 const Limits& limits);

}  // namespace keirin::pt2
