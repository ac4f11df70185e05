// SPDX-License-Identifier: Apache-2.0
#include "tools/certify/known.h"

#include <fmt/format.h>
#include <fnmatch.h>

#include <sstream>

#include "tools/files.h"

namespace keirin::tools::certify {
namespace {

bool is_date(const std::string& text) {
  int year = 0, month = 0, day = 0, end = 0;
  return std::sscanf(text.c_str(), "%4d-%2d-%2d%n", &year, &month, &day, &end) == 3 && end == 10 && text.size() == 10 && month >= 1 &&
         month <= 12 && day >= 1 && day <= 31;
}

bool matches(const Known& known, const std::string& which) { return fnmatch(known.pattern.c_str(), which.c_str(), 0) == 0; }

}  // namespace

Result<std::vector<Known>> read_known(const std::string& path) {
  KRN_TRY_LET(const std::string all, read_file(path));
  std::vector<Known> out;
  std::istringstream lines(all);
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    if (line.find_first_not_of(" \t") == std::string::npos || line[0] == '#') continue;
    Known known;
    known.line = number;
    std::istringstream words(line);
    words >> known.pattern >> known.until;
    std::getline(words >> std::ws, known.reason);
    if (!is_date(known.until) || known.reason.empty())
      return Status(Code::k_invalid_input, {fmt::format("\"{}\" is not a known failure", line), fmt::format("{}:{}", path, number),
                                            "nothing was run", "write what fails, the last day (YYYY-MM-DD) and the reason"});
    out.push_back(known);
  }
  return out;
}

std::vector<std::string> apply_known(std::vector<Group>& groups, const std::vector<Known>& known, const std::string& today, bool whole) {
  std::vector<bool> used(known.size(), false);
  for (Group& group : groups)
    std::erase_if(group.failures, [&](const Failure& failure) {
      for (size_t i = 0; i < known.size(); ++i) {
        if (!matches(known[i], failure.which)) continue;
        used[i] = true;
        if (known[i].until < today) continue;
        --group.failed, ++group.known;
        group.known_failures.push_back({failure.which, fmt::format("{} (until {}): {}", known[i].reason, known[i].until, failure.reason)});
        return true;
      }
      return false;
    });
  std::vector<std::string> wrong;
  for (size_t i = 0; i < known.size(); ++i) {
    const Known& k = known[i];
    if (used[i] && k.until < today) wrong.push_back(fmt::format("line {}: {} was excused until {}", k.line, k.pattern, k.until));
    const bool lettered = k.pattern.size() > 1 && k.pattern[1] == '/';
    if (!used[i] && (whole || lettered))
      wrong.push_back(fmt::format("line {}: {} does not fail: remove the line", k.line, k.pattern));
  }
  return wrong;
}

}  // namespace keirin::tools::certify
