// SPDX-License-Identifier: Apache-2.0
#include "plugins/gpu/lt_library.h"

#include <dlfcn.h>

#include <cstring>

namespace keirin::gpu::lt {
namespace {

// What follows an algorithm in what the heuristic fills in.
struct AfterAlgo {
  size_t workspace_bytes;
  int32_t state;  // 0: usable
  float waves;
  int32_t reserved[4];
};

}  // namespace

Opened::Opened(const Vendor& vendor) {
  // LibTorch's own copy first: it is loaded already and its version is the one eager uses.
  void* library = open_first(vendor.files, why_not_);
  if (!library) {
    why_not_ = std::string("no ") + vendor.name + ": " + why_not_ + "; " + vendor.how_to_get;
    return;
  }
  std::string whole;
  const auto name_of = [&](const char* function) { return (whole = std::string(vendor.prefix) + function).c_str(); };
#define KRN_LOAD(function, ...)                                                                     \
  table_.function = reinterpret_cast<decltype(table_.function)>(dlsym(library, name_of(#function))); \
  if (!table_.function) {                                                                           \
    why_not_ = std::string("this ") + vendor.name + " lacks " + name_of(#function);                 \
    return;                                                                                         \
  }
  KRN_LT(KRN_LOAD)
#undef KRN_LOAD
  table_.MatmulAlgoCheck = reinterpret_cast<decltype(table_.MatmulAlgoCheck)>(dlsym(library, name_of("MatmulAlgoCheck")));
  table_.vendor = &vendor;
  if (const int status = table_.Create(&table_.handle); status != 0) {
    why_not_ = std::string(vendor.prefix) + "Create failed: status " + std::to_string(status);
    return;
  }
  table_.version = vendor.version(library, table_.handle, why_not_);
  ok_ = !table_.version.empty();
}

std::vector<Guess> Table::guesses(Desc desc, Layout a, Layout b, Layout c, Layout d, Preference preference,
                                  int most) const {
  const size_t stride = vendor->algo_bytes + sizeof(AfterAlgo);
  std::vector<uint64_t> filled((static_cast<size_t>(most) * stride + 7) / 8);
  int count = 0;
  if (MatmulAlgoGetHeuristic(handle, desc, a, b, c, d, preference, most, filled.data(), &count) != 0) return {};
  std::vector<Guess> out;
  for (int i = 0; i < count; ++i) {
    const char* at = reinterpret_cast<const char*>(filled.data()) + static_cast<size_t>(i) * stride;
    AfterAlgo after;
    std::memcpy(&after, at + vendor->algo_bytes, sizeof after);
    Guess& guess = out.emplace_back();
    std::memcpy(&guess.algo, at, vendor->algo_bytes);
    guess.workspace_bytes = after.workspace_bytes;
  }
  return out;
}

std::optional<Guess> Table::checked(Desc desc, Layout a, Layout b, Layout c, Layout d, const Algo& algo, size_t most_workspace) const {
  if (!MatmulAlgoCheck) return std::nullopt;
  uint64_t filled[(sizeof(Algo) + sizeof(AfterAlgo)) / sizeof(uint64_t)] = {};
  if (MatmulAlgoCheck(handle, desc, a, b, c, d, &algo, filled) != 0) return std::nullopt;
  AfterAlgo after;
  std::memcpy(&after, reinterpret_cast<const char*>(filled) + vendor->algo_bytes, sizeof after);
  if (after.state != 0 || after.workspace_bytes > most_workspace) return std::nullopt;
  return Guess{algo, after.workspace_bytes};
}

}  // namespace keirin::gpu::lt
