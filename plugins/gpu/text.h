// SPDX-License-Identifier: Apache-2.0
//
// Texts of text/*.krn, as cmake/embed_text.cmake puts them into the library: kernels written by hand in the prelude's
// words.
#pragma once

#include <string_view>

namespace keirin::gpu::text {

extern const std::string_view attention, bags, gemv, grouped, recur, regroup, rows, split, tail, tiles, unit;

}  // namespace keirin::gpu::text
