// SPDX-License-Identifier: Apache-2.0
//
// A program as bytes. Because of these functions the host compiles in a process of its own, where a crash costs one attempt, and takes
// what was compiled from its cache at the next start. Bytes from outside: what does not read back whole is `corrupt`, never a crash.
#include <cstring>
#include <type_traits>

#include "device.h"

namespace skeleton_plugin {
namespace {

constexpr std::string_view kMagic = "skeleton";

// FNV-1a: against accidents. Who may write the cache is the host's business.
uint64_t checksum(std::string_view bytes) {
  uint64_t h = 1469598103934665603ull;
  for (unsigned char b : bytes) h = (h ^ b) * 1099511628211ull;
  return h;
}

template <class T>
void put(std::string& to, const T& value) {
  static_assert(std::has_unique_object_representations_v<T>, "padding would make equal programs unequal bytes");
  to.append(reinterpret_cast<const char*>(&value), sizeof value);
}

template <class T>
void put(std::string& to, const std::vector<T>& values) {
  put<uint64_t>(to, values.size());
  for (const T& value : values) put(to, value);
}

class Reader {
 public:
  explicit Reader(std::string_view bytes) : left_(bytes) {}

  std::string_view take(size_t size) {
    if (size > left_.size()) throw keirin::kit::Error(KRN_STATUS_corrupt, "the artifact ends too early");
    const std::string_view out = left_.substr(0, size);
    left_.remove_prefix(size);
    return out;
  }
  template <class T>
  void get(T& to) {
    std::memcpy(static_cast<void*>(&to), take(sizeof to).data(), sizeof to);
  }
  template <class T>
  void get(std::vector<T>& to) {
    uint64_t count = 0;
    get(count);
    if (count > left_.size() / sizeof(T)) throw keirin::kit::Error(KRN_STATUS_corrupt, "the artifact ends too early");
    to.resize(count);
    for (T& value : to) get(value);
  }
  bool done() const { return left_.empty(); }

 private:
  std::string_view left_;
};

}  // namespace

// All that decides whether this machine can run the code, so that check() need not look at the body: here the form of the bytes. A
// vendor adds the instructions that are used, the driver's version, its libraries'.
std::string artifact_token() { return "skeleton 1"; }

std::string save(const Compiled& compiled) {
  const Program& p = compiled.program;
  std::string rest(compiled.region);
  put(rest, p.num_inputs);
  put(rest, p.num_outputs);
  put(rest, p.temp_offsets);
  put(rest, p.workspace_bytes);
  put(rest, p.instructions);
  std::string out(kMagic);
  put(out, checksum(rest));
  return out + rest;
}

Compiled load(std::string_view body, std::string_view region) {
  Reader reader(body);
  uint64_t sum = 0;
  const bool ours = reader.take(kMagic.size()) == kMagic;
  reader.get(sum);
  if (!ours || sum != checksum(body.substr(kMagic.size() + sizeof sum)))
    throw keirin::kit::Error(KRN_STATUS_corrupt, "the artifact is damaged: its checksum is another");
  Compiled out;
  out.region = reader.take(region.size());
  Program& p = out.program;
  reader.get(p.num_inputs);
  reader.get(p.num_outputs);
  reader.get(p.temp_offsets);
  reader.get(p.workspace_bytes);
  reader.get(p.instructions);
  if (!reader.done() || out.region != region) throw keirin::kit::Error(KRN_STATUS_corrupt, "the artifact is another region's");
  return out;
}

}  // namespace skeleton_plugin
