// SPDX-License-Identifier: Apache-2.0
//
// Writes zip files for tests: plain ones, and ones that are wrong in exactly one way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "core/capture/pt2/bytes.h"
#include "core/capture/pt2/zip_archive.h"

namespace keirin::pt2::test {

struct ZipItem {
  std::string name, content;
  uint16_t method = 0, flags = 0;
  uint32_t crc_error = 0;       // added to the right checksum
  int64_t size_error = 0;       // added to the size in the directory
  int64_t offset_error = 0;     // added to the header offset in the directory
  std::string local_name = {};  // other than `name`
  std::string extra = {};       // fields of the directory entry
  bool in_64 = false;           // sizes and offset stand in a zip64 field, which is put behind `extra`
};

inline void put(std::string& out, uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) out += static_cast<char>(value >> (8 * i));
}

inline std::string write_zip(const std::vector<ZipItem>& items) {
  std::string out, directory;
  for (const ZipItem& item : items) {
    uint64_t offset = out.size();
    uint32_t crc = crc32(std::as_bytes(std::span(item.content))) + item.crc_error;
    const std::string& local = item.local_name.empty() ? item.name : item.local_name;
    put(out, 0x04034b50, 4), put(out, 20, 2), put(out, item.flags, 2), put(out, item.method, 2), put(out, 0, 4),
        put(out, crc, 4);
    put(out, item.content.size(), 4), put(out, item.content.size(), 4), put(out, local.size(), 2), put(out, 0, 2);
    out += local + item.content;
    uint64_t size = item.content.size() + static_cast<uint64_t>(item.size_error);
    put(directory, 0x02014b50, 4), put(directory, 20, 2), put(directory, 20, 2), put(directory, item.flags, 2);
    offset += static_cast<uint64_t>(item.offset_error);
    std::string extra = item.extra;
    if (item.in_64) {
      put(extra, 1, 2), put(extra, 24, 2), put(extra, size, 8), put(extra, size, 8), put(extra, offset, 8);
      size = offset = 0xffffffff;
    }
    put(directory, item.method, 2), put(directory, 0, 4), put(directory, crc, 4), put(directory, size, 4),
        put(directory, size, 4);
    put(directory, item.name.size(), 2), put(directory, extra.size(), 2), put(directory, 0, 2), put(directory, 0, 2),
        put(directory, 0, 2);
    put(directory, 0, 4), put(directory, offset, 4);
    directory += item.name + extra;
  }
  uint64_t start = out.size();
  out += directory;
  put(out, 0x06054b50, 4), put(out, 0, 4), put(out, items.size(), 2), put(out, items.size(), 2);
  put(out, directory.size(), 4), put(out, start, 4), put(out, 0, 2);
  return out;
}

inline std::string file_text(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(in), {});
}

inline std::string data_file(const std::string& name) {
  return std::string(KEIRIN_SOURCE_DIR) + "/tests/data/pt2/" + name + ".pt2";
}

// The records of a good file, ready to be changed and written again.
inline std::vector<ZipItem> unzip(const std::string& text) {
  auto source = wrap_memory(std::as_bytes(std::span(text)));
  Result<ZipArchive> archive = ZipArchive::open(*source, Limits{});
  std::vector<ZipItem> items;
  if (!archive.ok()) return items;
  for (const ZipRecord& r : archive->records()) items.push_back({r.name, text.substr(r.payload_offset, r.size)});
  return items;
}

inline ZipItem* find(std::vector<ZipItem>& items, const std::string& suffix) {
  for (ZipItem& item : items)
    if (item.name.ends_with(suffix)) return &item;
  return nullptr;
}

}  // namespace keirin::pt2::test
