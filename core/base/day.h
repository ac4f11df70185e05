// SPDX-License-Identifier: Apache-2.0
//
// Days as lists of what is excused until one write them.
#pragma once

#include <array>
#include <ctime>
#include <string>

namespace keirin {

// YYYY-MM-DD, of UTC. Any thread.
inline std::string today() {
  const std::time_t now = std::time(nullptr);
  std::tm day{};
  std::array<char, 16> text{};
  ::gmtime_r(&now, &day);
  return {text.data(), std::strftime(text.data(), text.size(), "%Y-%m-%d", &day)};
}

}  // namespace keirin
