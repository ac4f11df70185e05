// SPDX-License-Identifier: Apache-2.0
#include "core/capture/pt2/bytes.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <limits>
#include <new>

namespace keirin::pt2 {
namespace {

Status beyond_end(uint64_t offset, size_t count, uint64_t size) {
  return Status(Code::k_corrupt, "the file ends at byte " + std::to_string(size) + ", bytes " + std::to_string(offset) +
                                     " to " + std::to_string(offset + count) + " are needed");
}

bool inside(uint64_t offset, uint64_t count, uint64_t size) { return offset <= size && count <= size - offset; }

class MemorySource final : public ByteSource {
 public:
  explicit MemorySource(std::span<const std::byte> bytes) : bytes_(bytes) {}
  uint64_t size() const override { return bytes_.size(); }
  Status read(uint64_t offset, std::span<std::byte> out) const override {
    if (!inside(offset, out.size(), size())) return beyond_end(offset, out.size(), size());
    if (!out.empty()) std::memcpy(out.data(), bytes_.data() + offset, out.size());
    return {};
  }

 private:
  std::span<const std::byte> bytes_;
};

class FileSource final : public ByteSource {
 public:
  FileSource(int fd, uint64_t size) : fd_(fd), size_(size) {}
  ~FileSource() override { ::close(fd_); }
  uint64_t size() const override { return size_; }
  Status read(uint64_t offset, std::span<std::byte> out) const override {
    if (!inside(offset, out.size(), size_)) return beyond_end(offset, out.size(), size_);
    while (!out.empty()) {
      // Linux reads at most about 2 GiB a call.
      size_t ask = std::min<size_t>(out.size(), size_t{1} << 30);
      ssize_t got = ::pread(fd_, out.data(), ask, static_cast<off_t>(offset));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return Status(Code::k_corrupt, std::string("reading failed: ") + std::strerror(errno));
      if (got == 0) return Status(Code::k_corrupt, "the file became shorter while it was read");
      offset += static_cast<uint64_t>(got);
      out = out.subspan(static_cast<size_t>(got));
    }
    return {};
  }

 private:
  int fd_;
  uint64_t size_;
};

using CrcTables = std::array<std::array<uint32_t, 256>, 8>;

// Table k advances a byte over k further zero bytes, so that eight bytes are folded at once.
constexpr CrcTables make_crc_tables() {
  CrcTables tables{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t c = i;
    for (int bit = 0; bit < 8; ++bit) c = (c >> 1) ^ ((c & 1) != 0 ? 0xEDB88320u : 0u);
    tables[0][i] = c;
  }
  for (size_t k = 1; k < 8; ++k)
    for (size_t i = 0; i < 256; ++i) tables[k][i] = (tables[k - 1][i] >> 8) ^ tables[0][tables[k - 1][i] & 0xFF];
  return tables;
}

constexpr CrcTables kCrc = make_crc_tables();

// Takes the descriptor over.
Result<std::unique_ptr<ByteSource>> regular_file(int fd) {
  struct stat info {};
  if (::fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
    ::close(fd);
    return Status(Code::k_invalid_input, {"this is not a regular file", {}, {}, "give a .pt2 file"});
  }
  return std::unique_ptr<ByteSource>(new FileSource(fd, static_cast<uint64_t>(info.st_size)));
}

}  // namespace

Result<std::unique_ptr<ByteSource>> open_descriptor(int descriptor) {
  const int fd = ::fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
  if (fd < 0)
    return Status(Code::k_invalid_input,
                  {std::string("the descriptor cannot be used: ") + std::strerror(errno), {}, {}, "give one that is open for reading"});
  return regular_file(fd);
}

Result<std::unique_ptr<ByteSource>> open_file(const std::string& path) {
  // O_NONBLOCK: opening a named pipe must not wait for its writer; regular files ignore the flag.
  int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0)
    return Status(Code::k_invalid_input,
                  {std::string("the file cannot be opened: ") + std::strerror(errno), {}, {}, "check the path"});
  return regular_file(fd);
}

std::unique_ptr<ByteSource> wrap_memory(std::span<const std::byte> bytes) {
  return std::make_unique<MemorySource>(bytes);
}

Result<std::shared_ptr<Storage>> Storage::allocate(uint64_t bytes, std::string record) {
  void* memory = nullptr;
  if (bytes <= std::numeric_limits<size_t>::max() / 2)
    memory = ::operator new (std::max<size_t>(bytes, 1), std::align_val_t{kAlignment}, std::nothrow);
  if (memory == nullptr)
    return Status(Code::k_exhausted, {"there is no memory for " + std::to_string(bytes) + " bytes of weights", record,
                                      "nothing was loaded", "free memory or use a smaller model"});
  return std::shared_ptr<Storage>(new Storage(static_cast<std::byte*>(memory), bytes, std::move(record)));
}

Storage::~Storage() { ::operator delete (data_, std::align_val_t{kAlignment}); }

uint32_t crc32(std::span<const std::byte> bytes) {
  const auto* p = reinterpret_cast<const uint8_t*>(bytes.data());
  size_t left = bytes.size();
  uint32_t crc = ~0u;
  for (; left >= 8; left -= 8, p += 8) {
    uint32_t low = crc ^ (uint32_t{p[0]} | uint32_t{p[1]} << 8 | uint32_t{p[2]} << 16 | uint32_t{p[3]} << 24);
    crc = kCrc[7][low & 0xFF] ^ kCrc[6][low >> 8 & 0xFF] ^ kCrc[5][low >> 16 & 0xFF] ^ kCrc[4][low >> 24] ^
          kCrc[3][p[4]] ^ kCrc[2][p[5]] ^ kCrc[1][p[6]] ^ kCrc[0][p[7]];
  }
  for (; left > 0; --left, ++p) crc = (crc >> 8) ^ kCrc[0][(crc ^ *p) & 0xFF];
  return ~crc;
}

}  // namespace keirin::pt2
