// SPDX-License-Identifier: Apache-2.0
#include "core/capture/pt2/zip_archive.h"

#include <algorithm>
#include <optional>
#include <span>

#include "core/capture/pt2/utf8.h"

namespace keirin::pt2 {
namespace {

constexpr uint32_t kLocalSignature = 0x04034b50, kEntrySignature = 0x02014b50, kEndSignature = 0x06054b50;
constexpr uint32_t kEnd64Signature = 0x06064b50, kLocator64Signature = 0x07064b50;
constexpr uint64_t kLocalBytes = 30, kEntryBytes = 46, kEndBytes = 22, kEnd64Bytes = 56, kLocator64Bytes = 20;
constexpr uint32_t kIn64 = 0xFFFFFFFF;  // "the true value stands in the zip64 field"
constexpr uint16_t kEncryptedFlags = 1 | 1 << 6 | 1 << 13, kSizesFollowFlag = 1 << 3;
constexpr uint16_t kZip64Field = 1;

// A little-endian view. The caller has checked the length.
struct Fields {
  const std::byte* p;
  template <class T>
  T at(size_t offset) const {
    T value = 0;
    for (size_t i = 0; i < sizeof(T); ++i) value |= static_cast<T>(static_cast<T>(p[offset + i]) << (8 * i));
    return value;
  }
  uint16_t u16(size_t o) const { return at<uint16_t>(o); }
  uint32_t u32(size_t o) const { return at<uint32_t>(o); }
  uint64_t u64(size_t o) const { return at<uint64_t>(o); }
};

Status corrupt(std::string what, std::string where = {}) {
  return Status(Code::k_corrupt, {std::move(what), std::move(where), "nothing was loaded",
                                  "copy or save the file again; a .pt2 file must not be repacked"});
}

Result<std::vector<std::byte>> read_block(const ByteSource& source, uint64_t offset, uint64_t bytes) {
  std::vector<std::byte> block(bytes);
  KRN_TRY(source.read(offset, block));
  return block;
}

struct Directory {
  uint64_t offset = 0, bytes = 0, count = 0;
};

// The end record stands where its comment reaches exactly to the end of the file; the search is one backward pass.
Result<uint64_t> find_end_record(const ByteSource& source) {
  if (source.size() < kEndBytes)
    return corrupt("this is not a zip file: it has " + std::to_string(source.size()) + " bytes");
  uint64_t tail = std::min<uint64_t>(source.size(), kEndBytes + 0xFFFF);
  uint64_t start = source.size() - tail;
  KRN_TRY_LET(std::vector<std::byte> block, read_block(source, start, tail));
  for (uint64_t i = tail - kEndBytes + 1; i-- > 0;) {
    Fields f{block.data() + i};
    if (f.u32(0) == kEndSignature && f.u16(20) == tail - kEndBytes - i) return start + i;
  }
  return corrupt("the end record of the zip directory is missing: the file is cut off or is not a zip file");
}

Result<Directory> read_directory64(const ByteSource& source, uint64_t locator_offset,
                                   const std::vector<std::byte>& locator) {
  Fields l{locator.data()};
  uint64_t at = l.u64(8);
  if (l.u32(4) != 0 || l.u32(16) > 1) return corrupt("the zip file spans several disks");
  if (at > locator_offset || locator_offset - at != kEnd64Bytes)
    return corrupt("the zip64 end record is not where its locator says");
  KRN_TRY_LET(std::vector<std::byte> block, read_block(source, at, kEnd64Bytes));
  Fields f{block.data()};
  if (f.u32(0) != kEnd64Signature || f.u64(4) != kEnd64Bytes - 12) return corrupt("the zip64 end record is damaged");
  if (f.u32(16) != 0 || f.u32(20) != 0 || f.u64(24) != f.u64(32)) return corrupt("the zip file spans several disks");
  Directory d{f.u64(48), f.u64(40), f.u64(32)};
  if (d.bytes > at || d.offset != at - d.bytes) return corrupt("the zip directory is not where its end record says");
  return d;
}

Result<Directory> read_directory(const ByteSource& source) {
  KRN_TRY_LET(uint64_t end, find_end_record(source));
  KRN_TRY_LET(std::vector<std::byte> block, read_block(source, end, kEndBytes));
  Fields f{block.data()};
  if (f.u16(4) != 0 || f.u16(6) != 0 || f.u16(8) != f.u16(10)) return corrupt("the zip file spans several disks");
  Directory d{f.u32(16), f.u32(12), f.u16(10)};
  if (end >= kLocator64Bytes) {
    KRN_TRY_LET(std::vector<std::byte> locator, read_block(source, end - kLocator64Bytes, kLocator64Bytes));
    if (Fields{locator.data()}.u32(0) == kLocator64Signature) {
      KRN_TRY_LET(Directory wide, read_directory64(source, end - kLocator64Bytes, locator));
      bool agree = (d.count == 0xFFFF || d.count == wide.count) && (d.bytes == kIn64 || d.bytes == wide.bytes) &&
                   (d.offset == kIn64 || d.offset == wide.offset);
      if (!agree) return corrupt("the two end records of the zip directory disagree");
      return wide;
    }
  }
  if (d.bytes > end || d.offset != end - d.bytes) return corrupt("the zip directory is not where its end record says");
  return d;
}

// One component per slash, none of them empty, "." or "..": a name that no extractor could read in two ways.
bool good_name(std::string_view name) {
  if (name.empty() || name.size() > 4096 || !is_utf8(name)) return false;
  for (char c : name)
    if (c == '\\' || c == ':' || static_cast<unsigned char>(c) < 0x20 || c == 0x7f) return false;
  while (true) {
    size_t slash = name.find('/');
    std::string_view part = name.substr(0, slash);
    if (part.empty() || part == "." || part == "..") return false;
    if (slash == std::string_view::npos) return true;
    name.remove_prefix(slash + 1);
  }
}

struct Entry {
  ZipRecord record;
  uint16_t flags = 0;
  uint64_t bytes_in_directory = 0;
};

// Takes the zip64 values of the fields that say "see there", in the order that the format fixes.
Status apply_zip64(std::span<const std::byte> extra, uint64_t* size, uint64_t* stored, uint64_t* offset) {
  while (extra.size() >= 4) {
    Fields f{extra.data()};
    size_t length = f.u16(2);
    if (length > extra.size() - 4) return corrupt("an extra field of a zip record is longer than its space");
    if (f.u16(0) == kZip64Field) {
      size_t used = 0;
      for (uint64_t* value : {size, stored, offset}) {
        if (*value != kIn64) continue;
        if (used + 8 > length) return corrupt("a zip64 field is too short");
        *value = f.u64(4 + used);
        used += 8;
      }
      return {};
    }
    extra = extra.subspan(4 + length);
  }
  if (*size == kIn64 || *stored == kIn64 || *offset == kIn64) return corrupt("a zip64 field is missing");
  return {};
}

Result<Entry> read_entry(std::span<const std::byte> rest) {
  if (rest.size() < kEntryBytes) return corrupt("the zip directory is cut off");
  Fields f{rest.data()};
  if (f.u32(0) != kEntrySignature) return corrupt("the zip directory holds something that is not an entry");
  size_t name_bytes = f.u16(28), extra_bytes = f.u16(30), comment_bytes = f.u16(32);
  Entry entry;
  entry.bytes_in_directory = kEntryBytes + name_bytes + extra_bytes + comment_bytes;
  if (entry.bytes_in_directory > rest.size()) return corrupt("the zip directory is cut off");
  ZipRecord& r = entry.record;
  r.name.assign(reinterpret_cast<const char*>(rest.data()) + kEntryBytes, name_bytes);
  bool folder = !r.name.empty() && r.name.back() == '/';
  if (!good_name(folder ? std::string_view(r.name).substr(0, r.name.size() - 1) : std::string_view(r.name)))
    return corrupt("a zip record has an unsafe name: absolute, with \"..\", or not plain UTF-8");
  uint64_t stored = f.u32(20);
  r.size = f.u32(24);
  r.crc = f.u32(16);
  r.header_offset = f.u32(42);
  KRN_TRY(
      apply_zip64(rest.subspan(kEntryBytes + name_bytes, extra_bytes), &r.size, &stored, &r.header_offset).at(r.name));
  entry.flags = f.u16(8);
  if ((entry.flags & kEncryptedFlags) != 0) return corrupt("a zip record is encrypted", r.name);
  if (f.u16(10) != 0 || stored != r.size)
    return corrupt("a zip record is compressed; torch stores them plainly", r.name);
  if (f.u16(34) != 0) return corrupt("the zip file spans several disks", r.name);
  if (folder && r.size != 0) return corrupt("a zip record is a folder with content", r.name);
  return entry;
}

// The payload starts behind the local header's own name and extra field, whose length differs from the directory's.
Status locate_payload(const ByteSource& source, uint64_t directory_offset, Entry& entry) {
  ZipRecord& r = entry.record;
  uint64_t head = kLocalBytes + r.name.size();
  if (r.header_offset > directory_offset || head > directory_offset - r.header_offset)
    return corrupt("a zip record starts inside or behind the directory", r.name);
  KRN_TRY_LET(std::vector<std::byte> block, read_block(source, r.header_offset, head));
  Fields f{block.data()};
  std::string_view name(reinterpret_cast<const char*>(block.data()) + kLocalBytes, r.name.size());
  if (f.u32(0) != kLocalSignature) return corrupt("a zip record has no header where the directory says", r.name);
  if (f.u16(26) != r.name.size() || name != r.name || f.u16(8) != 0 || f.u16(6) != entry.flags)
    return corrupt("the header of a zip record and the directory disagree", r.name);
  bool sizes_here = (entry.flags & kSizesFollowFlag) == 0 && f.u32(22) != kIn64 && f.u32(18) != kIn64;
  if (sizes_here && (f.u32(14) != r.crc || f.u32(18) != r.size || f.u32(22) != r.size))
    return corrupt("the header of a zip record and the directory disagree", r.name);
  r.payload_offset = r.header_offset + head + f.u16(28);
  if (r.payload_offset > directory_offset || r.size > directory_offset - r.payload_offset)
    return corrupt("a zip record reaches into the directory", r.name);
  return {};
}

Status check_apart(const std::vector<ZipRecord>& records) {
  std::vector<const ZipRecord*> by_place;
  for (const ZipRecord& r : records) by_place.push_back(&r);
  std::sort(by_place.begin(), by_place.end(),
            [](const ZipRecord* a, const ZipRecord* b) { return a->header_offset < b->header_offset; });
  for (size_t i = 1; i < by_place.size(); ++i)
    if (by_place[i - 1]->payload_offset + by_place[i - 1]->size > by_place[i]->header_offset)
      return corrupt("two zip records overlap", by_place[i - 1]->name + " and " + by_place[i]->name);
  return {};
}

}  // namespace

Result<ZipArchive> ZipArchive::open(const ByteSource& source, const Limits& limits) {
  KRN_TRY_LET(Directory directory, read_directory(source));
  if (directory.count > limits.records || directory.bytes > limits.directory_bytes)
    return Status(Code::k_exhausted, {"the zip directory has " + std::to_string(directory.count) + " records in " +
                                          std::to_string(directory.bytes) + " bytes, more than the limit",
                                      {},
                                      "nothing was loaded",
                                      "raise Limits::records and directory_bytes if it is trusted"});
  KRN_TRY_LET(std::vector<std::byte> block, read_block(source, directory.offset, directory.bytes));
  ZipArchive archive(source);
  archive.directory_offset_ = directory.offset;
  std::span<const std::byte> rest = block;
  for (uint64_t i = 0; i < directory.count; ++i) {
    KRN_TRY_LET(Entry entry, read_entry(rest));
    KRN_TRY(locate_payload(source, directory.offset, entry));
    entry.record.entry_offset = static_cast<uint64_t>(rest.data() - block.data());
    entry.record.entry_bytes = entry.bytes_in_directory;
    rest = rest.subspan(entry.bytes_in_directory);
    archive.records_.push_back(std::move(entry.record));
  }
  if (!rest.empty()) return corrupt("the zip directory is longer than its entries");
  std::vector<ZipRecord>& records = archive.records_;
  KRN_TRY(check_apart(records));
  std::sort(records.begin(), records.end(), [](const ZipRecord& a, const ZipRecord& b) { return a.name < b.name; });
  for (size_t i = 1; i < records.size(); ++i)
    if (records[i - 1].name == records[i].name) return corrupt("two zip records have the same name", records[i].name);
  std::erase_if(records, [](const ZipRecord& r) { return r.name.back() == '/'; });
  archive.directory_ = std::move(block);
  return archive;
}

Status ZipArchive::take_root() {
  if (records_.empty()) return corrupt("the zip file has no records");
  std::string_view first = records_[0].name;
  std::string root(first.substr(0, first.find('/') + 1));
  if (root.empty()) return corrupt("a zip record lies outside the root folder", records_[0].name);
  // Sorted names that share a prefix stay sorted when it is removed.
  for (ZipRecord& r : records_)
    if (!r.name.starts_with(root)) return corrupt("the zip file has two root folders", root + " and " + r.name);
  for (ZipRecord& r : records_) r.name.erase(0, root.size());
  return {};
}

const ZipRecord* ZipArchive::find(std::string_view name) const {
  auto it = std::lower_bound(records_.begin(), records_.end(), name,
                             [](const ZipRecord& r, std::string_view n) { return r.name < n; });
  return it != records_.end() && it->name == name ? &*it : nullptr;
}

bool ZipArchive::has_prefix(std::string_view prefix) const {
  auto it = std::lower_bound(records_.begin(), records_.end(), prefix,
                             [](const ZipRecord& r, std::string_view n) { return r.name < n; });
  return it != records_.end() && it->name.starts_with(prefix);
}

Result<std::string> ZipArchive::read_text(const ZipRecord& record, const Limits& limits) const {
  uint64_t most = std::min<uint64_t>(limits.json_bytes, 0xFFFFFFFF);
  if (record.size > most)
    return Status(Code::k_exhausted,
                  {"the record has " + std::to_string(record.size) + " bytes, the limit is " + std::to_string(most),
                   record.name, "nothing was loaded", "raise Limits::json_bytes if the file is trusted"});
  std::string text(record.size, '\0');
  KRN_TRY(source_->read(record.payload_offset, std::as_writable_bytes(std::span(text))).at(record.name));
  if (crc32(std::as_bytes(std::span(text))) != record.crc)
    return corrupt("the record has a wrong checksum", record.name);
  return text;
}

Result<std::shared_ptr<Storage>> ZipArchive::read_storage(const ZipRecord& record) const {
  KRN_TRY_LET(std::shared_ptr<Storage> storage, Storage::allocate(record.size, record.name));
  std::span<std::byte> bytes(storage->data(), storage->size());
  KRN_TRY(source_->read(record.payload_offset, bytes).at(record.name));
  if (crc32(bytes) != record.crc) return corrupt("the record has a wrong checksum", record.name);
  return storage;
}

}  // namespace keirin::pt2
