// SPDX-License-Identifier: Apache-2.0
#include "core/base/sha256.h"

#include <sodium/crypto_hash_sha256.h>
#include <sodium/utils.h>

namespace keirin {
namespace {

static_assert(sizeof(crypto_hash_sha256_state) == 104 && alignof(crypto_hash_sha256_state) <= 8);

crypto_hash_sha256_state* as_state(unsigned char* bytes) { return reinterpret_cast<crypto_hash_sha256_state*>(bytes); }

}  // namespace

// Hashing needs no sodium_init: that call only picks random sources and faster ciphers.
Sha256::Sha256() { crypto_hash_sha256_init(as_state(state_)); }

void Sha256::update(const void* data, size_t size) {
  if (size) crypto_hash_sha256_update(as_state(state_), static_cast<const unsigned char*>(data), size);
}

Hash Sha256::finish() {
  Hash hash;
  crypto_hash_sha256_final(as_state(state_), hash.data());
  return hash;
}

Hash sha256(const void* data, size_t size) {
  Sha256 state;
  state.update(data, size);
  return state.finish();
}

std::string hex(const Hash& hash) {
  static const char kDigits[] = "0123456789abcdef";
  std::string text;
  for (uint8_t byte : hash) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

std::string base64(const Hash& hash) {
  char text[sodium_base64_ENCODED_LEN(std::tuple_size_v<Hash>, sodium_base64_VARIANT_ORIGINAL)];
  return sodium_bin2base64(text, sizeof text, hash.data(), hash.size(), sodium_base64_VARIANT_ORIGINAL);
}

}  // namespace keirin
