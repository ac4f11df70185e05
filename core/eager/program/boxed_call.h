// SPDX-License-Identifier: Apache-2.0
//
// One operator call, prepared: constants boxed once, every other argument a slot number. What the verbatim program and
// the opaque nodes of a Graph both run. It looks up nothing by name while running.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <functional>
#include <vector>

#include "core/eager/program/bind.h"

namespace keirin {

using Slots = std::vector<c10::IValue>;

struct Operand {
  enum class Kind : uint8_t {
    kConstant,  // index into the constants
    kSlot,      // a slot's value
    kTake,      // the same, at the slot's last use: it is emptied
    kWrap,      // a number in a slot, as a 0-d tensor
    kTensors,   // a list of the operands [index, index + count) of `items`
    kOptionalTensors,
    kInts,
    kFloats,
    kBools,
    kScalars
  };
  Kind kind = Kind::kConstant;
  uint32_t index = 0;
  uint32_t count = 0;
};

class OperandList {
 public:
  // `slot` answers where a name lives.
  using SlotOf = std::function<Result<uint32_t>(const std::string& name)>;
  // `type` is the parameter's type; it decides the kind of a list.
  Status add(const BoundArg& arg, const c10::TypePtr& type, const SlotOf& slot);
  void push_all(Slots& slots, torch::jit::Stack& stack) const;
  size_t size() const { return top_.size(); }
  c10::IValue read(size_t i, Slots& slots) const { return value(top_[i], slots); }
  // Visits every kSlot, kTake and kWrap operand, the ones in lists included, last first, so that a visitor can mark last uses.
  void visit_slots(const std::function<void(Operand&)>& visitor);

 private:
  c10::IValue value(const Operand& operand, Slots& slots) const;
  uint32_t add_constant(c10::IValue value);
  Result<Operand> make(const BoundArg& arg, const SlotOf& slot);
  std::vector<Operand> top_, items_;
  std::vector<c10::IValue> constants_;
};

// What is done around the call of an operator.
enum class Care : uint8_t {
  kNone,
  // It is a view that only some strides of its operand allow: where they allow none, the result is a copy with the values of the view. The
  // strides of what an operator returns differ from device to device, and the file was written on one of them.
  kStrides,
  // It is a group norm, whose kernels read the memory of an image and of its gradient as if both lay alike. LibTorch's autograd lays them
  // out so before the call; in a graph what comes before may answer in other strides than those that were traced.
  kImagesAlike,
  // It is an attention or the backward of one, whose kernels read a row of each operand as if its numbers lay one after the other: LibTorch
  // takes others where they do not. Where it drops, LibTorch keeps its random state in host memory, but on the device where the call is
  // recorded; its backward reads it there likewise. Around both the state lies on the device always, so that one may be recorded and the
  // other not.
  kAttention
};
Care care_of(const c10::FunctionSchema& schema);
// Whether the operator reads f64 as something else where it should refuse it: cuDNN's attention, as 16 bits wide.
bool misreads_f64(const c10::FunctionSchema& schema);
// As callBoxed, with that care.
void call_operator(const c10::OperatorHandle& op, Care care, torch::jit::Stack& stack);

struct BoxedCall {
  c10::OperatorHandle op;
  OperandList operands;
  Care care = Care::kNone;  // in a Graph nobody writes what another reads: a view may be a copy
  // Leaves the results on the (otherwise empty) stack. Throws what the operator throws.
  void run(Slots& slots, torch::jit::Stack& stack) const {
    stack.clear();
    operands.push_all(slots, stack);
    call_operator(op, care, stack);
  }
};

Result<BoxedCall> make_boxed_call(const BoundCall& call, const OperandList::SlotOf& slot);

}  // namespace keirin
