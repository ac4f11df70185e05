// SPDX-License-Identifier: Apache-2.0
//
// keirin bench: measures models side by side with eager and prints one table over all of them.
#include <fmt/format.h>

#include <memory>

#include "tools/options.h"

namespace keirin::tools {
namespace {

struct Bench {
  CommonOptions common;
  std::vector<std::string> models;
  std::vector<std::string> sizes;
};

Result<ModelReport> bench_one(Runtime& runtime, const std::string& model, const Bench& bench) {
  KRN_TRY_LET(std::string path, find_model(model, bench.common.size));
  KRN_TRY_LET(auto session, Session::open(runtime, path, bench.common.runtime));
  KRN_TRY_LET(std::vector<TensorRef> inputs, inputs_for(*session, runtime, bench.common.inputs, bench.common.runtime.device));
  return session->compile(inputs);
}

int run(Bench& bench) {
  bench.common.finish();
  bench.common.runtime.measure_again = true;
  auto runtime = Runtime::open(bench.common.runtime);
  if (!runtime.ok()) return fail(runtime.status());
  std::vector<ModelReport> reports;
  int exit_code = kOk;
  for (const std::string& model : bench.models) {
    if (!bench.common.quiet && bench.models.size() > 1)
      fmt::print(stderr, "{}/{} {}\n", &model - bench.models.data() + 1, bench.models.size(), model);
    auto report = bench_one(**runtime, model, bench);
    end_progress_line();
    if (!report.ok()) {
      exit_code = fail(report.status());  // the other models are still run
      continue;
    }
    if (!report->verified) exit_code = kFailed;
    reports.push_back(std::move(*report));
  }
  if (reports.empty()) return exit_code;
  fmt::print("{}", bench_table(reports));
  if (!bench.common.json.empty())
    if (Status written = write_text(bench.common.json, bench_json(reports).dump(2) + "\n"); !written.ok()) return fail(written);
  return exit_code;
}

}  // namespace

void add_bench(CLI::App& app, int& exit_code) {
  auto bench = std::make_shared<Bench>();
  CLI::App* word = app.add_subcommand("bench", "measure models against eager and print one table");
  word->add_option("models", bench->models, ".pt2 files or names of the zoo; none: the whole zoo");
  bench->common.add_to(*word);
  word->callback([bench, &exit_code] {
    if (bench->models.empty()) bench->models = zoo_names(bench->common.size);
    exit_code = run(*bench);
  });
}

}  // namespace keirin::tools
