// SPDX-License-Identifier: Apache-2.0
//
// Texts of text/*.krn, as cmake/embed_text.cmake puts them into the library: what only NVIDIA's compiler knows.
#pragma once

#include <string_view>

namespace keirin::cuda::text {

extern const std::string_view prelude, product, recur, rows, stream, tiles;

}  // namespace keirin::cuda::text
