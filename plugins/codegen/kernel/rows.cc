// SPDX-License-Identifier: Apache-2.0
//
// Instantiates every SCALAR row of ops.def with Expr. A new row needs nothing here: the table and its formula are enough.
#include "plugins/codegen/kernel/rows.h"

#include <bit>
#include <cmath>

#include "abi/scalar.h"
#include "plugins/codegen/kernel/number.h"
#include "plugins/kit/error.h"

namespace keirin::codegen {
namespace {

template <class F>
Expr call(F formula, std::span<const Expr> x) {
  if constexpr (std::is_invocable_v<F, Expr>) return formula(x[0]);
  if constexpr (std::is_invocable_v<F, Expr, Expr>) return formula(x[0], x[1]);
  if constexpr (std::is_invocable_v<F, Expr, Expr, Expr>) return formula(x[0], x[1], x[2]);
  if constexpr (std::is_invocable_v<F, Expr, Expr, Expr, Expr>) return formula(x[0], x[1], x[2], x[3]);
}

}  // namespace

OpKind op_kind(uint32_t op) {
  switch (op) {
#define KRN_SCALAR(id, ...) \
  case id:                  \
    return OpKind::kScalar;
#define KRN_REDUCE(id, ...) \
  case id:                  \
    return OpKind::kReduce;
#define KRN_MOVE(id, ...) \
  case id:                \
    return OpKind::kMove;
#define KRN_FACTORY(id, ...) \
  case id:                   \
    return OpKind::kFactory;
#define KRN_COMPOSITE_body OpKind::kBodyComposite
#define KRN_COMPOSITE_anchor OpKind::kAnchorComposite
#define KRN_COMPOSITE(id, name, low, high, results, kind, attrs) \
  case id:                                                       \
    return KRN_COMPOSITE_##kind;
#include "abi/ops.def"
#undef KRN_SCALAR
#undef KRN_REDUCE
#undef KRN_MOVE
#undef KRN_FACTORY
#undef KRN_COMPOSITE
#undef KRN_COMPOSITE_body
#undef KRN_COMPOSITE_anchor
    default:
      return OpKind::kUnknown;
  }
}

std::string_view op_name(uint32_t op) {
  switch (op) {
#define KRN_NAME(id, name) \
  case id:                 \
    return #name;
#define KRN_SCALAR(id, name, ...) KRN_NAME(id, name)
#define KRN_REDUCE(id, name, ...) KRN_NAME(id, name)
#define KRN_MOVE(id, name, ...) KRN_NAME(id, name)
#define KRN_FACTORY(id, name, ...) KRN_NAME(id, name)
#define KRN_COMPOSITE(id, name, ...) KRN_NAME(id, name)
#include "abi/ops.def"
#undef KRN_SCALAR
#undef KRN_REDUCE
#undef KRN_MOVE
#undef KRN_FACTORY
#undef KRN_COMPOSITE
#undef KRN_NAME
    default:
      return "opaque";
  }
}

int dtype_bytes(uint8_t dtype) {
  switch (dtype) {
#define KRN_DTYPE(id, name, bits, dl, cls) \
  case id:                                 \
    return bits / 8;
#include "abi/dtypes.def"
#undef KRN_DTYPE
    default:
      return 0;
  }
}

static char dtype_class(uint8_t dtype) {
  switch (dtype) {
#define KRN_DTYPE(id, name, bits, dl, cls) \
  case id:                                 \
    return #cls[0];
#include "abi/dtypes.def"
#undef KRN_DTYPE
    default:
      return 'x';
  }
}
bool is_float(uint8_t dtype) { return dtype_class(dtype) == 'f'; }
bool is_integer(uint8_t dtype) { return dtype_class(dtype) == 'i'; }
bool is_computable(uint8_t dtype) { return dtype_class(dtype) != 'x'; }

Kind compute_kind(uint8_t dtype) {
  if (dtype == kDType_bool) return Kind::kBool;
  if (is_integer(dtype)) return Kind::kI64;
  return dtype == kDType_f64 ? Kind::kF64 : Kind::kF32;
}

int32_t build_scalar(Dag& dag, uint32_t op, std::span<const int32_t> operands) {
  std::vector<Expr> x;
  for (int32_t id : operands) x.emplace_back(&dag, id);
  switch (op) {
#define KRN_SCALAR(id, name, arity, ...)                                                     \
  case id:                                                                                   \
    if (x.size() != arity) break;                                                            \
    return call([](auto... args) -> decltype(rows::row_##name(args...)) { return rows::row_##name(args...); }, x) \
        .node(dag, Kind::kF32);
#define KRN_REDUCE(...)
#define KRN_MOVE(...)
#define KRN_FACTORY(...)
#define KRN_COMPOSITE(...)
#include "abi/ops.def"
#undef KRN_SCALAR
#undef KRN_REDUCE
#undef KRN_MOVE
#undef KRN_FACTORY
#undef KRN_COMPOSITE
    default:
      break;
  }
  throw kit::Error(KRN_STATUS_corrupt, "scalar op " + std::string(op_name(op)) + " with " + std::to_string(x.size()) + " operands");
}

int32_t build_literal(Dag& dag, Kind kind, double real, int64_t integer) {
  bool floating = kind == Kind::kF32 || kind == Kind::kF64;
  uint64_t bits = floating ? std::bit_cast<uint64_t>(real) : static_cast<uint64_t>(kind == Kind::kBool ? integer != 0 : integer);
  return dag.add(Node{Prim::kLiteral, kind, -1, -1, -1, bits});
}

int32_t build_count(Dag& dag, int32_t divisor) {
  constexpr double kMostExact = 1 << 24;  // f32 holds every whole number up to it
  const Node n = dag.nodes[divisor];
  if (n.prim != Prim::kLiteral || (n.kind != Kind::kF32 && n.kind != Kind::kF64)) return divisor;
  const double by = std::bit_cast<double>(n.imm);
  if (!(by >= 1 && by <= kMostExact) || by != std::floor(by)) return divisor;
  return dag.add(Node{Prim::kConvert, n.kind, build_literal(dag, Kind::kI64, 0, static_cast<int64_t>(by))});
}

std::optional<double> number_of(const Dag& dag, int32_t node) {
  const Node& n = dag.nodes[node];
  if (n.prim == Prim::kConvert && dag.nodes[n.a].kind == Kind::kI64) return number_of(dag, n.a);
  if (n.prim != Prim::kLiteral) return std::nullopt;
  return n.kind == Kind::kF32 || n.kind == Kind::kF64 ? std::bit_cast<double>(n.imm) : static_cast<double>(static_cast<int64_t>(n.imm));
}

int32_t build_storage_round(Dag& dag, int32_t value, uint8_t dtype) {
  bool narrow = dtype == kDType_f16 || dtype == kDType_bf16 || (is_integer(dtype) && dtype != kDType_i64);
  if (!narrow) return value;
  const Node& node = dag.nodes[value];
  if (node.prim == Prim::kRound16 && node.imm == dtype) return value;
  return dag.add(Node{Prim::kRound16, node.kind, value, -1, -1, dtype});
}

int32_t build_cast(Dag& dag, int32_t value, uint8_t from, uint8_t to) {
  Kind source = compute_kind(from), target = compute_kind(to);
  if (target == Kind::kBool && source != Kind::kBool) {
    int32_t zero = build_literal(dag, source, 0, 0);
    return dag.add(Node{Prim::kNe, Kind::kBool, value, zero});
  }
  int32_t out = source == target ? value : dag.add(Node{Prim::kConvert, target, value});
  return is_integer(to) && to != from ? build_storage_round(dag, out, to) : out;
}

Monoid monoid_of(uint32_t reduce_op) {
  switch (reduce_op) {
    case kOp_sum: return Monoid::kSum;
    case kOp_prod: return Monoid::kProd;
    case kOp_amax: return Monoid::kMax;
    case kOp_amin: return Monoid::kMin;
    case kOp_any: return Monoid::kAny;
    case kOp_all: return Monoid::kAll;
    case kOp_argmax: return Monoid::kArgMax;
    case kOp_argmin: return Monoid::kArgMin;
    default: throw kit::Error(KRN_STATUS_internal, "no monoid for " + std::string(op_name(reduce_op)));
  }
}

}  // namespace keirin::codegen
