// SPDX-License-Identifier: Apache-2.0
#include "tools/serve/warm.h"

#include <nlohmann/json.hpp>

#include "tools/files.h"

namespace keirin::tools {

Result<WarmShapes> parse_warm_shapes(std::string_view text) {
  const auto refused = [](const std::string& what) {
    return Status(Code::k_invalid_input,
                  {what, {}, "nothing is served", R"(write {"model": [[1, 128], [8, 128]]}: lists of its free sizes)"});
  };
  const nlohmann::json j = nlohmann::json::parse(text, nullptr, false);
  if (!j.is_object()) return refused("the sizes to warm are no JSON object");
  WarmShapes out;
  for (const auto& [model, kinds] : j.items()) {
    if (!kinds.is_array()) return refused("the sizes of \"" + model + "\" are not a list");
    auto& lists = out[model];
    for (const nlohmann::json& kind : kinds) {
      if (!kind.is_array()) return refused("the sizes of \"" + model + "\" are not a list of lists");
      lists.emplace_back();
      for (const nlohmann::json& size : kind) {
        if (!size.is_number_unsigned()) return refused("a size of \"" + model + "\" is not a whole number");
        lists.back().push_back(size.get<int64_t>());
      }
    }
  }
  return out;
}

Result<WarmShapes> read_warm_shapes(const std::string& path) {
  KRN_TRY_LET(const std::string text, read_file(path));
  Result<WarmShapes> shapes = parse_warm_shapes(text);
  return shapes.ok() ? std::move(shapes) : Result<WarmShapes>(std::move(shapes).status().at(path));
}

}  // namespace keirin::tools
