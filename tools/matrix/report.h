// SPDX-License-Identifier: Apache-2.0
//
// What a store says, for people and for other programs: one JSON value, and text, Markdown, JUnit and the others made
// of it alone. Texts of records come from anywhere: control characters are gone before they are in the JSON, and each
// format escapes what it has to.
#pragma once

#include <array>
#include <set>
#include <string>
#include <utility>

#include "tools/matrix/judge.h"

namespace keirin::tools::matrix {

inline constexpr std::array kLabels = {"regressed", "invalid",   "inconclusive",
                                       "improved",  "unchanged", "not_run"};  // worst first

// Of the sitting of that name, or of the latest one (of that class of machines, unless it is empty) together with those that ask
// the same (purpose, class, threads, both stacks), as shards do: each cell as it was measured last. What a second host was asked
// about (`--confirm`) is changed only where both hosts say so. `invalid_input` if there is no such sitting. Fields: docs/matrix.md.
Result<nlohmann::json> report_json(const Store& store, const std::string& sitting, const std::string& machine_class = "");
// The cells that a report of another host calls changed, which `--confirm` asks a second host about. `corrupt` if it is
// no report.
Result<std::set<std::pair<std::string, std::string>>> changed_cells(const nlohmann::json& report);
// What the HTML page shows: such a report for each purpose and class, and all series. With a sitting named, that one's.
Result<nlohmann::json> page_json(const Store& store, const std::string& sitting, const std::string& machine_class = "");
// Series of ratios to eager, sitting by sitting, with their change points and marks; `cases` is a shell pattern, "" is
// all. `verdicts` are those of the store.
nlohmann::json history_json(const Store& store, const std::vector<Verdict>& verdicts, const std::string& cases,
                            const std::string& machine_class);

// 0 all gated cells unchanged or improved; 1 regressed, wrong numbers, crash, hang; 4 something undecided, cut off, or
// nothing measured.
int exit_code(const nlohmann::json& report);
// Of a cell of a report: -1 failed, else the place of its label among kLabels.
int rank_of(const nlohmann::json& cell);

std::string report_text(const nlohmann::json& report);
std::string report_markdown(const nlohmann::json& report);
std::string report_junit(const nlohmann::json& report);
// One side as Google Benchmark writes it: its compare.py takes two of them. A repetition is a slot: the median of its
// calls, in ns.
std::string report_google_benchmark(const nlohmann::json& report, bool head);
std::string history_text(const nlohmann::json& history);

// Nothing that moves a terminal's cursor or turns the direction of text, in UTF-8: such characters are question marks.
std::string clean(const std::string& text);

inline constexpr double kLatestTime = 4e9;  // seconds since 1970 that are shown as a day; what is beyond is cut to it

}  // namespace keirin::tools::matrix
