// SPDX-License-Identifier: Apache-2.0
//
// Texts of text/*.krn, as cmake/embed_text.cmake puts them into the library: what only AMD's compiler knows.
#pragma once

#include <string_view>

namespace keirin::rocm::text {

extern const std::string_view prelude, recur, rows, unit;

}  // namespace keirin::rocm::text
