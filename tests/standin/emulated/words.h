// SPDX-License-Identifier: Apache-2.0
//
// words.krn, as cmake/embed_text.cmake puts it into the library.
#pragma once

#include <string_view>

namespace keirin::standin::emulated {

extern const std::string_view words;

}  // namespace keirin::standin::emulated
