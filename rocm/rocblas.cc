// SPDX-License-Identifier: Apache-2.0
//
// From the public documentation of rocBLAS 2.44 (ROCm 5.2) and later. A handle serves one thread at a time.
#include "rocm/rocblas.h"

#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <type_traits>

#include "plugins/codegen/kernel/rows.h"
#include "plugins/gpu/timer.h"
#include "plugins/kit/error.h"
#include "plugins/kit/tables.h"
#include "rocm/gpu_driver.h"
#include "rocm/hipblaslt.h"

namespace keirin::rocm {
namespace {

using codegen::TensorDesc;
using Handle = struct RocblasHandle*;

enum Number : int32_t {
  kAsIs = 111, kTransposed = 112,                     // operands
  kF16 = 150, kF32 = 151, kF64 = 152, kBf16 = 168,    // types
  kStandard = 0,                                      // algorithm
  kNotImplemented = 2,                                // status
};

// An operand: address, type, leading dimension, and elements from one batch to the next.
#define KRN_OPERAND const void*, int32_t, int32_t, int64_t
#define KRN_ROCBLAS(X)                                                                                                            \
  X(create_handle, int (*)(Handle*))                                                                                              \
  X(set_stream, int (*)(Handle, void*))                                                                                           \
  X(gemm_strided_batched_ex, int (*)(Handle, int32_t transpose_a, int32_t transpose_b, int32_t m, int32_t n, int32_t k,           \
                                     const void* alpha, KRN_OPERAND, KRN_OPERAND, const void* beta, KRN_OPERAND, void* d,         \
                                     int32_t d_type, int32_t d_ld, int64_t d_stride, int32_t batch, int32_t sums, int32_t algo,   \
                                     int32_t solution, uint32_t flags))                                                           \
  X(gemm_ex, int (*)(Handle, int32_t transpose_a, int32_t transpose_b, int32_t m, int32_t n, int32_t k, const void* alpha,        \
                     const void* a, int32_t a_type, int32_t a_ld, const void* b, int32_t b_type, int32_t b_ld, const void* beta,  \
                     const void* c, int32_t c_type, int32_t c_ld, void* d, int32_t d_type, int32_t d_ld, int32_t sums,            \
                     int32_t algo, int32_t solution, uint32_t flags))

struct Table {
#define KRN_MEMBER(name, ...) std::type_identity_t<__VA_ARGS__> name = nullptr;
  KRN_ROCBLAS(KRN_MEMBER)
#undef KRN_MEMBER
};

int32_t type_of(uint8_t dtype) {
  switch (dtype) {
    case kit::kDType_f16: return kF16;
    case kit::kDType_bf16: return kBf16;
    case kit::kDType_f64: return kF64;
    default: return kF32;
  }
}

class Library {
 public:
  explicit Library(const std::vector<const char*>& files) {
#define KRN_LOAD(name, ...) &&gpu::take_function(library, "rocblas_" #name, table_.name, lacks)
    why_not_ = gpu::open_library("rocBLAS", files, "install ROCm's rocblas",
                                 [&](void* library, std::string& lacks) { return true KRN_ROCBLAS(KRN_LOAD); });
#undef KRN_LOAD
    if (!why_not_.empty()) return;
    if (const int status = table_.create_handle(&handle_); status != 0)
      why_not_ = "rocblas_create_handle: status " + std::to_string(status);
  }
  bool usable(std::string& why_not) const { return why_not = why_not_, why_not_.empty(); }

  struct Operand {
    const void* at;
    int32_t type, ld;
    int64_t stride;
  };
  struct Call {
    bool transpose_a, transpose_b;
    int32_t m, n, k, batch, sums;
    bool adds_c;
  };
  // D = A B, or A B + C. Any thread; enqueues.
  int multiply(gpu::Stream stream, const Call& p, const Operand& a, const Operand& b, const Operand& c, const Operand& d) const {
    const float one = 1, zero = 0;
    const double one64 = 1, zero64 = 0;
    const bool f64 = p.sums == kF64;
    const void* alpha = f64 ? static_cast<const void*>(&one64) : &one;
    const void* beta = p.adds_c ? alpha : f64 ? static_cast<const void*>(&zero64) : &zero;
    const int32_t of_a = p.transpose_a ? kTransposed : kAsIs, of_b = p.transpose_b ? kTransposed : kAsIs;
    const std::lock_guard turn(mutex_);
    if (const int status = table_.set_stream(handle_, stream); status != 0) return status;
    if (p.batch == 1)
      return table_.gemm_ex(handle_, of_a, of_b, p.m, p.n, p.k, alpha, a.at, a.type, a.ld, b.at, b.type, b.ld, beta, c.at, c.type, c.ld,
                            const_cast<void*>(d.at), d.type, d.ld, p.sums, kStandard, 0, 0);
    return table_.gemm_strided_batched_ex(handle_, of_a, of_b, p.m, p.n, p.k, alpha, a.at, a.type, a.ld, a.stride, b.at, b.type, b.ld,
                                          b.stride, beta, c.at, c.type, c.ld, c.stride, const_cast<void*>(d.at), d.type, d.ld, d.stride,
                                          p.batch, p.sums, kStandard, 0, 0);
  }

 private:
  Table table_;
  Handle handle_ = nullptr;  // of the context that was current when the library was opened
  std::string why_not_;
  mutable std::mutex mutex_;
};

int32_t sums_of(uint8_t dtype) { return dtype == kit::kDType_f64 ? kF64 : kF32; }

int32_t narrow(int64_t v) {
  if (v < 0 || v > std::numeric_limits<int32_t>::max()) throw kit::Error(KRN_STATUS_unsupported, "a product that rocBLAS does not count");
  return static_cast<int32_t>(v);
}

class GemmStep final : public codegen::Step {
 public:
  GemmStep(const Library& library, const codegen::AnchorDesc& anchor, const gpu::ProductProblem& p) : library_(library) {
    const TensorDesc &x = anchor.operands[0], &w = anchor.operands[1], &y = anchor.results[0];
    // D^T = B^T A^T in the library's column-major terms: its A is our right operand, its B our left one.
    call_ = {!p.b.transposed, !p.a.transposed, narrow(p.n), narrow(p.m), narrow(p.k), narrow(p.batch), sums_of(x.dtype), false};
    places_[0] = place(w, p.b), places_[1] = place(x, p.a), places_[2] = places_[3] = place(y, p.d);
    for (const codegen::PostOp& post : anchor.post_ops) {
      if (post.op != kit::kOp_add || call_.adds_c) throw kit::Error(KRN_STATUS_unsupported, "rocBLAS fuses a sum and nothing else");
      places_[2] = place(post.operand, p.c), call_.adds_c = true;
    }
    if (p.has_bias) throw kit::Error(KRN_STATUS_unsupported, "rocBLAS fuses no bias");
    text_ = "rocblas " + std::to_string(p.batch) + "x[" + std::to_string(p.m) + "x" + std::to_string(p.k) + "]x" + std::to_string(p.n);
  }
  krn_code run(const codegen::RunContext& context) const override {
    Library::Operand at[4];
    for (int i = 0; i < 4; ++i) {
      at[i] = places_[i].operand;
      at[i].at = static_cast<const char*>(context.buffers[places_[i].buffer]) + places_[i].bytes;
    }
    const int status = library_.multiply(reinterpret_cast<gpu::Stream>(context.run->stream.native), call_, at[0], at[1], at[2], at[3]);
    if (status == 0) return KRN_STATUS_ok;
    const krn_code code = status == kNotImplemented ? KRN_STATUS_unsupported : KRN_STATUS_internal;
    kit::set_error(context.err, code, text_ + ": status " + std::to_string(status));
    return code;
  }
  std::string describe() const override { return text_; }

 private:
  struct Place {
    uint32_t buffer;
    int64_t bytes;
    Library::Operand operand;
  };
  static Place place(const TensorDesc& t, const gpu::Matrix& m) {
    return {t.buffer, t.offset * codegen::dtype_bytes(t.dtype), {nullptr, type_of(t.dtype), narrow(m.ld), m.batch_stride}};
  }
  const Library& library_;
  Library::Call call_{};
  Place places_[4];
  std::string text_;
};

class RocblasProducts final : public gpu::ProductLibrary {
 public:
  RocblasProducts(std::vector<const char*> files, const gpu::Driver& driver) : files_(std::move(files)), driver_(driver) {}
  bool usable(std::string& why_not) const override { return library().usable(why_not); }
  bool fuses(uint8_t) const override { return false; }

  // A release without kernels for the device ends the process when one is asked of it: a small product of each type, while compiling, which
  // a child does.
  bool takes(uint8_t dtype, std::string& why_not) const override {
    if (!usable(why_not)) return false;
    const std::lock_guard lock(mutex_);
    const auto [at, is_new] = taken_.try_emplace(dtype, false);
    if (is_new) at->second = multiplies(dtype);
    if (!at->second) why_not = "rocBLAS has no products of this type on this device";
    return at->second;
  }
  std::unique_ptr<codegen::Step> make(const codegen::AnchorDesc& anchor, const gpu::ProductProblem& problem, bool /*tf32*/,
                                      gpu::Pick /*pick*/, double* seconds) const override {
    std::string why_not;
    if (!usable(why_not)) throw kit::Error(KRN_STATUS_unsupported, why_not);
    if (seconds) *seconds = 0;
    return std::make_unique<GemmStep>(library(), anchor, problem);
  }

 private:
  const Library& library() const {
    std::call_once(once_, [&] { library_.emplace(files_); });
    return *library_;
  }
  bool multiplies(uint8_t dtype) const {
    constexpr int32_t kSide = 16;
    gpu::Timer timer(driver_);
    void* memory = timer.memory(3 * kSide * kSide * sizeof(double));
    if (!memory) return false;
    const auto operand = [&](int i) {
      return Library::Operand{static_cast<char*>(memory) + static_cast<size_t>(i) * kSide * kSide * sizeof(double), type_of(dtype), kSide,
                              0};
    };
    return library().multiply(timer.stream(), {false, false, kSide, kSide, kSide, 1, sums_of(dtype), false}, operand(0), operand(1),
                              operand(2), operand(2)) == 0 &&
           driver_.wait(timer.stream()) == 0;
  }

  const std::vector<const char*> files_;
  const gpu::Driver& driver_;
  mutable std::once_flag once_;
  mutable std::optional<Library> library_;
  mutable std::mutex mutex_;
  mutable std::map<uint8_t, bool> taken_;
};

}  // namespace

std::unique_ptr<gpu::ProductLibrary> open_rocblas(std::vector<const char*> files, const gpu::Driver& driver) {
  return std::make_unique<RocblasProducts>(std::move(files), driver);
}

const gpu::ProductLibrary& hip_products() {
  static const auto* rocblas =
      open_rocblas({"librocblas.so.5", "librocblas.so.4", "librocblas.so.3", "librocblas.so.0", "librocblas.so"}, gpu_driver(64)).release();
  static const auto* products = gpu::either_products(hipblaslt_products(), *rocblas).release();
  return *products;
}

}  // namespace keirin::rocm
