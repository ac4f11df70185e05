// SPDX-License-Identifier: Apache-2.0
#include "tools/matrix/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <tuple>

#include "tools/options.h"

namespace keirin::tools::matrix {
namespace {

using nlohmann::json;

constexpr std::array kLabels = {"regressed", "invalid",   "inconclusive",
                                "improved",  "unchanged", "not_run"};  // worst first

// Nothing that moves a terminal's cursor, from ASCII or Unicode.
std::string clean(const std::string& text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    const bool control = c < 0x20 || c == 0x7f;
    const bool unicode_control = c == 0xc2 && i + 1 < text.size() && static_cast<unsigned char>(text[i + 1]) < 0xa0;
    if (unicode_control) ++i;
    out += control || unicode_control ? '?' : text[i];
  }
  return out;
}

json cell_json(const Verdict& v) {
  json reasons = json::array();
  for (const std::string& reason : v.reasons) reasons.push_back(clean(reason));
  return {{"case", clean(v.item)},
          {"variant", clean(v.variant)},
          {"against", clean(v.against)},
          {"candidate", clean(v.candidate)},
          {"base_ms", v.base_ns / 1e6},
          {"head_ms", v.head_ns / 1e6},
          {"ratio", v.measured() ? json(std::exp(v.shift.estimate)) : json()},
          {"ratio_ci", v.measured() ? json{std::exp(v.shift.low), std::exp(v.shift.high)} : json()},
          {"gate", v.gate ? json(*v.gate) : json()},
          {"blocks", v.shift.blocks},
          {"dropped", v.dropped},
          {"p", v.p},
          {"label", v.label},
          {"size", size_of_shift(v.shift.estimate)},
          {"confirmed", !v.confirm.empty()},
          {"gated", v.gated()},
          {"failed", v.head_failed},
          {"run", v.head_run},
          {"reasons", reasons}};
}

json parts_of(const Store& store, const std::string& stack) {
  const Record* record = store.find(stack);
  json out = json::object();
  if (record && record->fields.contains("parts") && record->fields["parts"].is_object())
    for (const auto& [name, value] : record->fields["parts"].items())
      if (value.is_string()) out[clean(name)] = clean(value.get<std::string>());
  return out;
}

json changed_parts(const json& base, const json& head) {
  json out = json::array();
  json all = base;
  all.update(head);
  for (const auto& [name, unused] : all.items()) {
    const std::string from = base.value(name, "none"), to = head.value(name, "none");
    if (from != to) out.push_back(name + " " + from + " -> " + to);
  }
  return out;
}

int rank(const json& cell) {
  if (cell["failed"].get<bool>()) return -1;
  const auto at = std::find(kLabels.begin(), kLabels.end(), cell["label"].get<std::string>());
  return static_cast<int>(at - kLabels.begin());
}

char glyph(const json& cell) {
  switch (rank(cell)) {
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
  if (out == "regressed" || out == "improved") out += ", " + cell["size"].get<std::string>();
  if (cell["confirmed"].get<bool>()) out += ", measured twice";
  if (const std::string against = cell["against"]; !against.empty() && against != cell["variant"].get<std::string>())
    out += ", against " + against;
  if (!cell["gated"].get<bool>() && !cell["ratio"].is_null()) out += ", informs only";
  for (const json& reason : cell["reasons"]) out += "; " + reason.get<std::string>();
  return out;
}

std::string reproduce(const json& report, const json& cell) {
  return fmt::format("keirin matrix {} {}--cases '{}' --variants {}", report["purpose"].get<std::string>(),
                     report["purpose"] == "compare" ? "--base BASE " : "", cell["case"].get<std::string>(),
                     cell["variant"].get<std::string>());
}

std::string totals_text(const json& report) {
  std::string out;
  for (const char* label : kLabels)
    if (const int n = report["totals"].value(label, 0))
      out += fmt::format("{}{} {}", out.empty() ? "" : ", ", n, label);
  return out.empty() ? "no cells" : out;
}

std::string escaped(const std::string& text, bool markdown) {
  std::string out;
  for (const char c : text) switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '|':
      case '`':
      case '[':
      case '*':
      case '_':
        out += markdown ? std::string("\\") + c : std::string(1, c);
        break;
      default:
        out += c;
    }
  return out;
}

std::string markdown_row(const json& report, const json& cell) {
  return fmt::format("| {} | {} | {} | {:.4g} | {:.4g} | {} | {} | {} | {} |\n", glyph(cell),
                     escaped(cell["case"], true), escaped(cell["variant"], true), cell["base_ms"].get<double>(),
                     cell["head_ms"].get<double>(), escaped(numbers(cell), true), gate_text(cell),
                     escaped(note(cell), true), escaped(reproduce(report, cell), true));
}

}  // namespace

Result<json> report_json(const Store& store, const std::string& sitting) {
  std::vector<const Record*> sittings;
  for (const auto& [id, record] : store.records())
    if (record.is("sitting")) sittings.push_back(&record);
  if (sittings.empty())
    return Status(Code::k_invalid_input, {"the store holds no sitting",
                                          {},
                                          "nothing was reported",
                                          "keirin matrix run, compare or selfcheck writes one"});
  std::sort(sittings.begin(), sittings.end(), [](const Record* a, const Record* b) {
    return std::pair(a->number("time"), a->id) < std::pair(b->number("time"), b->id);
  });
  const auto named =
      std::find_if(sittings.begin(), sittings.end(), [&](const Record* s) { return s->text("sitting") == sitting; });
  if (!sitting.empty() && named == sittings.end())
    return Status(Code::k_invalid_input,
                  {"the store holds no sitting \"" + sitting + "\"", {}, "nothing was reported", {}});
  const Record& last = sitting.empty() ? *sittings.back() : **named;
  const auto key = [](const Record& s) {
    return std::tuple(s.text("purpose"), s.text("class"), s.text("base"), s.text("head"));
  };
  std::vector<std::string> names;
  for (const Record* s : sittings)
    if (s == &last || (sitting.empty() && key(*s) == key(last))) names.push_back(s->text("sitting"));

  std::map<std::pair<std::string, std::string>, Verdict> cells;
  std::vector<Verdict> verdicts = judge(store);
  std::stable_sort(verdicts.begin(), verdicts.end(), [](const Verdict& a, const Verdict& b) {
    return std::tie(a.time, a.sitting) < std::tie(b.time, b.sitting);
  });
  for (Verdict& v : verdicts) {
    if (std::find(names.begin(), names.end(), v.sitting) == names.end()) continue;
    const std::pair cell(v.item, v.variant);
    if (v.label == "not_run" && cells.count(cell)) continue;
    cells[cell] = std::move(v);
  }
  const json base = parts_of(store, last.text("base")), head = parts_of(store, last.text("head"));
  json report = {{"schema", "keirin/matrix/1"},
                 {"purpose", clean(last.text("purpose"))},
                 {"class", clean(last.text("class"))},
                 {"fitness", clean(last.text("fitness"))},
                 {"time", last.number("time")},
                 {"sittings", names},
                 {"base", base},
                 {"head", head},
                 {"changed", changed_parts(base, head)},
                 {"warnings", clean(last.text("warnings"))},
                 {"cells", json::array()},
                 {"totals", json::object()},
                 {"skipped", json::array()}};
  std::vector<json> rows;
  for (const auto& [name, v] : cells) rows.push_back(cell_json(v));
  std::stable_sort(rows.begin(), rows.end(), [](const json& a, const json& b) { return rank(a) < rank(b); });
  for (json& row : rows) {
    json& total = report["totals"][row["label"].get<std::string>()];
    total = total.is_null() ? 1 : total.get<int>() + 1;
    report["cells"].push_back(std::move(row));
  }
  for (const StoreProblem& problem : store.problems())
    report["skipped"].push_back(clean(fmt::format("{}:{}: {}", problem.file, problem.line, problem.what)));
  report["exit"] = exit_code(report);
  return report;
}

int exit_code(const json& report) {
  bool undecided = false;
  for (const json& cell : report["cells"]) {
    if (cell["failed"].get<bool>()) return kFailed;
    const bool gated = cell["gated"].get<bool>();
    if (gated && cell["label"] == "regressed") return kFailed;
    undecided |= cell["label"] == "invalid" || (gated && cell["label"] == "inconclusive");
  }
  return undecided ? kUndecided : kOk;
}

std::string report_text(const json& report) {
  const auto version = [](const json& parts) {
    return parts.value("keirin", "?") + " (" + parts.value("keirin build", "?") + ")";
  };
  std::string out = fmt::format("{}  {}  {} -> {}  {} cells  times {}\n", report["class"].get<std::string>(),
                                report["purpose"].get<std::string>(), version(report["base"]), version(report["head"]),
                                report["cells"].size(), report["fitness"] == "timing" ? "decide" : "inform only");
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
    all += markdown_row(report, cell);
    if (cell["label"] != "unchanged" && cell["label"] != "not_run") changed += markdown_row(report, cell);
  }
  std::string out = fmt::format("**Regression matrix** ({}, {}): {}\n\n", escaped(report["class"], true),
                                escaped(report["purpose"], true), totals_text(report));
  if (!changed.empty()) out += head + changed + "\n";
  for (const json& change : report["changed"]) out += "- changed: " + escaped(change, true) + "\n";
  return out + "\n<details><summary>All " + std::to_string(report["cells"].size()) + " cells</summary>\n\n" + head +
         all + "\n</details>\n";
}

std::string report_junit(const json& report) {
  int failures = 0, errors = 0, skipped = 0;
  std::string cases;
  for (const json& cell : report["cells"]) {
    const std::string label = cell["label"], text = escaped(numbers(cell) + ", " + note(cell), false);
    cases += fmt::format("  <testcase classname=\"{}\" name=\"{} {}\">", escaped(report["class"], false),
                         escaped(cell["case"], false), escaped(cell["variant"], false));
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
      escaped(report["purpose"], false), report["cells"].size(), failures, errors, skipped, cases);
}

}  // namespace keirin::tools::matrix
