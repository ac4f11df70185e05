// SPDX-License-Identifier: Apache-2.0
//
// rocBLAS's functions that the AMD plugin calls, on the host: plain loops over what the arguments say, with rocBLAS's numbers from its
// documentation, stated here by themselves. It counts its calls; what it refuses is set by the test (rocblas_test.cc).
#include <atomic>
#include <cstdint>

#include "plugins/kit/tables.h"
#include "tests/unit/cpu/kernel_interpreter.h"

#define FAKE extern "C" __attribute__((visibility("default")))

namespace kit = keirin::kit;

struct Handle {
  std::atomic<bool> busy{false};
  void* stream = nullptr;
};

// `refuses`: the type that it has no products of.
FAKE std::atomic<int> fake_rocblas_plain, fake_rocblas_batched, fake_rocblas_refuses, fake_rocblas_wrong;
std::atomic<int> fake_rocblas_plain{0}, fake_rocblas_batched{0}, fake_rocblas_refuses{0}, fake_rocblas_wrong{0};

namespace {

enum { kInvalid = 4, kNotImplemented = 2 };

struct Operand {
  const void* at;
  int32_t type, ld;
  int64_t stride;
};

uint8_t dtype_of(int32_t type) {
  return type == 150 ? kit::kDType_f16 : type == 168 ? kit::kDType_bf16 : type == 152 ? kit::kDType_f64 : kit::kDType_f32;
}
double get(const Operand& m, int64_t batch, int64_t row, int64_t column) {
  return keirin::test::read_element(m.at, batch * m.stride + column * m.ld + row, dtype_of(m.type)).real;
}

int multiply(Handle* handle, int32_t transpose_a, int32_t transpose_b, int32_t m, int32_t n, int32_t k, const void* alpha, const Operand& a,
             const Operand& b, const void* beta, const Operand& c, const Operand& d, int32_t batch, int32_t sums) {
  if (handle->busy.exchange(true)) ++fake_rocblas_wrong;  // one thread at a time
  const auto leave = [&](int status) { return handle->busy = false, status; };
  const bool ta = transpose_a == 112, tb = transpose_b == 112;
  for (const Operand* o : {&a, &b, &c, &d})
    if (o->type != 150 && o->type != 151 && o->type != 152 && o->type != 168) return ++fake_rocblas_wrong, leave(kInvalid);
  const bool known = (ta || transpose_a == 111) && (tb || transpose_b == 111) && sums == (a.type == 152 ? 152 : 151) && a.type == b.type &&
                     c.type == d.type;
  if (!known || a.ld < (ta ? k : m) || b.ld < (tb ? n : k) || c.ld < m || d.ld < m) return ++fake_rocblas_wrong, leave(kInvalid);
  if (a.type == fake_rocblas_refuses) return leave(kNotImplemented);
  const uint8_t scale = dtype_of(sums);
  const double times = keirin::test::read_element(alpha, 0, scale).real, plus = keirin::test::read_element(beta, 0, scale).real;
  for (int64_t g = 0; g < batch; ++g)
    for (int64_t column = 0; column < n; ++column)
      for (int64_t row = 0; row < m; ++row) {
        double sum = 0;
        for (int64_t i = 0; i < k; ++i)
          sum += (ta ? get(a, g, i, row) : get(a, g, row, i)) * (tb ? get(b, g, column, i) : get(b, g, i, column));
        sum *= times;
        if (plus != 0) sum += plus * get(c, g, row, column);
        keirin::test::write_element(const_cast<void*>(d.at), g * d.stride + column * d.ld + row, dtype_of(d.type), sum, 0);
      }
  return leave(0);
}

}  // namespace

FAKE int rocblas_create_handle(Handle** handle) { return *handle = new Handle, 0; }
FAKE int rocblas_set_stream(Handle* handle, void* stream) { return handle->stream = stream, 0; }
FAKE int rocblas_gemm_ex(Handle* handle, int32_t ta, int32_t tb, int32_t m, int32_t n, int32_t k, const void* alpha, const void* a,
                         int32_t a_type, int32_t a_ld, const void* b, int32_t b_type, int32_t b_ld, const void* beta, const void* c,
                         int32_t c_type, int32_t c_ld, void* d, int32_t d_type, int32_t d_ld, int32_t sums, int32_t algo, int32_t solution,
                         uint32_t flags) {
  if (algo != 0 || solution != 0 || flags != 0) return ++fake_rocblas_wrong, kInvalid;
  ++fake_rocblas_plain;
  return multiply(handle, ta, tb, m, n, k, alpha, {a, a_type, a_ld, 0}, {b, b_type, b_ld, 0}, beta, {c, c_type, c_ld, 0},
                  {d, d_type, d_ld, 0}, 1, sums);
}
FAKE int rocblas_gemm_strided_batched_ex(Handle* handle, int32_t ta, int32_t tb, int32_t m, int32_t n, int32_t k, const void* alpha,
                                         const void* a, int32_t a_type, int32_t a_ld, int64_t a_stride, const void* b, int32_t b_type,
                                         int32_t b_ld, int64_t b_stride, const void* beta, const void* c, int32_t c_type, int32_t c_ld,
                                         int64_t c_stride, void* d, int32_t d_type, int32_t d_ld, int64_t d_stride, int32_t batch,
                                         int32_t sums, int32_t algo, int32_t solution, uint32_t flags) {
  if (algo != 0 || solution != 0 || flags != 0 || batch < 2) return ++fake_rocblas_wrong, kInvalid;
  ++fake_rocblas_batched;
  return multiply(handle, ta, tb, m, n, k, alpha, {a, a_type, a_ld, a_stride}, {b, b_type, b_ld, b_stride}, beta,
                  {c, c_type, c_ld, c_stride}, {d, d_type, d_ld, d_stride}, batch, sums);
}
