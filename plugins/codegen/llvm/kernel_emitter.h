// SPDX-License-Identifier: Apache-2.0
//
// Turns one loop kernel into one LLVM function with explicit vectors. Every value of the DAG lives on a level: fixed for a row,
// fixed for one turn of the serial axes, or varying along the vector axis. Code of a level stands outside the loops of the
// next, so broadcast operands, row scalars and the indices of embedding rows cost nothing in the inner loop.
//
// The invariant: whatever a vector loop reads from an outer level has been emitted before the loop (`prepare`), because a value
// made inside one loop would not be there for the next.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "llvm/IR/IRBuilder.h"
#include "llvm/IR/Module.h"
#include "plugins/codegen/kernel/loops.h"
#include "plugins/codegen/llvm/arguments.h"
#include "plugins/codegen/llvm/cpu_target.h"
#include "plugins/codegen/llvm/spills.h"

namespace keirin::codegen::native {

enum Level : uint8_t { kRowLevel, kSerialLevel, kVectorLevel };

// A point in the loops, and the values made there so far.
struct Place {
  Level level = kRowLevel;
  int lanes = 1;
  Place* parent = nullptr;             // of the next lower level that exists
  std::vector<llvm::Value*> index;     // i64 for each axis; inner: the first lane's
  llvm::Value* position = nullptr;     // of the first lane in the row, serial x inner, counted from the block's start
  llvm::Value* mask = nullptr;         // lanes that exist; null: all
  std::vector<llvm::Value*> scalars;   // column class: results of reduce stages, for these lanes
  std::unordered_map<int32_t, llvm::Value*> values;
  std::unordered_map<uint32_t, llvm::Value*> bases;       // by access
  std::unordered_map<uint32_t, llvm::Value*> conditions;  // by access; null: always inside
};

class KernelEmitter {
 public:
  KernelEmitter(const Kernel& kernel, const CpuTarget& target, llvm::Module& module);
  llvm::Function* emit(const std::string& name);

 private:
  using Value = llvm::Value;
  using Body = std::function<void(Value* index)>;
  using VectorBody = std::function<void(Place& place, int unrolled)>;

  // Analysis.
  void find_levels();
  Level access_level(const Access& access, bool without_inner) const;
  bool unmasked_tail(const Stage& stage) const;
  int unroll(const Stage& stage) const;

  // Loops (kernel_loops.cc).
  void emit_units();
  void loop(Value* begin, Value* end, Value* step, const Body& body);
  void serial_loops(Place& row, size_t axis, const std::function<void(Place&)>& body,
                    const std::function<void()>& after_block = {});
  void vector_loops(Place& outer, const Stage& stage, Value* begin, Value* end, const VectorBody& body);
  Place vector_place(Place& outer, Value* inner, int lanes, Value* mask);
  void emit_row(Place& row, Value* begin, Value* end);
  void store_all(const Stage& stage, Place& place);
  void emit_map_stage(Place& row, size_t stage, Value* begin, Value* end);
  void emit_reduce_stage(Place& row, size_t stage, Value* begin, Value* end);
  void emit_columns(Place& row, Value* begin, Value* end);
  void emit_column_chunk(Place& row, Value* inner, int lanes, int count, Value* mask);

  // Values (kernel_values.cc).
  void prepare(const Stage& stage, Place& place);
  void prepare_node(int32_t node, Place& place, std::vector<bool>& seen);
  void prepare_access(uint32_t access, Place& place, std::vector<bool>& seen);
  Value* value(int32_t node, Place& place);
  Value* make_value(int32_t node, Place& place);
  Value* coordinate(uint32_t axis, Place& place);

  // Memory (kernel_accesses.cc).
  Value* argument(int32_t number);
  Value* pointer(uint32_t number);
  Value* inner_iota(Place& place);
  Value* linear(const Linear& form, const LinearArguments& arguments, Place& place, bool with_inner);
  Value* base(uint32_t access, Place& place);
  Value* condition(uint32_t access, Place& place);
  Value* inside(const Access::Guard& guard, const AccessArguments::Guard& arguments, Place& place);
  Value* checked_index(const Access::Indirect& indirect, const AccessArguments::Indirect& arguments, Place& place,
                       Value* active);
  Value* both(Value* x, Value* y);
  struct Address {
    Value* scalar = nullptr;   // contiguous or one element
    Value* vector = nullptr;   // a pointer for each lane
    bool broadcast = false;    // one element for all lanes
    Value* guard = nullptr;    // i1 or lanes of it: inside all guards; null: always
  };
  Address address(uint32_t access, Place& place);
  Value* load(uint32_t access, Kind kind, Place& place);
  void store(uint32_t access, Value* value, Kind kind, Place& place);
  Value* scratch_address(int32_t slot, Kind kind, Place& place);

  // Reductions (kernel_reduce.cc).
  struct Accumulator {
    int lanes;
    llvm::AllocaInst* value;
    llvm::AllocaInst* position;  // arg reductions
  };
  Accumulator make_accumulator(const Stage& stage, int lanes);
  void accumulate(const Stage& stage, const Accumulator& into, Place& place, Value* position);
  struct Partial {
    Value* value;
    Value* position;
  };
  Partial merge(const Stage& stage, Partial x, Partial y);
  Partial across_lanes(const Stage& stage, Partial x, int lanes);
  Partial read(const Accumulator& accumulator);
  // A long column's f32 sum: blocks of kSumBlock in f32, their sums in f64. One accumulator's error grows with the length.
  static constexpr int64_t kSumBlock = 64;
  bool sums_in_blocks(const Stage& stage) const;
  llvm::AllocaInst* make_total(int lanes);
  void add_to_total(const Stage& stage, const Accumulator& block, llvm::AllocaInst* total);
  Partial read_total(llvm::AllocaInst* total);
  Kind value_kind(const Stage& stage) const;

  llvm::AllocaInst* local(llvm::Type* type);
  Value* i64(int64_t v) { return b_.getInt64(static_cast<uint64_t>(v)); }
  bool is_inner(size_t axis) const { return axis + 1 == kernel_.axes.size(); }
  bool has_serial() const;

  const Kernel& kernel_;
  const CpuTarget& target_;
  llvm::Module& module_;
  llvm::IRBuilder<> b_;
  llvm::IRBuilder<> entry_;
  Arguments arguments_;
  SpillPlan spills_;
  bool splits_rows_;
  llvm::Function* function_ = nullptr;
  std::vector<Level> node_level_;
  std::unordered_map<int32_t, Value*> argument_values_;
  std::unordered_map<uint32_t, Value*> pointer_values_;
  std::vector<Value*> row_scalars_;  // row class: by stage
  size_t stage_ = 0;                 // the stage being emitted
};

}  // namespace keirin::codegen::native
