// SPDX-License-Identifier: Apache-2.0
//
// A library of products as lt_library.h opens them, on the host, with numbers of its own: f32 is 5 and f64 is 6, sums are 15 and 16, what
// is transposed is 22. It counts its calls; what it refuses is set by the test (lt_product_test.cc).
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>

#define FAKE extern "C" __attribute__((visibility("default")))

namespace {

struct Desc {
  int32_t sums, scale_type, transpose_a = 21, transpose_b = 21, bias_type = 0;
  uint32_t epilogue = 1;
  const void* bias = nullptr;
};
struct Layout {
  int32_t type, batch = 1;
  uint64_t rows, cols;
  int64_t ld, stride = 0;
};
struct Preference {
  uint64_t workspace_bytes = 0;
  uint32_t alignment[4] = {256, 256, 256, 256};
};
struct Algo {
  int32_t place;
  uint32_t alignment;
};
struct Heuristic {
  Algo algo;
  size_t workspace_bytes;
  int32_t state;
  float waves;
  int32_t reserved[4];
};

template <class T>
int take(T& to, const void* value, size_t bytes) {
  if (bytes != sizeof to) return 1;
  std::memcpy(&to, value, bytes);
  return 0;
}

// Element (row, column) of op(m), column-major.
template <class T>
double at(const void* m, const Layout& l, bool transposed, int64_t batch, int64_t row, int64_t column) {
  if (transposed) std::swap(row, column);
  return static_cast<const T*>(m)[batch * l.stride + column * l.ld + row];
}

template <class T>
void multiply(const Desc& p, const void* alpha, const void* a, const Layout& la, const void* b, const Layout& lb, const void* beta, const void* c,
              const Layout& lc, void* d, const Layout& ld) {
  const bool ta = p.transpose_a == 22, tb = p.transpose_b == 22;
  const auto k = static_cast<int64_t>(ta ? la.rows : la.cols);
  for (int64_t batch = 0; batch < ld.batch; ++batch)
    for (int64_t column = 0; column < static_cast<int64_t>(ld.cols); ++column)
      for (int64_t row = 0; row < static_cast<int64_t>(ld.rows); ++row) {
        double sum = 0;
        for (int64_t i = 0; i < k; ++i) sum += at<T>(a, la, ta, batch, row, i) * at<T>(b, lb, tb, batch, i, column);
        sum *= *static_cast<const T*>(alpha);
        if (*static_cast<const T*>(beta) != 0) sum += *static_cast<const T*>(beta) * at<T>(c, lc, false, batch, row, column);
        if (p.epilogue & 4) sum += static_cast<const T*>(p.bias)[row];
        if (p.epilogue & 2) sum = std::max(sum, 0.0);
        if (p.epilogue & 32) sum = 0.5 * sum * (1 + std::tanh(0.7978845608028654 * (sum + 0.044715 * sum * sum * sum)));
        static_cast<T*>(d)[batch * ld.stride + column * ld.ld + row] = static_cast<T>(sum);
      }
}

}  // namespace

FAKE std::atomic<int> fake_lt_asked, fake_lt_multiplied, fake_lt_proposals, fake_lt_refused_type, fake_lt_last_place;
std::atomic<int> fake_lt_asked{0}, fake_lt_multiplied{0}, fake_lt_proposals{3}, fake_lt_refused_type{0}, fake_lt_last_place{-1};

FAKE int fakeLtCreate(int** handle) { return *handle = new int(1), 0; }
FAKE int fakeLtMatmulDescCreate(Desc** desc, int32_t sums, int32_t scale_type) {
  return sums != 15 && sums != 16 ? 1 : (*desc = new Desc{sums, scale_type}, 0);
}
FAKE int fakeLtMatmulDescSetAttribute(Desc* desc, int attribute, const void* value, size_t bytes) {
  switch (attribute) {
    case 31: return take(desc->transpose_a, value, bytes);
    case 32: return take(desc->transpose_b, value, bytes);
    case 33: return take(desc->epilogue, value, bytes);
    case 34: return take(desc->bias, value, bytes);
    case 35: return take(desc->bias_type, value, bytes);
    default: return 1;
  }
}
FAKE int fakeLtMatmulDescDestroy(Desc* desc) { return delete desc, 0; }
FAKE int fakeLtMatrixLayoutCreate(Layout** layout, int32_t type, uint64_t rows, uint64_t cols, int64_t ld) {
  return *layout = new Layout{type, 1, rows, cols, ld}, 0;
}
FAKE int fakeLtMatrixLayoutSetAttribute(Layout* layout, int attribute, const void* value, size_t bytes) {
  return attribute == 41 ? take(layout->batch, value, bytes) : attribute == 42 ? take(layout->stride, value, bytes) : 1;
}
FAKE int fakeLtMatrixLayoutDestroy(Layout* layout) { return delete layout, 0; }
FAKE int fakeLtMatmulPreferenceCreate(Preference** preference) { return *preference = new Preference, 0; }
FAKE int fakeLtMatmulPreferenceSetAttribute(Preference* preference, int attribute, const void* value, size_t bytes) {
  if (attribute == 51) return take(preference->workspace_bytes, value, bytes);
  return attribute >= 52 && attribute < 56 ? take(preference->alignment[attribute - 52], value, bytes) : 1;
}
FAKE int fakeLtMatmulPreferenceDestroy(Preference* preference) { return delete preference, 0; }
FAKE int fakeLtMatmulAlgoGetHeuristic(void*, Desc*, Layout* a, Layout*, Layout*, Layout*, Preference* preference, int most, Heuristic* found, int* count) {
  ++fake_lt_asked;
  *count = a->type == fake_lt_refused_type ? 0 : std::min<int>(most, fake_lt_proposals);
  const uint32_t least = *std::min_element(preference->alignment, preference->alignment + 4);
  for (int i = 0; i < *count; ++i) found[i] = {{i, least}, static_cast<size_t>(64 * i), 0, 1, {}};
  return 0;
}
FAKE int fakeLtMatmul(void*, Desc* desc, const void* alpha, const void* a, Layout* la, const void* b, Layout* lb, const void* beta, const void* c, Layout* lc,
                      void* d, Layout* ld, const Algo* algo, void* workspace, size_t workspace_bytes, void*) {
  ++fake_lt_multiplied;
  fake_lt_last_place = algo->place;
  for (const void* p : {a, b, c, static_cast<const void*>(d)})
    if (reinterpret_cast<uintptr_t>(p) % std::min<uint32_t>(algo->alignment, 16) != 0) return 2;
  if (workspace_bytes < static_cast<size_t>(64 * algo->place) || (algo->place > 0 && !workspace)) return 3;
  (la->type == 6 ? multiply<double> : multiply<float>)(*desc, alpha, a, *la, b, *lb, beta, c, *lc, d, *ld);
  return 0;
}
