// SPDX-License-Identifier: Apache-2.0
//
// Reading is defensive: the file may come from anywhere.
#include "core/eager/weights/safetensors.h"

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "abi/planted.h"

namespace keirin {
namespace {

using Json = nlohmann::ordered_json;
static_assert(std::endian::native == std::endian::little, "the raw data is little-endian");

struct NameRow {
  const char* name;
  DType dtype;
};
constexpr NameRow kNames[] = {
    {"BOOL", DType::k_bool},       {"U8", DType::k_u8},
    {"I8", DType::k_i8},           {"I16", DType::k_i16},
    {"I32", DType::k_i32},         {"I64", DType::k_i64},
    {"F16", DType::k_f16},         {"BF16", DType::k_bf16},
    {"F32", DType::k_f32},         {"F64", DType::k_f64},
    {"U16", DType::k_u16},         {"U32", DType::k_u32},
    {"U64", DType::k_u64},         {"F8_E4M3", DType::k_f8_e4m3fn},
    {"F8_E5M2", DType::k_f8_e5m2}, {"C64", DType::k_c64},
};
constexpr uint64_t kMaxHeader = 100ull << 20;

struct Entry {
  std::string name;
  DType dtype = DType::kNone;
  std::vector<int64_t> sizes;
  uint64_t begin = 0, end = 0;
};

Result<Entry> parse_entry(const std::string& name, const Json& json, uint64_t data_bytes) {
  const auto corrupt = [&](const char* what) { return Status(Code::k_corrupt, "tensor \"" + name + "\" " + what); };
  if (!json.is_object() || !json.contains("dtype") || !json.contains("shape") || !json.contains("data_offsets")) {
    return corrupt("lacks dtype, shape or data_offsets");
  }
  Entry entry{name, DType::kNone, {}, 0, 0};
  for (const NameRow& row : kNames) {
    if (json["dtype"] == row.name) entry.dtype = row.dtype;
  }
  if (entry.dtype == DType::kNone) return corrupt("has an unknown dtype");
  unsigned __int128 bytes = static_cast<unsigned>(dtype_bytes(entry.dtype));
  if (!json["shape"].is_array() || json["shape"].size() > 64) return corrupt("has no shape");
  for (const Json& size : json["shape"]) {
    if (!size.is_number_unsigned() || size.get<uint64_t>() > INT64_MAX) return corrupt("has a bad size");
    entry.sizes.push_back(size.get<int64_t>());
    bytes = std::min<unsigned __int128>(bytes * size.get<uint64_t>(), UINT64_MAX);
  }
  const Json& offsets = json["data_offsets"];
  if (!offsets.is_array() || offsets.size() != 2 || !offsets[0].is_number_unsigned() ||
      !offsets[1].is_number_unsigned()) {
    return corrupt("has bad offsets");
  }
  entry.begin = offsets[0].get<uint64_t>();
  entry.end = offsets[1].get<uint64_t>();
  if (entry.begin > entry.end || entry.end > data_bytes) return corrupt("lies outside the file");
  if (entry.end - entry.begin != bytes && !(KRN_PLANTED(safetensors_record) && entry.end - entry.begin > bytes))
    return corrupt("has a shape that does not match its bytes");
  return entry;
}

}  // namespace

const char* safetensors_name(DType dtype) {
  const NameRow* row =
      std::find_if(std::begin(kNames), std::end(kNames), [&](const NameRow& r) { return r.dtype == dtype; });
  return row == std::end(kNames) ? nullptr : row->name;
}

Result<NamedTensors> read_safetensors(const std::string& path, TensorServices& services) {
  const auto at_path = [&](Status status) { return std::move(status).at(path); };
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) return at_path(Status(Code::k_invalid_input, "the file cannot be opened"));
  const auto file_bytes = static_cast<uint64_t>(file.tellg());
  uint64_t header_bytes = 0;
  file.seekg(0);
  if (file_bytes < 8 || !file.read(reinterpret_cast<char*>(&header_bytes), 8)) {
    return at_path(Status(Code::k_corrupt, "the file is shorter than its own length field"));
  }
  if (header_bytes > file_bytes - 8 || header_bytes > kMaxHeader) {
    return at_path(Status(Code::k_corrupt, "the table is longer than the file"));
  }
  std::string header(header_bytes, '\0');
  if (!file.read(header.data(), static_cast<std::streamsize>(header_bytes)))
    return at_path(Status(Code::k_corrupt, "the file was cut"));
  const Json json = Json::parse(header, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return at_path(Status(Code::k_corrupt, "the table is not a JSON object"));
  std::vector<Entry> entries;
  for (const auto& [name, value] : json.items()) {
    if (name == "__metadata__") continue;
    auto entry = parse_entry(name, value, file_bytes - 8 - header_bytes);
    if (!entry.ok()) return at_path(std::move(entry).status());
    entries.push_back(std::move(*entry));
  }
  std::stable_sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) { return a.begin < b.begin; });
  NamedTensors tensors;
  for (const Entry& entry : entries) {
    KRN_TRY_LET(TensorRef tensor, services.allocate({entry.dtype, entry.sizes, {}, {}}));
    file.seekg(static_cast<std::streamoff>(8 + header_bytes + entry.begin));
    const auto bytes = static_cast<std::streamsize>(entry.end - entry.begin);
    if (bytes > 0 && !file.read(static_cast<char*>(tensor->data()), bytes)) {
      return at_path(Status(Code::k_corrupt, "the file was cut while it was read"));
    }
    tensors.emplace_back(entry.name, std::move(tensor));
  }
  return tensors;
}

Status write_safetensors(const std::string& path, const NamedTensors& tensors, TensorServices& services) {
  Json json = Json::object();
  std::vector<TensorRef> dense;
  uint64_t offset = 0;
  for (const auto& [name, tensor] : tensors) {
    if (tensor == nullptr) return Status(Code::k_invalid_input, "tensor \"" + name + "\" is null");
    const std::vector<int64_t> sizes(tensor->sizes(), tensor->sizes() + tensor->rank());
    KRN_TRY_LET(TensorRef copy, services.allocate({tensor->dtype(), sizes, {}, {}}));
    KRN_TRY(services.copy(copy, tensor));
    uint64_t bytes = static_cast<uint64_t>(dtype_bytes(tensor->dtype()));
    for (const int64_t size : sizes) bytes *= static_cast<uint64_t>(size);
    const char* dtype = safetensors_name(tensor->dtype());
    if (dtype == nullptr)
      return Status(Code::k_unsupported, "tensor \"" + name + "\" has a dtype without a name in the format");
    json[name] = {{"dtype", dtype}, {"shape", sizes}, {"data_offsets", {offset, offset + bytes}}};
    offset += bytes;
    dense.push_back(std::move(copy));
  }
  std::string header = json.dump();
  header.append((8 - header.size() % 8) % 8, ' ');
  const std::string part = path + ".part" + std::to_string(getpid());
  std::ofstream file(part, std::ios::binary);
  const uint64_t header_bytes = header.size();
  file.write(reinterpret_cast<const char*>(&header_bytes), 8)
      .write(header.data(), static_cast<std::streamsize>(header.size()));
  for (size_t i = 0; i < dense.size(); ++i) {
    const auto& offsets = json[tensors[i].first]["data_offsets"];
    const auto bytes = static_cast<std::streamsize>(offsets[1].get<uint64_t>() - offsets[0].get<uint64_t>());
    if (bytes > 0) file.write(static_cast<const char*>(dense[i]->data()), bytes);
  }
  file.close();
  if (!file || std::rename(part.c_str(), path.c_str()) != 0) {
    std::remove(part.c_str());
    return Status(Code::k_exhausted, Message{"the file cannot be written", path, "nothing was left behind",
                                             "check disk space and rights"});
  }
  return {};
}

}  // namespace keirin
