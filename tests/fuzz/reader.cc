// SPDX-License-Identifier: Apache-2.0
//
// One libFuzzer target per reader of files that are not trusted, from one source: KEIRIN_READER names the function below. A target
// asks for no answer, only that there is one: no crash, no sanitizer report, no time-out, no memory beyond libFuzzer's limit.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/cache/artifact.h"
#include "core/cache/ledger.h"
#include "core/capture/pt2/read_pt2.h"
#include "core/host/find/manifest.h"
#include "core/ir/bytes.h"
#include "core/ir/text.h"
#include "core/ir/verify.h"
#include "tests/support/temp_folder.h"
#include "tools/matrix/report.h"
#include "tools/page/page.h"

namespace keirin::fuzz {
namespace {

using Bytes = std::span<const uint8_t>;

std::string_view text_of(Bytes bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

[[maybe_unused]] void pt2(Bytes bytes) { (void)pt2::read_pt2(std::as_bytes(bytes)); }
[[maybe_unused]] void graph_bytes(Bytes bytes) { (void)read_graph({bytes.begin(), bytes.end()}); }
[[maybe_unused]] void artifact(Bytes bytes) { (void)parse_artifact(text_of(bytes)); }
[[maybe_unused]] void ledger(Bytes bytes) { (void)parse_ledger(text_of(bytes)); }

// A store of one log: read, judged, and shown in every form.
[[maybe_unused]] void matrix(Bytes bytes) {
  namespace m = tools::matrix;
  m::Store store;
  store.read_log(text_of(bytes), "fuzz");
  const Result<nlohmann::json> report = m::report_json(store, ""), page = m::page_json(store, "");
  (void)m::history_text(m::history_json(store, m::judge(store), "", ""));
  if (!report.ok() || !page.ok()) return;
  (void)(m::report_text(*report) + m::report_markdown(*report) + m::report_junit(*report) + m::report_google_benchmark(*report, true));
  // A page has two elements of script, the data's and its own, whatever the store says.
  const std::string html = tools::page_html("store", tools::View::kMatrix, *page);
  size_t ends = 0;
  for (size_t at = html.find("</script"); at != std::string::npos; at = html.find("</script", at + 1)) ++ends;
  if (ends != 2) __builtin_trap();
}

// What parses is either malformed and named, or prints and parses again.
[[maybe_unused]] void text(Bytes bytes) {
  const Result<Graph> graph = parse(text_of(bytes));
  if (graph.ok() && verify(*graph).ok() && !parse(print(*graph)).ok()) __builtin_trap();
}

[[maybe_unused]] void manifest(Bytes bytes) {
  static const test::TempFolder folder;
  const std::string path = folder.path() + "/manifest.toml";
  test::spill(path, std::string(text_of(bytes)));
  Manifest read;
  (void)read_manifest(path, &read);
}

}  // namespace
}  // namespace keirin::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  keirin::fuzz::KEIRIN_READER({data, size});
  return 0;
}
