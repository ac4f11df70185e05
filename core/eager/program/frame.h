// SPDX-License-Identifier: Apache-2.0
//
// One graph of a program as straight-line steps over dense slots: what EagerProgram runs, and what the bodies of cond,
// while_loop and the scopes are. A slot is emptied at its last use, so that memory peaks where eager's does.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "core/eager/program/boxed_call.h"
#include "core/eager/program/later_writes.h"
#include "core/eager/program/segment_runner.h"
#include "core/eager/program/symbol_ops.h"

namespace keirin {

// One operator call of the file, as who stands between the program and its operators sees it.
struct OperatorSite {
  struct Tensor {
    std::string name;  // in the file; of a graph inside a node: "node/name"
    DType dtype = DType::kNone;
  };
  c10::OperatorHandle op;
  Care care = Care::kNone;        // kStrides only where nobody writes what the view shares
  std::string node;               // its name, with the prefix of the graph that it stands in
  std::vector<Tensor> operands;   // in schema order, lists as their elements, what is absent left out
  std::vector<Tensor> results;    // the same

  // As callBoxed.
  void call(torch::jit::Stack& stack) const { call_operator(op, care, stack); }
};

// Runs operators in another way than calling them: to look at them, or in another dtype.
class OperatorRunner {
 public:
  virtual ~OperatorRunner() = default;
  // As callBoxed: takes the arguments from the stack and leaves the results there.
  virtual void run(const OperatorSite& site, torch::jit::Stack& stack) = 0;
};

// What a run of a Frame and of those inside it has in common. At most one of the runners is there.
struct Running {
  std::string* at = nullptr;  // is told where the run is, for errors
  OperatorRunner* operators = nullptr;
  SegmentRunner* segments = nullptr;
};

// A segment's runner ended the run.
struct SegmentFailed {
  Status status;
};

class Frame {
 public:
  // Slots 0 .. graph.inputs.size() - 1 are the graph's inputs in order; their names are `input_slot`'s keys. `prefix`
  // stands before the names of an inner graph. `written_after`: LaterWrites. `segments` of the whole program, may be
  // null; only read here.
  static Result<std::unique_ptr<Frame>> make(const pt2::Graph& graph, const DeviceMap& devices,
                                             const std::set<std::string>& written_after, const pt2::Segments* segments,
                                             const std::string& prefix = {});

  size_t num_inputs() const { return num_inputs_; }
  size_t num_outputs() const { return outputs_.size(); }
  bool writes() const { return writes_; }
  bool loops() const { return loops_; }
  // Inputs that a run may write, by name; an operator that may draw random numbers, empty: none. By schemas and constants alone, and
  // where these do not tell, as if it did.
  const std::vector<std::string>& written_inputs() const { return written_inputs_; }
  const std::string& may_draw() const { return may_draw_; }
  // `inputs` are taken; returns the graph's outputs in order. Throws what the operators throw, and SegmentFailed; `at`
  // then says where.
  std::vector<c10::IValue> run(std::vector<c10::IValue> inputs, const Running& running) const;

 private:
  enum class Kind : uint8_t { kOperator, kSymbol, kCond, kWhile, kNoScope, kAutocast };
  struct ResultSlots {  // of one result of a step
    bool is_list = false;
    std::vector<uint32_t> slots;  // kUnused where nobody reads
  };
  struct Step {
    Kind kind = Kind::kOperator;
    std::optional<OperatorSite> site;
    OperandList operands;
    SymbolOp symbol = nullptr;
    std::vector<std::unique_ptr<Frame>> bodies;
    std::vector<ResultSlots> results;
    std::string origin;
  };
  static constexpr uint32_t kUnused = 0xffffffffu;

  struct Making {  // what the nodes of a graph have in common
    const pt2::Graph& graph;
    const DeviceMap& devices;
    const std::string& prefix;
    const pt2::Segments* segments;
    LaterWrites later;
  };
  // Steps [first, end) as one, if somebody answers them.
  struct Stretch {
    size_t number = 0;  // of the segment in the program
    size_t first = 0, end = 0;
    std::vector<uint32_t> tensors, numbers, tensor_results, number_results;  // slots
    std::vector<uint32_t> dead;  // that nobody reads behind it
  };
  Status add_node(size_t number, const Making& making);
  Status add_higher_order(size_t number, const Making& making, Step& step);
  Status add_results(const pt2::Node& node, Step& step);
  Status add_argument(OperandList& operands, const pt2::Argument& arg);
  Status add_stretches(const Making& making);
  void mark_last_uses();
  uint32_t define(const std::string& name);

  void run_step(const Step& step, Slots& slots, torch::jit::Stack& stack, const Running& running) const;
  bool run_stretch(const Stretch& stretch, Slots& slots, const Running& running) const;
  static void run_other_branch(const Step& step, bool taken, const torch::jit::Stack& stack, const Running& running);
  static void run_while(const Step& step, torch::jit::Stack& stack, const Running& running);
  static void run_autocast(const Step& step, torch::jit::Stack& stack, const Running& running);

  size_t num_inputs_ = 0, num_slots_ = 0;
  std::map<std::string, uint32_t, std::less<>> slot_of_;
  std::vector<Step> steps_;  // one for each node, in order
  std::vector<Stretch> stretches_;  // ascending
  OperandList outputs_;
  bool writes_ = false, loops_ = false;  // itself or a graph inside
  std::vector<std::string> written_inputs_;
  std::string may_draw_;  // itself or a graph inside
};

}  // namespace keirin
