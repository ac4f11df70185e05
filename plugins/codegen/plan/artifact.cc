// SPDX-License-Identifier: Apache-2.0
//
// magic, version, region hash, words of the grouping, checksum of their number and of what follows, grouping (for each kernel the
// number of tensors that it stores, then they), code. The checksum is against accidents, not against attackers: the cache's owner is
// the boundary of trust.
#include "plugins/codegen/plan/artifact.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "plugins/kit/error.h"

namespace keirin::codegen {
namespace {

struct Head {
  char magic[8];
  uint32_t version;
  uint32_t reserved;
  uint8_t region[32];
  uint64_t num_words;
  uint64_t checksum;
};
constexpr char kMagic[8] = {'K', 'R', 'N', 'C', 'O', 'D', 'E', '1'};
constexpr uint32_t kVersion = 2;

// FNV-1a, begun with the number.
uint64_t checksum(uint64_t number, std::span<const uint8_t> bytes) {
  uint64_t h = 1469598103934665603ull ^ number;
  for (uint8_t b : bytes) h = (h ^ b) * 1099511628211ull;
  return h;
}

std::vector<int32_t> words_of(const Grouping& grouping) {
  std::vector<int32_t> out;
  for (const auto& results : grouping) {
    out.push_back(static_cast<int32_t>(results.size()));
    out.insert(out.end(), results.begin(), results.end());
  }
  return out;
}

std::optional<Grouping> read_grouping(std::span<const int32_t> words) {
  Grouping out;
  while (!words.empty()) {
    const int32_t size = words[0];
    if (size < 0 || static_cast<size_t>(size) >= words.size()) return std::nullopt;
    out.emplace_back(words.begin() + 1, words.begin() + 1 + size);
    words = words.subspan(1 + static_cast<size_t>(size));
  }
  return out;
}

}  // namespace

std::vector<uint8_t> save_artifact(const CompiledRegion& executable, const Backend& backend, std::span<const uint8_t, 32> region_hash) {
  const std::vector<int32_t> words = words_of(executable.grouping());
  const auto* bytes = reinterpret_cast<const uint8_t*>(words.data());
  std::vector<uint8_t> rest(bytes, bytes + words.size() * sizeof(int32_t));
  backend.save_code(executable.kernels(), rest);
  Head head{};
  std::memcpy(head.magic, kMagic, sizeof kMagic);
  head.version = kVersion;
  std::memcpy(head.region, region_hash.data(), 32);
  head.num_words = words.size();
  head.checksum = checksum(words.size(), rest);
  std::vector<uint8_t> out(sizeof head + rest.size());
  std::memcpy(out.data(), &head, sizeof head);
  std::copy(rest.begin(), rest.end(), out.begin() + sizeof head);
  return out;
}

std::unique_ptr<CompiledRegion> load_artifact(std::span<const uint8_t> body, std::span<const uint8_t> region,
                                          std::span<const uint8_t, 32> region_hash, Backend& backend, const CompileContext& context) {
  auto corrupt = [](const char* why) {
    return kit::Error(KRN_STATUS_corrupt, std::string("artifact body: ") + why + "; it is dropped and the region compiled again");
  };
  Head head;
  if (body.size() < sizeof head) throw corrupt("too short");
  std::memcpy(&head, body.data(), sizeof head);
  if (std::memcmp(head.magic, kMagic, sizeof kMagic) != 0 || head.version != kVersion) throw corrupt("not written by this code generator");
  if (std::memcmp(head.region, region_hash.data(), 32) != 0) throw corrupt("made for another region");
  const std::span<const uint8_t> rest = body.subspan(sizeof head);
  if (head.num_words > rest.size() / sizeof(int32_t) || head.checksum != checksum(head.num_words, rest)) throw corrupt("damaged");
  std::vector<int32_t> words(head.num_words);
  std::copy_n(rest.begin(), words.size() * sizeof(int32_t), reinterpret_cast<uint8_t*>(words.data()));
  const std::optional<Grouping> known = read_grouping(words);
  if (!known) throw corrupt("damaged");
  backend.load_code(rest.subspan(words.size() * sizeof(int32_t)));
  return CompiledRegion::compile(region, backend, context, &*known);
}

}  // namespace keirin::codegen
