// SPDX-License-Identifier: Apache-2.0
//
// Reductions: several vector accumulators, merged pairwise, then across lanes by halves. The order depends on the length of a
// row and on the vector width only, so two runs give equal bits however many threads there are.
#include "abi/planted.h"
#include "plugins/codegen/llvm/kernel_emitter.h"
#include "plugins/codegen/llvm/scalar_ops.h"

namespace keirin::codegen::native {
namespace {

bool finds_position(const Stage& stage) { return stage.monoid == Monoid::kArgMax || stage.monoid == Monoid::kArgMin; }

}  // namespace

// Position reductions compare in the kind of what they look at; the others fold in the accumulator's.
Kind KernelEmitter::value_kind(const Stage& stage) const {
  return finds_position(stage) ? kernel_.dag.nodes[stage.value].kind : stage.accumulator;
}

KernelEmitter::Accumulator KernelEmitter::make_accumulator(const Stage& stage, int lanes) {
  const Kind kind = value_kind(stage);
  Accumulator a{lanes, local(with_lanes(kind_type(b_.getContext(), kind), lanes)), nullptr};
  b_.CreateStore(monoid_start(b_, stage.monoid, kind, lanes), a.value);
  if (finds_position(stage)) {
    a.position = local(with_lanes(b_.getInt64Ty(), lanes));
    // Past every position: a lane that has seen nothing loses against one that has seen an equal value.
    b_.CreateStore(splat(b_, i64(INT64_MAX), lanes), a.position);
  }
  return a;
}

KernelEmitter::Partial KernelEmitter::read(const Accumulator& a) {
  Partial out{b_.CreateLoad(a.value->getAllocatedType(), a.value), nullptr};
  if (a.position) out.position = b_.CreateLoad(a.position->getAllocatedType(), a.position);
  return out;
}

bool KernelEmitter::sums_in_blocks(const Stage& stage) const {
  return stage.monoid == Monoid::kSum && stage.accumulator == Kind::kF32 && !kernel_.has_csr && has_serial();
}

llvm::AllocaInst* KernelEmitter::make_total(int lanes) {
  llvm::AllocaInst* total = local(with_lanes(b_.getDoubleTy(), lanes));
  b_.CreateStore(llvm::Constant::getNullValue(total->getAllocatedType()), total);
  return total;
}

void KernelEmitter::add_to_total(const Stage& stage, const Accumulator& block, llvm::AllocaInst* total) {
  Value* sum = convert(b_, read(block).value, Kind::kF32, Kind::kF64);
  b_.CreateStore(b_.CreateFAdd(b_.CreateLoad(total->getAllocatedType(), total), sum), total);
  b_.CreateStore(monoid_start(b_, stage.monoid, Kind::kF32, block.lanes), block.value);
}

KernelEmitter::Partial KernelEmitter::read_total(llvm::AllocaInst* total) {
  return {convert(b_, b_.CreateLoad(total->getAllocatedType(), total), Kind::kF64, Kind::kF32), nullptr};
}

void KernelEmitter::accumulate(const Stage& stage, const Accumulator& into, Place& place, Value* position) {
  Value* x = convert(b_, value(stage.value, place), kernel_.dag.nodes[stage.value].kind, value_kind(stage));
  Partial old = read(into);
  Partial next{};
  if (finds_position(stage)) {
    Value* here = splat(b_, position, into.lanes);
    if (!kernel_.column && into.lanes > 1) {
      std::vector<llvm::Constant*> numbers;
      for (int l = 0; l < into.lanes; ++l) numbers.push_back(b_.getInt64(static_cast<uint64_t>(l)));
      here = b_.CreateAdd(here, llvm::ConstantVector::get(numbers));
    }
    next = merge(stage, old, {x, here});
  } else {
    next.value = monoid_step(b_, stage.monoid, old.value, x);
  }
  if (place.mask && !KRN_PLANTED(masked_lanes_summed)) {
    next.value = b_.CreateSelect(place.mask, next.value, old.value);
    if (next.position) next.position = b_.CreateSelect(place.mask, next.position, old.position);
  }
  b_.CreateStore(next.value, into.value);
  if (next.position) b_.CreateStore(next.position, into.position);
}

// NaN beats numbers, the greater (or smaller) the other, and of equals the first position wins.
KernelEmitter::Partial KernelEmitter::merge(const Stage& stage, Partial x, Partial y) {
  if (!finds_position(stage)) return {monoid_step(b_, stage.monoid, x.value, y.value), nullptr};
  const bool largest = stage.monoid == Monoid::kArgMax;
  Value *better, *equal;
  if (x.value->getType()->isFPOrFPVectorTy()) {
    Value* x_nan = b_.CreateFCmpUNO(x.value, x.value);
    Value* y_nan = b_.CreateFCmpUNO(y.value, y.value);
    better = largest ? b_.CreateFCmpOGT(y.value, x.value) : b_.CreateFCmpOLT(y.value, x.value);
    better = b_.CreateOr(better, b_.CreateAnd(y_nan, b_.CreateNot(x_nan)));
    equal = b_.CreateOr(b_.CreateFCmpOEQ(x.value, y.value), b_.CreateAnd(x_nan, y_nan));
  } else {
    const bool is_bool = x.value->getType()->getScalarType()->isIntegerTy(1);
    better = largest ? (is_bool ? b_.CreateICmpUGT(y.value, x.value) : b_.CreateICmpSGT(y.value, x.value))
                     : (is_bool ? b_.CreateICmpULT(y.value, x.value) : b_.CreateICmpSLT(y.value, x.value));
    equal = b_.CreateICmpEQ(x.value, y.value);
  }
  Value* take = b_.CreateOr(better, b_.CreateAnd(equal, KRN_PLANTED(argmax_tie) ? b_.CreateICmpSGT(y.position, x.position)
                                                                                : b_.CreateICmpSLT(y.position, x.position)));
  return {b_.CreateSelect(take, y.value, x.value), b_.CreateSelect(take, y.position, x.position)};
}

KernelEmitter::Partial KernelEmitter::across_lanes(const Stage& stage, Partial x, int lanes) {
  for (int n = lanes; n > 1; n /= 2) {
    std::vector<int> low, high;
    for (int l = 0; l < n / 2; ++l) low.push_back(l), high.push_back(l + n / 2);
    auto half = [&](Value* v, const std::vector<int>& which) -> Value* {
      if (!v) return nullptr;
      return n == 2 ? b_.CreateExtractElement(v, static_cast<uint64_t>(which[0])) : b_.CreateShuffleVector(v, which);
    };
    x = merge(stage, {half(x.value, low), half(x.position, low)}, {half(x.value, high), half(x.position, high)});
  }
  return x;
}

}  // namespace keirin::codegen::native
