// SPDX-License-Identifier: Apache-2.0
//
// One graph of a program as straight-line steps over dense slots: what EagerProgram runs, and what the bodies of cond,
// while_loop and the scopes are. A slot is emptied at its last use, so that memory peaks where eager's does.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/eager/boxed_call.h"
#include "core/eager/symbol_ops.h"

namespace keirin {

class Frame {
 public:
  // Slots 0 .. graph.inputs.size() - 1 are the graph's inputs in order; their names are `input_slot`'s keys.
  static Result<std::unique_ptr<Frame>> make(const pt2::Graph& graph, const DeviceMap& devices);

  size_t num_inputs() const { return num_inputs_; }
  size_t num_outputs() const { return outputs_.size(); }
  bool writes() const { return writes_; }
  // `inputs` are taken; returns the graph's outputs in order. Throws what the operators throw; `at` then says where.
  std::vector<c10::IValue> run(std::vector<c10::IValue> inputs, std::string* at) const;

 private:
  enum class Kind : uint8_t { kOperator, kSymbol, kCond, kWhile, kNoScope, kAutocast };
  struct ResultSlots {  // of one result of a step
    bool is_list = false;
    std::vector<uint32_t> slots;  // kUnused where nobody reads
  };
  struct Step {
    Kind kind = Kind::kOperator;
    std::optional<c10::OperatorHandle> op;
    OperandList operands;
    SymbolOp symbol = nullptr;
    std::vector<std::unique_ptr<Frame>> bodies;
    std::vector<ResultSlots> results;
    std::string origin;
  };
  static constexpr uint32_t kUnused = 0xffffffffu;

  Status add_node(const pt2::Node& node, const pt2::Graph& graph, const DeviceMap& devices);
  Status add_higher_order(const pt2::Node& node, const DeviceMap& devices, Step& step);
  Status add_results(const pt2::Node& node, Step& step);
  Status add_argument(OperandList& operands, const pt2::Argument& arg);
  void mark_last_uses();
  uint32_t define(const std::string& name);

  void run_step(const Step& step, Slots& slots, torch::jit::Stack& stack, std::string* at) const;
  static void run_while(const Step& step, torch::jit::Stack& stack, std::string* at);
  static void run_autocast(const Step& step, torch::jit::Stack& stack, std::string* at);

  size_t num_inputs_ = 0, num_slots_ = 0;
  std::map<std::string, uint32_t, std::less<>> slot_of_;
  std::vector<Step> steps_;
  OperandList outputs_;
  bool writes_ = false;
};

}  // namespace keirin
