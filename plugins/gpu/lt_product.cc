// SPDX-License-Identifier: Apache-2.0
#include "plugins/gpu/lt_product.h"

#include <algorithm>
#include <bit>
#include <utility>
#include <vector>

#include "plugins/codegen/kernel/rows.h"
#include "plugins/gpu/lt_race.h"
#include "plugins/kit/error.h"
#include "plugins/kit/tables.h"

namespace keirin::gpu {
namespace {

using codegen::AnchorDesc;
using codegen::PostOp;
using codegen::TensorDesc;

constexpr int kGuesses = 8;                    // of the library, that are raced
constexpr int64_t kWorkspaceBytes = 32 << 20;  // what a vendor advises for its split-K and stream-K kernels
constexpr size_t kMostDescBytes = 512;

std::optional<int32_t> data_type(const lt::Vendor& vendor, uint8_t dtype) {
  switch (dtype) {
    case kit::kDType_f32: return vendor.types.f32;
    case kit::kDType_f64: return vendor.types.f64;
    case kit::kDType_f16: return vendor.types.f16;
    case kit::kDType_bf16: return vendor.types.bf16;
    default: return std::nullopt;
  }
}

void check_lt(const lt::Table& api, int result, const char* what) {
  if (result == 0) return;
  throw kit::Error(result == api.vendor->unsupported ? KRN_STATUS_unsupported : KRN_STATUS_internal,
                   std::string(what) + ": " + api.vendor->name + " status " + std::to_string(result));
}

// A preference with the most workspace set; null if the library gives none.
class Preference {
 public:
  Preference(const lt::Table& api, size_t workspace_bytes) : api_(api) {
    if (api_.MatmulPreferenceCreate(&preference_) != 0) preference_ = nullptr;
    if (preference_) api_.MatmulPreferenceSetAttribute(preference_, api_.vendor->most_workspace, &workspace_bytes, sizeof workspace_bytes);
  }
  ~Preference() {
    if (preference_) api_.MatmulPreferenceDestroy(preference_);
  }
  Preference(const Preference&) = delete;
  // Of A, B, C or D.
  void align(int operand, uint32_t bytes) {
    if (api_.vendor->least_alignment >= 0)
      api_.MatmulPreferenceSetAttribute(preference_, api_.vendor->least_alignment + operand, &bytes, sizeof bytes);
  }
  lt::Preference get() const { return preference_; }

 private:
  const lt::Table& api_;
  lt::Preference preference_ = nullptr;
};

class MatmulStep final : public codegen::Step {
 public:
  MatmulStep(const lt::Table& api, const AnchorDesc& anchor, const ProductProblem& problem, bool tf32, Pick pick);
  ~MatmulStep() override {
    for (lt::Layout layout : {a_, b_, c_, d_}) if (layout) api_.MatrixLayoutDestroy(layout);
    if (desc_) api_.MatmulDescDestroy(desc_);
  }
  krn_code run(const codegen::RunContext& context) const override;
  std::string describe() const override { return text_; }
  int64_t workspace_bytes() const override { return static_cast<int64_t>(workspace_bytes_); }
  double seconds() const { return seconds_; }
  void set_workspace(uint32_t buffer) override { workspace_ = buffer; }

 private:
  void set(int attribute, const void* value, size_t bytes, const char* what) {
    check_lt(api_, api_.MatmulDescSetAttribute(desc_, attribute, value, bytes), what);
  }
  lt::Layout layout(int32_t type, const Matrix& m, int64_t rows, int64_t cols);
  void* address(const codegen::RunContext& context, const TensorDesc& t) const {
    return static_cast<char*>(context.buffers[t.buffer]) + t.offset * codegen::dtype_bytes(t.dtype);
  }
  bool aligned(const codegen::RunContext& context) const;
  const lt::Algo* loose_algorithm(lt::Desc desc) const;

  const lt::Table& api_;
  TensorDesc left_, right_, bias_, residual_, result_;
  lt::Desc desc_ = nullptr;
  lt::Layout a_ = nullptr, b_ = nullptr, c_ = nullptr, d_ = nullptr;
  lt::Algo algo_{};
  mutable std::once_flag asked_loose_;
  mutable std::mutex one_bias_;  // where a descriptor cannot be copied: from its bias to the call
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
  check_lt(api_,
           m.transposed ? api_.MatrixLayoutCreate(&out, type, cols, rows, m.ld) : api_.MatrixLayoutCreate(&out, type, rows, cols, m.ld),
           "the layout of a matrix");
  if (m.batch > 1) {
    int32_t count = static_cast<int32_t>(m.batch);
    api_.MatrixLayoutSetAttribute(out, api_.vendor->batch_count, &count, sizeof count);
    api_.MatrixLayoutSetAttribute(out, api_.vendor->batch_stride, &m.batch_stride, sizeof m.batch_stride);
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

// Sizes for which a library has the same kernels and, as a rule, the same favourite: less than an eighth apart, and multiples of the same
// powers of two, as far as wide loads and tiles ask for them.
std::string such_a_size(int64_t size) {
  constexpr int kBits = 4;            // that count, the first ones
  constexpr int64_t kTile = 1 << 7;  // the largest power of two that matters
  const auto bits = static_cast<int>(std::bit_width(static_cast<uint64_t>(size)));
  const int64_t share = bits > kBits ? size >> (bits - kBits) : size;
  const int64_t power = std::min((size | kTile) & -(size | kTile), kTile);
  return std::to_string(bits) + "." + std::to_string(share) + "." + std::to_string(power);
}

Keys keys_of(const ProductProblem& p) {
  Keys keys;
  keys.problem = std::to_string(p.batch) + "x[" + std::to_string(p.m) + "x" + std::to_string(p.k) + "]x" + std::to_string(p.n);
  for (const Matrix* m : {&p.a, &p.b, &p.c, &p.d}) {
    keys.problem += matrix_key(*m);
    keys.such_sizes += m->transposed ? "t" : "n";
    for (const int64_t each : {m->ld, m->batch_stride}) keys.such_sizes += "/" + std::to_string(each & -each & 15);
  }
  for (const int64_t size : {p.batch, p.m, p.k, p.n}) keys.such_sizes += "/" + such_a_size(size);
  return keys;
}

MatmulStep::MatmulStep(const lt::Table& api, const AnchorDesc& anchor, const ProductProblem& p, bool tf32, Pick pick)
    : api_(api), left_(anchor.operands[0]), right_(anchor.operands[1]), result_(anchor.results[0]) {
  const lt::Vendor& vendor = *api_.vendor;
  const int32_t type = *data_type(vendor, left_.dtype), result_type = *data_type(vendor, result_.dtype);
  f64_ = type == vendor.types.f64;
  element_bytes_ = codegen::dtype_bytes(left_.dtype);
  const int64_t result_bytes = codegen::dtype_bytes(result_.dtype);
  const int32_t sums = f64_ ? vendor.sums.f64 : tf32 && type == vendor.types.f32 ? vendor.sums.tf32 : vendor.sums.f32;
  check_lt(api_, api_.MatmulDescCreate(&desc_, sums, f64_ ? vendor.types.f64 : vendor.types.f32), "the descriptor of a product");
  // D^T = B^T A^T in the library's column-major terms: its A is our right operand, its B our left one.
  const int32_t op_right = p.b.transposed ? vendor.as_is : vendor.transposed, op_left = p.a.transposed ? vendor.as_is : vendor.transposed;
  set(vendor.transpose_a, &op_right, sizeof op_right, "transpose");
  set(vendor.transpose_b, &op_left, sizeof op_left, "transpose");
  if (p.has_bias) bias_ = anchor.operands[2], epilogue_ = lt::kEpilogueBias;
  for (const PostOp& post : anchor.post_ops) {
    if (post.op == kit::kOp_add) residual_ = post.operand;
    if (post.op == kit::kOp_relu) epilogue_ = (epilogue_ & ~lt::kEpilogueDefault) | lt::kEpilogueRelu;
    if (post.op == kit::kOp_gelu_tanh) epilogue_ = (epilogue_ & ~lt::kEpilogueDefault) | lt::kEpilogueGelu;
  }
  set(vendor.epilogue, &epilogue_, sizeof epilogue_, "epilogue");
  // The library judges the bias pointer's alignment; LibTorch's allocations are aligned to 256 bytes and weights start there.
  const void* probe =
      bias_.present() ? reinterpret_cast<const void*>(uintptr_t{4096} + static_cast<uintptr_t>(bias_.offset * result_bytes)) : nullptr;
  if (probe) set(vendor.bias_address, &probe, sizeof probe, "bias");
  if (probe && vendor.bias_type >= 0) set(vendor.bias_type, &result_type, sizeof result_type, "bias");
  a_ = layout(type, p.b, p.k, p.n);
  b_ = layout(type, p.a, p.m, p.k);
  d_ = layout(result_type, p.d, p.m, p.n);
  c_ = layout(result_type, p.c, p.m, p.n);

  Preference preference(api_, kWorkspaceBytes);
  if (!preference.get()) throw kit::Error(KRN_STATUS_internal, std::string(vendor.name) + " gives no preference");
  Keys keys = keys_of(p);
  text_ = vendor.name + (" " + keys.problem.substr(0, keys.problem.find('/')));
  std::string rest;
  for (int32_t v : {type, result_type, sums, static_cast<int32_t>(epilogue_), static_cast<int32_t>(residual_.present())})
    rest += "/" + std::to_string(v);
  const TensorDesc* const operands[] = {&right_, &left_, residual_.present() ? &residual_ : &result_, &result_};
  for (int i = 0; i < 4; ++i) {
    const uint32_t bytes = alignment(*operands[i]);
    preference.align(i, bytes);
    rest += "/" + std::to_string(bytes);
  }
  keys.problem += rest, keys.such_sizes += rest;
  const auto ask = [&](int most) { return api_.guesses(desc_, a_, b_, c_, d_, preference.get(), most); };
  const auto checked = [&](const lt::Guess& guess) { return api_.checked(desc_, a_, b_, c_, d_, guess.algo, kWorkspaceBytes); };
  const std::vector<lt::Guess> found = pick == Pick::kFastest ? ask(kGuesses) : std::vector<lt::Guess>();
  std::optional<lt::Guess> guess;  // that is not raced
  if (pick == Pick::kLikeOthers) guess = algorithm_like_others(api_, keys, checked);
  const bool like_others = guess.has_value();
  if (!guess && pick != Pick::kFastest) guess = first_algorithm(api_, keys, [&] { return ask(1); });
  if (found.empty() && !guess) throw kit::Error(KRN_STATUS_unsupported, std::string(vendor.name) + " has no algorithm for this product");
  Product product{desc_, a_, b_, c_, d_};
  product.a_bytes = span_bytes(p.b, p.k, p.n, element_bytes_);
  product.b_bytes = span_bytes(p.a, p.m, p.k, element_bytes_);
  product.c_bytes = residual_.present() ? span_bytes(p.c, p.m, p.n, result_bytes) : 0;
  product.d_bytes = span_bytes(p.d, p.m, p.n, result_bytes);
  product.bias_bytes = p.has_bias ? static_cast<size_t>(p.n * result_bytes) : 0;
  product.f64 = f64_;
  const Choice choice = guess ? Choice{guess->algo, guess->workspace_bytes} : choose_algorithm(api_, keys, product, found);
  algo_ = choice.algo;
  workspace_bytes_ = choice.workspace_bytes;
  seconds_ = static_cast<double>(choice.microseconds) * 1e-6;
  text_ += like_others ? " as such sizes have"
           : guess     ? " first guess"
                       : " guess " + std::to_string(choice.place + 1) + " of " + std::to_string(found.size());
  if (choice.microseconds > 0) text_ += " " + std::to_string(choice.microseconds) + " us";
}

// Whether the operands start where the chosen algorithm was told.
bool MatmulStep::aligned(const codegen::RunContext& context) const {
  if (api_.vendor->least_alignment < 0) return true;  // nothing was asked for: the library takes any element
  for (const TensorDesc* t : {&left_, &right_, &result_, &residual_, &bias_})
    if (t->present() && reinterpret_cast<uintptr_t>(context.buffers[t->buffer]) % 16 != 0) return false;
  return true;
}

// An algorithm for operands at any element. Null if the library has none.
const lt::Algo* MatmulStep::loose_algorithm(lt::Desc desc) const {
  std::call_once(asked_loose_, [&] {
    Preference preference(api_, workspace_bytes_);
    if (!preference.get()) return;
    for (int i = 0; i < 4; ++i) preference.align(i, static_cast<uint32_t>(element_bytes_));
    const std::vector<lt::Guess> found = api_.guesses(desc, a_, b_, c_, d_, preference.get(), 1);
    if (!found.empty()) loose_ = found[0].algo;
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
  // The bias address is part of the descriptor. Weights keep theirs, but two runs may overlap with different ones: own copy, or turns.
  alignas(16) char copy[kMostDescBytes];
  std::unique_lock<std::mutex> turn;
  if (bias_.present()) {
    if (const size_t bytes = api_.vendor->desc_bytes; bytes > 0) {
      __builtin_memcpy(copy, desc_, std::min(bytes, sizeof copy));
      desc = reinterpret_cast<lt::Desc>(copy);
    } else {
      turn = std::unique_lock(one_bias_);
    }
    const void* bias = address(context, bias_);
    if (api_.MatmulDescSetAttribute(desc, api_.vendor->bias_address, &bias, sizeof bias) != 0) return KRN_STATUS_internal;
  }
  const lt::Algo* algo = aligned(context) ? &algo_ : loose_algorithm(desc);
  if (!algo) {
    kit::set_error(context.err, KRN_STATUS_unsupported, text_ + ": an operand does not start at a multiple of 16 bytes; eager answers");
    return KRN_STATUS_unsupported;
  }
  void* workspace = workspace_ == KRN_NO_BUFFER ? nullptr : context.buffers[workspace_];
  const int result = api_.Matmul(api_.handle, desc, alpha, address(context, right_), a_, address(context, left_), b_, beta, c, c_, d, d_,
                                 algo, workspace, workspace ? workspace_bytes_ : 0, reinterpret_cast<void*>(context.run->stream.native));
  if (result == 0) return KRN_STATUS_ok;
  kit::set_error(context.err, KRN_STATUS_internal, text_ + ": its call: status " + std::to_string(result));
  return KRN_STATUS_internal;
}

}  // namespace

const lt::Table* LtProducts::table(std::string& why_not) const {
  std::call_once(once_, [&] { opened_.emplace(vendor_); });
  return opened_->table(why_not);
}

// Of some instruction sets a library knows few types, of others nothing: a small product of each is asked for.
bool LtProducts::proposes_any(uint8_t dtype) const {
  std::string ignored;
  const lt::Table& api = *table(ignored);
  constexpr int64_t kSide = 64;
  const int32_t type = *data_type(vendor_, dtype);
  const bool f64 = type == vendor_.types.f64;
  lt::Desc desc = nullptr;
  lt::Layout layout = nullptr;
  Preference preference(api, kWorkspaceBytes);
  const bool any = api.MatmulDescCreate(&desc, f64 ? vendor_.sums.f64 : vendor_.sums.f32, f64 ? type : vendor_.types.f32) == 0 &&
                   api.MatrixLayoutCreate(&layout, type, kSide, kSide, kSide) == 0 && preference.get() &&
                   !api.guesses(desc, layout, layout, layout, layout, preference.get(), 1).empty();
  if (layout) api.MatrixLayoutDestroy(layout);
  if (desc) api.MatmulDescDestroy(desc);
  return any;
}

bool LtProducts::takes(uint8_t dtype, std::string& why_not) const {
  if (!usable(why_not)) return false;
  if (vendor_.takes_all) return true;
  std::lock_guard lock(mutex_);
  if (!taken_[dtype]) taken_[dtype] = proposes_any(dtype);
  if (!*taken_[dtype]) why_not = std::string(vendor_.name) + " has no products of this type on this device";
  return *taken_[dtype];
}

std::unique_ptr<codegen::Step> LtProducts::make(const AnchorDesc& anchor, const ProductProblem& problem, bool tf32, Pick pick,
                                                double* seconds) const {
  std::string why_not;
  const lt::Table* api = table(why_not);
  if (!api) throw kit::Error(KRN_STATUS_unsupported, why_not);
  auto step = std::make_unique<MatmulStep>(*api, anchor, problem, tf32, pick);
  if (seconds) *seconds = step->seconds();
  return step;
}

}  // namespace keirin::gpu
