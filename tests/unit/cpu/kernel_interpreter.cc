// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/cpu/kernel_interpreter.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>

#include "core/base/half.h"

namespace keirin::test {
namespace {

using namespace codegen;

enum Dtype : uint8_t {
#define KRN_DTYPE(id, name, bits, dl, cls) kDtype_##name = id,
#include "abi/dtypes.def"
#undef KRN_DTYPE
};

uint16_t bf16_of(float x) {
  auto bits = std::bit_cast<uint32_t>(x);
  if (x != x) return static_cast<uint16_t>((bits >> 16) | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}
float of_bf16(uint16_t x) { return std::bit_cast<float>(static_cast<uint32_t>(x) << 16); }

template <class T>
T at(const void* base, int64_t i) {
  T v;
  std::memcpy(&v, static_cast<const char*>(base) + i * static_cast<int64_t>(sizeof(T)), sizeof v);
  return v;
}
template <class T>
void put(void* base, int64_t i, T v) {
  std::memcpy(static_cast<char*>(base) + i * static_cast<int64_t>(sizeof(T)), &v, sizeof v);
}

class Interpreter {
 public:
  Interpreter(const Kernel& kernel, void* const* pointers, const int32_t* rows, const int32_t* order)
      : k_(kernel), pointers_(pointers), rows_(rows), order_(order), index_(kernel.axes.size()) {}

  bool run() {
    outer(0);
    return in_range_;
  }

 private:
  int64_t linear(const Linear& form) const {
    int64_t sum = form.offset;
    for (size_t a = 0; a < form.coeff.size(); ++a) sum += form.coeff[a] * index_[a];
    return sum;
  }

  bool locate(const Access& access, int64_t& element) {
    for (const auto& g : access.guards) {
      const int64_t form = linear(g.form);
      if (form < 0 || form >= g.limit) return false;
    }
    element = linear(access.index);
    for (const auto& i : access.indirects) {
      int64_t v = eval(i.node).whole;
      if (v < 0 || v >= i.limit) in_range_ = false, v = 0;
      element += i.stride * v;
    }
    return true;
  }

  Number narrow(Number v, Kind kind) const {
    if (kind == Kind::kF32) v.real = static_cast<float>(v.real);
    return v;
  }

  Number eval(int32_t id) {
    const Node& n = k_.dag.nodes[id];
    auto operand = [&](int32_t i) { return i < 0 ? Number{} : eval(i); };
    if (n.prim == Prim::kLoad) {
      const Access& access = k_.accesses[n.imm];
      int64_t element = 0;
      if (!locate(access, element)) return {access.fill, static_cast<int64_t>(access.fill)};
      return read_element(pointers_[access.buffer], element, access.dtype);
    }
    if (n.prim == Prim::kLiteral) return {std::bit_cast<double>(n.imm), static_cast<int64_t>(n.imm)};
    if (n.prim == Prim::kCoord) return {0, index_[n.imm]};
    if (n.prim == Prim::kScalar) return scalars_[n.imm];
    Number a = operand(n.a), b = operand(n.b), c = operand(n.c);
    const Kind from = k_.dag.nodes[n.a].kind;
    return narrow(apply(n, from, a, b, c), n.kind);
  }

  static Number truth(bool v) { return {0, v}; }

  static Number apply(const Node& n, Kind from, Number a, Number b, Number c) {
    const bool f = from == Kind::kF32 || from == Kind::kF64;
    auto real = [](double v) { return Number{v, 0}; };
    auto whole = [](uint64_t v) { return Number{0, static_cast<int64_t>(v)}; };
    const auto x = static_cast<uint64_t>(a.whole), y = static_cast<uint64_t>(b.whole);
    switch (n.prim) {
      case Prim::kAdd: return f ? real(a.real + b.real) : whole(x + y);
      case Prim::kSub: return f ? real(a.real - b.real) : whole(x - y);
      case Prim::kMul: return f ? real(a.real * b.real) : whole(x * y);
      case Prim::kDiv: return real(a.real / b.real);
      case Prim::kNeg: return f ? real(-a.real) : whole(-x);
      case Prim::kAbs: return f ? real(std::fabs(a.real)) : whole(a.whole < 0 ? -x : x);
      case Prim::kMinimum:
        return f ? real(a.real < b.real || a.real != a.real ? a.real : b.real) : whole(a.whole < b.whole ? x : y);
      case Prim::kMaximum:
        return f ? real(a.real > b.real || a.real != a.real ? a.real : b.real) : whole(a.whole > b.whole ? x : y);
      case Prim::kSqrt: return real(std::sqrt(a.real));
      case Prim::kRsqrt: return real(1 / std::sqrt(a.real));
      case Prim::kExp: return real(std::exp(a.real));
      case Prim::kExp2: return real(std::exp2(a.real));
      case Prim::kExpm1: return real(std::expm1(a.real));
      case Prim::kLog: return real(std::log(a.real));
      case Prim::kLog1p: return real(std::log1p(a.real));
      case Prim::kLog2: return real(std::log2(a.real));
      case Prim::kTanh: return real(std::tanh(a.real));
      case Prim::kErf: return real(std::erf(a.real));
      case Prim::kSin: return real(std::sin(a.real));
      case Prim::kCos: return real(std::cos(a.real));
      case Prim::kPow: return real(std::pow(a.real, b.real));
      case Prim::kFmod: return real(std::fmod(a.real, b.real));
      case Prim::kFloor: return real(std::floor(a.real));
      case Prim::kCeil: return real(std::ceil(a.real));
      case Prim::kTrunc: return real(std::trunc(a.real));
      case Prim::kRound: return real(std::nearbyint(a.real));
      case Prim::kLt: return truth(f ? a.real < b.real : a.whole < b.whole);
      case Prim::kLe: return truth(f ? a.real <= b.real : a.whole <= b.whole);
      case Prim::kGt: return truth(f ? a.real > b.real : a.whole > b.whole);
      case Prim::kGe: return truth(f ? a.real >= b.real : a.whole >= b.whole);
      case Prim::kEq: return truth(f ? a.real == b.real : a.whole == b.whole);
      case Prim::kNe: return truth(f ? a.real != b.real : a.whole != b.whole);
      case Prim::kIsNan: return truth(f && a.real != a.real);
      case Prim::kAnd: return whole(x & y);
      case Prim::kOr: return whole(x | y);
      case Prim::kXor: return whole(x ^ y);
      case Prim::kNot: return from == Kind::kBool ? whole(x ^ 1) : whole(~x);
      case Prim::kSelect: return a.whole ? b : c;
      case Prim::kConvert: return convert(a, from, n.kind);
      case Prim::kRound16: {
        uint64_t slot = 0;
        write_element(&slot, 0, static_cast<uint8_t>(n.imm), a.real, a.whole);
        return read_element(&slot, 0, static_cast<uint8_t>(n.imm));
      }
      default: return {};
    }
  }

  static Number convert(Number v, Kind from, Kind to) {
    const bool was_real = from == Kind::kF32 || from == Kind::kF64;
    const bool is_real_now = to == Kind::kF32 || to == Kind::kF64;
    if (to == Kind::kBool) return truth(was_real ? v.real != 0 : v.whole != 0);
    if (was_real == is_real_now) return v;
    if (is_real_now) return {static_cast<double>(v.whole), 0};
    return {0, static_cast<int64_t>(v.real)};
  }

  // Calls `body` at each point of the axes of the wanted kinds, from `axis` on.
  void nest(size_t axis, bool inner_too, int64_t& position, const std::function<void()>& body) {
    if (axis == k_.axes.size()) {
      body();
      ++position;
      return;
    }
    const Axis& a = k_.axes[axis];
    if (a.kind == AxisKind::kOuter || (a.kind == AxisKind::kInner && !inner_too)) {
      nest(axis + 1, inner_too, position, body);
    } else if (a.kind == AxisKind::kSegment) {
      int64_t row = 0;
      for (size_t o = 0; o < axis; ++o) row = k_.axes[o].kind == AxisKind::kOuter ? index_[o] : row;
      for (int32_t p = rows_[row]; p < rows_[row + 1]; ++p) {
        index_[axis] = order_[p];
        nest(axis + 1, inner_too, position, body);
      }
    } else {
      for (int64_t i = 0; i < a.size; ++i) {
        index_[axis] = i;
        nest(axis + 1, inner_too, position, body);
      }
    }
  }

  Number start(const Stage& s) const {
    const double inf = HUGE_VAL;
    switch (s.monoid) {
      case Monoid::kSum: case Monoid::kAny: return {0, 0};
      case Monoid::kProd: case Monoid::kAll: return {1, 1};
      case Monoid::kMax: case Monoid::kArgMax: return {-inf, INT64_MIN};
      case Monoid::kDeviations: return {0, 0};
      default: return {inf, INT64_MAX};
    }
  }

  void reduce(size_t number, bool inner_too) {
    const Stage& s = k_.stages[number];
    const Kind kind = k_.dag.nodes[s.value].kind;
    const bool f = kind == Kind::kF32 || kind == Kind::kF64;
    Number acc = start(s);
    int64_t best = INT64_MAX, position = 0;
    double mean = 0, taken = 0;
    nest(0, inner_too, position, [&] {
      const Number x = eval(s.value);
      const bool nan = f && x.real != x.real, acc_nan = f && acc.real != acc.real;
      const bool less = f ? x.real < acc.real : x.whole < acc.whole, more = f ? x.real > acc.real : x.whole > acc.whole;
      switch (s.monoid) {
        case Monoid::kSum:
          acc = {acc.real + x.real, static_cast<int64_t>(static_cast<uint64_t>(acc.whole) + static_cast<uint64_t>(x.whole))};
          break;
        case Monoid::kProd:
          acc = {acc.real * x.real, static_cast<int64_t>(static_cast<uint64_t>(acc.whole) * static_cast<uint64_t>(x.whole))};
          break;
        case Monoid::kMax: if (nan || (more && !acc_nan)) acc = x; break;
        case Monoid::kMin: if (nan || (less && !acc_nan)) acc = x; break;
        case Monoid::kAny: acc.whole |= x.whole; break;
        case Monoid::kAll: acc.whole &= x.whole; break;
        case Monoid::kDeviations: {
          const double away = x.real - mean;
          mean += away / ++taken;
          acc.real += away * (x.real - mean);
          break;
        }
        case Monoid::kArgMax: if (best == INT64_MAX || (nan && !acc_nan) || (more && !acc_nan)) acc = x, best = position; break;
        case Monoid::kArgMin: if (best == INT64_MAX || (nan && !acc_nan) || (less && !acc_nan)) acc = x, best = position; break;
      }
    });
    if (s.monoid == Monoid::kArgMax || s.monoid == Monoid::kArgMin) acc = {0, best};
    scalars_[number] = acc;
  }

  void store(const Stage& s) {
    for (const auto& st : s.stores) {
      const Access& access = k_.accesses[st.access];
      const Number v = convert(eval(st.node), k_.dag.nodes[st.node].kind,
                               is_real(access.dtype) ? Kind::kF64 : access.dtype == kDtype_bool ? Kind::kBool : Kind::kI64);
      int64_t element = 0;
      if (locate(access, element)) write_element(pointers_[access.buffer], element, access.dtype, v.real, v.whole);
    }
  }

  void outer(size_t axis) {
    if (axis < k_.axes.size() && k_.axes[axis].kind == AxisKind::kOuter) {
      for (index_[axis] = 0; index_[axis] < k_.axes[axis].size; ++index_[axis]) outer(axis + 1);
      return;
    }
    scalars_.assign(k_.stages.size(), {});
    int64_t position = 0;
    auto stages = [&] {
      for (size_t s = 0; s < k_.stages.size(); ++s) {
        const Stage& stage = k_.stages[s];
        if (stage.reduce) reduce(s, !k_.column);
        else if (stage.once || k_.column) store(stage);
        else nest(0, true, position, [&] { store(stage); });
      }
    };
    if (!k_.column) return stages();
    for (index_.back() = 0; index_.back() < k_.axes.back().size; ++index_.back()) stages();
  }

  const Kernel& k_;
  void* const* pointers_;
  const int32_t* rows_;
  const int32_t* order_;
  std::vector<int64_t> index_;
  std::vector<Number> scalars_;
  bool in_range_ = true;
};

}  // namespace

bool is_real(uint8_t d) { return d == kDtype_f16 || d == kDtype_bf16 || d == kDtype_f32 || d == kDtype_f64; }

int64_t element_bytes(uint8_t dtype) {
  switch (dtype) {
#define KRN_DTYPE(id, name, bits, dl, cls) \
  case id: return bits / 8;
#include "abi/dtypes.def"
#undef KRN_DTYPE
    default: return 0;
  }
}

Number read_element(const void* base, int64_t i, uint8_t dtype) {
  switch (dtype) {
    case kDtype_bool: return {0, at<uint8_t>(base, i) != 0};
    case kDtype_u8: return {0, at<uint8_t>(base, i)};
    case kDtype_i8: return {0, at<int8_t>(base, i)};
    case kDtype_i16: return {0, at<int16_t>(base, i)};
    case kDtype_i32: return {0, at<int32_t>(base, i)};
    case kDtype_i64: return {0, at<int64_t>(base, i)};
    case kDtype_f16: return {static_cast<double>(at<Float16>(base, i)), 0};
    case kDtype_bf16: return {of_bf16(at<uint16_t>(base, i)), 0};
    case kDtype_f32: return {at<float>(base, i), 0};
    default: return {at<double>(base, i), 0};
  }
}

void write_element(void* base, int64_t i, uint8_t dtype, double real, int64_t whole) {
  switch (dtype) {
    case kDtype_bool: return put<uint8_t>(base, i, whole != 0);
    case kDtype_u8: case kDtype_i8: return put(base, i, static_cast<int8_t>(whole));
    case kDtype_i16: return put(base, i, static_cast<int16_t>(whole));
    case kDtype_i32: return put(base, i, static_cast<int32_t>(whole));
    case kDtype_i64: return put(base, i, whole);
    case kDtype_f16: return put(base, i, static_cast<Float16>(static_cast<float>(real)));
    case kDtype_bf16: return put(base, i, bf16_of(static_cast<float>(real)));
    case kDtype_f32: return put(base, i, static_cast<float>(real));
    default: return put(base, i, real);
  }
}

bool interpret(const Kernel& kernel, void* const* pointers, const int32_t* row_pointers, const int32_t* edge_order) {
  return Interpreter(kernel, pointers, row_pointers, edge_order).run();
}

}  // namespace keirin::test
