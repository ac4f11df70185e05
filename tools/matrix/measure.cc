// SPDX-License-Identifier: Apache-2.0
#include "tools/matrix/measure.h"

#include <algorithm>

namespace keirin::tools::matrix {

const Measure& measure_of(std::string_view item) {
  constexpr int kBefore = 4;  // parts of a case before its scenario
  size_t begin = 0;
  for (int part = 0; part < kBefore; ++part) {
    begin = item.find('/', begin);
    if (begin == std::string_view::npos) return kCallTimes;
    ++begin;
  }
  const std::string_view scenario = item.substr(begin, item.find('/', begin) - begin);
  const auto at = std::find_if(std::begin(kStartTimes), std::end(kStartTimes),
                               [&](const Measure& each) { return each.scenario == scenario; });
  return at == std::end(kStartTimes) ? kCallTimes : *at;
}

}  // namespace keirin::tools::matrix
