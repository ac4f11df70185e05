// SPDX-License-Identifier: Apache-2.0
//
// keirin run: one call of a model, tensors in, tensors out.
#include <fmt/format.h>

#include <memory>

#include "tools/options.h"

namespace keirin::tools {
namespace {

struct Run {
  CommonOptions common;
  std::string model, outputs;
  bool eager = false;
};

Status run(Run& run) {
  run.common.finish();
  KRN_TRY_LET(auto runtime, Runtime::open(run.common.runtime));
  KRN_TRY_LET(std::string path, find_model(run.model, run.common.size));
  KRN_TRY_LET(auto session, Session::open(*runtime, path, run.common.runtime));
  KRN_TRY_LET(std::vector<TensorRef> inputs, inputs_for(*session, *runtime, run.common.inputs, run.common.runtime.device));
  if (!run.eager) {
    KRN_TRY_LET(ModelReport report, session->compile(inputs));
    end_progress_line();
    fmt::print(stderr, "{}", explain_text(report));
    if (!run.common.json.empty()) KRN_TRY(write_text(run.common.json, to_json(report).dump(2) + "\n"));
  }
  KRN_TRY_LET(std::vector<TensorRef> outputs, session->call(inputs));
  if (!run.outputs.empty()) return write_outputs(run.outputs, outputs, runtime->tensors());
  for (size_t i = 0; i < outputs.size(); ++i) {
    std::string sizes;
    for (int64_t d = 0; d < outputs[i]->rank(); ++d) sizes += (d ? "," : "") + std::to_string(outputs[i]->sizes()[d]);
    fmt::print("{}: {}[{}]\n", i, dtype_name(outputs[i]->dtype()), sizes);
  }
  return {};
}

}  // namespace

void add_run(CLI::App& app, int& exit_code) {
  auto state = std::make_shared<Run>();
  CLI::App* word = app.add_subcommand("run", "run a model once");
  word->add_option("model", state->model, "a .pt2 file or a name of the zoo")->required();
  word->add_option("--outputs", state->outputs, "write the outputs to this .safetensors file");
  word->add_flag("--eager", state->eager, "do not compile");
  state->common.add_to(*word);
  word->callback([state, &exit_code] {
    Status status = run(*state);
    if (!status.ok()) exit_code = fail(status);
  });
}

}  // namespace keirin::tools
