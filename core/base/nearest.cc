// SPDX-License-Identifier: Apache-2.0
#include "core/base/nearest.h"

#include <algorithm>

namespace keirin {

size_t letters_apart(std::string_view a, std::string_view b) {
  const auto same = [](char x, char y) {
    const auto small = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; };
    return small(x) == small(y);
  };
  std::vector<size_t> before, last(b.size() + 1), now(b.size() + 1);  // rows of the table of prefixes
  for (size_t j = 0; j <= b.size(); ++j) last[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    now[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      now[j] = std::min({last[j] + 1, now[j - 1] + 1, last[j - 1] + !same(a[i - 1], b[j - 1])});
      if (i > 1 && j > 1 && same(a[i - 1], b[j - 2]) && same(a[i - 2], b[j - 1]))
        now[j] = std::min(now[j], before[j - 2] + 1);
    }
    before = last;
    std::swap(last, now);
  }
  return last[b.size()];
}

std::string nearest_word(std::string_view typed, const std::vector<std::string>& known) {
  const auto at = std::min_element(known.begin(), known.end(), [&](const std::string& a, const std::string& b) {
    return letters_apart(typed, a) < letters_apart(typed, b);
  });
  return at == known.end() ? std::string() : *at;
}

}  // namespace keirin
