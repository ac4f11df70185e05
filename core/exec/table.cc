// SPDX-License-Identifier: Apache-2.0
//
// What fits is decided by columns: a table with fewer columns can be read, one with broken lines cannot.
#include "core/exec/table.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

namespace keirin {

std::string render_table(const std::vector<std::vector<std::string>>& rows, const std::vector<std::string>& first_out, size_t width) {
  const size_t columns = rows.front().size();
  std::vector<size_t> wide(columns, 0), shown(columns);
  for (const auto& row : rows)
    for (size_t c = 0; c < columns; ++c) wide[c] = std::max(wide[c], row[c].size());
  std::iota(shown.begin(), shown.end(), size_t{0});
  const auto total = [&] {
    return std::accumulate(shown.begin(), shown.end(), size_t{1}, [&](size_t sum, size_t c) { return sum + wide[c] + 3; });
  };
  // Words at the end of a line are worth no column of figures beyond their first few.
  constexpr size_t kWords = 32;
  const size_t words = wide.back() > kWords ? wide.back() - kWords : 0;
  std::vector<std::string> left_out;
  for (const std::string& name : first_out) {
    if (width == 0 || total() - words <= width) break;
    const auto at = std::find_if(shown.begin(), shown.end(), [&](size_t c) { return rows[0][c] == name; });
    if (at == shown.end()) continue;
    left_out.push_back(name);
    shown.erase(at);
  }
  // Words that do not fit are cut at the end of the line, but never to nothing.
  const size_t last = shown.back();
  bool cut = false;
  if (width > 0 && total() > width) {
    const size_t least = std::max<size_t>(rows[0][last].size(), 12), over = total() - width;
    const size_t kept = wide[last] > over + least ? wide[last] - over : least;
    cut = kept < wide[last];
    wide[last] = std::min(wide[last], kept);
  }
  std::string out;
  for (size_t r = 0; r < rows.size(); ++r) {
    out += "|";
    for (const size_t c : shown) {
      std::string cell = rows[r][c];
      if (cell.size() > wide[c]) cell = cell.substr(0, wide[c] - 2) + "..";
      out += c == shown.front() || c == last ? fmt::format(" {:<{}} |", cell, wide[c]) : fmt::format(" {:>{}} |", cell, wide[c]);
    }
    out += "\n";
    if (r > 0) continue;
    out += "|";
    for (const size_t c : shown) out += std::string(wide[c] + 2, '-') + "|";
    out += "\n";
  }
  if (!left_out.empty()) out += fmt::format("left out to fit {} columns: {}; --wide shows all\n", width, fmt::join(left_out, ", "));
  else if (cut) out += fmt::format("cut to fit {} columns; --wide shows all\n", width);
  return out;
}

}  // namespace keirin
