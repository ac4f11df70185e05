// SPDX-License-Identifier: Apache-2.0
//
// The scalar DAG of a kernel: what the formulas of abi/scalar.h become when they are instantiated with `Expr`. Hash-consed, in
// topological order, typed with the compute type. Printers and the LLVM builder know the primitives here and nothing else.
#pragma once

#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

namespace keirin::codegen {

// Compute types; storage types (u8 .. bf16) exist only in accesses and in kCast's immediate.
enum class Kind : uint8_t { kBool, kI64, kF32, kF64 };

enum class Prim : uint8_t {
  kLoad,      // imm: number of the access in the kernel
  kLiteral,   // imm: bits of the double, or the integer
  kCoord,     // imm: axis; its index as i64
  kScalar,    // imm: number of an earlier reduce stage; its result for this row
  kAdd, kSub, kMul, kDiv, kNeg, kAbs, kMinimum, kMaximum, kSqrt, kRsqrt, kExp, kExp2, kExpm1, kLog, kLog1p, kLog2, kTanh, kErf,
  kSin, kCos, kPow, kFloor, kCeil, kTrunc, kRound, kFmod,
  kLt, kLe, kGt, kGe, kEq, kNe, kIsNan, kAnd, kOr, kXor, kNot,  // kAnd .. kNot on kBool or kI64
  kSelect,    // a: bool, b, c
  kConvert,   // to `kind` of this node
  kRound16,   // round to the storage dtype in imm (a dtypes.def id: f16, bf16) and back: an observed value; for integers, wrap
};

bool is_special(Prim prim);  // a function of mathematics that takes many instructions

struct Node {
  Prim prim;
  Kind kind;
  int32_t a = -1, b = -1, c = -1;  // operands, earlier nodes
  uint64_t imm = 0;
  auto key() const { return std::tuple(prim, kind, a, b, c, imm); }
  bool operator==(const Node&) const = default;
};

class Dag {
 public:
  std::vector<Node> nodes;
  // Appends, or finds the equal node.
  int32_t add(const Node& node);
  // Nothing is added any more: what finds equal nodes is let go.
  void close() { ids_.clear(); }
  bool operator==(const Dag& other) const { return nodes == other.nodes; }

 private:
  std::map<std::tuple<Prim, Kind, int32_t, int32_t, int32_t, uint64_t>, int32_t> ids_;
};

}  // namespace keirin::codegen
