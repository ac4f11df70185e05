// SPDX-License-Identifier: Apache-2.0
//
// keirin opt: text IR in, passes, text IR out; the engine of the golden tests. Without LibTorch's help nothing is folded.
#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <iostream>
#include <memory>

#include "core/ir/text.h"
#include "core/ir/verify.h"
#include "core/passes/pass.h"
#include "tools/options.h"

namespace keirin::tools {
namespace {

struct Opt {
  std::string file = "-", output = "-", stop_after, dump, numerics = "default";
  std::vector<std::string> disabled, only;
  bool list = false, times = false, channels_last = false;
};

Result<std::string> read_all(const std::string& path) {
  if (path == "-") return std::string(std::istreambuf_iterator<char>(std::cin), {});
  std::ifstream file(path, std::ios::binary);
  if (!file)
    return Status(Code::k_invalid_input,
                  {"cannot read " + path, {}, "nothing was done", "give a file of text IR, or - for standard input"});
  return std::string(std::istreambuf_iterator<char>(file), {});
}

Status run(const Opt& opt) {
  if (opt.list) {
    for (const PassRow& row : all_passes()) fmt::print("{:<22} {}\n", row.name, row.text);
    return {};
  }
  KRN_TRY_LET(std::string text, read_all(opt.file));
  KRN_TRY_LET(Graph graph, parse(text));
  KRN_TRY(verify(graph));
  PassContext context;
  context.numerics = opt.numerics == "strict" ? Numerics::kStrict : opt.numerics == "fast" ? Numerics::kFast : Numerics::kDefault;
  context.channels_last = opt.channels_last;
  context.disabled = opt.disabled;
  context.stop_after = opt.stop_after;
  context.dump_dir = opt.dump;
  if (!opt.only.empty()) {
    for (const std::string& name : opt.only)
      if (!find_pass(name))
        return Status(Code::k_invalid_input, {"no pass is called " + name, {}, "nothing was done", "keirin opt --list"});
    for (const PassRow& row : all_passes())
      if (std::find(opt.only.begin(), opt.only.end(), row.name) == opt.only.end()) context.disabled.emplace_back(row.name);
  }
  KRN_TRY(run_passes(graph, context));
  if (opt.times)
    for (const PassTime& time : context.times)
      fmt::print(stderr, "{:<22} {:>8.1f} us  {} -> {} ops\n", time.name, static_cast<double>(time.ns) / 1e3, time.ops_before,
                 time.ops_after);
  return write_text(opt.output, print(graph));
}

}  // namespace

void add_opt(CLI::App& app, int& exit_code) {
  auto opt = std::make_shared<Opt>();
  CLI::App* word = app.add_subcommand("opt", "run passes over text IR");
  word->add_option("file", opt->file, "text IR; - is standard input")->capture_default_str();
  word->add_option("-o,--output", opt->output, "where the result goes; - is standard output")->capture_default_str();
  word->add_option("--pass", opt->only, "only these passes");
  word->add_option("--disable", opt->disabled, "leave these passes out");
  word->add_option("--stop-after", opt->stop_after, "the last pass to run");
  word->add_option("--dump", opt->dump, "folder for NN-name.ir after every pass");
  word->add_option("--numerics", opt->numerics, "default, strict or fast")->check(CLI::IsMember({"default", "strict", "fast"}));
  word->add_flag("--channels-last", opt->channels_last, "lay convolution graphs out channels-last");
  word->add_flag("--times", opt->times, "print the time of each pass to standard error");
  word->add_flag("--list", opt->list, "list the passes");
  word->callback([opt, &exit_code] {
    Status status = run(*opt);
    if (!status.ok()) exit_code = fail(status);
  });
}

}  // namespace keirin::tools
