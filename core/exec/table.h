// SPDX-License-Identifier: Apache-2.0
//
// Text tables that fit a terminal.
#pragma once

#include <string>
#include <vector>

namespace keirin {

// Columns as wide as their widest cell; the first and last to the left, others to the right. Where that is wider than `width` (0: no
// limit), the last column may be cut to 32 characters and whole columns are left out in the order of `first_out` (by name); a line behind
// the table says which. `rows[0]` names the columns.
std::string render_table(const std::vector<std::vector<std::string>>& rows, const std::vector<std::string>& first_out, size_t width);

}  // namespace keirin
