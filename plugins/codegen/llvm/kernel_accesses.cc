// SPDX-License-Identifier: Apache-2.0
//
// Loads and stores: contiguous, broadcast, strided or gathered, inside guards, with indices checked. An index out of range sets
// the error flag, reads element 0 of its axis and writes nothing: memory-safe, and the launcher reports it.
#include "llvm/IR/Intrinsics.h"
#include "abi/planted.h"
#include "plugins/codegen/llvm/kernel_emitter.h"
#include "plugins/codegen/llvm/scalar_ops.h"

#include <bit>

namespace keirin::codegen::native {

// The index along inner of each lane.
llvm::Value* KernelEmitter::inner_iota(Place& place) {
  Value* first = place.index.back();
  if (place.lanes == 1) return first;
  std::vector<llvm::Constant*> numbers;
  for (int l = 0; l < place.lanes; ++l) numbers.push_back(b_.getInt64(static_cast<uint64_t>(l)));
  return b_.CreateAdd(splat(b_, first, place.lanes), llvm::ConstantVector::get(numbers));
}

// The form at a place; scalar unless inner takes part on a vector place.
llvm::Value* KernelEmitter::linear(const Linear& form, const LinearArguments& arguments, Place& place, bool with_inner) {
  Value* sum = argument(arguments.offset);
  for (size_t a = 0; a < form.coeff.size(); ++a) {
    if (form.coeff[a] == 0 || is_inner(a)) continue;
    sum = b_.CreateAdd(sum, b_.CreateMul(place.index[a], argument(arguments.first_coeff + static_cast<int32_t>(a))));
  }
  if (!with_inner || form.coeff.back() == 0) return sum;
  Value* inner = inner_iota(place);
  if (form.coeff.back() != 1) {
    const auto last = static_cast<int32_t>(form.coeff.size()) - 1;
    inner = b_.CreateMul(inner, splat(b_, argument(arguments.first_coeff + last), place.lanes));
  }
  return b_.CreateAdd(splat(b_, sum, place.lanes), inner);
}

llvm::Value* KernelEmitter::both(Value* x, Value* y) { return !x ? y : !y ? x : b_.CreateAnd(x, y); }

llvm::Value* KernelEmitter::inside(const Access::Guard& guard, const AccessArguments::Guard& arguments, Place& place) {
  Value* form = linear(guard.form, arguments.form, place, true);
  Value* limit = argument(arguments.limit);
  if (form->getType()->isVectorTy()) limit = splat(b_, limit, place.lanes);
  return b_.CreateICmpULT(form, limit);  // a negative form is a huge one
}

llvm::Value* KernelEmitter::checked_index(const Access::Indirect& indirect, const AccessArguments::Indirect& arguments,
                                          Place& place, Value* active) {
  Value* index = value(indirect.node, place);
  if (indirect.inside && place.lanes == 1) return index;
  Value* limit = splat(b_, argument(arguments.limit), place.lanes);
  Value* fits = KRN_PLANTED(negative_index) ? b_.CreateICmpSLT(index, limit) : b_.CreateICmpULT(index, limit);
  if (indirect.inside) return b_.CreateSelect(fits, index, llvm::Constant::getNullValue(index->getType()));  // of lanes not there
  Value* bad = b_.CreateNot(fits);
  if (active) bad = b_.CreateAnd(bad, active->getType()->isVectorTy() ? active : splat(b_, active, place.lanes));
  auto* report = llvm::BasicBlock::Create(b_.getContext(), "out_of_range", function_);
  auto* done = llvm::BasicBlock::Create(b_.getContext(), "checked", function_);
  b_.CreateCondBr(place.lanes == 1 ? bad : b_.CreateOrReduce(bad), report, done);
  b_.SetInsertPoint(report);
  Value* flag = pointer(static_cast<uint32_t>(kernel_.buffers.size()) + kErrorFlag);
  b_.CreateStore(b_.getInt32(1), flag)->setAtomic(llvm::AtomicOrdering::Monotonic);
  b_.CreateBr(done);
  b_.SetInsertPoint(done);
  return b_.CreateSelect(fits, index, llvm::Constant::getNullValue(index->getType()));
}

// The address at inner 0, without what varies along the vector.
llvm::Value* KernelEmitter::base(uint32_t number, Place& place) {
  const Access& access = kernel_.accesses[number];
  if (place.parent && access_level(access, true) <= place.parent->level) return base(number, *place.parent);
  auto known = place.bases.find(number);
  if (known != place.bases.end()) return known->second;
  const AccessArguments& arguments = arguments_.accesses[number];
  Value* offset = linear(access.index, arguments.index, place, false);
  for (size_t i = 0; i < access.indirects.size(); ++i) {
    if (node_level_[access.indirects[i].node] == kVectorLevel) continue;
    Value* index = checked_index(access.indirects[i], arguments.indirects[i], place, condition(number, place));
    offset = b_.CreateAdd(offset, b_.CreateMul(index, argument(arguments.indirects[i].stride)));
  }
  if (KRN_PLANTED(offset_of_32_bits)) offset = b_.CreateSExt(b_.CreateTrunc(offset, b_.getInt32Ty()), b_.getInt64Ty());
  Value* at = b_.CreateGEP(storage_type(b_.getContext(), access.dtype), pointer(access.buffer), offset);
  place.bases[number] = at;
  return at;
}

// Whether the access is inside those guards that do not vary along the vector; null if there are none.
llvm::Value* KernelEmitter::condition(uint32_t number, Place& place) {
  const Access& access = kernel_.accesses[number];
  if (place.parent && access_level(access, true) <= place.parent->level) return condition(number, *place.parent);
  auto known = place.conditions.find(number);
  if (known != place.conditions.end()) return known->second;
  Value* all = nullptr;
  for (size_t g = 0; g < access.guards.size(); ++g) {
    if (access.guards[g].form.coeff.back() != 0) continue;
    all = both(all, inside(access.guards[g], arguments_.accesses[number].guards[g], place));
  }
  place.conditions[number] = all;
  return all;
}

KernelEmitter::Address KernelEmitter::address(uint32_t number, Place& place) {
  const Access& access = kernel_.accesses[number];
  const AccessArguments& arguments = arguments_.accesses[number];
  llvm::Type* element = storage_type(b_.getContext(), access.dtype);
  Address out;
  out.guard = condition(number, place);
  for (size_t g = 0; g < access.guards.size(); ++g) {
    if (access.guards[g].form.coeff.back() == 0) continue;
    Value* in = inside(access.guards[g], arguments.guards[g], place);
    out.guard = both(out.guard ? splat(b_, out.guard, out.guard->getType()->isVectorTy() ? 1 : place.lanes) : nullptr, in);
  }
  Value* start = base(number, place);
  Value* varying = nullptr;
  for (size_t i = 0; i < access.indirects.size(); ++i) {
    if (node_level_[access.indirects[i].node] != kVectorLevel) continue;
    Value* guard = out.guard && !out.guard->getType()->isVectorTy() ? splat(b_, out.guard, place.lanes) : out.guard;
    Value* index = checked_index(access.indirects[i], arguments.indirects[i], place, both(guard, place.mask));
    index = b_.CreateMul(index, splat(b_, argument(arguments.indirects[i].stride), place.lanes));
    varying = varying ? b_.CreateAdd(varying, index) : index;
  }
  const int64_t stride = access.index.coeff.back();
  const auto last = arguments.index.first_coeff + static_cast<int32_t>(access.index.coeff.size()) - 1;
  if (!varying && stride == 0) {
    out.scalar = start;
    out.broadcast = true;
    return out;
  }
  if (!varying && stride == 1) {
    out.scalar = b_.CreateGEP(element, start, place.index.back());
    return out;
  }
  Value* offset = varying;
  if (stride != 0) {
    Value* along = inner_iota(place);
    if (stride != 1) along = b_.CreateMul(along, splat(b_, argument(last), place.lanes));
    offset = offset ? b_.CreateAdd(offset, along) : along;
  }
  (place.lanes == 1 ? out.scalar : out.vector) = b_.CreateGEP(element, start, offset);
  return out;
}

llvm::Value* KernelEmitter::load(uint32_t number, Kind kind, Place& place) {
  const Access& access = kernel_.accesses[number];
  llvm::Type* element = storage_type(b_.getContext(), access.dtype);
  const llvm::Align align(static_cast<uint64_t>(storage_bytes(access.dtype)));
  const Address at = address(number, place);
  const int lanes = place.lanes;
  llvm::Type* type = with_lanes(element, lanes);
  auto lanes_mask = [&](Value* m) { return m && !m->getType()->isVectorTy() ? splat(b_, m, lanes) : m; };
  Value* stored = nullptr;
  if (at.broadcast || lanes == 1) {
    // One element: where it may lie outside, from a place that is always there.
    Value* from = at.scalar;
    Value* allowed = at.guard;
    if (allowed && allowed->getType()->isVectorTy()) allowed = b_.CreateOrReduce(allowed);
    if (allowed) {
      llvm::AllocaInst* nowhere = local(element);
      entry_.CreateStore(llvm::Constant::getNullValue(element), nowhere);
      from = b_.CreateSelect(allowed, from, nowhere);
    }
    stored = splat(b_, b_.CreateAlignedLoad(element, from, align), lanes);
  } else if (at.scalar) {
    Value* mask = both(lanes_mask(at.guard), place.mask);
    stored = mask ? static_cast<Value*>(
                        b_.CreateMaskedLoad(type, at.scalar, align, mask, llvm::Constant::getNullValue(type)))
                  : b_.CreateAlignedLoad(type, at.scalar, align);
  } else {
    Value* mask = both(lanes_mask(at.guard), place.mask);
    if (!mask) mask = llvm::Constant::getAllOnesValue(with_lanes(b_.getInt1Ty(), lanes));
    stored = b_.CreateMaskedGather(type, at.vector, align, mask, llvm::Constant::getNullValue(type));
  }
  Value* v = from_storage(b_, stored, access.dtype, kind);
  if (!at.guard) return v;
  const uint64_t fill = kind == Kind::kF32 || kind == Kind::kF64 ? std::bit_cast<uint64_t>(access.fill)
                                                                 : static_cast<uint64_t>(static_cast<int64_t>(access.fill));
  return b_.CreateSelect(lanes_mask(at.guard), v, literal(b_, kind, fill, lanes));
}

void KernelEmitter::store(uint32_t number, Value* v, Kind kind, Place& place) {
  const Access& access = kernel_.accesses[number];
  const llvm::Align align(static_cast<uint64_t>(storage_bytes(access.dtype)));
  const Address at = address(number, place);
  Value* stored = to_storage(b_, v, kind, access.dtype);
  const int lanes = place.lanes;
  Value* guard = at.guard && !at.guard->getType()->isVectorTy() && lanes > 1 ? splat(b_, at.guard, lanes) : at.guard;
  for (size_t i = 0; i < access.indirects.size(); ++i) {
    Value* limit = splat(b_, argument(arguments_.accesses[number].indirects[i].limit), lanes);
    guard = both(guard, b_.CreateICmpULT(value(access.indirects[i].node, place), limit));
  }
  if (lanes > 1) {
    Value* mask = both(guard, place.mask);
    if (at.scalar && !at.broadcast) {
      if (mask) b_.CreateMaskedStore(stored, at.scalar, align, mask);
      else b_.CreateAlignedStore(stored, at.scalar, align);
      return;
    }
    if (!mask) mask = llvm::Constant::getAllOnesValue(with_lanes(b_.getInt1Ty(), lanes));
    Value* to = at.broadcast ? splat(b_, at.scalar, lanes) : at.vector;
    b_.CreateMaskedScatter(stored, to, align, mask);  // lanes in order: the last one wins
    return;
  }
  if (!guard) {
    b_.CreateAlignedStore(stored, at.scalar, align);
    return;
  }
  auto* inside_block = llvm::BasicBlock::Create(b_.getContext(), "inside", function_);
  auto* done = llvm::BasicBlock::Create(b_.getContext(), "stored", function_);
  b_.CreateCondBr(guard, inside_block, done);
  b_.SetInsertPoint(inside_block);
  b_.CreateAlignedStore(stored, at.scalar, align);
  b_.CreateBr(done);
  b_.SetInsertPoint(done);
}

llvm::Value* KernelEmitter::scratch_address(int32_t slot, Kind kind, Place& place) {
  Value* elements = argument(arguments_.block);  // the longest row or block a slot must hold
  for (size_t a = 0; a < kernel_.axes.size(); ++a) {
    if (kernel_.axes[a].kind == AxisKind::kSerial) elements = b_.CreateMul(elements, argument(static_cast<int32_t>(a)));
  }
  Value* bytes = b_.CreateAnd(b_.CreateAdd(b_.CreateShl(b_.CreateAdd(elements, i64(64)), 3), i64(63)), i64(-64));
  Value* start = b_.CreateGEP(b_.getInt8Ty(), function_->getArg(4), b_.CreateMul(bytes, i64(slot)));
  return b_.CreateGEP(kind_type(b_.getContext(), kind), start, place.position);
}

}  // namespace keirin::codegen::native
