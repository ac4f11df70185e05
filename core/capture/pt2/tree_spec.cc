// SPDX-License-Identifier: Apache-2.0
#include "core/capture/pt2/tree_spec.h"

#include <algorithm>

#include "core/capture/pt2/decoder.h"

namespace keirin::pt2 {
namespace {

constexpr int64_t kTreeSpecVersion = 1;

class TreeReader {
 public:
  TreeReader(const Named<std::vector<std::string>>& fields, const Limits& limits)
      : decoder_(limits), fields_(fields), limits_(limits) {}

  Result<TreeSpec> run(std::string_view text) {
    KRN_TRY_LET(JsonDoc doc, JsonDoc::parse(text, limits_));
    JsonRef root(doc);
    TreeSpec tree;
    if (!decoder_.want(root, JsonType::kArray)) return decoder_.status;
    if (root.count() != 2) decoder_.fail(root, Code::k_corrupt, "a tree specification is not a pair of version and tree");
    if (decoder_.status.ok())
      root.items([&, first = true](const JsonRef& item) mutable {
        bool done = first ? version(item) : node(item, &tree);
        first = false;
        return done;
      });
    if (!decoder_.status.ok()) return decoder_.status;
    return tree;
  }

 private:
  bool version(const JsonRef& ref) {
    int64_t number = 0;
    if (!decoder_.read(ref, &number)) return false;
    return number == kTreeSpecVersion ||
           decoder_.fail(ref, Code::k_version,
                         "a tree specification has version " + std::to_string(number) + ", known is 1",
                         "save the model with a torch release that this version of Keirin knows");
  }

  bool node(const JsonRef& ref, TreeSpec* out) {
    JsonRef children, type;
    bool typed = false;
    if (!decoder_.optional(ref, "type", &type, &typed) || !decoder_.member(ref, "children_spec", &children))
      return false;
    if (!decoder_.want(children, JsonType::kArray)) return false;
    if (!typed)
      return children.count() == 0 || decoder_.fail(children, Code::k_corrupt, "a leaf of a tree has children");
    if (!decoder_.read(type, &out->type)) return false;
    out->children.reserve(children.count());
    if (!children.items([&](const JsonRef& item) { return node(item, &out->children.emplace_back()); })) return false;
    JsonRef context;
    bool has_context = false;
    if (!decoder_.optional(ref, "context", &context, &has_context)) return false;
    return classify(ref, has_context && context.type() == JsonType::kString ? context.string() : std::string_view(),
                    out);
  }

  bool classify(const JsonRef& ref, std::string_view context, TreeSpec* out) {
    using Kind = TreeSpec::Kind;
    out->kind = out->type == "builtins.tuple"            ? Kind::kTuple
                : out->type == "builtins.list"           ? Kind::kList
                : out->type == "builtins.dict"           ? Kind::kDict
                : out->type == "collections.OrderedDict" ? Kind::kOrderedDict
                : out->type == "collections.namedtuple"  ? Kind::kNamedTuple
                                                         : Kind::kOther;
    if (out->kind == Kind::kNamedTuple) return name_fields(ref, context, out);
    if (out->kind == Kind::kDict || out->kind == Kind::kOrderedDict) return read_keys(ref, context, out);
    return true;
  }

  bool name_fields(const JsonRef& ref, std::string_view context, TreeSpec* out) {
    out->type = context;
    auto it = fields_.find(context);
    if (it == fields_.end()) return true;
    if (it->second.size() != out->children.size())
      return decoder_.fail(ref, Code::k_corrupt, "a namedtuple has another number of fields than of values");
    out->keys.assign(it->second.begin(), it->second.end());
    return true;
  }

  bool read_keys(const JsonRef& ref, std::string_view context, TreeSpec* out) {
    Result<JsonDoc> doc = JsonDoc::parse(context, limits_);
    if (!doc.ok()) return decoder_.fail(ref, Code::k_corrupt, "the keys of a dictionary are not valid JSON");
    JsonRef root(*doc);
    if (root.type() != JsonType::kArray || root.count() != out->children.size())
      return decoder_.fail(ref, Code::k_corrupt, "a dictionary has another number of keys than of values");
    root.items([&](const JsonRef& item) {
      // Keys that are neither text nor integers (None, tuples, enums) exist; such a dictionary has only the flat call.
      if (item.type() == JsonType::kString)
        out->keys.emplace_back(std::string(item.string()));
      else if (item.type() == JsonType::kInt)
        out->keys.emplace_back(item.integer());
      else
        out->kind = TreeSpec::Kind::kOther;
      return true;
    });
    if (out->kind == TreeSpec::Kind::kOther) return out->keys.clear(), true;
    std::vector<PathStep> sorted = out->keys;
    std::sort(sorted.begin(), sorted.end());
    return std::adjacent_find(sorted.begin(), sorted.end()) == sorted.end() ||
           decoder_.fail(ref, Code::k_corrupt, "a dictionary has a key twice");
  }

  Decoder decoder_;
  const Named<std::vector<std::string>>& fields_;
  const Limits& limits_;
};

}  // namespace

Result<TreeSpec> parse_tree_spec(std::string_view text, const Named<std::vector<std::string>>& fields,
                                 const Limits& limits) {
  return TreeReader(fields, limits).run(text);
}

}  // namespace keirin::pt2
