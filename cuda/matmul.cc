// SPDX-License-Identifier: Apache-2.0
#include "cuda/matmul.h"

#include <algorithm>
#include <mutex>
#include <optional>
#include <vector>

#include "cuda/cublaslt.h"
#include "cuda/matmul_race.h"
#include "plugins/codegen/rows.h"
#include "plugins/kit/error.h"
#include "plugins/kit/tables.h"

namespace keirin::cuda {
namespace {

using codegen::AnchorDesc;
using codegen::PostOp;
using codegen::TensorDesc;
using gpu::Matrix;
using gpu::ProductProblem;

constexpr int kGuesses = 8;                    // of the library, that are raced
constexpr int64_t kWorkspaceBytes = 32 << 20;  // what NVIDIA advises for Hopper's split-K and stream-K kernels

std::optional<int32_t> data_type(uint8_t dtype) {
  switch (dtype) {
    case kit::kDType_f32: return lt::kReal32F;
    case kit::kDType_f64: return lt::kReal64F;
    case kit::kDType_f16: return lt::kReal16F;
    case kit::kDType_bf16: return lt::kReal16BF;
    default: return std::nullopt;
  }
}

void check_lt(int result, const char* what) {
  if (result != 0) throw kit::Error(result == 15 ? KRN_STATUS_unsupported : KRN_STATUS_internal, std::string(what) + ": cuBLAS status " + std::to_string(result));
}

class MatmulStep final : public codegen::Step {
 public:
  MatmulStep(const AnchorDesc& anchor, const ProductProblem& problem, bool tf32, bool raced);
  ~MatmulStep() override {
    for (lt::Layout layout : {a_, b_, c_, d_}) if (layout) api_->cublasLtMatrixLayoutDestroy(layout);
    if (desc_) api_->cublasLtMatmulDescDestroy(desc_);
  }
  krn_code run(const codegen::RunContext& context) const override;
  std::string describe() const override { return text_; }
  int64_t workspace_bytes() const override { return static_cast<int64_t>(workspace_bytes_); }
  double seconds() const { return seconds_; }
  void set_workspace(uint32_t buffer) override { workspace_ = buffer; }

 private:
  lt::Layout layout(int32_t type, const Matrix& m, int64_t rows, int64_t cols);
  void* address(const codegen::RunContext& context, const TensorDesc& t) const {
    return static_cast<char*>(context.buffers[t.buffer]) + t.offset * codegen::dtype_bytes(t.dtype);
  }
  bool aligned(const codegen::RunContext& context) const;
  const lt::Algo* loose_algorithm(lt::Desc desc) const;

  const CublasLt* api_;
  TensorDesc left_, right_, bias_, residual_, result_;
  lt::Desc desc_ = nullptr;
  lt::Layout a_ = nullptr, b_ = nullptr, c_ = nullptr, d_ = nullptr;
  lt::Algo algo_{};
  mutable std::once_flag asked_loose_;
  mutable std::optional<lt::Algo> loose_;  // for operands that start between words, asked for when the first one comes
  size_t workspace_bytes_ = 0;
  double seconds_ = 0;
  uint32_t workspace_ = KRN_NO_BUFFER;
  int64_t element_bytes_ = 4;
  bool f64_ = false;
  uint32_t epilogue_ = lt::kEpilogueDefault;
  std::string text_;
  static constexpr uint32_t KRN_NO_BUFFER = 0xffffffffu;
};

// Our rows x cols matrix m, seen column-major: cols x rows if it is row-major in memory.
lt::Layout MatmulStep::layout(int32_t type, const Matrix& m, int64_t rows, int64_t cols) {
  lt::Layout out = nullptr;
  check_lt(m.transposed ? api_->cublasLtMatrixLayoutCreate(&out, type, cols, rows, m.ld)
                        : api_->cublasLtMatrixLayoutCreate(&out, type, rows, cols, m.ld), "cublasLtMatrixLayoutCreate");
  if (m.batch > 1) {
    int32_t count = static_cast<int32_t>(m.batch);
    api_->cublasLtMatrixLayoutSetAttribute(out, lt::kLayoutBatchCount, &count, sizeof count);
    api_->cublasLtMatrixLayoutSetAttribute(out, lt::kLayoutBatchStride, &m.batch_stride, sizeof m.batch_stride);
  }
  return out;
}

// Bytes from the first element to the last of rows x cols, in every batch.
size_t span_bytes(const Matrix& m, int64_t rows, int64_t cols, int64_t element_bytes) {
  const int64_t one = m.transposed ? (rows - 1) * m.ld + cols : (cols - 1) * m.ld + rows;
  return static_cast<size_t>(((m.batch - 1) * m.batch_stride + one) * element_bytes);
}

// What an operand's address is surely a multiple of: buffers start at multiples of 256.
uint32_t alignment(const TensorDesc& t) {
  const uint64_t offset = static_cast<uint64_t>(t.offset * codegen::dtype_bytes(t.dtype)) | 256;
  return static_cast<uint32_t>(offset & ~(offset - 1));
}

std::string matrix_key(const Matrix& m) {
  std::string out;
  for (int64_t v : {int64_t{m.transposed}, m.ld, m.batch_stride}) out += "/" + std::to_string(v);
  return out;
}

MatmulStep::MatmulStep(const AnchorDesc& anchor, const ProductProblem& p, bool tf32, bool raced)
    : left_(anchor.operands[0]), right_(anchor.operands[1]), result_(anchor.results[0]) {
  std::string why_not;
  api_ = CublasLt::get(why_not);
  if (!api_) throw kit::Error(KRN_STATUS_unsupported, why_not);
  const int32_t type = *data_type(left_.dtype), result_type = *data_type(result_.dtype);
  f64_ = type == lt::kReal64F;
  element_bytes_ = codegen::dtype_bytes(left_.dtype);
  const int64_t result_bytes = codegen::dtype_bytes(result_.dtype);
  const int32_t compute = f64_ ? lt::kCompute64F : tf32 && type == lt::kReal32F ? lt::kCompute32FFastTf32 : lt::kCompute32F;
  check_lt(api_->cublasLtMatmulDescCreate(&desc_, compute, f64_ ? lt::kReal64F : lt::kReal32F), "cublasLtMatmulDescCreate");
  // D^T = B^T A^T in the library's column-major terms: its A is our right operand, its B our left one.
  const int32_t op_right = p.b.transposed ? lt::kOpN : lt::kOpT, op_left = p.a.transposed ? lt::kOpN : lt::kOpT;
  check_lt(api_->cublasLtMatmulDescSetAttribute(desc_, lt::kDescTransA, &op_right, sizeof op_right), "transpose");
  check_lt(api_->cublasLtMatmulDescSetAttribute(desc_, lt::kDescTransB, &op_left, sizeof op_left), "transpose");
  if (p.has_bias) bias_ = anchor.operands[2], epilogue_ = lt::kEpilogueBias;
  for (const PostOp& post : anchor.post_ops) {
    if (post.op == kit::kOp_add) residual_ = post.operand;
    if (post.op == kit::kOp_relu) epilogue_ = (epilogue_ & ~lt::kEpilogueDefault) | lt::kEpilogueRelu;
    if (post.op == kit::kOp_gelu_tanh) epilogue_ = (epilogue_ & ~lt::kEpilogueDefault) | lt::kEpilogueGelu;
  }
  check_lt(api_->cublasLtMatmulDescSetAttribute(desc_, lt::kDescEpilogue, &epilogue_, sizeof epilogue_), "epilogue");
  // The library judges the bias pointer's alignment; LibTorch's allocations are aligned to 256 bytes and weights start there.
  const void* probe = bias_.present() ? reinterpret_cast<const void*>(uintptr_t{4096} + static_cast<uintptr_t>(bias_.offset * result_bytes)) : nullptr;
  if (probe) check_lt(api_->cublasLtMatmulDescSetAttribute(desc_, lt::kDescBiasPointer, &probe, sizeof probe), "bias");
  a_ = layout(type, p.b, p.k, p.n);
  b_ = layout(type, p.a, p.m, p.k);
  d_ = layout(result_type, p.d, p.m, p.n);
  c_ = layout(result_type, p.c, p.m, p.n);

  lt::Preference preference = nullptr;
  check_lt(api_->cublasLtMatmulPreferenceCreate(&preference), "cublasLtMatmulPreferenceCreate");
  size_t limit = kWorkspaceBytes;
  api_->cublasLtMatmulPreferenceSetAttribute(preference, lt::kPreferenceMaxWorkspace, &limit, sizeof limit);
  std::string key = std::to_string(p.batch) + "x[" + std::to_string(p.m) + "x" + std::to_string(p.k) + "]x" + std::to_string(p.n);
  text_ = "cublaslt " + key;
  key += matrix_key(p.a) + matrix_key(p.b) + matrix_key(p.c) + matrix_key(p.d);
  for (int32_t v : {type, result_type, compute, static_cast<int32_t>(epilogue_), static_cast<int32_t>(residual_.present())}) key += "/" + std::to_string(v);
  const TensorDesc* const operands[] = {&right_, &left_, residual_.present() ? &residual_ : &result_, &result_};
  for (int i = 0; i < 4; ++i) {
    const uint32_t bytes = alignment(*operands[i]);
    api_->cublasLtMatmulPreferenceSetAttribute(preference, lt::kPreferenceMinAlignment + i, &bytes, sizeof bytes);
    key += "/" + std::to_string(bytes);
  }
  lt::Heuristic found[kGuesses];
  int count = 0;
  int result = api_->cublasLtMatmulAlgoGetHeuristic(api_->handle, desc_, a_, b_, c_, d_, preference, kGuesses, found, &count);
  api_->cublasLtMatmulPreferenceDestroy(preference);
  if (result != 0 || count == 0) throw kit::Error(KRN_STATUS_unsupported, "cuBLASLt has no algorithm for this product");
  Product product{desc_, a_, b_, c_, d_};
  product.a_bytes = span_bytes(p.b, p.k, p.n, element_bytes_);
  product.b_bytes = span_bytes(p.a, p.m, p.k, element_bytes_);
  product.c_bytes = residual_.present() ? span_bytes(p.c, p.m, p.n, result_bytes) : 0;
  product.d_bytes = span_bytes(p.d, p.m, p.n, result_bytes);
  product.bias_bytes = p.has_bias ? static_cast<size_t>(p.n * result_bytes) : 0;
  product.f64 = f64_;
  const Choice choice = choose_algorithm(*api_, key, product, {found, static_cast<size_t>(count)}, raced);
  algo_ = choice.algo;
  workspace_bytes_ = choice.workspace_bytes;
  seconds_ = static_cast<double>(choice.microseconds) * 1e-6;
  text_ += " guess " + std::to_string(choice.place + 1) + " of " + std::to_string(count);
  if (choice.microseconds > 0) text_ += " " + std::to_string(choice.microseconds) + " us";
}

// Whether the operands start where the chosen algorithm was told.
bool MatmulStep::aligned(const codegen::RunContext& context) const {
  for (const TensorDesc* t : {&left_, &right_, &result_, &residual_, &bias_})
    if (t->present() && reinterpret_cast<uintptr_t>(context.buffers[t->buffer]) % 16 != 0) return false;
  return true;
}

// An algorithm for operands at any element. Null if the library has none.
const lt::Algo* MatmulStep::loose_algorithm(lt::Desc desc) const {
  std::call_once(asked_loose_, [&] {
    lt::Preference preference = nullptr;
    if (api_->cublasLtMatmulPreferenceCreate(&preference) != 0) return;
    api_->cublasLtMatmulPreferenceSetAttribute(preference, lt::kPreferenceMaxWorkspace, &workspace_bytes_, sizeof workspace_bytes_);
    const auto bytes = static_cast<uint32_t>(element_bytes_);
    for (int i = 0; i < 4; ++i) api_->cublasLtMatmulPreferenceSetAttribute(preference, lt::kPreferenceMinAlignment + i, &bytes, sizeof bytes);
    lt::Heuristic found;
    int count = 0;
    if (api_->cublasLtMatmulAlgoGetHeuristic(api_->handle, desc, a_, b_, c_, d_, preference, 1, &found, &count) == 0 && count > 0) loose_ = found.algo;
    api_->cublasLtMatmulPreferenceDestroy(preference);
  });
  return loose_ ? &*loose_ : nullptr;
}

krn_code MatmulStep::run(const codegen::RunContext& context) const {
  const float one = 1, zero = 0;
  const double one64 = 1, zero64 = 0;
  const bool residual = residual_.present();
  const void* alpha = f64_ ? static_cast<const void*>(&one64) : &one;
  const void* beta = residual ? alpha : f64_ ? static_cast<const void*>(&zero64) : &zero;
  void* d = address(context, result_);
  const void* c = residual ? address(context, residual_) : d;
  lt::Desc desc = desc_;
  // The bias address is part of the descriptor. Weights keep theirs, but two runs may overlap with different ones: own copy.
  struct alignas(16) { uint64_t words[64]; } copy;
  static_assert(sizeof copy >= 32 * sizeof(uint64_t), "cublasLtMatmulDescOpaque_t holds 32 words");
  if (bias_.present()) {
    __builtin_memcpy(&copy, desc_, 32 * sizeof(uint64_t));
    desc = reinterpret_cast<lt::Desc>(&copy);
    const void* bias = address(context, bias_);
    if (api_->cublasLtMatmulDescSetAttribute(desc, lt::kDescBiasPointer, &bias, sizeof bias) != 0) return KRN_STATUS_internal;
  }
  const lt::Algo* algo = aligned(context) ? &algo_ : loose_algorithm(desc);
  if (!algo) {
    kit::set_error(context.err, KRN_STATUS_unsupported, text_ + ": an operand does not start at a multiple of 16 bytes; eager answers");
    return KRN_STATUS_unsupported;
  }
  void* workspace = workspace_ == KRN_NO_BUFFER ? nullptr : context.buffers[workspace_];
  const int result = api_->cublasLtMatmul(api_->handle, desc, alpha, address(context, right_), a_, address(context, left_), b_, beta, c,
                                    c_, d, d_, algo, workspace, workspace ? workspace_bytes_ : 0,
                                    reinterpret_cast<void*>(context.run->stream.native));
  if (result == 0) return KRN_STATUS_ok;
  kit::set_error(context.err, KRN_STATUS_internal, text_ + ": cublasLtMatmul: status " + std::to_string(result));
  return KRN_STATUS_internal;
}

class CublasProducts final : public gpu::ProductLibrary {
 public:
  bool usable(std::string& why_not) const override { return CublasLt::get(why_not) != nullptr; }
  std::unique_ptr<codegen::Step> make(const AnchorDesc& anchor, const ProductProblem& problem, bool tf32, bool raced, double* seconds) const override {
    auto step = std::make_unique<MatmulStep>(anchor, problem, tf32, raced);
    if (seconds) *seconds = step->seconds();
    return step;
  }
};

}  // namespace

const gpu::ProductLibrary& cublas_products() {
  static const CublasProducts products;
  return products;
}

}  // namespace keirin::cuda
