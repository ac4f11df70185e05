// SPDX-License-Identifier: Apache-2.0
//
// `Expr`: the number type that turns the formulas of abi/scalar.h into DAG nodes. A literal floats free until it meets an
// attached operand and takes its kind, so there is no global builder. Expr does not convert to bool: a `?:` in a formula is
// refused by the compiler.
#pragma once

#include <bit>
#include <concepts>

#include "plugins/codegen/kernel/expr.h"

namespace keirin::codegen {

class Expr {
 public:
  Expr(Dag* dag, int32_t id) : dag_(dag), id_(id) {}
  template <class N>
    requires std::integral<N> || std::floating_point<N>
  explicit Expr(N literal) : literal_(static_cast<double>(literal)) {}

  bool attached() const { return dag_ != nullptr; }
  Dag* dag() const { return dag_; }
  Kind kind() const { return dag_->nodes[id_].kind; }
  // The node, a free literal becoming one of `kind` in `dag`.
  int32_t node(Dag& dag, Kind kind) const { return attached() ? id_ : literal(dag, kind, literal_); }
  int32_t id() const { return id_; }
  double value() const { return literal_; }

  static int32_t literal(Dag& dag, Kind kind, double value) {
    uint64_t bits = kind == Kind::kF32 || kind == Kind::kF64 ? std::bit_cast<uint64_t>(value)
                                                             : static_cast<uint64_t>(static_cast<int64_t>(value));
    return dag.add(Node{Prim::kLiteral, kind, -1, -1, -1, bits});
  }

 private:
  Dag* dag_ = nullptr;
  int32_t id_ = -1;
  double literal_ = 0;
};

inline Expr apply(Prim prim, Expr a) {
  return Expr(a.dag(), a.dag()->add(Node{prim, prim == Prim::kIsNan ? Kind::kBool : a.kind(), a.id()}));
}

// At least one operand is attached; a formula that combines two bare literals writes their value instead.
inline Expr apply(Prim prim, Expr a, Expr b) {
  Dag& dag = *(a.attached() ? a : b).dag();
  Kind kind = (a.attached() ? a : b).kind();
  int32_t left = a.node(dag, kind), right = b.node(dag, kind);
  bool compares = prim >= Prim::kLt && prim <= Prim::kNe;
  return Expr(&dag, dag.add(Node{prim, compares ? Kind::kBool : kind, left, right}));
}

inline Expr operator+(Expr a, Expr b) { return apply(Prim::kAdd, a, b); }
inline Expr operator-(Expr a, Expr b) { return apply(Prim::kSub, a, b); }
inline Expr operator*(Expr a, Expr b) { return apply(Prim::kMul, a, b); }
inline Expr operator/(Expr a, Expr b) { return apply(Prim::kDiv, a, b); }
inline Expr operator-(Expr a) { return a.attached() ? apply(Prim::kNeg, a) : Expr(-a.value()); }
inline Expr operator<(Expr a, Expr b) { return apply(Prim::kLt, a, b); }
inline Expr operator<=(Expr a, Expr b) { return apply(Prim::kLe, a, b); }
inline Expr operator>(Expr a, Expr b) { return apply(Prim::kGt, a, b); }
inline Expr operator>=(Expr a, Expr b) { return apply(Prim::kGe, a, b); }
inline Expr operator==(Expr a, Expr b) { return apply(Prim::kEq, a, b); }
inline Expr operator!=(Expr a, Expr b) { return apply(Prim::kNe, a, b); }
inline Expr operator&(Expr a, Expr b) { return apply(Prim::kAnd, a, b); }
inline Expr operator|(Expr a, Expr b) { return apply(Prim::kOr, a, b); }
inline Expr operator^(Expr a, Expr b) { return apply(Prim::kXor, a, b); }
inline Expr operator~(Expr a) { return apply(Prim::kNot, a); }
inline Expr logical_and(Expr a, Expr b) { return apply(Prim::kAnd, a, b); }
inline Expr logical_or(Expr a, Expr b) { return apply(Prim::kOr, a, b); }
inline Expr logical_xor(Expr a, Expr b) { return apply(Prim::kXor, a, b); }
inline Expr logical_not(Expr a) { return apply(Prim::kNot, a); }
inline Expr minimum(Expr a, Expr b) { return apply(Prim::kMinimum, a, b); }
inline Expr maximum(Expr a, Expr b) { return apply(Prim::kMaximum, a, b); }
inline Expr pow(Expr a, Expr b) { return apply(Prim::kPow, a, b); }
inline Expr fmod(Expr a, Expr b) { return apply(Prim::kFmod, a, b); }
inline Expr abs(Expr a) { return apply(Prim::kAbs, a); }
inline Expr sqrt(Expr a) { return apply(Prim::kSqrt, a); }
inline Expr rsqrt(Expr a) { return apply(Prim::kRsqrt, a); }
inline Expr exp(Expr a) { return apply(Prim::kExp, a); }
inline Expr exp2(Expr a) { return apply(Prim::kExp2, a); }
inline Expr expm1(Expr a) { return apply(Prim::kExpm1, a); }
inline Expr log(Expr a) { return apply(Prim::kLog, a); }
inline Expr log1p(Expr a) { return apply(Prim::kLog1p, a); }
inline Expr log2(Expr a) { return apply(Prim::kLog2, a); }
inline Expr sin(Expr a) { return apply(Prim::kSin, a); }
inline Expr cos(Expr a) { return apply(Prim::kCos, a); }
inline Expr tanh(Expr a) { return apply(Prim::kTanh, a); }
inline Expr erf(Expr a) { return apply(Prim::kErf, a); }
inline Expr floor(Expr a) { return apply(Prim::kFloor, a); }
inline Expr ceil(Expr a) { return apply(Prim::kCeil, a); }
inline Expr trunc(Expr a) { return apply(Prim::kTrunc, a); }
inline Expr round(Expr a) { return apply(Prim::kRound, a); }
inline Expr is_nan(Expr a) { return apply(Prim::kIsNan, a); }

// Two bare literals take the kind that the condition compares, which is the formula's own.
inline Expr select(Expr c, Expr a, Expr b) {
  Dag& dag = *c.dag();
  const Node& test = dag.nodes[c.id()];
  bool compares = test.prim >= Prim::kLt && test.prim <= Prim::kIsNan;
  Kind kind = a.attached() ? a.kind() : b.attached() ? b.kind() : compares ? dag.nodes[test.a].kind : Kind::kF32;
  int32_t then = a.node(dag, kind), otherwise = b.node(dag, kind);
  return Expr(&dag, dag.add(Node{Prim::kSelect, kind, c.id(), then, otherwise}));
}

}  // namespace keirin::codegen
