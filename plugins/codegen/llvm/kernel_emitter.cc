// SPDX-License-Identifier: Apache-2.0
//
// The frame of a generated kernel: its analysis, its units of work and the walk over the outer axes. Loops inside a unit are in
// kernel_loops.cc, values in kernel_values.cc, memory in kernel_accesses.cc, reductions in kernel_reduce.cc.
#include "plugins/codegen/llvm/kernel_emitter.h"

#include <algorithm>

#include "plugins/codegen/llvm/scalar_ops.h"

namespace keirin::codegen::native {

KernelEmitter::KernelEmitter(const Kernel& kernel, const CpuTarget& target, llvm::Module& module)
    : kernel_(kernel),
      target_(target),
      module_(module),
      b_(module.getContext()),
      entry_(module.getContext()),
      arguments_(kernel),
      spills_(kernel),
      splits_rows_(splits_rows(kernel)) {
  find_levels();
}

Level KernelEmitter::access_level(const Access& access, bool without_inner) const {
  Level level = kRowLevel;
  auto add_form = [&](const Linear& form, bool skip_inner) {
    for (size_t a = 0; a < kernel_.axes.size(); ++a) {
      if (form.coeff[a] == 0) continue;
      const AxisKind kind = kernel_.axes[a].kind;
      if (kind == AxisKind::kInner && !skip_inner) level = kVectorLevel;
      if (kind == AxisKind::kSerial || kind == AxisKind::kSegment) level = std::max(level, kSerialLevel);
    }
  };
  auto add_level = [&](Level other) {
    if (!(without_inner && other == kVectorLevel)) level = std::max(level, other);
  };
  add_form(access.index, without_inner);
  for (const auto& i : access.indirects) add_level(node_level_[i.node]);
  for (const auto& g : access.guards) add_form(g.form, without_inner);
  return level;
}

void KernelEmitter::find_levels() {
  for (const Node& node : kernel_.dag.nodes) {
    Level level = kRowLevel;
    for (int32_t operand : {node.a, node.b, node.c}) {
      if (operand >= 0) level = std::max(level, node_level_[operand]);
    }
    if (node.prim == Prim::kLoad) level = access_level(kernel_.accesses[node.imm], false);
    if (node.prim == Prim::kScalar && kernel_.column) level = kVectorLevel;
    if (node.prim == Prim::kCoord) {
      const AxisKind kind = kernel_.axes[node.imm].kind;
      if (kind == AxisKind::kInner) level = kVectorLevel;
      if (kind == AxisKind::kSerial || kind == AxisKind::kSegment) level = kSerialLevel;
    }
    node_level_.push_back(level);
  }
}

bool KernelEmitter::has_serial() const {
  return std::any_of(kernel_.axes.begin(), kernel_.axes.end(), [](const Axis& a) {
    return a.kind == AxisKind::kSerial || a.kind == AxisKind::kSegment;
  });
}

// A masked access that the CPU has no instruction for: tails run one element at a time then.
bool KernelEmitter::unmasked_tail(const Stage& stage) const {
  if (target_.masks != Masks::kWide) return target_.masks == Masks::kNone;
  auto narrow = [&](const Access& a) { return storage_bytes(a.dtype) < 4; };
  std::vector<bool> in = cone(kernel_, stage);
  for (size_t n = 0; n < in.size(); ++n) {
    const Node& node = kernel_.dag.nodes[n];
    if (in[n] && node.prim == Prim::kLoad && narrow(kernel_.accesses[node.imm])) return true;
  }
  return std::any_of(stage.stores.begin(), stage.stores.end(), [&](const auto& s) { return narrow(kernel_.accesses[s.access]); });
}

// Vectors in flight: several accumulators hide the latency of a reduction, long formulas need no more than themselves.
int KernelEmitter::unroll(const Stage& stage) const {
  std::vector<bool> in = cone(kernel_, stage);
  int work = 0;
  for (size_t n = 0; n < in.size(); ++n) work += in[n] && node_level_[n] == kVectorLevel;
  if (stage.reduce || kernel_.column) return work <= 12 ? 4 : 2;
  return work <= 16 ? 2 : 1;
}

llvm::Function* KernelEmitter::emit(const std::string& name) {
  llvm::Type* ptr = b_.getPtrTy();
  auto* type = llvm::FunctionType::get(b_.getVoidTy(), {ptr, ptr, b_.getInt64Ty(), b_.getInt64Ty(), ptr}, false);
  function_ = llvm::Function::Create(type, llvm::Function::ExternalLinkage, name, module_);
  function_->addFnAttr("target-cpu", target_.cpu);
  if (!target_.features.empty()) function_->addFnAttr("target-features", target_.features);
  function_->addFnAttr("prefer-vector-width", std::to_string(32 * target_.lanes));
  function_->addFnAttr("min-legal-vector-width", std::to_string(32 * target_.lanes));
  if (target_.scale > 0) {
    const auto scale = static_cast<unsigned>(target_.scale);
    function_->addFnAttr(llvm::Attribute::getWithVScaleRangeArgs(module_.getContext(), scale, scale));
  }
  function_->addFnAttr(llvm::Attribute::NoUnwind);
  for (unsigned i : {0u, 1u, 4u}) function_->addParamAttr(i, llvm::Attribute::NoAlias);
  auto* entry = llvm::BasicBlock::Create(module_.getContext(), "entry", function_);
  auto* start = llvm::BasicBlock::Create(module_.getContext(), "start", function_);
  entry_.SetInsertPoint(entry);
  entry_.SetInsertPoint(entry_.CreateBr(start));
  b_.SetInsertPoint(start);
  if (target_.contract) {
    llvm::FastMathFlags flags;
    flags.setAllowContract(true);
    b_.setFastMathFlags(flags);
  }
  emit_units();
  b_.CreateRetVoid();
  return function_;
}

llvm::AllocaInst* KernelEmitter::local(llvm::Type* type) { return entry_.CreateAlloca(type); }

llvm::Value* KernelEmitter::argument(int32_t number) {
  Value*& value = argument_values_[number];
  if (!value) {
    llvm::LoadInst* load = entry_.CreateLoad(
        entry_.getInt64Ty(), entry_.CreateConstInBoundsGEP1_64(entry_.getInt64Ty(), function_->getArg(1), number));
    load->setMetadata(llvm::LLVMContext::MD_invariant_load, llvm::MDNode::get(module_.getContext(), {}));
    value = load;
  }
  return value;
}

llvm::Value* KernelEmitter::pointer(uint32_t number) {
  Value*& value = pointer_values_[number];
  if (!value) {
    value = entry_.CreateLoad(entry_.getPtrTy(),
                              entry_.CreateConstInBoundsGEP1_64(entry_.getPtrTy(), function_->getArg(0), number));
  }
  return value;
}

// Units count blocks fastest, then the last outer axis; the other way round where that walks down. The first unit's indices come from
// divisions, the others from carrying.
void KernelEmitter::emit_units() {
  struct Digit {
    llvm::AllocaInst* index;
    Value* size;
    int32_t axis;  // -1: block
  };
  std::vector<Digit> digits;
  if (splits_rows_) digits.push_back({local(b_.getInt64Ty()), argument(arguments_.num_blocks), -1});
  for (auto a = static_cast<int32_t>(kernel_.axes.size()) - 1; a >= 0; --a) {
    if (kernel_.axes[a].kind == AxisKind::kOuter) digits.push_back({local(b_.getInt64Ty()), argument(a), a});
  }
  if (walks_down(kernel_)) std::swap(digits[0], digits[1]);
  Value* rest = function_->getArg(2);
  for (Digit& digit : digits) {
    b_.CreateStore(b_.CreateURem(rest, digit.size), digit.index);
    rest = b_.CreateUDiv(rest, digit.size);
  }
  const auto inner = static_cast<int32_t>(kernel_.axes.size()) - 1;
  loop(function_->getArg(2), function_->getArg(3), i64(1), [&](Value*) {
    Place row;
    row.index.assign(kernel_.axes.size(), nullptr);
    Value* begin = i64(0);
    Value* end = argument(inner);
    for (const Digit& digit : digits) {
      Value* index = b_.CreateLoad(b_.getInt64Ty(), digit.index);
      if (digit.axis >= 0) {
        row.index[digit.axis] = index;
      } else {
        begin = b_.CreateMul(index, argument(arguments_.block));
        end = b_.CreateBinaryIntrinsic(llvm::Intrinsic::smin, end, b_.CreateAdd(begin, argument(arguments_.block)));
      }
    }
    if (kernel_.column) {
      emit_columns(row, begin, end);
    } else {
      emit_row(row, begin, end);
    }
    Value* carry = i64(1);
    for (const Digit& digit : digits) {
      Value* next = b_.CreateAdd(b_.CreateLoad(b_.getInt64Ty(), digit.index), carry);
      Value* wraps = b_.CreateICmpEQ(next, digit.size);
      b_.CreateStore(b_.CreateSelect(wraps, i64(0), next), digit.index);
      carry = b_.CreateZExt(wraps, b_.getInt64Ty());
    }
  });
}

}  // namespace keirin::codegen::native
