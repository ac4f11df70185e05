// SPDX-License-Identifier: Apache-2.0
//
// Interprets a kernel point by point. Row and column class differ in which axes a stage walks and where its scalars live.
#include "tests/unit/codegen/interp_backend.h"

#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

#include "abi/scalar.h"
#include "plugins/codegen/kernel/rows.h"
#include "plugins/codegen/region/region.h"
#include "plugins/kit/error.h"
#include "tests/unit/codegen/array.h"
#include "tests/unit/codegen/evaluate.h"

namespace keirin::codegen::test {
namespace {

class Interpreter {
 public:
  Interpreter(const Kernel& k, void* const* buffers) : k_(k), buffers_(buffers), at_(k.axes.size(), 0) {}

  krn_code run() {
    row_ = static_cast<const int32_t*>(k_.has_csr ? buffers_[k_.csr.row_ptr_buffer] : nullptr);
    perm_ = static_cast<const int32_t*>(k_.has_csr ? buffers_[k_.csr.perm_buffer] : nullptr);
    outer(0);
    return bad_index_ ? KRN_STATUS_invalid_input : KRN_STATUS_ok;
  }

 private:
  bool is_parallel(size_t axis) const {
    AxisKind kind = k_.axes[axis].kind;
    return kind == AxisKind::kOuter || (kind == AxisKind::kInner && k_.column);
  }

  void outer(size_t axis) {
    if (axis == k_.axes.size()) return row();
    if (!is_parallel(axis)) return outer(axis + 1);
    for (at_[axis] = 0; at_[axis] < k_.axes[axis].size; ++at_[axis]) outer(axis + 1);
    at_[axis] = 0;
  }

  void row() {
    scalars_.assign(k_.stages.size(), 0);
    for (size_t s = 0; s < k_.stages.size(); ++s) {
      stage_ = &k_.stages[s];
      if (stage_->reduce) {
        accumulator_ = start(*stage_);
        best_ = 0, position_ = 0, found_ = -1, mean_ = 0;
        walk(0);
        bool index = stage_->monoid == Monoid::kArgMax || stage_->monoid == Monoid::kArgMin;
        scalars_[s] = index ? static_cast<double>(std::max<int64_t>(found_, 0)) : accumulator_;
      } else if (stage_->once || k_.column) {
        visit();
      } else {
        walk(0);
      }
    }
  }

  static double start(const Stage& s) {
    bool integer = s.accumulator == Kind::kI64;
    double low = integer ? static_cast<double>(std::numeric_limits<int64_t>::min()) : -INFINITY;
    switch (s.monoid) {
      case Monoid::kProd:
      case Monoid::kAll: return 1;
      case Monoid::kMax: return low;
      case Monoid::kMin: return -low;
      default: return 0;
    }
  }

  void walk(size_t axis) {
    if (axis == k_.axes.size()) return visit();
    if (is_parallel(axis)) return walk(axis + 1);
    if (k_.axes[axis].kind == AxisKind::kSegment) {
      int64_t o = 0;
      for (size_t a = 0; a < k_.axes.size(); ++a) {
        if (k_.axes[a].kind == AxisKind::kOuter) o = at_[a];
      }
      for (int32_t p = row_[o]; p < row_[o + 1]; ++p) at_[axis] = perm_[p], walk(axis + 1);
    } else {
      for (at_[axis] = 0; at_[axis] < k_.axes[axis].size; ++at_[axis]) walk(axis + 1);
    }
    at_[axis] = 0;
  }

  void visit() {
    memo_.assign(k_.dag.nodes.size(), NAN);
    done_.assign(k_.dag.nodes.size(), false);
    if (stage_->reduce) fold(value(stage_->value));
    for (const Stage::Store& s : stage_->stores) {
      double v = value(s.node);
      const Access& a = k_.accesses[s.access];
      int64_t index = element(a);
      store_element(buffers_[k_.buffers[a.buffer].id], index, a.dtype, v);
    }
  }

  void fold(double v) {
    double& acc = accumulator_;
    bool single = stage_->accumulator == Kind::kF32;
    switch (stage_->monoid) {
      case Monoid::kSum: acc += v; break;
      case Monoid::kProd: acc *= v; break;
      case Monoid::kMax: acc = scalar::maximum(acc, v); break;
      case Monoid::kMin: acc = scalar::minimum(acc, v); break;
      case Monoid::kAny: acc = acc != 0 || v != 0; break;
      case Monoid::kAll: acc = acc != 0 && v != 0; break;
      case Monoid::kDeviations: {
        const double away = v - mean_;
        mean_ += away / static_cast<double>(++position_);
        acc += away * (v - mean_);
        break;
      }
      default: {
        bool better = stage_->monoid == Monoid::kArgMax ? v > best_ : v < best_;
        if (found_ < 0 || (best_ == best_ && (better || v != v))) found_ = position_, best_ = v;
        ++position_;
      }
    }
    (void)single;
  }

  int64_t form(const Linear& f) const {
    int64_t out = f.offset;
    for (size_t a = 0; a < at_.size(); ++a) out += f.coeff[a] * at_[a];
    return out;
  }
  bool inside(const Access& a) const {
    for (const Access::Guard& g : a.guards) {
      int64_t v = form(g.form);
      if (v < 0 || v >= g.limit) return false;
    }
    return true;
  }
  int64_t element(const Access& a) {
    int64_t out = form(a.index);
    for (const Access::Indirect& i : a.indirects) {
      int64_t v = static_cast<int64_t>(value(i.node));
      if (v < 0 || v >= i.limit) bad_index_ = true, v = 0;
      out += v * i.stride;
    }
    return out;
  }

  double value(int32_t id) {
    if (done_[id]) return memo_[id];
    done_[id] = true;
    return memo_[id] = compute(k_.dag.nodes[id]);
  }

  static double wrap(double v, uint64_t dtype) { return through_dtype(v, static_cast<uint8_t>(dtype)); }

  double compute(const Node& n) {
    using namespace scalar;
    auto a = [&] { return value(n.a); };
    auto b = [&] { return value(n.b); };
    auto bits = [&](auto f) { return static_cast<double>(f(static_cast<int64_t>(a()), static_cast<int64_t>(b()))); };
    switch (n.prim) {
      case Prim::kLoad: {
        const Access& access = k_.accesses[n.imm];
        if (!inside(access)) return access.fill;
        int64_t index = element(access);
        return load_element(buffers_[k_.buffers[access.buffer].id], index, access.dtype);
      }
      case Prim::kLiteral:
        return n.kind == Kind::kF32 || n.kind == Kind::kF64 ? std::bit_cast<double>(n.imm)
                                                            : static_cast<double>(static_cast<int64_t>(n.imm));
      case Prim::kCoord: return static_cast<double>(at_[n.imm]);
      case Prim::kScalar: return scalars_[n.imm];
      case Prim::kAdd: return a() + b();
      case Prim::kSub: return a() - b();
      case Prim::kMul: return a() * b();
      case Prim::kDiv: return a() / b();
      case Prim::kNeg: return -a();
      case Prim::kAbs: return std::fabs(a());
      case Prim::kMinimum: return minimum(a(), b());
      case Prim::kMaximum: return maximum(a(), b());
      case Prim::kSqrt: return std::sqrt(a());
      case Prim::kRsqrt: return 1 / std::sqrt(a());
      case Prim::kExp: return std::exp(a());
      case Prim::kExp2: return std::exp2(a());
      case Prim::kExpm1: return std::expm1(a());
      case Prim::kLog: return std::log(a());
      case Prim::kLog1p: return std::log1p(a());
      case Prim::kLog2: return std::log2(a());
      case Prim::kTanh: return std::tanh(a());
      case Prim::kErf: return std::erf(a());
      case Prim::kSin: return std::sin(a());
      case Prim::kCos: return std::cos(a());
      case Prim::kPow: return std::pow(a(), b());
      case Prim::kFloor: return std::floor(a());
      case Prim::kCeil: return std::ceil(a());
      case Prim::kTrunc: return std::trunc(a());
      case Prim::kRound: return std::nearbyint(a());
      case Prim::kFmod: return std::fmod(a(), b());
      case Prim::kLt: return a() < b();
      case Prim::kLe: return a() <= b();
      case Prim::kGt: return a() > b();
      case Prim::kGe: return a() >= b();
      case Prim::kEq: return a() == b();
      case Prim::kNe: return a() != b();
      case Prim::kIsNan: return a() != a();
      case Prim::kAnd: return bits([](int64_t x, int64_t y) { return x & y; });
      case Prim::kOr: return bits([](int64_t x, int64_t y) { return x | y; });
      case Prim::kXor: return bits([](int64_t x, int64_t y) { return x ^ y; });
      case Prim::kNot: return n.kind == Kind::kBool ? a() == 0 : static_cast<double>(~static_cast<int64_t>(a()));
      case Prim::kSelect: return value(n.a) != 0 ? value(n.b) : value(n.c);
      case Prim::kConvert: {
        double v = a();
        return n.kind == Kind::kI64 ? std::trunc(v) : n.kind == Kind::kF32 ? static_cast<double>(static_cast<float>(v)) : v;
      }
      case Prim::kRound16: return wrap(a(), n.imm);
    }
    return NAN;
  }

  const Kernel& k_;
  void* const* buffers_;
  Dims at_;
  const int32_t* row_ = nullptr;
  const int32_t* perm_ = nullptr;
  const Stage* stage_ = nullptr;
  Values scalars_, memo_;
  std::vector<bool> done_;
  double accumulator_ = 0, best_ = 0, mean_ = 0;
  int64_t position_ = 0, found_ = -1;
  bool bad_index_ = false;
};

class KernelStep : public Step {
 public:
  explicit KernelStep(const Together& kernels) {
    for (const Kernel* k : kernels) kernels_.push_back(*k);
  }
  // From the last to the first: what goes together needs no order.
  krn_code run(const RunContext& c) const override {
    krn_code code = KRN_STATUS_ok;
    for (size_t i = kernels_.size(); i-- > 0 && code == KRN_STATUS_ok;) code = interpret(kernels_[i], c.buffers);
    return code;
  }
  std::string describe() const override { return kernels_[0].name + (kernels_.size() > 1 ? " x" + std::to_string(kernels_.size()) : ""); }

 private:
  std::vector<Kernel> kernels_;
};

// Gathers the operands row-major, calls the oracle's loops, applies the post ops and scatters the result.
class AnchorStep : public Step {
 public:
  explicit AnchorStep(AnchorDesc d) : d_(std::move(d)) {}
  std::string describe() const override { return "anchor " + std::string(op_name(d_.op)) + " +" + std::to_string(d_.post_ops.size()); }

  krn_code run(const RunContext& c) const override {
    FlatRegion r;
    TensorNode node;
    node.op = d_.op;
    node.attrs.stride = d_.stride, node.attrs.padding = d_.padding, node.attrs.dilation = d_.dilation;
    node.attrs.kernel = d_.kernel, node.attrs.ceil_mode = d_.ceil_mode, node.attrs.count_include_pad = d_.count_include_pad;
    node.attrs.divisor = d_.divisor;
    std::vector<Values> operands;
    for (const TensorDesc& t : d_.operands) {
      node.operands.push_back(t.present() ? add(r, t) : -1);
      operands.push_back(t.present() ? read(c, t) : Values{});
    }
    node.results.push_back(add(r, d_.results[0]));
    Values out = evaluate_anchor(r, node, operands);
    for (const PostOp& p : d_.post_ops) apply(c, p, out);
    each(d_.results[0], [&](int64_t i, int64_t at) {
      store_element(c.buffers[d_.results[0].buffer], at, d_.results[0].dtype, out[i]);
    });
    return KRN_STATUS_ok;
  }

 private:
  static int add(FlatRegion& r, const TensorDesc& d) {
    Tensor t;
    t.dtype = d.dtype, t.sizes = d.sizes, t.strides = d.strides;
    r.tensors.push_back(t);
    return static_cast<int>(r.tensors.size()) - 1;
  }
  template <class F>
  static void each(const TensorDesc& d, F f) {
    int64_t n = 1;
    for (int64_t s : d.sizes) n *= s;
    for (int64_t i = 0; i < n; ++i) {
      int64_t rest = i, at = d.offset;
      for (size_t x = d.sizes.size(); x-- > 0;) at += rest % d.sizes[x] * d.strides[x], rest /= d.sizes[x];
      f(i, at);
    }
  }
  static Values read(const RunContext& c, const TensorDesc& d) {
    Values out;
    each(d, [&](int64_t, int64_t at) { out.push_back(load_element(c.buffers[d.buffer], at, d.dtype)); });
    return out;
  }
  void apply(const RunContext& c, const PostOp& p, Values& out) const {
    Values other = p.operand.present() ? read(c, p.operand) : Values{};
    for (size_t i = 0; i < out.size(); ++i) {
      if (p.op != kOp_clamp && p.op != kOp_leaky_relu) {
        const double x[] = {out[i], other.empty() ? 0 : other[i]};
        out[i] = evaluate_scalar(p.op, x);
        continue;
      }
      out[i] = p.op == kOp_clamp ? rows::row_clamp(out[i], p.alpha, p.beta) : rows::row_leaky_relu(out[i], p.alpha);
    }
  }
  AnchorDesc d_;
};

}  // namespace

krn_code interpret(const Kernel& kernel, void* const* buffers) { return Interpreter(kernel, buffers).run(); }

bool InterpBackend::takes_anchor(const AnchorDesc& a, std::string& why_not) const {
  bool contraction = a.op == kOp_matmul || a.op == kOp_linear || a.op == kOp_conv;
  bool pool = a.op == kOp_max_pool || a.op == kOp_avg_pool || a.op == kOp_adaptive_avg_pool;
  why_not = "the test backend does not take it";
  if (contraction && only_dense_rows && a.results[0].strides.back() != 1) return false;
  for (size_t i = 0; contraction && only_dense_lines && i < 2; ++i) {
    const Dims& strides = a.operands[i].strides;
    if (strides.back() != 1 && strides[strides.size() - 2] != 1) return false;
  }
  return (contraction && take_anchors) || (pool && take_pools);
}

bool InterpBackend::takes_post_op(const AnchorDesc& a, const PostOp& p) const {
  if (a.op == kOp_max_pool || a.op == kOp_avg_pool) return false;
  if (take_every_post_op) return true;
  return p.op == kOp_relu || p.op == kOp_gelu || p.op == kOp_silu || p.op == kOp_add || p.op == kOp_mul || p.op == kOp_clamp;
}

std::string InterpBackend::together_key(const Kernel& kernel) const { return puts_together ? structure_key(kernel) : ""; }

std::vector<std::unique_ptr<Step>> InterpBackend::lower_kernels(std::span<const Together> steps, const CompileContext&,
                                                                uint32_t& generated) {
  std::vector<std::unique_ptr<Step>> out;
  for (const Together& step : steps) {
    for (const Kernel* k : step) {
      generated += known_.emplace(structure_key(*k), 1).second;
      for (const Stage& s : k->stages) deviations += s.reduce && s.monoid == Monoid::kDeviations;
    }
    out.push_back(std::make_unique<KernelStep>(step));
  }
  return out;
}

std::unique_ptr<Step> InterpBackend::lower_anchor(const ChosenAnchor& chosen, const CompileContext&) {
  const AnchorDesc& a = *chosen.desc;
  std::string why_not;
  if (!takes_anchor(a, why_not)) throw kit::Error(KRN_STATUS_unsupported, why_not);
  if (a.op == kOp_linear) {
    const auto& sizes = a.operands[0].sizes;
    rows.push_back(std::accumulate(sizes.begin(), sizes.end() - 1, int64_t{1}, std::multiplies<>()));
  }
  return std::make_unique<AnchorStep>(a);
}

void InterpBackend::save_code(std::span<const Together> steps, std::vector<uint8_t>& out) const {
  for (const Kernel* k : all_of(steps)) {
    std::string key = structure_key(*k);
    uint32_t size = static_cast<uint32_t>(key.size());
    out.insert(out.end(), reinterpret_cast<uint8_t*>(&size), reinterpret_cast<uint8_t*>(&size) + 4);
    out.insert(out.end(), key.begin(), key.end());
  }
}

void InterpBackend::load_code(std::span<const uint8_t> bytes) {
  while (bytes.size() >= 4) {
    uint32_t size;
    std::memcpy(&size, bytes.data(), 4);
    known_.emplace(std::string(reinterpret_cast<const char*>(bytes.data()) + 4, size), 1);
    bytes = bytes.subspan(4 + size);
  }
}

}  // namespace keirin::codegen::test
