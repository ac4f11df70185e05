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

using nlohmann::json;

// Change points take the square of it; older points of a longer series are not looked at.
constexpr size_t kMaxPoints = 1000;

struct Point {
  double time = 0, log_ratio = 0;
  double gate = 0;
  std::string run;
};

// By class, case, variant.
using SeriesMap = std::map<std::tuple<std::string, std::string, std::string>, std::vector<Point>>;

std::string day_of(double seconds) {
  const auto when = static_cast<time_t>(std::clamp(seconds, 0.0, kLatestTime));
  tm parts{};
  ::gmtime_r(&when, &parts);
  char text[32];
  ::strftime(text, sizeof(text), "%Y-%m-%d %H:%M", &parts);
  return text;
}

// The median of what launches took, ns; 0: nobody says.
double median_ns(const Record& run, const char* field) {
  std::vector<double> ns;
  if (const auto at = run.fields.find(field); at != run.fields.end() && at->is_array())
    for (const json& value : *at)
      if (value.is_number() && value.get<double>() > 0) ns.push_back(value.get<double>());
  return median(ns);
}

// "bert/small/f32/infer/single/default" as a case of that scenario; empty: it is none that has one.
std::string with_scenario(const std::string& item, std::string_view scenario) {
  constexpr std::string_view kSingle = "/single/";
  const size_t at = item.find(kSingle);
  return at == std::string::npos ? std::string() : item.substr(0, at + 1) + std::string(scenario) + item.substr(at + kSingle.size() - 1);
}

// What a sitting of `run` saw of starts on its way, over what eager takes to open and for its first call there: compiling was on an empty
// cache and once, first calls were those of all launches. (What a process takes before that is the same for both.)
void add_starts(const Store& store, const std::vector<Verdict>& verdicts, const std::string& cases, const std::string& machine_class,
                SeriesMap* series) {
  std::map<std::pair<std::string, std::string>, const Record*> eager;  // by sitting and case
  for (const auto& [id, run] : store.records())
    if (run.is("run") && run.text("variant") == "eager") eager.emplace(std::pair(run.text("sitting"), run.text("case")), &run);
  for (const Verdict& v : verdicts) {
    const Record* const run = store.find(v.head_run);
    const auto beside = eager.find({v.sitting, v.item});
    if (v.purpose != "run" || !v.measured() || v.label == label_name(Label::kInvalid) || !run || beside == eager.end()) continue;
    if (v.variant == "eager" || v.variant == "replay" || (!machine_class.empty() && v.machine_class != machine_class)) continue;
    const auto add = [&](std::string_view scenario, double own, double its) {
      const std::string item = with_scenario(v.item, scenario);
      if (item.empty() || !std::isfinite(std::log(own / its)) || (!cases.empty() && ::fnmatch(cases.c_str(), item.c_str(), 0) != 0)) return;
      (*series)[{v.machine_class, item, v.variant}].push_back({v.time, std::log(own / its), kStarts.least_gate, v.head_run});
    };
    add("cold-compile", run->number("cold_ns"), median_ns(*beside->second, "build_ns"));
    add("cold-call", median_ns(*run, "first_ns"), median_ns(*beside->second, "first_ns"));
  }
}

SeriesMap series_of(const Store& store, const std::vector<Verdict>& verdicts, const std::string& cases, const std::string& machine_class) {
  std::map<std::pair<std::string, std::string>, double> replay;  // over eager, by sitting and case
  for (const Verdict& v : verdicts)
    if (v.purpose == "run" && v.variant == "replay" && v.measured()) replay[{v.sitting, v.item}] = v.shift.estimate;
  SeriesMap series;
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
        {v.time, log_ratio, v.gate.value_or(kCalls.least_gate), v.head_run});
  }
  add_starts(store, verdicts, cases, machine_class, &series);
  for (auto& [key, points] : series) {
    std::sort(points.begin(), points.end(),
              [](const Point& a, const Point& b) { return std::tie(a.time, a.run) < std::tie(b.time, b.run); });
    if (points.size() > kMaxPoints) points.erase(points.begin(), points.end() - kMaxPoints);
  }
  return series;
}

// What persons said, by record: "step_accepted: why".
std::map<std::string, std::vector<std::string>> marks_of(const Store& store) {
  std::map<std::string, std::vector<std::string>> marks;
  for (const auto& [id, record] : store.records())
    if (record.is("mark")) marks[record.text("of")].push_back(clean(record.text("mark") + ": " + record.text("why")));
  return marks;
}

}  // namespace

json history_json(const Store& store, const std::vector<Verdict>& verdicts, const std::string& cases,
                  const std::string& machine_class) {
  const auto marks = marks_of(store);
  json out = json::array();
  for (const auto& [key, points] : series_of(store, verdicts, cases, machine_class)) {
    std::vector<double> values, gates;
    json shown = json::array(), steps = json::array();
    std::vector<bool> accepted;
    for (const Point& p : points) {
      values.push_back(p.log_ratio), gates.push_back(p.gate);
      shown.push_back({{"time", p.time}, {"ratio", std::exp(p.log_ratio)}, {"run", p.run}});
      const auto mark = marks.find(p.run);
      if (mark != marks.end()) shown.back()["marks"] = mark->second;
      accepted.push_back(mark != marks.end() &&
                         std::any_of(mark->second.begin(), mark->second.end(),
                                     [](const std::string& each) { return each.rfind("step_accepted: ", 0) == 0; }));
    }
    for (const ChangePoint& step : change_points(values, std::log1p(median(gates))))
      steps.push_back({{"at", step.at}, {"step", step.step}, {"p", step.p}, {"accepted", bool(accepted[step.at])}});
    out.push_back({{"class", clean(std::get<0>(key))},
                   {"case", clean(std::get<1>(key))},
                   {"variant", clean(std::get<2>(key))},
                   {"points", shown},
                   {"steps", steps}});
  }
  return out;
}

std::string history_text(const json& history) {
  std::string out;
  for (const json& series : history) {
    const json &points = series["points"], &steps = series["steps"];
    out += fmt::format("{}  {}  {}: {} sittings, {} steps\n", series["class"].get<std::string>(),
                       series["case"].get<std::string>(), series["variant"].get<std::string>(), points.size(),
                       steps.size());
    for (size_t i = 0; i < points.size(); ++i) {
      out += fmt::format("  {}  {:.3f} of eager", day_of(points[i]["time"].get<double>()),
                         points[i]["ratio"].get<double>());
      for (const json& step : steps)
        if (step["at"].get<size_t>() == i)
          out += fmt::format("  <- step of {:+.1f} %, p {:.0e}{}", 100 * std::expm1(step["step"].get<double>()),
                             step["p"].get<double>(),
                             step["accepted"].get<bool>() ? ", accepted" : ": compare the two stacks as a pair");
      if (points[i].contains("marks"))
        for (const json& mark : points[i]["marks"]) out += fmt::format(" [{}]", mark.get<std::string>());
      out += "\n";
    }
  }
  return out.empty() ? "no series: keirin matrix run writes points\n" : out;
}

}  // namespace keirin::tools::matrix
