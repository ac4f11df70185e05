// SPDX-License-Identifier: Apache-2.0
#include "core/capture/pt2/read_pt2.h"

#include "core/base/sha256.h"
#include "core/capture/pt2/check_program.h"
#include "core/capture/pt2/counted_values.h"
#include "core/capture/pt2/decoder.h"
#include "core/capture/pt2/zip_archive.h"

namespace keirin::pt2 {
namespace {

constexpr std::string_view kModels = "models/", kJson = ".json", kExtra = "extra/";

Status refuse(Code code, std::string what, std::string where, std::string advice) {
  return Status(code, {std::move(what), std::move(where), "nothing was loaded", std::move(advice)});
}

// The value of a one-word record, without the line end that some writers add.
Result<std::string> word(const ZipArchive& archive, const char* name, const Limits& limits) {
  const ZipRecord* record = archive.find(name);
  if (record == nullptr) return refuse(Code::k_corrupt, "a record is missing", name, "save the file again");
  if (record->size > 64) return refuse(Code::k_corrupt, "a one-word record is too long", name, "save the file again");
  KRN_TRY_LET(std::string text, archive.read_text(*record, limits));
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.pop_back();
  return text;
}

// Files that are a zip but no torch.export archive of today: each gets its own words.
Status check_kind(const ZipArchive& archive) {
  if (archive.find("archive_format") != nullptr) return {};
  if (archive.find("constants.pkl") != nullptr)
    return refuse(Code::k_unsupported, "this is a TorchScript file", "constants.pkl",
                  "export the model with torch.export.save");
  if (archive.find("data.pkl") != nullptr)
    return refuse(Code::k_unsupported, "this is a pickle of torch.save", "data.pkl",
                  "export the model with torch.export.save");
  return refuse(Code::k_corrupt, "this is not a torch.export archive", "archive_format",
                "export the model with torch.export.save");
}

Status check_words(const ZipArchive& archive, const Limits& limits) {
  KRN_TRY_LET(std::string format, word(archive, "archive_format", limits));
  if (format != "pt2")
    return refuse(Code::k_corrupt, "the archive format is not pt2", "archive_format",
                  "export the model with torch.export.save");
  struct Expected {
    const char *record, *value, *noun;
  };
  for (const Expected& e :
       {Expected{"archive_version", "0", "archive version"}, Expected{".data/version", "6", "container version"}}) {
    KRN_TRY_LET(std::string value, word(archive, e.record, limits));
    if (value != e.value)
      return refuse(Code::k_version, std::string("this reader does not know the ") + e.noun, e.record,
                    "save the model with a torch release that this version of Keirin knows");
  }
  KRN_TRY_LET(std::string order, word(archive, "byteorder", limits));
  if (order != "little")
    return refuse(Code::k_unsupported, "the weights are not in little-endian byte order", "byteorder",
                  "save the model on a little-endian machine");
  return {};
}

bool is_program(std::string_view record) {
  return record.starts_with(kModels) && record.ends_with(kJson) && record.size() > kModels.size() + kJson.size() &&
         record.find('/', kModels.size()) == std::string_view::npos;
}

// A size that a model computes as a tensor (torch.div(size, 2, rounding_mode="trunc")) is looked at while it is traced. The sizes that
// follow are literals, and a look is left that defines no name: it would cut the program in two, and on a device wait for it.
void drop_unread_looks(Graph& graph) {
  std::erase_if(graph.nodes, [](const Node& node) {
    const bool looks = node.target == "torch.ops.aten.item.default" || node.target == "torch.ops.aten._local_scalar_dense.default";
    return looks && node.defines().empty();
  });
}

Result<Model> read_model(const ZipArchive& archive, const ZipRecord& record, const Limits& limits, bool with_weights) {
  Model model;
  std::string digest;
  model.program.name = record.name.substr(kModels.size(), record.name.size() - kModels.size() - kJson.size());
  {
    KRN_TRY_LET(std::string text, archive.read_text(record, limits));
    digest = hex(sha256(text.data(), text.size()));
    Result<JsonDoc> doc = JsonDoc::parse(text, limits);
    if (!doc.ok()) return std::move(doc).status().at(record.name);
    text = std::string();  // the document has its own copy of the strings
    Decoder decoder(limits);
    if (!decoder.program(JsonRef(*doc), &model.program)) return std::move(decoder.status).at(record.name);
  }
  model.program.digest = std::move(digest);
  KRN_TRY(check_program(model.program).at(record.name));
  drop_unread_looks(model.program.graph);
  count_on_device(model.program);
  if (with_weights) {
    KRN_TRY_LET(model.payload, read_payload(archive, model.program, limits));
  }
  return model;
}

// Torch up to 2.7 wrote a flat zip without a root folder.
Status check_layout(const ZipArchive& archive) {
  for (const char* name : {"serialized_exported_program.json", "serialized_state_dict.pt"})
    if (archive.find(name) != nullptr)
      return refuse(Code::k_version, "this file has the layout of an older torch release", name,
                    "save the model again with torch 2.9 or newer");
  return {};
}

// What is laid beside the model changes no answer of it, its rules for weights excepted.
std::string digest_of(const ZipArchive& archive) {
  std::string text;
  for (const ZipRecord& record : archive.records())
    if (!record.name.starts_with(kExtra) || record.name == "extra/keirin_init.json")
      text += record.name + " " + std::to_string(record.size) + " " + std::to_string(record.crc) + "\n";
  return hex(sha256(text.data(), text.size()));
}

Result<Pt2File> read_archive(const ByteSource& source, const Limits& limits, bool with_weights = true) {
  KRN_TRY_LET(ZipArchive archive, ZipArchive::open(source, limits));
  KRN_TRY(check_layout(archive));
  KRN_TRY(archive.take_root());
  KRN_TRY(check_kind(archive));
  KRN_TRY(check_words(archive, limits));
  Pt2File file;
  file.digest = digest_of(archive);
  for (const ZipRecord& record : archive.records()) {
    if (is_program(record.name)) {
      KRN_TRY_LET(Model model, read_model(archive, record, limits, with_weights));
      std::string name = model.program.name;
      file.models.emplace(std::move(name), std::move(model));
    } else if (record.name.starts_with(kExtra)) {
      KRN_TRY_LET(std::string text, archive.read_text(record, limits));
      file.extra.emplace(record.name.substr(kExtra.size()), std::move(text));
    }
  }
  if (!file.models.empty()) return file;
  if (archive.has_prefix("data/aotinductor/"))
    return refuse(Code::k_unsupported, "this is an AOTInductor package, which holds no graph", "data/aotinductor",
                  "export the model with torch.export.save");
  return refuse(Code::k_corrupt, "the archive holds no program", "models/", "export the model with torch.export.save");
}

Result<Pt2File> named(Result<Pt2File> result, const std::string& path) {
  if (!result.ok()) return std::move(result).status().at(path).instead("nothing was loaded");
  result->path = path;
  return result;
}

Result<Pt2File> read_file(const std::string& path, const Limits& limits, bool with_weights) {
  Result<std::unique_ptr<ByteSource>> source = open_file(path);
  if (!source.ok()) return std::move(source).status().at(path).instead("nothing was loaded");
  return named(read_archive(**source, limits, with_weights), path);
}

}  // namespace

Result<Pt2File> read_pt2(const std::string& path, const Limits& limits) { return read_file(path, limits, true); }
Result<Pt2File> read_programs(const std::string& path, const Limits& limits) { return read_file(path, limits, false); }

Result<Pt2File> read_pt2(std::span<const std::byte> bytes, const std::string& name, const Limits& limits) {
  return named(read_archive(*wrap_memory(bytes), limits), name);
}

Result<Pt2File> read_pt2(int descriptor, const std::string& name, const Limits& limits) {
  Result<std::unique_ptr<ByteSource>> source = open_descriptor(descriptor);
  if (!source.ok()) return std::move(source).status().at(name).instead("nothing was loaded");
  return named(read_archive(**source, limits), name);
}

Result<const Model*> Pt2File::model(const std::string& name) const {
  if (name.empty() && models.size() == 1) return &models.begin()->second;
  auto it = models.find(name);
  if (it != models.end()) return &it->second;
  std::string names;
  for (const auto& [known, unused] : models) names += (names.empty() ? "" : ", ") + known;
  return Status(Code::k_invalid_input,
                {name.empty() ? "the file holds several models" : "the file holds no model \"" + name + "\"", path,
                 "none was chosen", "name one of: " + names});
}

}  // namespace keirin::pt2
