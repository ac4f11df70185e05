// SPDX-License-Identifier: Apache-2.0
#include "tools/page/page.h"

#include <map>

#include "core/base/sha256.h"

namespace keirin::tools {
namespace {

std::string hash_of(std::string_view text) { return base64(sha256(text.data(), text.size())); }

// In JSON these three stand in strings alone, where they may be written as escapes: so no "</script>" and no "<!--" is
// left. All of it is ASCII.
std::string json_in_script(const nlohmann::json& data) {
  std::string out;
  for (const char c : data.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace))
    if (c == '<')
      out += "\\u003c";
    else if (c == '>')
      out += "\\u003e";
    else if (c == '&')
      out += "\\u0026";
    else
      out += c;
  return out;
}

}  // namespace

std::string markup_of(const std::string& text) {
  std::string out;
  for (const char c : text)
    if (c == '&')
      out += "&amp;";
    else if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else if (c == '"')
      out += "&quot;";
    else
      out += c;
  return out;
}

std::string page_html(std::string_view title, View view, const nlohmann::json& data) {
  std::string script(page_text::pieces);
  if (view == View::kMatrix) script += page_text::cell;
  script += view == View::kMatrix   ? page_text::matrix
            : view == View::kModels ? page_text::model
            : view == View::kSheet  ? page_text::sheet
                                    : page_text::certificate;
  const std::map<std::string_view, std::string> parts = {
      {"title", markup_of(std::string(title))}, {"style", std::string(page_text::style)}, {"style_hash", hash_of(page_text::style)},
      {"script", script},          {"script_hash", hash_of(script)},         {"data", json_in_script(data)}};
  // Once from left to right, so that nothing that was filled in is looked at again.
  std::string out;
  std::string_view rest = page_text::frame;
  for (bool named = false;; named = !named) {
    const size_t end = rest.find('@');
    const std::string_view piece = rest.substr(0, end);
    out += named ? parts.at(piece) : std::string(piece);
    if (end == std::string_view::npos) return out;
    rest.remove_prefix(end + 1);
  }
}

}  // namespace keirin::tools
