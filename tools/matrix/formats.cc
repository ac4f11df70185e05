// SPDX-License-Identifier: Apache-2.0
//
// What is made of report_json and of nothing else: text, Markdown, JUnit's XML, Google Benchmark's JSON.
#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <cmath>
#include <string_view>

#include "tools/matrix/report.h"
#include "tools/page/page.h"

namespace keirin::tools::matrix {
namespace {

using nlohmann::json;

char glyph(const json& cell) {
  switch (rank_of(cell)) {
    case 0:
      return 'v';
    case 2:
      return '?';
    case 3:
      return '^';
    case 4:
      return '=';
    case 5:
      return '.';
    default:
      return '!';
  }
}

std::string numbers(const json& cell) {
  if (cell["ratio"].is_null()) return "-";
  return fmt::format("{:.3f} [{:.3f}, {:.3f}]", cell["ratio"].get<double>(), cell["ratio_ci"][0].get<double>(),
                     cell["ratio_ci"][1].get<double>());
}

std::string gate_text(const json& cell) {
  return cell["gate"].is_null() ? "-" : fmt::format("{:.1f} %", 100 * cell["gate"].get<double>());
}

// What is to be said of a cell beside its figures.
std::string note(const json& cell) {
  std::string out = cell["label"].get<std::string>();
  if (cell["by_counts"].get<bool>() && out != "invalid" && out != "not_run")
    out += ", by counts";
  else if (out == "regressed" || out == "improved")
    out += ", " + cell["size"].get<std::string>();
  if (cell["confirmed"].get<bool>()) out += ", measured twice";
  const std::string against = cell["against"];
  if (!cell["ratio"].is_null() && !against.empty() && against != cell["variant"].get<std::string>())
    out += ", against " + against;
  if (!cell["gated"].get<bool>() && !cell["ratio"].is_null()) out += ", informs only";
  for (const json& reason : cell["reasons"]) out += "; " + reason.get<std::string>();
  return out;
}

const char* what_decides(const json& report) {
  if (report["fitness"] == "timing") return "decide";
  if (report["fitness"] == "compile") return "are none: compiled for a device that is not here";
  return report["purpose"] == "compare" ? "inform only, counts decide" : "inform only";
}

std::string totals_text(const json& report) {
  std::string out;
  for (const char* label : kLabels)
    if (const int n = report["totals"].value(label, 0))
      out += fmt::format("{}{} {}", out.empty() ? "" : ", ", n, label);
  return out.empty() ? "no cells" : out;
}

// Markdown holds HTML, so it is escaped as that first.
std::string markdown_of(const std::string& text) {
  std::string out;
  for (const char c : markup_of(text)) {
    if (std::string_view("\\|`[]*_~").find(c) != std::string_view::npos) out += '\\';
    out += c;
    if (c == '@') out += "<!-- -->";  // names nobody, so that nobody is called
  }
  return out;
}

std::string markdown_row(const json& cell) {
  return fmt::format("| {} | {} | {} | {:.4g} | {:.4g} | {} | {} | {} | {} |\n", glyph(cell), markdown_of(cell["case"]),
                     markdown_of(cell["variant"]), cell["base_ms"].get<double>(), cell["head_ms"].get<double>(),
                     markdown_of(numbers(cell)), gate_text(cell), markdown_of(note(cell)), markdown_of(cell["again"]));
}

// Of a snapshot: what all its cases say after the model, "" if they differ in it; rows then show the whole case.
std::string common_conditions(const json& snapshot) {
  std::string out;
  for (const json& row : snapshot) {
    const std::string item = row["case"].get<std::string>();
    const std::string conditions = item.substr(std::min(item.find('/'), item.size()));
    if (&row != &snapshot.front() && conditions != out) return {};
    out = conditions;
  }
  return out;
}

struct Mean {  // the geometric one, of the rows that have the field
  size_t rows = 0;
  double value = 1;
};

Mean mean_of(const json& snapshot, const char* field) {
  Mean mean;
  double sum = 0;
  for (const json& row : snapshot)
    if (row.contains(field)) sum += std::log(row[field].get<double>()), ++mean.rows;
  if (mean.rows > 0) mean.value = std::exp(sum / static_cast<double>(mean.rows));
  return mean;
}

std::string error_text(const json& errors) {
  const auto text = [&](const char* of) {
    return errors.contains(of) ? fmt::format("{:.1e}", errors[of].get<double>()) : std::string("-");
  };
  return text("answer") + " (" + text("eager") + ")";
}

// What `run` is looked at for: the times of what answers beside eager's and replay's.
std::string snapshot_markdown(const json& report) {
  if (!report.contains("snapshot")) return {};
  const json& rows = report["snapshot"];
  const std::string conditions = common_conditions(rows);
  const int threads = report["threads"].get<int>();
  std::string out =
      fmt::format("Threads: {}. Cases: {}.\n\n", threads > 0 ? std::to_string(threads) : "as LibTorch has",
                  conditions.empty() ? "as named" : markdown_of(conditions.substr(1)));
  const Mean over_peers = mean_of(rows, "over_best_peer");
  const bool peers = over_peers.rows > 0;
  out += "| model | eager ms | replay ms | auto ms | over eager | over the baseline [95 %] | answers | cold s | error (eager's) |";
  out += std::string(peers ? " best peer | its ms | over it |" : "") + "\n|---|---|---|---|---|---|---|---|---|";
  out += std::string(peers ? "---|---|---|" : "") + "\n";
  const auto number = [](const json& value, double unit, int digits) {
    return value.is_number() ? fmt::format("{:.{}f}", value.get<double>() * unit, digits) : std::string("-");
  };
  for (const json& row : rows) {
    const std::string item = row["case"].get<std::string>();
    const std::string over_baseline =
        row.contains("over_baseline")
            ? fmt::format("{:.2f}x [{:.2f}, {:.2f}]", row["over_baseline"].get<double>(), row["over_baseline_ci"][0].get<double>(),
                          row["over_baseline_ci"][1].get<double>())
            : std::string("-");
    out += fmt::format("| {} | {} | {} | {} | {:.2f}x | {} | {} | {} | {} |\n",
                       markdown_of(item.substr(0, item.size() - conditions.size())), number(row["eager_ms"], 1, 3),
                       number(row["replay_ms"], 1, 3), number(row["ms"], 1, 3), row["over_eager"].get<double>(), over_baseline,
                       markdown_of(row["answers"]), number(row["cold_ms"], 1e-3, 1), error_text(row["errors"]));
    if (!peers) continue;
    out.pop_back();
    out += row.contains("best_peer") ? fmt::format(" {} | {} | {:.2f}x |\n", markdown_of(row["best_peer"]),
                                                   number(row["best_peer_ms"], 1, 3), row["over_best_peer"].get<double>())
                                     : std::string(" - | - | - |\n");
  }
  const auto mean_text = [](const Mean& mean) { return mean.rows > 0 ? fmt::format("{:.2f}x", mean.value) : std::string("-"); };
  out += fmt::format("| geometric mean of {} | | | | {} | {} | | | |", rows.size(), mean_text(mean_of(rows, "over_eager")),
                     mean_text(mean_of(rows, "over_baseline")));
  if (peers) out += fmt::format(" of {} | | {:.2f}x |", over_peers.rows, over_peers.value);
  return out + "\n\n";
}

}  // namespace

std::string report_text(const json& report) {
  const auto version = [](const json& parts) {
    return parts.value("keirin", "?") + " (" + parts.value("keirin build", "?") + ")";
  };
  std::string out = fmt::format("{}  {}  {} -> {}  {} cells  times {}\n", report["class"].get<std::string>(),
                                report["purpose"].get<std::string>(), version(report["base"]), version(report["head"]),
                                report["cells"].size(), what_decides(report));
  if (!report["warnings"].get<std::string>().empty())
    out += "  warning: " + report["warnings"].get<std::string>() + "\n";
  out += fmt::format("    {:<40} {:<14} {:>9} {:>9}  {:<22} {:>6} {:>6}\n", "case", "variant", "base ms", "head ms",
                     "head/base [95 %]", "gate", "blocks");
  for (const json& cell : report["cells"])
    out += fmt::format("  {} {:<40} {:<14} {:>9.4g} {:>9.4g}  {:<22} {:>6} {:>6}  {}\n", glyph(cell),
                       cell["case"].get<std::string>(), cell["variant"].get<std::string>(),
                       cell["base_ms"].get<double>(), cell["head_ms"].get<double>(), numbers(cell), gate_text(cell),
                       cell["blocks"].get<int>(), note(cell));
  out += "  " + totals_text(report) + "\n";
  if (report.contains("snapshot")) {
    const auto say = [&](const char* over, const char* field) {
      const Mean mean = mean_of(report["snapshot"], field);
      if (mean.rows > 0) out += fmt::format("  auto over the {}, {} cases: {:.2f}x\n", over, mean.rows, mean.value);
    };
    say("better of eager and replay", "over_baseline");
    if (mean_of(report["snapshot"], "over_baseline").rows < report["snapshot"].size()) say("time of eager", "over_eager");
    say("best peer", "over_best_peer");
  }
  for (const json& change : report["changed"]) out += "  changed: " + change.get<std::string>() + "\n";
  for (const json& skipped : report["skipped"]) out += "  skipped: " + skipped.get<std::string>() + "\n";
  return out;
}

std::string report_markdown(const json& report) {
  const std::string head =
      "|  | case | variant | base ms | head ms | head/base [95 %] | gate | note | again "
      "|\n|---|---|---|---|---|---|---|---|---|\n";
  std::string changed, all;
  for (const json& cell : report["cells"]) {
    all += markdown_row(cell);
    const bool expected = cell["label"] == "improved" && report.contains("snapshot");  // its rows stand there
    if (cell["label"] != "unchanged" && cell["label"] != "not_run" && !expected) changed += markdown_row(cell);
  }
  std::string out = fmt::format("**Regression matrix** ({}, {}): {}\n\n", markdown_of(report["class"]),
                                markdown_of(report["purpose"]), totals_text(report));
  out += snapshot_markdown(report);
  if (!changed.empty()) out += head + changed + "\n";
  for (const json& change : report["changed"]) out += "- changed: " + markdown_of(change) + "\n";
  return out + "\n<details><summary>All " + std::to_string(report["cells"].size()) + " cells</summary>\n\n" + head +
         all + "\n</details>\n";
}

std::string report_junit(const json& report) {
  int failures = 0, errors = 0, skipped = 0;
  std::string cases;
  for (const json& cell : report["cells"]) {
    const std::string label = cell["label"], text = markup_of(numbers(cell) + ", " + note(cell));
    cases += fmt::format("  <testcase classname=\"{}\" name=\"{} {}\">", markup_of(report["class"]),
                         markup_of(cell["case"]), markup_of(cell["variant"]));
    if (cell["failed"].get<bool>())
      ++errors, cases += "<error message=\"" + text + "\"/>";
    else if (label == "regressed" && cell["gated"].get<bool>())
      ++failures, cases += "<failure message=\"" + text + "\"/>";
    else if (label == "inconclusive" || label == "invalid" || label == "not_run" || label == "regressed")
      ++skipped, cases += "<skipped message=\"" + text + "\"/>";
    cases += "</testcase>\n";
  }
  return fmt::format(
      "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuite name=\"keirin matrix {}\" tests=\"{}\" failures=\"{}\" "
      "errors=\"{}\" skipped=\"{}\">\n{}</testsuite>\n",
      markup_of(report["purpose"]), report["cells"].size(), failures, errors, skipped, cases);
}

std::string report_google_benchmark(const json& report, bool head) {
  json rows = json::array();
  for (const json& cell : report["cells"]) {
    const std::vector<double> ns = cell[head ? "head_slots_ns" : "base_slots_ns"].get<std::vector<double>>();
    const std::string name = cell["case"].get<std::string>() + "/" + cell["variant"].get<std::string>();
    const auto row = [&](const char* type, double value) {
      return json{{"name", name},     {"run_name", name}, {"run_type", type},   {"repetitions", ns.size()},
                  {"threads", 1},     {"iterations", 1},  {"real_time", value}, {"cpu_time", value},
                  {"time_unit", "ns"}};
    };
    for (size_t i = 0; i < ns.size(); ++i) {
      rows.push_back(row("iteration", ns[i]));
      rows.back()["repetition_index"] = i;
    }
    if (ns.empty()) continue;
    rows.push_back(row("aggregate", median(ns)));
    rows.back().update({{"name", name + "_median"}, {"aggregate_name", "median"}, {"aggregate_unit", "time"}});
    rows.back().update(cell[head ? "head_counts" : "base_counts"]);  // as its counters are written
  }
  const json& parts = report[head ? "head" : "base"];
  const auto when = static_cast<time_t>(std::clamp(report["time"].get<double>(), 0.0, kLatestTime));
  char date[32];
  tm utc{};
  ::strftime(date, sizeof(date), "%Y-%m-%dT%H:%M:%S+00:00", ::gmtime_r(&when, &utc));
  return json{{"context",
               {{"date", date},
                {"executable", "keirin matrix"},
                {"library_version", parts.value("keirin", "?")},
                {"class", report["class"]},
                {"keirin", parts}}},
              {"benchmarks", rows}}
             .dump(2) +
         "\n";
}

}  // namespace keirin::tools::matrix
