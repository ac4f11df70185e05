// SPDX-License-Identifier: Apache-2.0
#include "core/api/known_run.h"

#include <nlohmann/json.hpp>

namespace keirin {
namespace {

using nlohmann::json;

constexpr const char* kSchema = "keirin/known/2";

json json_of(const TensorSpec& spec) {
  return {static_cast<int>(spec.dtype), spec.sizes, spec.strides, static_cast<int>(spec.device.kind),
          spec.device.index};
}

TensorSpec spec_of_json(const json& j) {
  TensorSpec spec{static_cast<DType>(j.at(0).get<int>()), j.at(1), j.at(2), {}};
  spec.device.kind = static_cast<decltype(spec.device.kind)>(j.at(3).get<int>());
  spec.device.index = j.at(4);
  return spec;
}

}  // namespace

std::string known_run_text(const KnownRun& run) {
  json values = json::array(), views = json::array(), outputs = json::array();
  for (const auto& [name, v] : run.seen.values)
    values.push_back({name, v.sizes, v.strides, v.view_of, v.fills_storage});
  for (const OutputView& v : run.forms.views)
    views.push_back({v.output, static_cast<int>(v.of), v.source, v.byte_offset});
  for (const TensorSpec& spec : run.forms.specs) outputs.push_back(json_of(spec));
  return json{{"schema", kSchema},
              {"values", values},
              {"overlapping_writes", run.seen.overlapping_writes},
              {"written_weights", run.seen.written_weights},
              {"written_inputs", run.seen.written_inputs},
              {"reads_storage", run.seen.reads_storage},
              {"draws_random", run.seen.draws_random},
              {"whole_products", run.seen.whole_products},
              {"views", views},
              {"outputs", outputs}}
      .dump(-1, ' ', false, json::error_handler_t::replace);
}

Result<KnownRun> parse_known_run(std::string_view text) {
  const json j = json::parse(text, nullptr, false);
  try {
    if (!j.is_object() || j.at("schema") != kSchema) return Status(Code::k_corrupt, "a known run has another schema");
    KnownRun run;
    for (const json& v : j.at("values")) run.seen.values[v.at(0)] = {v.at(1), v.at(2), v.at(3), v.at(4)};
    for (const json& name : j.at("overlapping_writes")) run.seen.overlapping_writes.insert(name.get<std::string>());
    run.seen.written_weights = j.at("written_weights").get<std::vector<size_t>>();
    run.seen.written_inputs = j.at("written_inputs").get<std::vector<size_t>>();
    run.seen.reads_storage = j.at("reads_storage");
    run.seen.draws_random = j.at("draws_random");
    for (const json& name : j.at("whole_products")) run.seen.whole_products.insert(name.get<std::string>());
    for (const json& v : j.at("views"))
      run.forms.views.push_back({v.at(0), static_cast<OutputView::Of>(v.at(1).get<int>()), v.at(2), v.at(3)});
    for (const json& v : j.at("outputs")) run.forms.specs.push_back(spec_of_json(v));
    for (const OutputView& v : run.forms.views)
      if (v.output >= run.forms.specs.size())
        return Status(Code::k_corrupt, "a known run has a view of something that is not an output");
    return run;
  } catch (const json::exception& error) {
    return Status(Code::k_corrupt, std::string("a known run has another shape: ") + error.what());
  }
}

}  // namespace keirin
