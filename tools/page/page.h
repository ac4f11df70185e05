// SPDX-License-Identifier: Apache-2.0
//
// A report as one HTML file that needs nothing else: a frame, a style and scripts from this folder, and the data as
// JSON. The invariant: whatever the data's texts hold, they stay data. Nothing in them ends the element that they stand
// in, the scripts put them in as text, and the page's own policy runs no script and loads no file but what was built in
// here.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace keirin::tools {

enum class View {
  kMatrix,       // data: page_json of tools/matrix/report.h
  kModels,       // data: bench_json of core/exec/report.h
  kCertificate,  // data: to_json of tools/certify/report.h
  kSheet         // data: sheet_of of tools/certify/sheet.h
};

// Text as HTML and XML write it, also between double quotes.
std::string markup_of(const std::string& text);

// UTF-8. `title` is text, not markup.
std::string page_html(std::string_view title, View view, const nlohmann::json& data);

// The files of this folder, as cmake/embed_text.cmake names them.
namespace page_text {
extern const std::string_view frame, style, pieces, cell, matrix, model, certificate, sheet;
}

}  // namespace keirin::tools
