// SPDX-License-Identifier: Apache-2.0
//
// keirin explain: why each part of a model is compiled or eager, and what was tried.
#include <fmt/format.h>

#include <memory>

#include "tools/options.h"
#include "tools/page/page.h"
#include "tools/tensors.h"

namespace keirin::tools {
namespace {

struct Explain {
  CommonOptions common;
  std::string model, html;
};

Status run(Explain& explain) {
  explain.common.finish();
  explain.common.runtime.limits = true;
  KRN_TRY_LET(auto runtime, Runtime::open(explain.common.runtime));
  KRN_TRY_LET(std::string path, find_model(explain.model, explain.common.size));
  KRN_TRY_LET(auto session, Session::open(*runtime, path, explain.common.runtime));
  KRN_TRY_LET(std::vector<TensorRef> inputs, inputs_for(*session, *runtime, path, explain.common));
  KRN_TRY_LET(ModelReport report, session->compile(inputs));
  end_progress_line();
  fmt::print(text_out(explain.common.json), "{}", explain_text(report, table_width(explain.common.wide)));
  if (!explain.html.empty())
    KRN_TRY(write_text(explain.html, page_html("Keirin: " + report.model, View::kModels, bench_json({report}))));
  if (!explain.common.json.empty()) KRN_TRY(write_text(explain.common.json, to_json(report).dump(2) + "\n"));
  return {};
}

}  // namespace

void add_explain(CLI::App& app, int& exit_code) {
  auto state = std::make_shared<Explain>();
  CLI::App* word = app.add_subcommand("explain", "say why each part of a model is compiled or eager");
  word->add_option("model", state->model, "a .pt2 file or a name of the zoo")->required();
  word->add_option("--html", state->html, "write a page with plots: the steps with their times, the candidates, the reasons");
  state->common.add_to(*word);
  word->callback([state, &exit_code] {
    Status status = run(*state);
    if (!status.ok()) exit_code = fail(status);
  });
}

}  // namespace keirin::tools
