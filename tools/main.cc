// SPDX-License-Identifier: Apache-2.0
//
// The `keirin` command: one word per task, each in its own file and thin over the core.
#include <algorithm>
#include <exception>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/base/nearest.h"
#include "tools/matrix/words.h"
#include "tools/options.h"
#include "tools/serve/words.h"

int main(int argc, char** argv) try {
  using namespace keirin::tools;
  CLI::App app{"keirin: runs PyTorch models on the faster right one of compiled and eager"};
  app.require_subcommand(1);
  app.set_version_flag("--version", KEIRIN_VERSION);
  int exit_code = kOk;
  add_bench(app, exit_code);
  add_run(app, exit_code);
  add_explain(app, exit_code);
  add_inspect(app, exit_code);
  add_build(app, exit_code);
  add_plugins(app, exit_code);
  add_plugin(app, exit_code);
  add_certify(app, exit_code);
  add_doctor(app, exit_code);
  add_opt(app, exit_code);
  add_repro(app, exit_code);
  add_serve(app, exit_code);
  add_load(app, exit_code);
  add_cache(app, exit_code);
  add_matrix(app, exit_code);
  add_option_list(app, exit_code);
  std::vector<std::string> words;
  for (const CLI::App* word : app.get_subcommands([](CLI::App*) { return true; })) words.push_back(word->get_name());
  if (argc > 1 && argv[1][0] != '-' && std::find(words.begin(), words.end(), argv[1]) == words.end())
    return fail({keirin::Code::k_invalid_input,
                 {fmt::format("no word is called \"{}\": the nearest is \"{}\"", argv[1], keirin::nearest_word(argv[1], words)),
                  {}, "nothing was done", fmt::format("give one of: {}", fmt::join(words, ", "))}});
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kOk : kUsage;
  }
  return exit_code;
} catch (const std::exception& error) {
  // The core throws nothing; what arrives here is a library's (out of memory, a broken locale) and ends the command.
  fmt::print(stderr, "keirin: {}\n", error.what());
  return keirin::tools::kFailed;
}
