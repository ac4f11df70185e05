// SPDX-License-Identifier: Apache-2.0
//
// SHA-256, the one content hash of the project (regions, artifacts, ledgers), from libsodium, linked static. Not for passwords.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace keirin {

using Hash = std::array<uint8_t, 32>;

class Sha256 {
 public:
  Sha256();
  void update(const void* data, size_t size);
  Hash finish();  // once; the object is spent afterwards

 private:
  alignas(8) unsigned char state_[104];  // libsodium's state, whose header stays out of ours
};

Hash sha256(const void* data, size_t size);
std::string hex(const Hash& hash);  // 64 lower-case digits
std::string base64(const Hash& hash);  // with its padding

}  // namespace keirin
