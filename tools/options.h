// SPDX-License-Identifier: Apache-2.0
//
// What the words of the `keirin` command share: the options that reach the runtime, exit codes, and where models are found.
#pragma once

#include <CLI/CLI.hpp>
#include <filesystem>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "core/api/session.h"
#include "tools/exits.h"

namespace keirin::tools {

// Plugins read some options from the environment, and so do the children that look at plugins and compile: these are put there. Before
// there is a second thread.
void tell_plugins(const Options& options);

struct CommonOptions {
  Options runtime;
  std::string inputs;                     // .safetensors
  std::vector<std::string> named_inputs;  // NAME=FILE, beside them
  std::string json;                       // file to write; "-" for standard output
  std::string size = "small";
  bool quiet = false, wide = false;

  // Adds the options to a word of the command that runs a model.
  void add_to(CLI::App& app);
  // Of a word that looks at the machine only: those that choose plugins, device and cache.
  void add_machine_to(CLI::App& app);
  // Call after parsing.
  void finish();
};

void add_json(CLI::App& app, std::string& json);
void add_size(CLI::App& app, std::string& size);
// Where text for people goes: standard output, which belongs to JSON alone where that is asked for on it.
std::FILE* text_out(const std::string& json);
// How wide tables may be: $COLUMNS, else the terminal's width, else (a file, a pipe) and with `wide` no limit: 0.
size_t table_width(bool wide);

// The flags of core/api/options.def, or those of these fields only. They write to `options`, which outlives `app`, while
// the command line is parsed.
void add_options(CLI::App& app, Options& options, std::initializer_list<std::string_view> fields = {});
// The flags and values that make these options: what is as it is without flags is left out.
std::vector<std::string> command_words(const Options& options);

// Where the data called `name` (zoo, cases, skeleton) lies: PREFIX/share/keirin of an installed program, share/keirin of the build
// folder, whose links lead to the source tree. No path is compiled in, so that both may be moved.
std::filesystem::path data_folder(const std::string& name);

// A path stays a path; a zoo name becomes the file shipped with Keirin. An unknown name is an error that lists the known ones.
Result<std::string> find_model(const std::string& name, const std::string& size);
std::vector<std::string> zoo_names(const std::string& size);

// Prints a Status to standard error and returns the exit code that goes with it.
int fail(const Status& status);
// Writes text to a file or to standard output ("-").
Status write_text(const std::string& path, const std::string& text);

// Progress on standard error: one line on a terminal; elsewhere a line every 10 s of what is being done.
std::function<void(const std::string&, double, double)> progress_line();
void end_progress_line();

// The words. Each adds a subcommand whose callback stores its exit code in `exit_code`.
void add_bench(CLI::App& app, int& exit_code);
void add_run(CLI::App& app, int& exit_code);
void add_explain(CLI::App& app, int& exit_code);
void add_inspect(CLI::App& app, int& exit_code);
void add_build(CLI::App& app, int& exit_code);
void add_plugins(CLI::App& app, int& exit_code);
void add_plugin(CLI::App& app, int& exit_code);
void add_certify(CLI::App& app, int& exit_code);
void add_doctor(CLI::App& app, int& exit_code);
void add_opt(CLI::App& app, int& exit_code);
void add_repro(CLI::App& app, int& exit_code);
void add_cache(CLI::App& app, int& exit_code);
void add_option_list(CLI::App& app, int& exit_code);

}  // namespace keirin::tools
