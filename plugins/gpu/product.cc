// SPDX-License-Identifier: Apache-2.0
//
// From an anchor's strides to a product, or why there is none.
#include "plugins/gpu/product.h"

#include <algorithm>
#include <optional>

#include "plugins/codegen/kernel/rows.h"
#include "plugins/gpu/library_tail.h"
#include "plugins/kit/error.h"
#include "plugins/kit/tables.h"

namespace keirin::gpu {
namespace {

using codegen::AnchorDesc;
using codegen::PostOp;
using codegen::TensorDesc;

// Leading axes as one batch axis: possible if each stride is the next one times its size.
bool collapse(const TensorDesc& t, size_t axes, int64_t& size, int64_t& stride) {
  size = 1, stride = 0;
  for (size_t d = axes; d-- > 0;) {
    if (t.sizes[d] == 1) continue;
    if (size == 1) stride = t.strides[d];
    else if (t.strides[d] != stride * size) return false;
    size *= t.sizes[d];
  }
  return true;
}

// rows x cols with the given strides; one of them must be dense.
std::optional<Matrix> matrix_of(int64_t rows, int64_t row_stride, int64_t cols, int64_t col_stride) {
  Matrix m;
  if (col_stride == 1 || cols == 1) {
    m.transposed = true;
    m.ld = std::max<int64_t>(rows == 1 ? cols : row_stride, std::max<int64_t>(cols, 1));
    return rows == 1 || row_stride >= cols ? std::optional(m) : std::nullopt;
  }
  if (row_stride == 1 || rows == 1) {
    m.ld = std::max<int64_t>(cols == 1 ? rows : col_stride, std::max<int64_t>(rows, 1));
    return cols == 1 || col_stride >= rows ? std::optional(m) : std::nullopt;
  }
  return std::nullopt;
}

const TensorDesc* residual_of(const AnchorDesc& anchor) {
  for (const PostOp& post : anchor.post_ops)
    if (post.op == kit::kOp_add) return &post.operand;
  return nullptr;
}

std::optional<Matrix> rows_matrix(const TensorDesc& t, int64_t rows) {
  // All leading axes of x [.., K] as one row axis.
  const size_t rank = t.sizes.size();
  int64_t size, stride;
  if (!collapse(t, rank - 1, size, stride)) return std::nullopt;
  return matrix_of(rows, stride, t.sizes[rank - 1], t.strides[rank - 1]);
}

std::optional<Matrix> batched(const TensorDesc& t, int64_t batch) {
  const size_t rank = t.sizes.size();
  auto m = matrix_of(t.sizes[rank - 2], t.strides[rank - 2], t.sizes[rank - 1], t.strides[rank - 1]);
  if (!m || !collapse(t, rank - 2, m->batch, m->batch_stride)) return std::nullopt;
  if (m->batch != batch && m->batch != 1) return std::nullopt;
  m->batch = batch;
  return m;
}

std::optional<ProductProblem> linear_problem(const AnchorDesc& anchor) {
  const TensorDesc &x = anchor.operands[0], &w = anchor.operands[1], &y = anchor.results[0];
  const size_t rank = x.sizes.size();
  ProductProblem p;
  p.k = x.sizes.back();
  p.n = w.sizes[0];
  p.m = 1;
  for (size_t d = 0; d + 1 < rank; ++d) p.m *= x.sizes[d];
  // A residual has the result's sizes and may lie otherwise.
  const TensorDesc& z = residual_of(anchor) ? *residual_of(anchor) : y;
  auto a = rows_matrix(x, p.m), c = rows_matrix(z, p.m), d = rows_matrix(y, p.m);
  auto b = matrix_of(p.k, w.strides[1], p.n, w.strides[0]);  // W^T
  if ((!a || !c || !d) && rank > 2) {
    // Rows that are no single axis, as in a transposed input: the axes before the last two are a batch over one W.
    p.batch = p.m / x.sizes[rank - 2];
    p.m = x.sizes[rank - 2];
    a = batched(x, p.batch), c = batched(z, p.batch), d = batched(y, p.batch);
    if (b) b->batch = p.batch;
  }
  if (!a || !b || !c || !c->transposed || !d || !d->transposed) return std::nullopt;
  p.a = *a, p.b = *b, p.c = *c, p.d = *d;
  p.has_bias = anchor.operands.size() > 2 && anchor.operands[2].present();
  if (p.has_bias && anchor.operands[2].strides[0] != 1 && p.n > 1) return std::nullopt;
  return p;
}

std::optional<ProductProblem> matmul_problem(const AnchorDesc& anchor) {
  const TensorDesc &x = anchor.operands[0], &w = anchor.operands[1], &y = anchor.results[0];
  const size_t rank = x.sizes.size();
  ProductProblem p;
  p.m = x.sizes[rank - 2], p.k = x.sizes[rank - 1], p.n = w.sizes[rank - 1];
  for (size_t d = 0; d + 2 < rank; ++d) p.batch *= x.sizes[d];
  const TensorDesc& z = residual_of(anchor) ? *residual_of(anchor) : y;
  auto a = batched(x, p.batch), b = batched(w, p.batch), c = batched(z, p.batch), d = batched(y, p.batch);
  if (!a || !b || !c || !c->transposed || !d || !d->transposed) return std::nullopt;
  p.a = *a, p.b = *b, p.c = *c, p.d = *d;
  return p;
}

std::optional<ProductProblem> problem_of(const AnchorDesc& anchor) {
  for (const TensorDesc& t : anchor.operands)
    if (t.present())
      for (int64_t size : t.sizes)
        if (size == 0) return std::nullopt;
  if (anchor.op == kit::kOp_linear) return linear_problem(anchor);
  if (anchor.op == kit::kOp_matmul) return matmul_problem(anchor);
  return std::nullopt;
}

bool same_layout(const TensorDesc& a, const TensorDesc& b) {
  return a.dtype == b.dtype && a.sizes == b.sizes && a.strides == b.strides;
}

}  // namespace

bool product_taken(const AnchorDesc& anchor, std::string& why_not) {
  const uint8_t dtype = anchor.results[0].dtype;
  if (dtype != kit::kDType_f32 && dtype != kit::kDType_f64 && dtype != kit::kDType_f16 && dtype != kit::kDType_bf16) {
    why_not = "products take f16, bf16, f32 and f64 here";
    return false;
  }
  if (!problem_of(anchor)) {
    why_not = "an operand's rows and columns are both strided, or its batch axes do not collapse";
    return false;
  }
  return true;
}

bool product_takes_post_op(const AnchorDesc& anchor, const PostOp& post) {
  // D = activation(A * B + residual + bias): a residual comes before the activation, and nothing after it.
  bool activated = false, has_residual = false;
  for (const PostOp& each : anchor.post_ops) {
    if (each.op == kit::kOp_add) has_residual = true;
    else activated = true;
  }
  if (activated) return false;
  if (post.op == kit::kOp_add) return !has_residual && same_layout(post.operand, anchor.results[0]);
  // cuBLASLt's tanh is right to 16-bit results and no further: in f32 it was off by twenty times what LibTorch's is.
  const uint8_t dtype = anchor.results[0].dtype;
  const bool narrow = dtype == kit::kDType_f16 || dtype == kit::kDType_bf16;
  return post.op == kit::kOp_relu || (post.op == kit::kOp_gelu_tanh && narrow);
}

bool product_takes_epilogue(const AnchorDesc& anchor) {
  AnchorDesc so_far = anchor;
  so_far.post_ops.clear();
  for (const PostOp& post : anchor.post_ops) {
    if (!product_takes_post_op(so_far, post)) return false;
    so_far.post_ops.push_back(post);
  }
  return true;
}

namespace {

bool is_bare(const AnchorDesc& anchor) { return anchor.post_ops.empty() && (anchor.operands.size() < 3 || !anchor.operands[2].present()); }

AnchorDesc bare(const AnchorDesc& anchor) {
  AnchorDesc out = anchor;
  out.post_ops.clear();
  out.operands.resize(2);
  return out;
}

// Of a kernel that reads and writes what the library just wrote.
double tail_seconds(const ProductProblem& p, uint8_t dtype, const codegen::TargetInfo& target) {
  const double bytes = 2.0 * static_cast<double>(p.batch * p.m * p.n * codegen::dtype_bytes(dtype));
  return target.launch_ns * 1e-9 + bytes / target.bytes_per_s;
}

// Null with the reason where the batches of the result do not lie one behind the other.
std::optional<TextKernel> tail_of(const AnchorDesc& anchor, const ProductProblem& p, std::string& why_not) {
  if (p.batch > 1 && p.d.batch_stride != p.m * p.d.ld) return why_not = "a result whose batches lie apart", std::nullopt;
  return library_tail(anchor, {p.batch * p.m * p.n, p.n, p.d.ld, 1, p.n}, why_not);
}

class WithTail final : public codegen::Step {
 public:
  WithTail(std::unique_ptr<codegen::Step> product, std::unique_ptr<codegen::Step> tail)
      : product_(std::move(product)), tail_(std::move(tail)) {}
  krn_code run(const codegen::RunContext& context) const override {
    const krn_code code = product_->run(context);
    return code == KRN_STATUS_ok ? tail_->run(context) : code;
  }
  std::string describe() const override { return product_->describe() + ", " + tail_->describe(); }
  int64_t workspace_bytes() const override { return product_->workspace_bytes(); }
  void set_workspace(uint32_t buffer) override { product_->set_workspace(buffer); }

 private:
  std::unique_ptr<codegen::Step> product_, tail_;
};

class Either final : public ProductLibrary {
 public:
  Either(const ProductLibrary& first, const ProductLibrary& second) : first_(first), second_(second) {}
  bool usable(std::string& why_not) const override {
    std::string why_not_second;
    if (first_.usable(why_not) || second_.usable(why_not_second)) return true;
    why_not += "; " + why_not_second;
    return false;
  }
  bool takes(uint8_t dtype, std::string& why_not) const override { return of(dtype).takes(dtype, why_not); }
  bool fuses(uint8_t dtype) const override { return of(dtype).fuses(dtype); }
  std::unique_ptr<codegen::Step> make(const AnchorDesc& anchor, const ProductProblem& problem, bool tf32, Pick pick,
                                      double* seconds) const override {
    return of(anchor.operands[0].dtype).make(anchor, problem, tf32, pick, seconds);
  }

 private:
  const ProductLibrary& of(uint8_t dtype) const {
    std::string ignored;
    return first_.takes(dtype, ignored) ? first_ : second_;
  }
  const ProductLibrary &first_, &second_;
};

}  // namespace

std::unique_ptr<ProductLibrary> either_products(const ProductLibrary& first, const ProductLibrary& second) {
  return std::make_unique<Either>(first, second);
}

bool product_tail_taken(const AnchorDesc& anchor, const ProductLibrary& library, std::string& why_not) {
  if (is_bare(anchor) || library.fuses(anchor.operands[0].dtype)) return true;
  const auto problem = problem_of(anchor);
  return problem && tail_of(anchor, *problem, why_not);
}

std::unique_ptr<codegen::Step> make_product(const AnchorDesc& anchor, const Gpu& gpu, const CodeTarget& target, bool load, bool tf32,
                                            Pick pick, double* seconds) {
  auto problem = problem_of(anchor);
  if (!problem) throw kit::Error(KRN_STATUS_unsupported, "the library of products does not take this layout");
  const bool rounds = tf32 && !anchor.ieee, fuses = gpu.products->fuses(anchor.operands[0].dtype), known = product_takes_epilogue(anchor);
  if (is_bare(anchor) || (fuses && known)) return gpu.products->make(anchor, *problem, rounds, pick, seconds);
  // The tail adds to a result that is rounded, which in 16 bits is to be seen.
  if (fuses && anchor.results[0].dtype != kit::kDType_f32) throw kit::Error(KRN_STATUS_unsupported, "an epilogue that no library fuses");
  std::string why_not;
  const auto tail = tail_of(anchor, *problem, why_not);
  if (!tail) throw kit::Error(KRN_STATUS_unsupported, why_not);
  const AnchorDesc product = bare(anchor);
  auto made = gpu.products->make(product, *problem_of(product), rounds, pick, seconds);
  if (seconds && *seconds > 0) *seconds += tail_seconds(*problem, anchor.results[0].dtype, gpu.info);
  return std::make_unique<WithTail>(std::move(made), make_text_step(*tail, target, load));
}

}  // namespace keirin::gpu
