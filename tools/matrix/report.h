// SPDX-License-Identifier: Apache-2.0
//
// What a store says, for people and for other programs: one JSON value, and text, Markdown and JUnit made of it alone.
// Texts of records come from anywhere: control characters are gone before they are in the JSON, and each format escapes
// what it has to.
#pragma once

#include <string>

#include "tools/matrix/judge.h"

namespace keirin::tools::matrix {

// Of the sitting of that name, or of the latest one together with those that ask the same (purpose, class, both
// stacks), as shards do: each cell as it was measured last. `invalid_input` if there is no such sitting. Fields:
// docs/matrix.md.
Result<nlohmann::json> report_json(const Store& store, const std::string& sitting);

// 0 all gated cells unchanged or improved; 1 regressed, wrong numbers, crash, hang; 4 something undecided.
int exit_code(const nlohmann::json& report);

std::string report_text(const nlohmann::json& report);
std::string report_markdown(const nlohmann::json& report);
std::string report_junit(const nlohmann::json& report);

// Series of log ratios to eager, sitting by sitting, with their change points; `cases` is a shell pattern, "" is all.
std::string history_text(const Store& store, const std::string& cases, const std::string& machine_class);

}  // namespace keirin::tools::matrix
