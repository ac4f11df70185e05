// SPDX-License-Identifier: Apache-2.0
//
// The vectors of FIPS 180-4 and its padding edges: a wrong link or state size would show here.
#include "core/base/sha256.h"

#include <gtest/gtest.h>

namespace keirin {
namespace {

std::string hash_of(const std::string& text) { return hex(sha256(text.data(), text.size())); }

TEST(Sha256, KnownVectors) {
  EXPECT_EQ(hash_of(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(hash_of("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(hash_of("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(hash_of(std::string(1000000, 'a')), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256, PiecesEqualTheWhole) {
  std::string text(257, 'x');
  for (size_t cut : {0, 1, 55, 56, 63, 64, 65, 128, 256, 257}) {
    Sha256 state;
    state.update(text.data(), cut);
    state.update(text.data() + cut, text.size() - cut);
    EXPECT_EQ(hex(state.finish()), hash_of(text)) << cut;
  }
}

}  // namespace
}  // namespace keirin
