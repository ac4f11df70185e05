// SPDX-License-Identifier: Apache-2.0
#include "core/capture/pt2/add_records.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <span>
#include <system_error>

#include "core/capture/pt2/bytes.h"
#include "core/capture/pt2/zip_archive.h"

namespace keirin::pt2 {
namespace {

constexpr uint32_t kLocalSignature = 0x04034b50, kEntrySignature = 0x02014b50, kEndSignature = 0x06054b50;
constexpr uint32_t kEnd64Signature = 0x06064b50, kLocator64Signature = 0x07064b50;
constexpr uint32_t kIn64 = 0xFFFFFFFF;
constexpr uint16_t kVersion64 = 45, kZip64Field = 1, kFirstDay = 0x21;  // 1980-01-01: the same records are the same bytes

// Little-endian fields, one after another.
class Bytes {
 public:
  Bytes& u16(uint64_t value) { return put(value, 2); }
  Bytes& u32(uint64_t value) { return put(value, 4); }
  Bytes& u64(uint64_t value) { return put(value, 8); }
  Bytes& text(std::string_view text) {
    bytes_ += text;
    return *this;
  }
  const std::string& get() const { return bytes_; }

 private:
  Bytes& put(uint64_t value, int count) {
    for (int i = 0; i < count; ++i) bytes_ += static_cast<char>(value >> (8 * i) & 0xFF);
    return *this;
  }
  std::string bytes_;
};

uint32_t crc_of(std::string_view text) { return crc32(std::as_bytes(std::span(text.data(), text.size()))); }

std::string local_header(const std::string& name, std::string_view body) {
  return Bytes()
      .u32(kLocalSignature).u16(kVersion64).u16(0).u16(0).u16(0).u16(kFirstDay)
      .u32(crc_of(body)).u32(body.size()).u32(body.size()).u16(name.size()).u16(0).text(name).get();
}

std::string entry(const std::string& name, std::string_view body, uint64_t offset) {
  return Bytes()
      .u32(kEntrySignature).u16(kVersion64).u16(kVersion64).u16(0).u16(0).u16(0).u16(kFirstDay)
      .u32(crc_of(body)).u32(body.size()).u32(body.size()).u16(name.size()).u16(12).u16(0).u16(0).u16(0).u32(0).u32(kIn64)
      .text(name).u16(kZip64Field).u16(8).u64(offset).get();
}

// Always with the wide end record, which says all there is to say: one way for small and large files.
std::string end_of(uint64_t offset, uint64_t bytes, uint64_t count) {
  return Bytes()
      .u32(kEnd64Signature).u64(44).u16(kVersion64).u16(kVersion64).u32(0).u32(0).u64(count).u64(count).u64(bytes).u64(offset)
      .u32(kLocator64Signature).u32(0).u64(offset + bytes).u32(1)
      .u32(kEndSignature).u16(0).u16(0).u16(0xFFFF).u16(0xFFFF).u32(kIn64).u32(kIn64).u16(0).get();
}

Status refuse(Code code, const std::string& what, const std::string& where) {
  return Status(code, {what, where, "nothing was written", {}});
}

Status write(std::FILE* file, std::string_view bytes, const std::string& path) {
  if (std::fwrite(bytes.data(), 1, bytes.size(), file) == bytes.size()) return {};
  return refuse(errno == ENOSPC ? Code::k_exhausted : Code::k_unsupported, "cannot write: " + std::generic_category().message(errno), path);
}

Status copy(const ByteSource& source, uint64_t bytes, std::FILE* file, const std::string& path) {
  std::string block;
  for (uint64_t at = 0; at < bytes; at += block.size()) {
    block.resize(std::min<uint64_t>(bytes - at, 1 << 20));
    KRN_TRY(source.read(at, std::as_writable_bytes(std::span(block))));
    KRN_TRY(write(file, block, path));
  }
  return {};
}

Status write_all(const ByteSource& source, const ZipArchive& archive, std::string_view replaced,
                 const std::vector<std::pair<std::string, std::string>>& records, std::FILE* file, const std::string& path) {
  if (archive.records().empty()) return refuse(Code::k_corrupt, "the zip file has no records", path);
  const std::string root = archive.records()[0].name.substr(0, archive.records()[0].name.find('/') + 1);
  std::string directory;
  uint64_t count = 0;
  for (const ZipRecord& record : archive.records()) {
    if (record.name.starts_with(root + "extra/" + std::string(replaced))) continue;
    directory += archive.directory_entry(record);
    ++count;
  }
  uint64_t at = archive.directory_offset();
  KRN_TRY(copy(source, at, file, path));
  for (const auto& [name, body] : records) {
    const std::string full = root + "extra/" + name, header = local_header(full, body);
    directory += entry(full, body, at);
    ++count;
    KRN_TRY(write(file, header, path));
    KRN_TRY(write(file, body, path));
    at += header.size() + body.size();
  }
  KRN_TRY(write(file, directory, path));
  return write(file, end_of(at, directory.size(), count), path);
}

}  // namespace

Status add_records(const std::string& from, const std::string& to, std::string_view replaced,
                   const std::vector<std::pair<std::string, std::string>>& records, const Limits& limits) {
  const auto read = [&](Status status) { return std::move(status).at(from).instead("nothing was written"); };
  Result<std::unique_ptr<ByteSource>> source = open_file(from);
  if (!source.ok()) return read(std::move(source).status());
  Result<ZipArchive> archive = ZipArchive::open(**source, limits);
  if (!archive.ok()) return read(std::move(archive).status());
  for (const auto& [name, body] : records)
    if (body.size() > limits.json_bytes) return refuse(Code::k_exhausted, "record " + name + " is larger than a reader would take", to);
  const std::string temp = to + ".tmp." + std::to_string(::getpid());
  std::FILE* const file = std::fopen(temp.c_str(), "wbe");
  if (!file) return refuse(Code::k_invalid_input, "cannot make the file: " + std::generic_category().message(errno), temp);
  Status status = write_all(**source, *archive, replaced, records, file, temp);
  if (std::fclose(file) != 0 && status.ok())
    status = refuse(Code::k_unsupported, "cannot write: " + std::generic_category().message(errno), temp);
  if (status.ok() && std::rename(temp.c_str(), to.c_str()) != 0)
    status = refuse(Code::k_invalid_input, "cannot put the file in its place: " + std::generic_category().message(errno), to);
  if (!status.ok()) ::unlink(temp.c_str());
  return status;
}

}  // namespace keirin::pt2
