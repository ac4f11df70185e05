// SPDX-License-Identifier: Apache-2.0
//
// keirin build: a model and what was decided for some of its sizes, as one file (docs/bundles.md).
#include <fmt/format.h>

#include <memory>

#include "core/api/bundle.h"
#include "core/exec/table.h"
#include "tools/files.h"
#include "tools/options.h"
#include "tools/serve/warm.h"

namespace keirin::tools {
namespace {

struct Build {
  CommonOptions common;
  std::string model, shapes, out;
  std::vector<std::string> devices;
};

// A list of lists of sizes, or what `serve --warm` takes, of which the model's name is one.
Result<std::vector<std::vector<int64_t>>> kinds_of(const std::string& shapes, const std::string& model) {
  if (shapes.empty()) return std::vector<std::vector<int64_t>>{{}};
  KRN_TRY_LET(const std::string text, read_file(shapes));
  const bool is_list = text.find_first_not_of(" \t\r\n") < text.size() && text[text.find_first_not_of(" \t\r\n")] == '[';
  const std::string name = is_list ? "model" : std::filesystem::path(model).stem().string();
  Result<WarmShapes> all = parse_warm_shapes(is_list ? "{\"model\": " + text + "}" : text);
  if (!all.ok()) return std::move(all).status().at(shapes).instead("no bundle was written");
  const auto found = all->find(name);
  if (found == all->end() || found->second.empty())
    return Status(Code::k_invalid_input, {"the file holds no sizes of \"" + name + "\"", shapes, "no bundle was written",
                                          "write [[1, 128], [8, 128]], or {\"" + name + "\": [[1, 128]]}: lists of its free sizes"});
  return found->second;
}

Status build(Build& words) {
  words.common.finish();
  KRN_TRY_LET(const auto kinds, kinds_of(words.shapes, words.model));
  KRN_TRY_LET(const std::string path, find_model(words.model, words.common.size));
  KRN_TRY_LET(auto runtime, Runtime::open(words.common.runtime));
  std::vector<std::string> devices = words.devices;
  if (devices.empty()) devices.push_back(words.common.runtime.device);
  Result<BuiltBundle> built = build_bundle(*runtime, path, kinds, devices, words.common.runtime, words.out);
  end_progress_line();
  if (!built.ok()) return built.status();
  std::vector<std::vector<std::string>> rows = {{"device", "sizes", "chosen", "speedup"}};
  for (const BundledKind& kind : built->list.kinds)
    rows.push_back({kind.device, sizes_text(kind.sizes), kind.chosen, speedup_text(kind)});
  std::FILE* out = text_out(words.common.json);
  if (!words.common.quiet) fmt::print(out, "{}", render_table(rows, {}, table_width(words.common.wide)));
  fmt::print(out, "{}: {} kinds of calls in {} entries of {:.1f} MiB beside the model\n", words.out, built->list.kinds.size(),
             built->list.num_entries, static_cast<double>(built->entry_bytes) / (1 << 20));
  return words.common.json.empty() ? Status() : write_text(words.common.json, bundle_text(built->list));
}

}  // namespace

void add_build(CLI::App& app, int& exit_code) {
  auto state = std::make_shared<Build>();
  CLI::App* word = app.add_subcommand("build", "decide for some sizes and write a bundle: the model with its plans in one file");
  word->add_option("model", state->model, "a .pt2 file or a name of the zoo")->required();
  word->add_option("-o,--output", state->out, "the file to write, m.krn")->required();
  word->add_option("--shapes", state->shapes, "a JSON file of sizes: [[1, 128], [8, 128]]; none: those of the export")
      ->check(CLI::ExistingFile);
  word->add_option("--devices", state->devices, "where it is to run, apart by commas; none: --device")->delimiter(',');
  state->common.add_to(*word);
  word->callback([state, &exit_code] {
    if (const Status status = build(*state); !status.ok()) exit_code = fail(status);
  });
}

}  // namespace keirin::tools
