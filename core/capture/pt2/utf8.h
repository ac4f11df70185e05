// SPDX-License-Identifier: Apache-2.0
//
// Whether bytes are well-formed UTF-8: shortest forms only, no surrogates, nothing above U+10FFFF.
#pragma once

#include <string_view>

namespace keirin::pt2 {

bool is_utf8(std::string_view text);

}  // namespace keirin::pt2
