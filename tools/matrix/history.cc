// SPDX-License-Identifier: Apache-2.0
//
// Series over sittings: a suspicion, not a verdict. Ratios to eager of the same sitting, because times of two sittings
// do not compare.
#include <fmt/format.h>
#include <fnmatch.h>
#include <time.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "tools/matrix/report.h"

namespace keirin::tools::matrix {
namespace {

struct Point {
  double time = 0, log_ratio = 0;
  double gate = 0;
  std::string run;
};

std::string day_of(double seconds) {
  const auto when = static_cast<time_t>(seconds);
  tm parts{};
  ::gmtime_r(&when, &parts);
  char text[32];
  ::strftime(text, sizeof(text), "%Y-%m-%d %H:%M", &parts);
  return text;
}

}  // namespace

std::string history_text(const Store& store, const std::string& cases, const std::string& machine_class) {
  const std::vector<Verdict> verdicts = judge(store);
  std::map<std::pair<std::string, std::string>, double> replay;  // over eager, by sitting and case
  for (const Verdict& v : verdicts)
    if (v.purpose == "run" && v.variant == "replay" && v.measured()) replay[{v.sitting, v.item}] = v.shift.estimate;
  std::map<std::tuple<std::string, std::string, std::string>, std::vector<Point>> series;  // by class, case, variant
  for (const Verdict& v : verdicts) {
    if (v.purpose != "run" || !v.measured() || v.label == label_name(Label::kInvalid)) continue;
    if (!cases.empty() && ::fnmatch(cases.c_str(), v.item.c_str(), 0) != 0) continue;
    if (!machine_class.empty() && v.machine_class != machine_class) continue;
    double log_ratio = v.shift.estimate;
    if (v.against == "replay") {
      const auto at = replay.find({v.sitting, v.item});
      if (at == replay.end()) continue;
      log_ratio += at->second;
    }
    series[{v.machine_class, v.item, v.variant}].push_back(
        {v.time, log_ratio, v.gate.value_or(kLeastGate), v.head_run});
  }
  std::map<std::string, std::string> marks;  // by run
  for (const auto& [id, record] : store.records())
    if (record.is("mark")) marks[record.text("of")] += " [" + record.text("mark") + ": " + record.text("why") + "]";
  std::string out;
  for (auto& [key, points] : series) {
    std::sort(points.begin(), points.end(),
              [](const Point& a, const Point& b) { return std::tie(a.time, a.run) < std::tie(b.time, b.run); });
    std::vector<double> values, gates;
    for (const Point& p : points) values.push_back(p.log_ratio), gates.push_back(p.gate);
    const std::vector<ChangePoint> steps = change_points(values, std::log1p(median(gates)));
    out += fmt::format("{}  {}  {}: {} sittings, {} steps\n", std::get<0>(key), std::get<1>(key), std::get<2>(key),
                       points.size(), steps.size());
    for (size_t i = 0; i < points.size(); ++i) {
      const auto step = std::find_if(steps.begin(), steps.end(), [&](const ChangePoint& s) { return s.at == i; });
      const auto mark = marks.find(points[i].run);
      out += fmt::format("  {}  {:.3f} of eager{}{}\n", day_of(points[i].time), std::exp(points[i].log_ratio),
                         step == steps.end()
                             ? ""
                             : fmt::format("  <- step of {:+.1f} %, p {:.0e}: compare the two stacks as a pair",
                                           100 * std::expm1(step->step), step->p),
                         mark == marks.end() ? "" : mark->second);
    }
  }
  for (char& c : out)
    if (c != '\n' && (static_cast<unsigned char>(c) < 0x20 || c == 0x7f)) c = '?';
  return out.empty() ? "no series: keirin matrix run writes points\n" : out;
}

}  // namespace keirin::tools::matrix
