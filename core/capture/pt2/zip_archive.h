// SPDX-License-Identifier: Apache-2.0
//
// The directory of a zip file whose records are all stored, and verified reads of single records. Not a general unzip:
// compression, encryption, several disks and everything ambiguous is refused, because two readers must never see two
// different files in the same bytes. After open(), every record lies wholly before the directory and overlaps no other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/status.h"
#include "core/capture/pt2/bytes.h"
#include "core/capture/pt2/limits.h"

namespace keirin::pt2 {

struct ZipRecord {
  std::string name;            // with the root folder until take_root()
  uint64_t header_offset = 0;  // of the local header
  uint64_t payload_offset = 0;
  uint64_t size = 0;
  uint32_t crc = 0;
  uint64_t entry_offset = 0, entry_bytes = 0;  // of its entry, in the directory
};

class ZipArchive {
 public:
  // `source` is borrowed and must outlive the archive.
  static Result<ZipArchive> open(const ByteSource& source, const Limits& limits);

  // Removes the one root folder that all records must share from their names.
  Status take_root();

  const std::vector<ZipRecord>& records() const { return records_; }  // sorted by name
  const ZipRecord* find(std::string_view name) const;
  bool has_prefix(std::string_view prefix) const;

  // Where the directory begins: no record reaches further.
  uint64_t directory_offset() const { return directory_offset_; }
  // A record's entry of the directory, byte for byte.
  std::string_view directory_entry(const ZipRecord& record) const {
    return std::string_view(reinterpret_cast<const char*>(directory_.data()) + record.entry_offset, record.entry_bytes);
  }

  // Both check the CRC.
  Result<std::string> read_text(const ZipRecord& record, const Limits& limits) const;
  Result<std::shared_ptr<Storage>> read_storage(const ZipRecord& record) const;

 private:
  explicit ZipArchive(const ByteSource& source) : source_(&source) {}
  const ByteSource* source_;
  std::vector<ZipRecord> records_;
  uint64_t directory_offset_ = 0;
  std::vector<std::byte> directory_;
};

}  // namespace keirin::pt2
