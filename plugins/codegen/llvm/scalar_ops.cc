// SPDX-License-Identifier: Apache-2.0
#include "plugins/codegen/llvm/scalar_ops.h"

#include <bit>
#include <cmath>

#include "llvm/IR/Intrinsics.h"
#include "abi/planted.h"
#include "plugins/codegen/llvm/vector_math.h"

namespace keirin::codegen::native {
namespace {

using llvm::Value;
using Builder = llvm::IRBuilder<>;

enum Dtype : uint8_t {
#define KRN_DTYPE(id, name, bits, dl, cls) kDtype_##name = id,
#include "abi/dtypes.def"
#undef KRN_DTYPE
};

int lanes_of(Value* v) {
  auto* vector = llvm::dyn_cast<llvm::FixedVectorType>(v->getType());
  return vector ? static_cast<int>(vector->getNumElements()) : 1;
}

bool is_float(Value* v) { return v->getType()->isFPOrFPVectorTy(); }
bool is_bool(Value* v) { return v->getType()->getScalarType()->isIntegerTy(1); }

Value* integer(Builder&, llvm::Type* type, int64_t v) { return llvm::ConstantInt::get(type, static_cast<uint64_t>(v)); }

// f32 to the upper half of its bits, rounded to nearest even; done in integers because the CPU's own instruction flushes
// denormals. A NaN keeps its upper bits and gets the quiet one.
Value* round_to_bf16_bits(Builder& b, Value* x) {
  llvm::Type* ints = with_lanes(b.getInt32Ty(), lanes_of(x));
  Value* bits = b.CreateBitCast(x, ints);
  Value* odd = b.CreateAnd(b.CreateLShr(bits, 16), integer(b, ints, 1));
  Value* rounded = KRN_PLANTED(bf16_truncates) ? bits : b.CreateAdd(b.CreateAdd(bits, integer(b, ints, 0x7fff)), odd);
  Value* quiet = b.CreateOr(bits, integer(b, ints, 0x400000));
  return b.CreateSelect(b.CreateFCmpUNO(x, x), quiet, rounded);
}

Value* round_through(Builder& b, Value* x, Kind kind, uint8_t dtype) {
  if (dtype == kDtype_bf16 && kind == Kind::kF32) {
    Value* bits = round_to_bf16_bits(b, x);
    return b.CreateBitCast(b.CreateAnd(bits, integer(b, bits->getType(), 0xffff0000ll)), x->getType());
  }
  return from_storage(b, to_storage(b, x, kind, dtype), dtype, kind);
}

// Neither a zero divisor nor MIN / -1 may trap: lanes that a mask drops divide too.
Value* divide_integers(Builder& b, Value* x, Value* y) {
  Value* minus_one = b.CreateICmpEQ(y, integer(b, y->getType(), -1));
  Value* zero = b.CreateICmpEQ(y, integer(b, y->getType(), 0));
  Value* safe = b.CreateSelect(b.CreateOr(minus_one, zero), integer(b, y->getType(), 1), y);
  return b.CreateSelect(minus_one, b.CreateNeg(x), b.CreateSDiv(x, safe));
}

Value* compare(Builder& b, Prim prim, Value* x, Value* y) {
  using P = llvm::CmpInst::Predicate;
  const bool f = is_float(x), u = is_bool(x);
  P p = P::BAD_FCMP_PREDICATE;
  switch (prim) {
    case Prim::kLt: p = f ? P::FCMP_OLT : u ? P::ICMP_ULT : P::ICMP_SLT; break;
    case Prim::kLe: p = f ? P::FCMP_OLE : u ? P::ICMP_ULE : P::ICMP_SLE; break;
    case Prim::kGt: p = f ? P::FCMP_OGT : u ? P::ICMP_UGT : P::ICMP_SGT; break;
    case Prim::kGe: p = f ? P::FCMP_OGE : u ? P::ICMP_UGE : P::ICMP_SGE; break;
    case Prim::kEq: p = f ? P::FCMP_OEQ : P::ICMP_EQ; break;
    default: p = f ? P::FCMP_UNE : P::ICMP_NE; break;
  }
  return b.CreateCmp(p, x, y);
}

Value* absolute(Builder& b, Value* x) {
  if (is_float(x)) return b.CreateUnaryIntrinsic(llvm::Intrinsic::fabs, x);
  return b.CreateSelect(b.CreateICmpSLT(x, integer(b, x->getType(), 0)), b.CreateNeg(x), x);
}

Value* round_intrinsic(Builder& b, Prim prim, Value* x) {
  if (!is_float(x)) return x;
  const auto id = prim == Prim::kFloor  ? llvm::Intrinsic::floor
                  : prim == Prim::kCeil ? llvm::Intrinsic::ceil
                  : prim == Prim::kTrunc ? llvm::Intrinsic::trunc
                                         : llvm::Intrinsic::roundeven;
  return b.CreateUnaryIntrinsic(id, x);
}

}  // namespace

llvm::Type* with_lanes(llvm::Type* scalar, int lanes) {
  return lanes == 1 ? scalar : llvm::FixedVectorType::get(scalar, static_cast<unsigned>(lanes));
}

llvm::Type* kind_type(llvm::LLVMContext& context, Kind kind) {
  switch (kind) {
    case Kind::kBool: return llvm::Type::getInt1Ty(context);
    case Kind::kI64: return llvm::Type::getInt64Ty(context);
    case Kind::kF32: return llvm::Type::getFloatTy(context);
    default: return llvm::Type::getDoubleTy(context);
  }
}

llvm::Type* storage_type(llvm::LLVMContext& context, uint8_t dtype) {
  switch (dtype) {
    case kDtype_f16: return llvm::Type::getHalfTy(context);
    case kDtype_f32: return llvm::Type::getFloatTy(context);
    case kDtype_f64: return llvm::Type::getDoubleTy(context);
    default: return llvm::Type::getIntNTy(context, static_cast<unsigned>(8 * storage_bytes(dtype)));
  }
}

int64_t storage_bytes(uint8_t dtype) {
  switch (dtype) {
#define KRN_DTYPE(id, name, bits, dl, cls) \
  case id: return bits / 8;
#include "abi/dtypes.def"
#undef KRN_DTYPE
    default: return 0;
  }
}

Kind kind_of_dtype(uint8_t dtype) {
  switch (dtype) {
    case kDtype_bool: return Kind::kBool;
    case kDtype_f16:
    case kDtype_bf16:
    case kDtype_f32: return Kind::kF32;
    case kDtype_f64: return Kind::kF64;
    default: return Kind::kI64;
  }
}

Value* splat(Builder& b, Value* scalar, int lanes) {
  return lanes == 1 ? scalar : b.CreateVectorSplat(static_cast<unsigned>(lanes), scalar);
}

Value* literal(Builder& b, Kind kind, uint64_t bits, int lanes) {
  llvm::Type* type = with_lanes(kind_type(b.getContext(), kind), lanes);
  if (kind == Kind::kBool) return llvm::ConstantInt::get(type, bits != 0);
  if (kind == Kind::kI64) return llvm::ConstantInt::get(type, bits);
  const double value = std::bit_cast<double>(bits);
  if (kind == Kind::kF32) {
    llvm::APFloat narrow(static_cast<float>(value));
    return llvm::ConstantFP::get(type, narrow);
  }
  return llvm::ConstantFP::get(type, value);
}

Value* convert(Builder& b, Value* v, Kind from, Kind to) {
  if (from == to) return v;
  llvm::Type* type = with_lanes(kind_type(b.getContext(), to), lanes_of(v));
  if (to == Kind::kBool) {
    llvm::Value* zero = llvm::Constant::getNullValue(v->getType());
    return from == Kind::kI64 ? b.CreateICmpNE(v, zero) : b.CreateFCmpUNE(v, zero);
  }
  if (from == Kind::kBool) return to == Kind::kI64 ? b.CreateZExt(v, type) : b.CreateUIToFP(v, type);
  if (from == Kind::kI64) return b.CreateSIToFP(v, type);
  if (to == Kind::kI64) return b.CreateFreeze(b.CreateFPToSI(v, type));  // out of range: any value, never poison
  return to == Kind::kF64 ? b.CreateFPExt(v, type) : b.CreateFPTrunc(v, type);
}

Value* from_storage(Builder& b, Value* stored, uint8_t dtype, Kind kind) {
  const int lanes = lanes_of(stored);
  const Kind native = kind_of_dtype(dtype);
  llvm::Type* type = with_lanes(kind_type(b.getContext(), native), lanes);
  Value* v = stored;
  switch (dtype) {
    case kDtype_bool: v = b.CreateICmpNE(stored, llvm::Constant::getNullValue(stored->getType())); break;
    case kDtype_f16: v = b.CreateFPExt(stored, type); break;
    case kDtype_bf16: {
      llvm::Type* ints = with_lanes(b.getInt32Ty(), lanes);
      v = b.CreateBitCast(b.CreateShl(b.CreateZExt(stored, ints), integer(b, ints, 16)), type);
      break;
    }
    case kDtype_u8: case kDtype_u16: case kDtype_u32: v = b.CreateZExt(stored, type); break;
    case kDtype_i8: case kDtype_i16: case kDtype_i32: v = b.CreateSExt(stored, type); break;
    default: break;
  }
  return convert(b, v, native, kind);
}

Value* to_storage(Builder& b, Value* value, Kind kind, uint8_t dtype) {
  const Kind native = kind_of_dtype(dtype);
  Value* v = convert(b, value, kind, native);
  llvm::Type* type = with_lanes(storage_type(b.getContext(), dtype), lanes_of(v));
  switch (dtype) {
    case kDtype_bool: return b.CreateZExt(v, type);
    case kDtype_f16: return b.CreateFPTrunc(v, type);
    case kDtype_bf16: return b.CreateTrunc(b.CreateLShr(round_to_bf16_bits(b, v), 16), type);
    default: return native == Kind::kI64 && type != v->getType() ? b.CreateTrunc(v, type) : v;
  }
}

// select(x > y, x, y) is one instruction that gives y where either is NaN; a NaN in x has to be put back.
Value* maximum(Builder& b, Value* x, Value* y) {
  if (is_bool(x)) return b.CreateOr(x, y);
  if (!is_float(x)) return b.CreateBinaryIntrinsic(llvm::Intrinsic::smax, x, y);
  if (KRN_PLANTED(nan_lost)) return b.CreateSelect(b.CreateFCmpOGT(x, y), x, y);
  return b.CreateSelect(b.CreateFCmpUNO(x, x), x, b.CreateSelect(b.CreateFCmpOGT(x, y), x, y));
}

Value* minimum(Builder& b, Value* x, Value* y) {
  if (is_bool(x)) return b.CreateAnd(x, y);
  if (!is_float(x)) return b.CreateBinaryIntrinsic(llvm::Intrinsic::smin, x, y);
  return b.CreateSelect(b.CreateFCmpUNO(x, x), x, b.CreateSelect(b.CreateFCmpOLT(x, y), x, y));
}

Value* emit_primitive(Builder& b, const Node& node, Kind operand_kind, Value* x, Value* y, Value* z) {
  if (is_elementary(node.prim)) return emit_elementary(b, node.prim, x, y);
  const bool f = is_float(x);
  switch (node.prim) {
    case Prim::kAdd: return f ? b.CreateFAdd(x, y) : b.CreateAdd(x, y);
    case Prim::kSub: return f ? b.CreateFSub(x, y) : b.CreateSub(x, y);
    case Prim::kMul: return f ? b.CreateFMul(x, y) : b.CreateMul(x, y);
    case Prim::kDiv: return f ? b.CreateFDiv(x, y) : divide_integers(b, x, y);
    case Prim::kNeg: return f ? b.CreateFNeg(x) : b.CreateNeg(x);
    case Prim::kAbs: return absolute(b, x);
    case Prim::kMinimum: return minimum(b, x, y);
    case Prim::kMaximum: return maximum(b, x, y);
    case Prim::kSqrt: return b.CreateUnaryIntrinsic(llvm::Intrinsic::sqrt, x);
    case Prim::kRsqrt:
      return b.CreateFDiv(llvm::ConstantFP::get(x->getType(), 1.0), b.CreateUnaryIntrinsic(llvm::Intrinsic::sqrt, x));
    case Prim::kFloor: case Prim::kCeil: case Prim::kTrunc: case Prim::kRound: return round_intrinsic(b, node.prim, x);
    case Prim::kLt: case Prim::kLe: case Prim::kGt: case Prim::kGe: case Prim::kEq: case Prim::kNe:
      return compare(b, node.prim, x, y);
    case Prim::kIsNan: return f ? b.CreateFCmpUNO(x, x) : literal(b, Kind::kBool, 0, lanes_of(x));
    case Prim::kAnd: return b.CreateAnd(x, y);
    case Prim::kOr: return b.CreateOr(x, y);
    case Prim::kXor: return b.CreateXor(x, y);
    case Prim::kNot: return b.CreateNot(x);
    case Prim::kSelect: return b.CreateSelect(x, y, z);
    case Prim::kConvert: return convert(b, x, operand_kind, node.kind);
    case Prim::kRound16: return round_through(b, x, node.kind, static_cast<uint8_t>(node.imm));
    default: return nullptr;
  }
}

Value* monoid_start(Builder& b, Monoid monoid, Kind kind, int lanes) {
  const bool f = kind == Kind::kF32 || kind == Kind::kF64;
  auto of = [&](double real, int64_t whole) {
    return literal(b, kind, f ? std::bit_cast<uint64_t>(real) : static_cast<uint64_t>(whole), lanes);
  };
  switch (monoid) {
    case Monoid::kSum: return of(0, 0);
    case Monoid::kProd: return of(1, 1);
    case Monoid::kMax: case Monoid::kArgMax: return of(KRN_PLANTED(max_from_zero) ? 0 : -HUGE_VAL, kind == Kind::kBool ? 0 : INT64_MIN);
    case Monoid::kMin: case Monoid::kArgMin: return of(HUGE_VAL, INT64_MAX);
    case Monoid::kAny: return of(0, 0);
    default: return of(1, 1);
  }
}

Value* monoid_step(Builder& b, Monoid monoid, Value* acc, Value* x) {
  const bool f = is_float(x);
  switch (monoid) {
    case Monoid::kSum: return f ? b.CreateFAdd(acc, x) : b.CreateAdd(acc, x);
    case Monoid::kProd: return f ? b.CreateFMul(acc, x) : b.CreateMul(acc, x);
    case Monoid::kMax: return maximum(b, acc, x);
    case Monoid::kMin: return minimum(b, acc, x);
    case Monoid::kAny: return b.CreateOr(acc, x);
    default: return b.CreateAnd(acc, x);
  }
}

}  // namespace keirin::codegen::native
