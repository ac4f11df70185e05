// SPDX-License-Identifier: Apache-2.0
//
// A library of products as lt_library.h opens them, on the host. With numbers of its own (f32 is 5 and f64 is 6, sums are 15 and 16, what
// is transposed is 22) for lt_product_test.cc, which sets what it refuses and reads its counts; or as hipBLASLt (FAKE_HIPBLASLT), for the
// emulated device of tests/standin.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "plugins/kit/tables.h"
#include "tests/standin/emulated/streams.h"
#include "tests/unit/cpu/kernel_interpreter.h"

#define FAKE extern "C" __attribute__((visibility("default")))
#ifdef FAKE_HIPBLASLT
#define FAKE_LT(name) hipblasLt##name
#else
#define FAKE_LT(name) fakeLt##name
#endif

namespace kit = keirin::kit;

namespace {

struct Numbers {
  int32_t f32, f64, f16, bf16, sums_f32, sums_f64, as_is, transposed;
  int transpose_a, transpose_b, epilogue, bias_address, bias_type, batch_count, batch_stride, most_workspace, least_alignment;
};
#ifdef FAKE_HIPBLASLT
constexpr Numbers kNumbers = {0, 1, 2, 14, 2, 7, 111, 112, 0, 1, 2, 3, 4, 0, 1, 1, -1};
#else
constexpr Numbers kNumbers = {5, 6, 7, 8, 15, 16, 21, 22, 31, 32, 33, 34, 35, 41, 42, 51, 52};
#endif

struct Desc {
  int32_t sums, scale_type, transpose_a = kNumbers.as_is, transpose_b = kNumbers.as_is, bias_type = -1;
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
#ifdef FAKE_HIPBLASLT
  int32_t unused[4] = {};
#endif
};
struct Heuristic {
  Algo algo;
  size_t workspace_bytes;
  int32_t state;
  float waves;
  int32_t reserved[4];
};

uint8_t dtype_of(int32_t type) {
  return type == kNumbers.f64    ? kit::kDType_f64
         : type == kNumbers.f16  ? kit::kDType_f16
         : type == kNumbers.bf16 ? kit::kDType_bf16
                                 : kit::kDType_f32;
}

template <class T>
int take(T& to, const void* value, size_t bytes) {
  if (bytes != sizeof to) return 1;
  std::memcpy(&to, value, bytes);
  return 0;
}

// Element (row, column) of op(m), column-major.
double at(const void* m, const Layout& l, bool transposed, int64_t batch, int64_t row, int64_t column) {
  if (transposed) std::swap(row, column);
  return keirin::test::read_element(m, batch * l.stride + column * l.ld + row, dtype_of(l.type)).real;
}

void multiply(const Desc& p, const void* alpha, const void* a, const Layout& la, const void* b, const Layout& lb, const void* beta,
              const void* c, const Layout& lc, void* d, const Layout& ld) {
  const bool ta = p.transpose_a == kNumbers.transposed, tb = p.transpose_b == kNumbers.transposed;
  const auto k = static_cast<int64_t>(ta ? la.rows : la.cols);
  const uint8_t scale = dtype_of(p.scale_type), result = dtype_of(ld.type), bias = p.bias_type < 0 ? result : dtype_of(p.bias_type);
  const double times = keirin::test::read_element(alpha, 0, scale).real, plus = keirin::test::read_element(beta, 0, scale).real;
  for (int64_t batch = 0; batch < ld.batch; ++batch)
    for (int64_t column = 0; column < static_cast<int64_t>(ld.cols); ++column)
      for (int64_t row = 0; row < static_cast<int64_t>(ld.rows); ++row) {
        double sum = 0;
        for (int64_t i = 0; i < k; ++i) sum += at(a, la, ta, batch, row, i) * at(b, lb, tb, batch, i, column);
        sum *= times;
        if (plus != 0) sum += plus * at(c, lc, false, batch, row, column);
        if (p.epilogue & 4) sum += keirin::test::read_element(p.bias, row, bias).real;
        if (p.epilogue & 2) sum = sum < 0 ? 0 : sum;  // NaN stays
        if (p.epilogue & 32) sum = 0.5 * sum * (1 + std::tanh(0.7978845608028654 * (sum + 0.044715 * sum * sum * sum)));
        keirin::test::write_element(d, batch * ld.stride + column * ld.ld + row, result, sum, 0);
      }
}

}  // namespace

FAKE std::atomic<int> fake_lt_asked, fake_lt_multiplied, fake_lt_proposals, fake_lt_refused_type, fake_lt_last_place, fake_lt_unchecked;
std::atomic<int> fake_lt_asked{0}, fake_lt_multiplied{0}, fake_lt_proposals{3}, fake_lt_refused_type{-1}, fake_lt_last_place{-1};
std::atomic<int> fake_lt_unchecked{0};

#ifdef FAKE_HIPBLASLT
FAKE int hipblasLtGetVersion(int*, int* version) { return *version = 1000, 0; }
#endif
FAKE int FAKE_LT(Create)(int** handle) { return *handle = new int(1), 0; }
FAKE int FAKE_LT(MatmulDescCreate)(Desc** desc, int32_t sums, int32_t scale_type) {
  return sums != kNumbers.sums_f32 && sums != kNumbers.sums_f64 ? 1 : (*desc = new Desc{sums, scale_type}, 0);
}
FAKE int FAKE_LT(MatmulDescSetAttribute)(Desc* desc, int attribute, const void* value, size_t bytes) {
  if (attribute == kNumbers.transpose_a) return take(desc->transpose_a, value, bytes);
  if (attribute == kNumbers.transpose_b) return take(desc->transpose_b, value, bytes);
  if (attribute == kNumbers.epilogue) return take(desc->epilogue, value, bytes);
  if (attribute == kNumbers.bias_address) return take(desc->bias, value, bytes);
  return attribute == kNumbers.bias_type ? take(desc->bias_type, value, bytes) : 1;
}
FAKE int FAKE_LT(MatmulDescDestroy)(Desc* desc) { return delete desc, 0; }
FAKE int FAKE_LT(MatrixLayoutCreate)(Layout** layout, int32_t type, uint64_t rows, uint64_t cols, int64_t ld) {
  return *layout = new Layout{type, 1, rows, cols, ld}, 0;
}
FAKE int FAKE_LT(MatrixLayoutSetAttribute)(Layout* layout, int attribute, const void* value, size_t bytes) {
  if (attribute == kNumbers.batch_count) return take(layout->batch, value, bytes);
  return attribute == kNumbers.batch_stride ? take(layout->stride, value, bytes) : 1;
}
FAKE int FAKE_LT(MatrixLayoutDestroy)(Layout* layout) { return delete layout, 0; }
FAKE int FAKE_LT(MatmulPreferenceCreate)(Preference** preference) { return *preference = new Preference, 0; }
FAKE int FAKE_LT(MatmulPreferenceSetAttribute)(Preference* preference, int attribute, const void* value, size_t bytes) {
  if (attribute == kNumbers.most_workspace) return take(preference->workspace_bytes, value, bytes);
  const int which = attribute - kNumbers.least_alignment;
  return kNumbers.least_alignment >= 0 && which >= 0 && which < 4 ? take(preference->alignment[which], value, bytes) : 1;
}
FAKE int FAKE_LT(MatmulPreferenceDestroy)(Preference* preference) { return delete preference, 0; }
FAKE int FAKE_LT(MatmulAlgoGetHeuristic)(void*, Desc*, Layout* a, Layout*, Layout*, Layout*, Preference* preference, int most,
                                         Heuristic* found, int* count) {
  ++fake_lt_asked;
  *count = a->type == fake_lt_refused_type ? 0 : std::min<int>(most, fake_lt_proposals);
  // Who cannot say where operands begin may let them begin anywhere.
  const uint32_t least = kNumbers.least_alignment < 0 ? 1 : *std::min_element(preference->alignment, preference->alignment + 4);
  for (int i = 0; i < *count; ++i) found[i] = {{.place = i, .alignment = least}, static_cast<size_t>(64 * i), 0, 1, {}};
  return 0;
}
#ifndef FAKE_HIPBLASLT  // which has none
FAKE int FAKE_LT(MatmulAlgoCheck)(void*, Desc*, Layout*, Layout*, Layout*, Layout*, const void* algo, Heuristic* found) {
  std::memcpy(&found->algo, algo, sizeof found->algo);
  found->workspace_bytes = static_cast<size_t>(64 * found->algo.place);
  return fake_lt_unchecked;
}
#endif
FAKE int FAKE_LT(Matmul)(void*, Desc* desc, const void* alpha, const void* a, Layout* la, const void* b, Layout* lb, const void* beta,
                         const void* c, Layout* lc, void* d, Layout* ld, const Algo* algo, void* workspace, size_t workspace_bytes, void*) {
  ++fake_lt_multiplied;
  fake_lt_last_place = algo->place;
  for (const void* p : {a, b, c, static_cast<const void*>(d)})
    if (reinterpret_cast<uintptr_t>(p) % std::min<uint32_t>(algo->alignment, 16) != 0) return 2;
  if (workspace_bytes < static_cast<size_t>(64 * algo->place) || (algo->place > 0 && !workspace)) return 3;
  keirin::standin::wait_for_streams();
  multiply(*desc, alpha, a, *la, b, *lb, beta, c, *lc, d, *ld);
  return 0;
}
