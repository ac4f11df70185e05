// SPDX-License-Identifier: Apache-2.0
//
// keirin run: one call of a model, tensors in, tensors out.
#include <fmt/format.h>

#include <memory>

#include "tools/options.h"
#include "tools/tensors.h"

namespace keirin::tools {
namespace {

struct Run {
  CommonOptions common;
  std::string model, outputs;
  std::string try_sizes;  // of --try-drawn
  bool eager = false, try_drawn = false;
};

Status run(Run& run) {
  run.common.finish();
  KRN_TRY_LET(auto runtime, Runtime::open(run.common.runtime));
  KRN_TRY_LET(std::string path, find_model(run.model, run.common.size));
  KRN_TRY_LET(auto session, Session::open(*runtime, path, run.common.runtime));
  if (run.try_drawn) {
    KRN_TRY_LET(const std::vector<int64_t> sizes, parse_sizes(run.try_sizes));
    return try_drawn(*session, sizes);
  }
  if (!run.outputs.empty()) KRN_TRY(check_outputs(*session));
  KRN_TRY_LET(std::vector<TensorRef> inputs, inputs_for(*session, *runtime, path, run.common));
  if (!run.eager) {
    KRN_TRY_LET(ModelReport report, session->compile(inputs));
    end_progress_line();
    if (!run.common.quiet) fmt::print(stderr, "{}", explain_text(report, table_width(run.common.wide)));
    else print_warnings(report);
    if (!run.common.json.empty()) KRN_TRY(write_text(run.common.json, to_json(report).dump(2) + "\n"));
  }
  KRN_TRY_LET(std::vector<TensorRef> outputs, session->call(inputs));
  const Signature signature = session->signature();
  if (!run.outputs.empty()) return write_outputs(run.outputs, signature, outputs, runtime->tensors());
  for (size_t i = 0; i < outputs.size(); ++i)
    fmt::print(text_out(run.common.json), "{}: {}\n", output_name(signature, i), outputs[i] ? spec_text(spec_of(*outputs[i])) : "none");
  return {};
}

}  // namespace

void add_run(CLI::App& app, int& exit_code) {
  auto state = std::make_shared<Run>();
  CLI::App* word = app.add_subcommand("run", "run a model once");
  word->add_option("model", state->model, "a .pt2 file or a name of the zoo")->required();
  word->add_option("--outputs", state->outputs, "write the outputs to this .safetensors file");
  word->add_flag("--eager", state->eager, "do not compile");
  // What inputs_for starts; the sizes may be none.
  CLI::Option* try_drawn = word->add_option("--try-drawn", state->try_sizes)->expected(0, 1)->group("");
  state->common.add_to(*word);
  word->callback([state, try_drawn, &exit_code] {
    state->try_drawn = try_drawn->count() > 0;
    Status status = run(*state);
    if (!status.ok()) exit_code = fail(status);
  });
}

}  // namespace keirin::tools
