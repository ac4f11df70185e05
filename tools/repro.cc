// SPDX-License-Identifier: Apache-2.0
//
// keirin repro: a folder that a wrong answer left behind (--repro), down to the smallest graph that is wrong and to who is to blame.
#include "core/api/repro.h"

#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "core/ir/text.h"
#include "tools/options.h"

namespace keirin::tools {
namespace {

struct Repro {
  std::string folder, output, json;
  int tries = 400;
  Options options;
};

// What was found, for programs.
Status write_json(const Repro& repro, const ReproCase& c, const ReproFinding& found) {
  if (repro.json.empty()) return {};
  const bool wrong = !found.reason.empty();
  const nlohmann::json all = {{"schema", "keirin/repro/1"}, {"model", c.model}, {"plan", c.plan}, {"reason_there", c.reason},
                              {"reason_here", found.reason}, {"nodes", c.graph.ops.size()}, {"blame", found.blame},
                              {"nodes_left", wrong ? found.smallest.ops.size() : 0}, {"smallest", wrong ? print(found.smallest) : ""}};
  return write_text(repro.json, all.dump(2) + "\n");
}

Result<bool> run(Repro& repro) {
  repro.options.use_cache = false;  // what is wrong is compiled again
  KRN_TRY_LET(const std::unique_ptr<Runtime> runtime, Runtime::open(repro.options));
  KRN_TRY_LET(const ReproCase c, read_repro(repro.folder, runtime->tensors()));
  std::FILE* out = text_out(repro.json);
  fmt::print(out, "{}, {}: {}\n", c.model, c.plan, c.reason);
  KRN_TRY_LET(const ReproFinding found, reproduce(*runtime, c, repro.options, repro.tries));
  KRN_TRY(write_json(repro, c, found));
  if (found.reason.empty()) {
    fmt::print(out, "right here: nothing to shrink\n");
    return true;
  }
  fmt::print(out, "wrong here: {}\n{} of {} operators are left: {}\n{}blame: {}\n", found.reason, found.smallest.ops.size(),
             c.graph.ops.size(), found.smallest_reason, print(found.smallest), found.blame);
  if (!repro.output.empty()) KRN_TRY(write_text(repro.output, print(found.smallest)));
  return false;
}

}  // namespace

void add_repro(CLI::App& app, int& exit_code) {
  auto repro = std::make_shared<Repro>();
  CLI::App* command = app.add_subcommand("repro", "run a wrong answer again, make it small, say who is to blame");
  command->add_option("folder", repro->folder, "what bench or run wrote with --repro")->required();
  command->add_option("--output", repro->output, "also write the smallest graph to this file");
  command->add_option("--tries", repro->tries, "graphs to try while it is made smaller")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  add_json(*command, repro->json);
  add_options(*command, repro->options, {"threads", "plugin_paths"});
  command->callback([repro, &exit_code] {
    const Result<bool> right = run(*repro);
    exit_code = !right.ok() ? fail(right.status()) : *right ? kOk : kFailed;
  });
}

}  // namespace keirin::tools
