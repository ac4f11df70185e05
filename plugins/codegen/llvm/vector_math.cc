// SPDX-License-Identifier: Apache-2.0
//
// The polynomials are minimax fits of our own (reweighted least squares in 50 digits), weighted by the function they stand in
// so that the figure beside each is an error relative to the result.
#include "plugins/codegen/llvm/vector_math.h"

#include <cmath>
#include <initializer_list>
#include <string>

#include "llvm/IR/Function.h"
#include "llvm/IR/Intrinsics.h"
#include "llvm/IR/Module.h"

namespace keirin::codegen::native {
namespace {

using llvm::Value;

// Arithmetic on one type, spelled shortly: the formulas below should read as formulas.
class Floats {
 public:
  Floats(llvm::IRBuilder<>& builder, llvm::Type* type) : b(builder), t(type) {}

  Value* c(double v) const { return llvm::ConstantFP::get(t, v); }
  Value* add(Value* x, Value* y) const { return b.CreateFAdd(x, y); }
  Value* sub(Value* x, Value* y) const { return b.CreateFSub(x, y); }
  Value* mul(Value* x, Value* y) const { return b.CreateFMul(x, y); }
  Value* div(Value* x, Value* y) const { return b.CreateFDiv(x, y); }
  Value* fma(Value* x, Value* y, Value* z) const { return b.CreateIntrinsic(llvm::Intrinsic::fma, {t}, {x, y, z}); }
  Value* unary(llvm::Intrinsic::ID id, Value* x) const { return b.CreateUnaryIntrinsic(id, x); }
  Value* abs(Value* x) const { return unary(llvm::Intrinsic::fabs, x); }
  Value* rint(Value* x) const { return unary(llvm::Intrinsic::roundeven, x); }
  // min(x, y) and max(x, y) that give x where x is NaN: min(y, x) as the hardware does it.
  Value* at_most(Value* x, double y) const { return b.CreateSelect(b.CreateFCmpOLT(c(y), x), c(y), x); }
  Value* at_least(Value* x, double y) const { return b.CreateSelect(b.CreateFCmpOGT(c(y), x), c(y), x); }
  Value* with_sign_of(Value* x, Value* sign) const {
    return b.CreateBinaryIntrinsic(llvm::Intrinsic::copysign, x, sign);
  }
  // c0 + c1 x + c2 x^2 ..
  Value* polynomial(Value* x, std::initializer_list<double> coefficients) const {
    auto it = std::rbegin(coefficients);
    Value* sum = c(*it);
    for (++it; it != std::rend(coefficients); ++it) sum = fma(sum, x, c(*it));
    return sum;
  }
  llvm::Type* ints() const {
    llvm::Type* i = b.getIntNTy(t->getScalarSizeInBits());
    auto* vector = llvm::dyn_cast<llvm::FixedVectorType>(t);
    return vector ? llvm::FixedVectorType::get(i, vector->getNumElements()) : i;
  }
  Value* i(int64_t v) const { return llvm::ConstantInt::get(ints(), static_cast<uint64_t>(v)); }
  Value* bits(Value* x) const { return b.CreateBitCast(x, ints()); }
  Value* from_bits(Value* x) const { return b.CreateBitCast(x, t); }
  // 2^n for an integer-valued vector of ints in the normal range.
  Value* power_of_two(Value* n) const { return from_bits(b.CreateShl(b.CreateAdd(n, i(127)), i(23))); }

  llvm::IRBuilder<>& b;
  llvm::Type* t;
};

// What the exponential functions share: x = n ln2 + r, |r| <= ln2 / 2.
struct Reduced {
  Value* n;  // integer-valued floats
  Value* r;
};

Reduced reduce_by_ln2(const Floats& f, Value* x) {
  Value* n = f.rint(f.mul(x, f.c(1.44269504088896340736)));
  Value* r = f.fma(n, f.c(-0.693145751953125), x);      // 15 bits: n * it is exact
  return {n, f.fma(n, f.c(-1.42860682030941723212e-6), r)};
}

// y * 2^n in two steps, so that results in the denormal range and n = 128 come out right.
Value* scale(const Floats& f, Value* y, Value* n) {
  Value* k = f.b.CreateFPToSI(n, f.ints());
  Value* half = f.b.CreateAShr(k, f.i(1));
  return f.mul(f.mul(y, f.power_of_two(half)), f.power_of_two(f.b.CreateSub(k, half)));
}

// x clamped to where exp is neither 0 nor infinite, with NaN replaced by a number: an integer made of NaN is poison.
Value* clamp_exponent(const Floats& f, Value* x, double low, double high) {
  Value* up = f.b.CreateSelect(f.b.CreateFCmpOGT(x, f.c(low)), x, f.c(low));
  return f.b.CreateSelect(f.b.CreateFCmpOLT(up, f.c(high)), up, f.c(high));
}

Value* keep_nan(const Floats& f, Value* x, Value* y) { return f.b.CreateSelect(f.b.CreateFCmpUNO(x, x), x, y); }

Value* exp(const Floats& f, Value* x) {
  auto [n, r] = reduce_by_ln2(f, clamp_exponent(f, x, -104.0, 89.0));
  Value* q = f.polynomial(r, {5.000000000e-01, 1.666666567e-01, 4.166629538e-02, 8.333497681e-03, 1.394475927e-03,
                              1.979024819e-04});  // 2^-34
  Value* y = f.add(f.fma(f.mul(r, r), q, r), f.c(1));
  return keep_nan(f, x, scale(f, y, n));
}

Value* exp2(const Floats& f, Value* x) {
  Value* clamped = clamp_exponent(f, x, -151.0, 129.0);
  Value* n = f.rint(clamped);
  Value* r = f.sub(clamped, n);
  Value* p = f.polynomial(r, {6.931471825e-01, 2.402264774e-01, 5.550331995e-02, 9.618438780e-03, 1.339900424e-03,
                              1.535325719e-04});  // 2^-29
  return keep_nan(f, x, scale(f, f.fma(p, r, f.c(1)), n));
}

Value* expm1(const Floats& f, Value* x) {
  auto [n, r] = reduce_by_ln2(f, clamp_exponent(f, x, -18.0, 89.0));
  Value* q = f.polynomial(r, {5.000000000e-01, 1.666666716e-01, 4.166635498e-02, 8.333274163e-03, 1.394111663e-03,
                              1.991370664e-04});  // 2^-32
  Value* p = f.fma(f.mul(r, r), q, r);
  // 2^n p + (2^n - 1), halved on the way because 2^128 is not a float.
  Value* half = f.power_of_two(f.b.CreateSub(f.b.CreateFPToSI(n, f.ints()), f.i(1)));
  Value* y = f.mul(f.fma(half, p, f.sub(half, f.c(0.5))), f.c(2));
  Value* tiny = f.b.CreateFCmpOLT(f.abs(x), f.c(1e-30));  // keeps -0 and denormals
  return keep_nan(f, x, f.b.CreateSelect(tiny, x, y));
}

// A positive finite u = 2^k (1 + m), sqrt(1/2) <= 1 + m < sqrt(2).
struct Split {
  Value* k;
  Value* m;
};

Split split(const Floats& f, Value* u, bool denormals) {
  Value* shift = f.c(0);
  if (denormals) {
    Value* small = f.b.CreateFCmpOLT(u, f.c(0x1p-126));
    shift = f.b.CreateSelect(small, f.c(-23), f.c(0));
    u = f.b.CreateSelect(small, f.mul(u, f.c(0x1p23)), u);
  }
  Value* bits = f.bits(u);
  constexpr int64_t kSqrtHalf = 0x3f3504f3;
  Value* k = f.b.CreateAShr(f.b.CreateSub(bits, f.i(kSqrtHalf)), f.i(23));
  Value* mantissa = f.from_bits(f.b.CreateSub(bits, f.b.CreateShl(k, f.i(23))));
  return {f.add(f.b.CreateSIToFP(k, f.t), shift), f.sub(mantissa, f.c(1))};
}

// log(1 + m) - m + m^2 / 2, divided by m^3
Value* log_tail(const Floats& f, Value* m) {
  return f.polynomial(m, {3.333331347e-01, -2.500000894e-01, 2.000211924e-01, -1.666799635e-01, 1.421955079e-01,
                          -1.240559220e-01, 1.188817769e-01, -1.167563871e-01, 6.746591628e-02});  // 2^-30
}

Value* log_limits(const Floats& f, Value* x, Value* argument, Value* y) {
  const double inf = HUGE_VAL;
  y = f.b.CreateSelect(f.b.CreateFCmpOEQ(argument, f.c(inf)), f.c(inf), y);
  y = f.b.CreateSelect(f.b.CreateFCmpOEQ(argument, f.c(0)), f.c(-inf), y);
  y = f.b.CreateSelect(f.b.CreateFCmpOLT(argument, f.c(0)), f.c(NAN), y);
  return keep_nan(f, x, y);
}

// k ln2 + m - m^2/2 + m^3 tail + low
Value* log_sum(const Floats& f, const Split& s, Value* low) {
  Value* m2 = f.mul(s.m, s.m);
  Value* y = f.fma(s.k, f.c(-2.12194440e-4), low);
  y = f.fma(f.mul(m2, s.m), log_tail(f, s.m), y);
  y = f.fma(m2, f.c(-0.5), y);
  return f.fma(s.k, f.c(0.693359375), f.add(y, s.m));
}

Value* log(const Floats& f, Value* x) { return log_limits(f, x, x, log_sum(f, split(f, x, true), f.c(0))); }

Value* log1p(const Floats& f, Value* x) {
  Value* u = f.add(x, f.c(1));
  Split s = split(f, u, false);
  // What 1 + x lost to rounding, brought to first order.
  Value* lost = f.b.CreateSelect(f.b.CreateFCmpOGE(x, f.c(1)), f.sub(f.c(1), f.sub(u, x)), f.sub(x, f.sub(u, f.c(1))));
  Value* y = log_limits(f, x, u, log_sum(f, s, f.div(lost, u)));
  return f.b.CreateSelect(f.b.CreateFCmpOLT(f.abs(x), f.c(0x1p-25)), x, y);
}

Value* log2(const Floats& f, Value* x) {
  Split s = split(f, x, true);
  Value* m2 = f.mul(s.m, s.m);
  // log(1 + m) = m + low; times log2(e) = 1 + 0.4427, each part in its own order so that nothing cancels.
  Value* low = f.fma(f.mul(m2, s.m), log_tail(f, s.m), f.mul(m2, f.c(-0.5)));
  constexpr double kLog2eMinus1 = 0.44269504088896340736;
  Value* y = f.mul(s.m, f.c(kLog2eMinus1));
  y = f.fma(low, f.c(kLog2eMinus1), y);
  y = f.add(f.add(y, low), s.m);
  return log_limits(f, x, x, f.add(y, s.k));
}

Value* tanh(const Floats& f, Value* x) {
  Value* a = f.abs(x);
  Value* square = f.mul(x, x);
  Value* p = f.polynomial(square, {-3.333332539e-01, 1.333298385e-01, -5.392095819e-02, 2.157106809e-02, -7.883322425e-03,
                                   1.895674970e-03});  // 2^-30 up to 0.7
  Value* near = f.fma(f.mul(square, a), p, a);
  // 1 - 2 / (exp(2a) + 1): no overflow and no NaN to keep, because `a` is clamped where tanh is 1.
  auto [n, r] = reduce_by_ln2(f, f.mul(clamp_exponent(f, a, 0.0, 10.0), f.c(2)));
  Value* q = f.polynomial(r, {4.999999404e-01, 1.666651964e-01, 4.166839272e-02, 8.368780836e-03, 1.381446491e-03});
  Value* e = f.mul(f.add(f.fma(f.mul(r, r), q, r), f.c(1)), f.power_of_two(f.b.CreateFPToSI(n, f.ints())));
  Value* far = f.sub(f.c(1), f.div(f.c(2), f.add(e, f.c(1))));
  Value* y = f.b.CreateSelect(f.b.CreateFCmpOLT(a, f.c(0.7)), near, far);
  return keep_nan(f, x, f.with_sign_of(y, x));  // keeps -0
}

Value* erf(const Floats& f, Value* x) {
  Value* a = f.abs(x);
  Value* p = f.polynomial(f.mul(x, x), {1.283791661e-01, -3.761263490e-01, 1.128371507e-01, -2.686051093e-02, 5.203862675e-03,
                                        -8.175673429e-04, 8.513232024e-05});  // 2^-31 up to 0.9
  Value* near = f.fma(x, p, x);
  // 1 - exp(l(a)), l a polynomial for the logarithm of erfc on [0.9, 4]; erf is 1 in f32 beyond 3.92.
  Value* t = clamp_exponent(f, a, 0.0, 4.0);
  Value* l = f.polynomial(t, {1.692051301e-04, -1.129488349e+00, -6.334008574e-01, -1.082203835e-01, 2.508061565e-02,
                              -4.156254698e-03, 4.313935642e-04, -2.082861829e-05});  // 2^-34
  auto [n, r] = reduce_by_ln2(f, l);
  Value* q = f.polynomial(r, {4.999999404e-01, 1.666651964e-01, 4.166839272e-02, 8.368780836e-03, 1.381446491e-03});
  Value* e = f.mul(f.add(f.fma(f.mul(r, r), q, r), f.c(1)), f.power_of_two(f.b.CreateFPToSI(n, f.ints())));
  Value* far = f.with_sign_of(f.sub(f.c(1), e), x);
  return keep_nan(f, x, f.b.CreateSelect(f.b.CreateFCmpOLT(a, f.c(0.9)), near, far));
}

// ---- calls into libm, one element at a time

Value* call_lanes(llvm::IRBuilder<>& b, const std::string& name, Value* a, Value* second) {
  llvm::Function* function = b.GetInsertBlock()->getParent();
  llvm::IRBuilder<> entry(&function->getEntryBlock(), function->getEntryBlock().begin());
  auto* vector = llvm::dyn_cast<llvm::FixedVectorType>(a->getType());
  const unsigned count = vector ? vector->getNumElements() : 1;
  auto spill = [&](Value* v) {
    llvm::AllocaInst* slot = entry.CreateAlloca(v->getType());
    b.CreateStore(v, slot);
    return slot;
  };
  std::vector<Value*> arguments{spill(a)};
  if (second) arguments.push_back(spill(second));
  arguments.push_back(b.getInt32(count));
  std::vector<llvm::Type*> types;
  for (Value* v : arguments) types.push_back(v->getType());
  const char* suffix = a->getType()->getScalarType()->isFloatTy() ? "_f32" : "_f64";
  b.CreateCall(function->getParent()->getOrInsertFunction("krn_lanes_" + name + suffix,
                                                          llvm::FunctionType::get(b.getVoidTy(), types, false)),
               arguments);
  return b.CreateLoad(a->getType(), arguments[0]);
}

// sin (quadrant 0) or cos (quadrant 1). The reduction runs in f64, where two constants serve all |x| below 2^30; larger ones
// are so rare that a vector with one goes to libm.
Value* sin_cos(const Floats& f, Value* x, int quadrant) {
  llvm::IRBuilder<>& b = f.b;
  auto* vector = llvm::dyn_cast<llvm::FixedVectorType>(f.t);
  llvm::Type* wide = b.getDoubleTy();
  if (vector) wide = llvm::FixedVectorType::get(wide, vector->getNumElements());
  Floats d(b, wide);
  Value* big = b.CreateNot(b.CreateFCmpOLT(f.abs(x), f.c(0x1p30)));  // NaN and infinity too
  Value* reduced_from = b.CreateFPExt(b.CreateSelect(big, f.c(0), x), wide);
  Value* n = d.rint(d.mul(reduced_from, d.c(0.63661977236758134308)));
  Value* r = d.fma(n, d.c(-6.123233995736766e-17), d.fma(n, d.c(-1.5707963267948966192), reduced_from));
  Value* y = b.CreateFPTrunc(r, f.t);
  Value* k = b.CreateAdd(b.CreateFPToSI(n, f.ints()), f.i(quadrant));
  Value* square = f.mul(y, y);
  Value* s = f.polynomial(square, {-1.666666716e-01, 8.333329111e-03, -1.983930415e-04, 2.718047654e-06});  // 2^-37
  s = f.fma(f.mul(square, y), s, y);
  Value* c = f.polynomial(square, {-5.000000000e-01, 4.166661948e-02, -1.388667268e-03, 2.438272350e-05});  // 2^-34
  c = f.fma(square, c, f.c(1));
  Value* odd = b.CreateICmpNE(b.CreateAnd(k, f.i(1)), f.i(0));
  Value* sign = b.CreateShl(b.CreateAnd(k, f.i(2)), f.i(30));
  Value* quick = f.from_bits(b.CreateXor(f.bits(b.CreateSelect(odd, c, s)), sign));
  if (quadrant == 0) quick = b.CreateSelect(b.CreateFCmpOEQ(x, f.c(0)), x, quick);  // keeps -0

  llvm::Function* function = b.GetInsertBlock()->getParent();
  llvm::BasicBlock* from = b.GetInsertBlock();
  auto* slow = llvm::BasicBlock::Create(b.getContext(), "huge", function);
  auto* done = llvm::BasicBlock::Create(b.getContext(), "reduced", function);
  b.CreateCondBr(vector ? b.CreateOrReduce(big) : big, slow, done);
  b.SetInsertPoint(slow);
  Value* from_libm = call_lanes(b, quadrant ? "cos" : "sin", x, nullptr);
  b.CreateBr(done);
  b.SetInsertPoint(done);
  llvm::PHINode* result = b.CreatePHI(f.t, 2);
  result->addIncoming(quick, from);
  result->addIncoming(from_libm, slow);
  return result;
}

Value* emit_f32(llvm::IRBuilder<>& b, Prim prim, Value* a, Value* second) {
  Floats f(b, a->getType());
  switch (prim) {
    case Prim::kExp: return exp(f, a);
    case Prim::kExp2: return exp2(f, a);
    case Prim::kExpm1: return expm1(f, a);
    case Prim::kLog: return log(f, a);
    case Prim::kLog1p: return log1p(f, a);
    case Prim::kLog2: return log2(f, a);
    case Prim::kTanh: return tanh(f, a);
    case Prim::kErf: return erf(f, a);
    case Prim::kSin: return sin_cos(f, a, 0);
    case Prim::kCos: return sin_cos(f, a, 1);
    case Prim::kPow: return call_lanes(b, "pow", a, second);
    default: return call_lanes(b, "fmod", a, second);
  }
}

#define KRN_ELEMENTARY1(X) \
  X(Exp, exp) X(Exp2, exp2) X(Expm1, expm1) X(Log, log) X(Log1p, log1p) X(Log2, log2) X(Tanh, tanh) X(Erf, erf) X(Sin, sin) X(Cos, cos)
#define KRN_ELEMENTARY2(X) X(Pow, pow) X(Fmod, fmod)

const char* name_of(Prim prim) {
  switch (prim) {
#define KRN_NAME(prim_name, name) \
  case Prim::k##prim_name: return #name;
    KRN_ELEMENTARY1(KRN_NAME)
    KRN_ELEMENTARY2(KRN_NAME)
#undef KRN_NAME
    default: return nullptr;
  }
}

#define KRN_LANES1(prim_name, name)                                       \
  template <class T>                                                      \
  void name##_lanes(T* values, int32_t count) {                           \
    for (int32_t i = 0; i < count; ++i) values[i] = std::name(values[i]); \
  }
#define KRN_LANES2(prim_name, name)                                                  \
  template <class T>                                                                 \
  void name##_lanes(T* values, const T* second, int32_t count) {                     \
    for (int32_t i = 0; i < count; ++i) values[i] = std::name(values[i], second[i]); \
  }
KRN_ELEMENTARY1(KRN_LANES1)
KRN_ELEMENTARY2(KRN_LANES2)
#undef KRN_LANES1
#undef KRN_LANES2

}  // namespace

bool is_elementary(Prim prim) { return name_of(prim) != nullptr; }

Value* emit_elementary(llvm::IRBuilder<>& b, Prim prim, Value* a, Value* second) {
  if (a->getType()->getScalarType()->isFloatTy()) {
    // The error bounds hold for the operations as written: no further contraction inside.
    llvm::IRBuilder<>::FastMathFlagGuard guard(b);
    b.clearFastMathFlags();
    return emit_f32(b, prim, a, second);
  }
  return call_lanes(b, name_of(prim), a, second);
}

std::vector<std::pair<const char*, void*>> lane_functions() {
  std::vector<std::pair<const char*, void*>> functions;
#define KRN_ADD1(prim_name, name)                                                                          \
  functions.emplace_back("krn_lanes_" #name "_f32", reinterpret_cast<void*>(static_cast<void (*)(float*, int32_t)>(name##_lanes<float>))); \
  functions.emplace_back("krn_lanes_" #name "_f64", reinterpret_cast<void*>(static_cast<void (*)(double*, int32_t)>(name##_lanes<double>)));
#define KRN_ADD2(prim_name, name)                                                                                 \
  functions.emplace_back("krn_lanes_" #name "_f32",                                                               \
                         reinterpret_cast<void*>(static_cast<void (*)(float*, const float*, int32_t)>(name##_lanes<float>))); \
  functions.emplace_back("krn_lanes_" #name "_f64",                                                               \
                         reinterpret_cast<void*>(static_cast<void (*)(double*, const double*, int32_t)>(name##_lanes<double>)));
  KRN_ELEMENTARY1(KRN_ADD1)
  KRN_ELEMENTARY2(KRN_ADD2)
#undef KRN_ADD1
#undef KRN_ADD2
  return functions;
}

}  // namespace keirin::codegen::native
