// SPDX-License-Identifier: Apache-2.0
//
// Texts of text/*.krn, as cmake/embed_text.cmake puts them into the library.
#pragma once

#include <string_view>

namespace keirin::codegen::text {

extern const std::string_view common, host;

}  // namespace keirin::codegen::text
