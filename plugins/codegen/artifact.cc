// SPDX-License-Identifier: Apache-2.0
//
// magic, version, region hash, code size, checksum of the code, code. The checksum is against accidents, not against attackers:
// the cache's owner is the boundary of trust.
#include "plugins/codegen/artifact.h"

#include <cstring>

#include "plugins/kit/error.h"

namespace keirin::codegen {
namespace {

struct Head {
  char magic[8];
  uint32_t version;
  uint32_t reserved;
  uint8_t region[32];
  uint64_t code_bytes;
  uint64_t checksum;
};
constexpr char kMagic[8] = {'K', 'R', 'N', 'C', 'O', 'D', 'E', '1'};
constexpr uint32_t kVersion = 1;

uint64_t checksum(std::span<const uint8_t> bytes) {
  uint64_t h = 1469598103934665603ull;
  for (uint8_t b : bytes) h = (h ^ b) * 1099511628211ull;
  return h;
}

}  // namespace

std::vector<uint8_t> save_artifact(const Executable& executable, const Backend& backend, std::span<const uint8_t, 32> region_hash) {
  std::vector<uint8_t> code;
  backend.save_code(executable.kernels(), code);
  Head head{};
  std::memcpy(head.magic, kMagic, sizeof kMagic);
  head.version = kVersion;
  std::memcpy(head.region, region_hash.data(), 32);
  head.code_bytes = code.size();
  head.checksum = checksum(code);
  std::vector<uint8_t> out(sizeof head + code.size());
  std::memcpy(out.data(), &head, sizeof head);
  std::copy(code.begin(), code.end(), out.begin() + sizeof head);
  return out;
}

std::unique_ptr<Executable> load_artifact(std::span<const uint8_t> body, std::span<const uint8_t> region,
                                          std::span<const uint8_t, 32> region_hash, Backend& backend, const CompileContext& context) {
  auto corrupt = [](const char* why) { return kit::Error(KRN_STATUS_corrupt, std::string("artifact body: ") + why + "; it is dropped and the region compiled again"); };
  Head head;
  if (body.size() < sizeof head) throw corrupt("too short");
  std::memcpy(&head, body.data(), sizeof head);
  if (std::memcmp(head.magic, kMagic, sizeof kMagic) != 0 || head.version != kVersion) throw corrupt("not written by this code generator");
  if (std::memcmp(head.region, region_hash.data(), 32) != 0) throw corrupt("made for another region");
  std::span<const uint8_t> code = body.subspan(sizeof head);
  if (head.code_bytes != code.size() || head.checksum != checksum(code)) throw corrupt("damaged");
  backend.load_code(code);
  return Executable::compile(region, backend, context);
}

}  // namespace keirin::codegen
