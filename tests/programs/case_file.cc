// SPDX-License-Identifier: Apache-2.0
//
// The reader of case_file.h. The files are our own: what is missing in one is a fault of record.py, and is said.
#include "tests/programs/case_file.h"

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "core/eager/weights/safetensors.h"

namespace keirin::programs {
namespace {

using Json = nlohmann::ordered_json;

struct Reader {
  std::map<std::string, TensorRef> tensors;

  Told told(const Json& json) const {
    Told out;
    out.value = tensors.at(json.at("value").get<std::string>());
    out.tolerance = json.value("tolerance", 0.0);
    out.complex = json.value("complex", false);
    if (json.contains("strides")) out.strides = json["strides"].get<std::vector<int64_t>>();
    return out;
  }

  Call call(const Json& json) const {
    Call out;
    if (json.contains("raises")) {
      out.raises = true;
      out.error = json["raises"].get<std::string>();
      return out;
    }
    for (const Json& output : json.at("outputs")) {
      if (output.is_null())
        out.outputs.emplace_back();
      else
        out.outputs.emplace_back(told(output));
    }
    for (const Json& storage : json.at("storages")) out.storages.push_back(told(storage));
    for (const auto& [name, buffer] : json.at("buffers").items()) out.buffers.emplace_back(name, told(buffer));
    for (const Json& share : json.at("shares"))
      out.shares.push_back({share[0].get<std::string>(), share[1].get<std::string>(), share[2].get<int64_t>()});
    return out;
  }

  Variant variant(const Json& json) const {
    Variant out;
    out.name = json.at("name").get<std::string>();
    for (const Json& storage : json.at("storages")) out.storages.push_back(told(storage));
    for (const Json& input : json.at("inputs"))
      out.inputs.push_back({input.at("storage").get<size_t>(), input.at("sizes").get<std::vector<int64_t>>(),
                            input.at("strides").get<std::vector<int64_t>>(), input.at("offset").get<int64_t>()});
    for (const Json& each : json.at("calls")) out.calls.push_back(call(each));
    return out;
  }
};

}  // namespace

Result<Case> read_case(const std::string& folder, const std::string& name, TensorServices& services) {
  const std::string path = folder + "/" + name;
  Reader reader;
  KRN_TRY_LET(const NamedTensors tensors, read_safetensors(path + ".safetensors", services));
  for (const auto& [key, tensor] : tensors) reader.tensors[key] = tensor;
  Case out;
  out.name = name;
  out.model = path + ".pt2";
  try {
    std::ifstream file(path + ".json");
    const Json json = Json::parse(file);
    if (json.at("version") != 1) return Status(Code::k_version, path + ".json is of another version");
    out.source = json.value("source", "");
    out.note = json.value("note", "");
    for (const Json& variant : json.at("variants")) out.variants.push_back(reader.variant(variant));
  } catch (const std::exception& error) {
    return Status(Code::k_corrupt, path + ".json: " + error.what());
  }
  if (out.variants.empty()) return Status(Code::k_corrupt, path + ".json has no variant");
  return out;
}

}  // namespace keirin::programs
