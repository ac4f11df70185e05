// SPDX-License-Identifier: Apache-2.0
#include "plugins/codegen/plan/together.h"

#include <algorithm>
#include <map>

namespace keirin::codegen {

std::vector<std::vector<size_t>> put_together(std::span<const Touch> steps) {
  struct Open {
    size_t at;                            // in `out`
    std::set<uint32_t> touched, written;  // from there on: whoever joins is moved before all of that
  };
  const auto meets = [](const std::set<uint32_t>& these, const std::set<uint32_t>& those) {
    return std::ranges::any_of(these, [&](uint32_t memory) { return those.contains(memory); });
  };
  std::vector<std::vector<size_t>> out;
  std::map<std::string, Open> open;  // the last entry of each key
  for (size_t s = 0; s < steps.size(); ++s) {
    const Touch& step = steps[s];
    const auto found = step.key.empty() ? open.end() : open.find(step.key);
    size_t at = out.size();
    if (found != open.end() && !meets(step.written, found->second.touched) && !meets(step.touched, found->second.written)) {
      at = found->second.at;
      out[at].push_back(s);
    } else {
      out.push_back({s});
      if (!step.key.empty()) open[step.key] = {at, {}, {}};
    }
    for (auto& [key, each] : open) {
      if (each.at > at) continue;
      each.touched.insert(step.touched.begin(), step.touched.end());
      each.written.insert(step.written.begin(), step.written.end());
    }
  }
  return out;
}

}  // namespace keirin::codegen
