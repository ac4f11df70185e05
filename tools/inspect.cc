// SPDX-License-Identifier: Apache-2.0
//
// keirin inspect: what a .pt2 file or a bundle takes, returns and consists of, from its text alone: no weight is read, no plugin opened.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "core/api/bundle.h"
#include "core/api/signature.h"
#include "core/capture/pt2/read_pt2.h"
#include "core/exec/table.h"
#include "tools/options.h"

namespace keirin::tools {
namespace {

struct Inspect {
  std::string model, json, size = "small";
  bool wide = false;
};

std::string size_text(const Dimension& size) {
  if (!size.free) return std::to_string(size.size);
  std::string range = fmt::format("{}..{}", size.min, size.max > 0 ? std::to_string(size.max) : "");
  return fmt::format("{}={} ({})", size.symbol, size.size, range);
}

std::string port_text(const Port& port) {
  if (port.dtype.empty()) return "not a tensor";
  if (port.is_number) return port.dtype + " number " + size_text(port.number);
  std::string sizes;
  for (const Dimension& size : port.sizes) sizes += (sizes.empty() ? "" : ", ") + size_text(size);
  return port.dtype + "[" + sizes + "]";
}

nlohmann::json to_json(const Dimension& d) {
  nlohmann::json size = {{"size", d.size}, {"free", d.free}};
  if (d.free) {
    size["symbol"] = d.symbol;
    size["range"] = {d.min, nullptr};
    if (d.max > 0) size["range"][1] = d.max;
  }
  return size;
}

nlohmann::json to_json(const std::vector<Port>& ports) {
  nlohmann::json out = nlohmann::json::array();
  for (const Port& port : ports) {
    nlohmann::json sizes = nlohmann::json::array();
    for (const Dimension& d : port.sizes) sizes.push_back(to_json(d));
    out.push_back({{"position", out.size()}, {"name", port.name}, {"dtype", port.dtype}, {"sizes", sizes}});
    if (port.is_number) out.back()["number"] = to_json(port.number);
  }
  return out;
}

Status run(const Inspect& words) {
  KRN_TRY_LET(const std::string path, find_model(words.model, words.size));
  KRN_TRY_LET(const pt2::Pt2File file, pt2::read_programs(path));
  KRN_TRY_LET(const pt2::Model* model, file.model());
  const Signature signature = signature_of(model->program);
  const Forecast forecast = forecast_of(model->program);
  std::error_code error;
  const auto bytes = static_cast<int64_t>(std::filesystem::file_size(path, error));
  int64_t elements = 0;
  for (const pt2::InputSpec& input : model->program.inputs) {
    if (input.kind != pt2::InputSpec::Kind::kParameter) continue;
    int64_t count = 1;
    for (const pt2::SymInt& size : model->program.graph.tensor_values.find(input.arg.get<pt2::TensorArg>()->name)->second.sizes)
      count *= size.value;
    elements += count;
  }
  const double share = forecast.nodes ? static_cast<double>(forecast.known) / forecast.nodes : 0;

  std::FILE* out = text_out(words.json);
  fmt::print(out, "{}: {} bytes, {} parameters, written by torch {}\n", path, bytes, elements, model->program.torch_version);
  std::vector<std::vector<std::string>> rows = {{"", "name", "what"}};
  for (size_t i = 0; i < signature.inputs.size(); ++i)
    rows.push_back({fmt::format("input {}", i), signature.inputs[i].name, port_text(signature.inputs[i])});
  for (size_t i = 0; i < signature.outputs.size(); ++i)
    rows.push_back({fmt::format("output {}", i), signature.outputs[i].name, port_text(signature.outputs[i])});
  fmt::print(out, "{}", render_table(rows, {}, table_width(words.wide)));
  std::vector<std::pair<int, std::string>> counts;
  for (const auto& [name, count] : forecast.operators) counts.emplace_back(-count, name);
  std::sort(counts.begin(), counts.end());
  fmt::print(out, "{} operators of {} kinds:", forecast.nodes, counts.size());
  const size_t shown = words.wide ? counts.size() : std::min<size_t>(counts.size(), 12);
  for (size_t i = 0; i < shown; ++i) fmt::print(out, " {} {}{}", -counts[i].first, counts[i].second, i + 1 < shown ? "," : "");
  fmt::print(out, "{}\n", shown < counts.size() ? ", ... (--wide lists all)" : "");
  fmt::print(out, "forecast: {} of {} operators ({:.0f} %) are known to the operator table and may be compiled", forecast.known,
             forecast.nodes, share * 100);
  for (const auto& [name, count] : forecast.opaque)
    fmt::print(out, "{}{} ({})", name == forecast.opaque.begin()->first ? "; opaque, called as PyTorch calls them: " : ", ", name, count);
  fmt::print(out, "\n");
  KRN_TRY_LET(const std::optional<BundleList> bundle, bundle_of(file));
  if (bundle) {
    fmt::print(out, "a bundle, made with {}: {} entries\n", bundle->made_by, bundle->num_entries);
    std::vector<std::vector<std::string>> kinds = {{"device", "sizes", "chosen", "speedup"}};
    for (const BundledKind& kind : bundle->kinds)
      kinds.push_back({kind.device, sizes_text(kind.sizes), kind.chosen, speedup_text(kind)});
    fmt::print(out, "{}", render_table(kinds, {}, table_width(words.wide)));
  }
  if (words.json.empty()) return {};
  nlohmann::json all = {{"schema", "keirin/inspect/1"}, {"file", path}, {"bytes", bytes}, {"parameters", elements},
                              {"torch", model->program.torch_version}, {"inputs", to_json(signature.inputs)},
                              {"outputs", to_json(signature.outputs)}, {"operators", forecast.operators}, {"opaque", forecast.opaque},
                              {"nodes", forecast.nodes}, {"nodes_known", forecast.known}};
  if (bundle) all["bundle"] = nlohmann::json::parse(bundle_text(*bundle));
  return write_text(words.json, all.dump(2) + "\n");
}

}  // namespace

void add_inspect(CLI::App& app, int& exit_code) {
  auto words = std::make_shared<Inspect>();
  CLI::App* word = app.add_subcommand("inspect", "say what a model takes, returns and consists of; nothing is loaded");
  word->add_option("model", words->model, "a .pt2 file or a name of the zoo")->required();
  add_size(*word, words->size);
  add_json(*word, words->json);
  word->add_flag("--wide", words->wide, "tables as wide as they are, lists as long");
  word->callback([words, &exit_code] {
    if (const Status status = run(*words); !status.ok()) exit_code = fail(status);
  });
}

}  // namespace keirin::tools
