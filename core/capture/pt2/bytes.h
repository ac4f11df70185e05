// SPDX-License-Identifier: Apache-2.0
//
// Where the bytes of a .pt2 file come from (a file or memory) and where those of a weight go (aligned, owned storage).
// Nothing is mapped: a file that is truncated under a mapping is a SIGBUS, a failed read is a Status.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "core/base/status.h"

namespace keirin::pt2 {

// Random access to a whole file. Calls do not change it, so several threads may read.
class ByteSource {
 public:
  virtual ~ByteSource() = default;
  virtual uint64_t size() const = 0;
  // Fills `out` with the bytes from `offset` on; a range beyond size() or a failed read is `corrupt`.
  virtual Status read(uint64_t offset, std::span<std::byte> out) const = 0;
};

Result<std::unique_ptr<ByteSource>> open_file(const std::string& path);
// Of a regular file or memory file that is open for reading, from its first byte on: its position does not matter and is not changed.
// The descriptor stays the caller's; it is needed no more afterwards.
Result<std::unique_ptr<ByteSource>> open_descriptor(int descriptor);
// `bytes` is borrowed and must outlive the source.
std::unique_ptr<ByteSource> wrap_memory(std::span<const std::byte> bytes);

// One block of 64-byte aligned memory. Writable: buffers of a model are updated in place.
class Storage {
 public:
  static constexpr size_t kAlignment = 64;
  // `exhausted` if the memory is not there. The content is not initialised.
  static Result<std::shared_ptr<Storage>> allocate(uint64_t bytes, std::string record);
  ~Storage();
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;

  std::byte* data() { return data_; }
  const std::byte* data() const { return data_; }
  uint64_t size() const { return size_; }
  const std::string& record() const { return record_; }  // "data/weights/weight_0"

 private:
  Storage(std::byte* data, uint64_t size, std::string record) : data_(data), size_(size), record_(std::move(record)) {}
  std::byte* data_;
  uint64_t size_;
  std::string record_;
};

// The CRC-32 of zip files.
uint32_t crc32(std::span<const std::byte> bytes);

}  // namespace keirin::pt2
