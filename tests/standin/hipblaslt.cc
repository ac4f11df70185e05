// SPDX-License-Identifier: Apache-2.0
//
// hipBLASLt's functions that the AMD plugin calls, over cuBLASLt. An algorithm is its place among what cuBLASLt proposes for the
// problem: like hipBLASLt's numbers it means the same in the next process. Operands may start at any element, as there: what starts
// between multiples of 16 bytes gets proposals of its own.
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "cuda/cublaslt.h"
#include "plugins/gpu/lt_library.h"

#define STANDIN extern "C" __attribute__((visibility("default")))

namespace {

namespace lt = keirin::gpu::lt;

enum : int { kOk = 0, kInvalid = 3, kUnsupported = 7 };
enum : int { kMostGuesses = 16 };

struct Handle {
  int unused = 0;
};
struct Desc {
  int32_t sums, scale_type, transpose_a = 111, transpose_b = 111, bias_type = -1;
  uint32_t epilogue = 1;
  const void* bias = nullptr;
};
struct Layout {
  int32_t type;
  uint64_t rows, cols;
  int64_t ld, stride = 0;
  int32_t batch = 1;
};
struct Preference {
  uint64_t workspace_bytes = 0;
};
struct Algo {
  int32_t place, unused[3];
  size_t most_workspace;
};
struct Heuristic {
  Algo algo;
  size_t workspace_bytes;
  int32_t state;
  float waves;
  int32_t reserved[4];
};
static_assert(sizeof(Algo) == 24 && sizeof(Heuristic) == 56, "as hipBLASLt's");

const lt::Table* library() {
  static const lt::Opened opened(keirin::cuda::cublaslt());
  std::string ignored;
  return opened.table(ignored);
}

// cuBLASLt's numbers for hipBLASLt's; -1 for one that is not known.
int32_t sums_of(int32_t sums) { return sums == 2 ? 68 : sums == 6 ? 77 : sums == 7 ? 70 : -1; }
int32_t transpose_of(int32_t op) { return op == 111 ? 0 : op == 112 ? 1 : -1; }

// The same problem in cuBLASLt's objects, and what it proposes.
struct Problem {
  lt::Desc desc = nullptr;
  lt::Layout layouts[4] = {};
  std::vector<lt::Guess> found;
  std::mutex one_bias;
};

lt::Layout layout_of(const lt::Table& api, const Layout& l) {
  lt::Layout out = nullptr;
  if (api.MatrixLayoutCreate(&out, l.type, l.rows, l.cols, l.ld) != 0) return nullptr;
  if (l.batch > 1) {
    api.MatrixLayoutSetAttribute(out, api.vendor->batch_count, &l.batch, sizeof l.batch);
    api.MatrixLayoutSetAttribute(out, api.vendor->batch_stride, &l.stride, sizeof l.stride);
  }
  return out;
}

void fill(Problem& p, const Desc& d, const Layout* const (&layouts)[4], size_t workspace_bytes, uint32_t alignment) {
  const lt::Table& api = *library();
  const lt::Vendor& numbers = *api.vendor;
  const int32_t a = transpose_of(d.transpose_a), b = transpose_of(d.transpose_b);
  if (sums_of(d.sums) < 0 || a < 0 || b < 0 || api.MatmulDescCreate(&p.desc, sums_of(d.sums), d.scale_type) != 0) return;
  api.MatmulDescSetAttribute(p.desc, numbers.transpose_a, &a, sizeof a);
  api.MatmulDescSetAttribute(p.desc, numbers.transpose_b, &b, sizeof b);
  api.MatmulDescSetAttribute(p.desc, numbers.epilogue, &d.epilogue, sizeof d.epilogue);
  const void* bias = reinterpret_cast<const void*>(uintptr_t{4096} + alignment % 256);
  if (d.epilogue & 4) api.MatmulDescSetAttribute(p.desc, numbers.bias_address, &bias, sizeof bias);
  for (int i = 0; i < 4; ++i) p.layouts[i] = layout_of(api, *layouts[i]);
  lt::Preference preference = nullptr;
  api.MatmulPreferenceCreate(&preference);
  api.MatmulPreferenceSetAttribute(preference, numbers.most_workspace, &workspace_bytes, sizeof workspace_bytes);
  for (int i = 0; i < 4; ++i) api.MatmulPreferenceSetAttribute(preference, numbers.least_alignment + i, &alignment, sizeof alignment);
  p.found = api.guesses(p.desc, p.layouts[0], p.layouts[1], p.layouts[2], p.layouts[3], preference, kMostGuesses);
  api.MatmulPreferenceDestroy(preference);
}

Problem& problem(const Desc& d, const Layout* const (&layouts)[4], size_t workspace_bytes, uint32_t alignment) {
  static std::mutex mutex;
  static std::map<std::string, Problem> known;
  std::string key;
  const auto add = [&](int64_t v) { key += std::to_string(v) + " "; };
  for (int64_t v : {int64_t{d.sums}, int64_t{d.scale_type}, int64_t{d.transpose_a}, int64_t{d.transpose_b}, int64_t{d.epilogue},
                    static_cast<int64_t>(workspace_bytes), int64_t{alignment}})
    add(v);
  for (const Layout* l : layouts)
    for (int64_t v : {int64_t{l->type}, static_cast<int64_t>(l->rows), static_cast<int64_t>(l->cols), l->ld, int64_t{l->batch}, l->stride})
      add(v);
  std::lock_guard lock(mutex);
  const auto [at, is_new] = known.try_emplace(key);
  if (is_new) fill(at->second, d, layouts, workspace_bytes, alignment);
  return at->second;
}

template <class T>
int take(T& to, const void* value, size_t bytes) {
  if (bytes != sizeof to) return kInvalid;
  std::memcpy(&to, value, bytes);
  return kOk;
}

}  // namespace

STANDIN int hipblasLtCreate(Handle** handle) {
  if (!library()) return kUnsupported;
  return *handle = new Handle, kOk;
}
STANDIN int hipblasLtGetVersion(Handle* handle, int* version) { return handle ? (*version = 100000, kOk) : 1; }
STANDIN int hipblasLtMatmulDescCreate(Desc** desc, int32_t sums, int32_t scale_type) {
  if (sums_of(sums) < 0) return kInvalid;
  return *desc = new Desc{sums, scale_type}, kOk;
}
STANDIN int hipblasLtMatmulDescSetAttribute(Desc* desc, int attribute, const void* value, size_t bytes) {
  switch (attribute) {
    case 0: return take(desc->transpose_a, value, bytes);
    case 1: return take(desc->transpose_b, value, bytes);
    case 2: return take(desc->epilogue, value, bytes);
    case 3: return take(desc->bias, value, bytes);
    case 4: return take(desc->bias_type, value, bytes);
    default: return kInvalid;
  }
}
STANDIN int hipblasLtMatmulDescDestroy(Desc* desc) { return delete desc, kOk; }
STANDIN int hipblasLtMatrixLayoutCreate(Layout** layout, int32_t type, uint64_t rows, uint64_t cols, int64_t ld) {
  return *layout = new Layout{type, rows, cols, ld}, kOk;
}
STANDIN int hipblasLtMatrixLayoutSetAttribute(Layout* layout, int attribute, const void* value, size_t bytes) {
  switch (attribute) {
    case 0: return take(layout->batch, value, bytes);
    case 1: return take(layout->stride, value, bytes);
    default: return kInvalid;
  }
}
STANDIN int hipblasLtMatrixLayoutDestroy(Layout* layout) { return delete layout, kOk; }
STANDIN int hipblasLtMatmulPreferenceCreate(Preference** preference) { return *preference = new Preference, kOk; }
STANDIN int hipblasLtMatmulPreferenceSetAttribute(Preference* preference, int attribute, const void* value, size_t bytes) {
  return attribute == 1 ? take(preference->workspace_bytes, value, bytes) : kInvalid;
}
STANDIN int hipblasLtMatmulPreferenceDestroy(Preference* preference) { return delete preference, kOk; }

STANDIN int hipblasLtMatmulAlgoGetHeuristic(Handle*, Desc* desc, Layout* a, Layout* b, Layout* c, Layout* d, Preference* preference,
                                            int most, Heuristic* out, int* count) {
  if (desc->bias && desc->bias_type != d->type) return kInvalid;
  const Layout* const layouts[] = {a, b, c, d};
  const std::vector<lt::Guess>& found = problem(*desc, layouts, preference->workspace_bytes, 16).found;
  *count = 0;
  for (; *count < most && *count < static_cast<int>(found.size()); ++*count)
    out[*count] = {{*count, {}, preference->workspace_bytes}, found[static_cast<size_t>(*count)].workspace_bytes, 0, 1, {}};
  return *count > 0 ? kOk : kUnsupported;
}

STANDIN int hipblasLtMatmul(Handle*, Desc* desc, const void* alpha, const void* a, Layout* la, const void* b, Layout* lb, const void* beta,
                            const void* c, Layout* lc, void* d, Layout* ld, const Algo* algo, void* workspace, size_t workspace_bytes,
                            void* stream) {
  const lt::Table& api = *library();
  uintptr_t all = reinterpret_cast<uintptr_t>(a) | reinterpret_cast<uintptr_t>(b) | reinterpret_cast<uintptr_t>(c) |
                  reinterpret_cast<uintptr_t>(d) | reinterpret_cast<uintptr_t>(desc->bias) | 16;
  const auto alignment = static_cast<uint32_t>(all & ~(all - 1));
  const Layout* const layouts[] = {la, lb, lc, ld};
  Problem& p = problem(*desc, layouts, alignment == 16 ? algo->most_workspace : workspace_bytes, alignment);
  const size_t place = alignment == 16 ? static_cast<size_t>(algo->place) : 0;
  if (place >= p.found.size() || p.found[place].workspace_bytes > workspace_bytes) return kUnsupported;
  std::lock_guard turn(p.one_bias);
  if (desc->epilogue & 4) api.MatmulDescSetAttribute(p.desc, api.vendor->bias_address, &desc->bias, sizeof desc->bias);
  return api.Matmul(api.handle, p.desc, alpha, a, p.layouts[0], b, p.layouts[1], beta, c, p.layouts[2], d, p.layouts[3],
                    &p.found[place].algo, workspace, workspace_bytes, stream);
}
