// SPDX-License-Identifier: Apache-2.0
//
// The loops inside one unit of work: the stages of a row, the chunks of a column, their serial axes, and along inner a main
// loop over whole vectors with a tail that is masked, or element by element where the CPU has no such masks.
#include "llvm/IR/Intrinsics.h"
#include "abi/planted.h"
#include "plugins/codegen/llvm/kernel_emitter.h"
#include "plugins/codegen/llvm/scalar_ops.h"

namespace keirin::codegen::native {

void KernelEmitter::loop(Value* begin, Value* end, Value* step, const Body& body) {
  llvm::BasicBlock* before = b_.GetInsertBlock();
  auto* inside = llvm::BasicBlock::Create(b_.getContext(), "loop", function_);
  auto* after = llvm::BasicBlock::Create(b_.getContext(), "after", function_);
  b_.CreateCondBr(b_.CreateICmpSLT(begin, end), inside, after);
  b_.SetInsertPoint(inside);
  llvm::PHINode* index = b_.CreatePHI(b_.getInt64Ty(), 2);
  index->addIncoming(begin, before);
  body(index);
  Value* next = b_.CreateAdd(index, step);
  index->addIncoming(next, b_.GetInsertBlock());
  b_.CreateCondBr(b_.CreateICmpSLT(next, end), inside, after);
  b_.SetInsertPoint(after);
}

Place KernelEmitter::vector_place(Place& outer, Value* inner, int lanes, Value* mask) {
  Place place;
  place.level = kVectorLevel;
  place.lanes = lanes;
  place.parent = &outer;
  place.index = outer.index;
  place.index.back() = inner;
  place.mask = mask;
  return place;
}

// Calls `body` for whole vectors, `unroll` of them at a time, then for the tail.
void KernelEmitter::vector_loops(Place& outer, const Stage& stage, Value* begin, Value* end, const VectorBody& body) {
  const int lanes = target_.lanes;
  const int count = unroll(stage);
  Value* row_start = outer.position;
  auto at = [&](Value* inner, int width, Value* mask, int unrolled) {
    Place place = vector_place(outer, inner, width, mask);
    Value* in_block = b_.CreateSub(inner, begin);
    place.position = row_start ? b_.CreateAdd(row_start, in_block) : in_block;
    body(place, unrolled);
  };
  Value* length = b_.CreateSub(end, begin);
  Value* whole = b_.CreateSub(length, b_.CreateSRem(length, i64(lanes * count)));
  Value* main_end = b_.CreateAdd(begin, whole);
  loop(begin, main_end, i64(lanes * count), [&](Value* i) {
    for (int u = 0; u < count; ++u) at(u ? b_.CreateAdd(i, i64(u * lanes)) : i, lanes, nullptr, u);
  });
  if (unmasked_tail(stage)) {
    if (count > 1) {
      Value* vectors_end = b_.CreateSub(end, b_.CreateSRem(length, i64(lanes)));
      loop(main_end, vectors_end, i64(lanes), [&](Value* i) { at(i, lanes, nullptr, 0); });
      main_end = vectors_end;
    }
    loop(main_end, end, i64(1), [&](Value* i) { at(i, 1, nullptr, 0); });
    return;
  }
  loop(main_end, end, i64(lanes), [&](Value* i) {
    Value* left = b_.CreateTrunc(b_.CreateSub(KRN_PLANTED(tail_off_by_one) ? b_.CreateSub(end, i64(1)) : end, i), b_.getInt32Ty());
    std::vector<llvm::Constant*> numbers;
    for (int l = 0; l < lanes; ++l) numbers.push_back(b_.getInt32(static_cast<uint32_t>(l)));
    at(i, lanes, b_.CreateICmpSLT(llvm::ConstantVector::get(numbers), splat(b_, left, lanes)), 0);
  });
}

// Calls `body` at each point of the serial and segment axes from `axis` on; at the row itself where there are none. With
// `after_block`, the last axis, a serial one, goes in blocks of kSumBlock.
void KernelEmitter::serial_loops(Place& row, size_t axis, const std::function<void(Place&)>& body,
                                 const std::function<void()>& after_block) {
  while (axis < kernel_.axes.size() && kernel_.axes[axis].kind == AxisKind::kOuter) ++axis;
  if (is_inner(axis)) {
    Place place;
    place.level = kSerialLevel;
    place.parent = &row;
    place.index = row.index;
    Value* position = nullptr;
    for (size_t a = 0; a < kernel_.axes.size(); ++a) {
      if (kernel_.axes[a].kind != AxisKind::kSerial) continue;
      Value* size = argument(static_cast<int32_t>(a));
      position = position ? b_.CreateAdd(b_.CreateMul(position, size), row.index[a]) : row.index[a];
    }
    const auto inner = static_cast<int32_t>(kernel_.axes.size()) - 1;
    if (position && !kernel_.column) position = b_.CreateMul(position, argument(inner));
    place.position = position;
    body(place);
    return;
  }
  if (kernel_.axes[axis].kind == AxisKind::kSerial) {
    Value* size = argument(static_cast<int32_t>(axis));
    auto walk = [&](Value* begin, Value* end) {
      loop(begin, end, i64(1), [&](Value* i) {
        row.index[axis] = i;
        serial_loops(row, axis + 1, body, after_block);
      });
    };
    if (!after_block || !is_inner(axis + 1)) return walk(i64(0), size);
    loop(i64(0), size, i64(kSumBlock), [&](Value* begin) {
      Value* end = b_.CreateAdd(begin, i64(kSumBlock));
      walk(begin, b_.CreateBinaryIntrinsic(llvm::Intrinsic::smin, end, size));
      after_block();
    });
    return;
  }
  const auto extra = static_cast<uint32_t>(kernel_.buffers.size());
  auto i32_at = [&](uint32_t which, Value* i) {
    Value* p = b_.CreateGEP(b_.getInt32Ty(), pointer(extra + which), i);
    return b_.CreateSExt(b_.CreateLoad(b_.getInt32Ty(), p), b_.getInt64Ty());
  };
  Value* row_number = axis > 0 ? row.index[axis - 1] : i64(0);
  for (size_t a = axis; a-- > 0;) {
    if (kernel_.axes[a].kind != AxisKind::kOuter) continue;
    row_number = row.index[a];
    break;
  }
  loop(i32_at(kRowPointers, row_number), i32_at(kRowPointers, b_.CreateAdd(row_number, i64(1))), i64(1), [&](Value* p) {
    row.index[axis] = i32_at(kEdgeOrder, p);
    serial_loops(row, axis + 1, body, after_block);
  });
}

// Every value before the first store: a store may be an update of what another value is still read from.
void KernelEmitter::store_all(const Stage& stage, Place& place) {
  std::vector<Value*> values;
  for (const auto& s : stage.stores) values.push_back(value(s.node, place));
  for (size_t i = 0; i < values.size(); ++i)
    store(stage.stores[i].access, values[i], kernel_.dag.nodes[stage.stores[i].node].kind, place);
}

void KernelEmitter::emit_row(Place& row, Value* begin, Value* end) {
  row_scalars_.assign(kernel_.stages.size(), nullptr);
  for (stage_ = 0; stage_ < kernel_.stages.size(); ++stage_) {
    if (kernel_.stages[stage_].reduce) {
      emit_reduce_stage(row, stage_, begin, end);
    } else {
      emit_map_stage(row, stage_, begin, end);
    }
  }
}

void KernelEmitter::emit_map_stage(Place& row, size_t number, Value* begin, Value* end) {
  const Stage& stage = kernel_.stages[number];
  prepare(stage, row);
  if (stage.once) {
    store_all(stage, row);
    return;
  }
  auto body = [&](Place& outer) {
    prepare(stage, outer);
    vector_loops(outer, stage, begin, end, [&](Place& place, int) {
      for (int32_t node : spills_.stored[number]) {
        b_.CreateStore(value(node, place), scratch_address(spills_.slots.at(node), kernel_.dag.nodes[node].kind, place))
            ->setAlignment(llvm::Align(1));
      }
      store_all(stage, place);
    });
  };
  has_serial() ? serial_loops(row, 0, body) : body(row);
}

void KernelEmitter::emit_reduce_stage(Place& row, size_t number, Value* begin, Value* end) {
  const Stage& stage = kernel_.stages[number];
  std::vector<Accumulator> accumulators;
  for (int u = 0; u < unroll(stage); ++u) accumulators.push_back(make_accumulator(stage, target_.lanes));
  const bool scalar_tail = unmasked_tail(stage);
  Accumulator tail = make_accumulator(stage, 1);
  prepare(stage, row);
  auto body = [&](Place& outer) {
    prepare(stage, outer);
    vector_loops(outer, stage, begin, end, [&](Place& place, int u) {
      accumulate(stage, place.lanes == 1 ? tail : accumulators[u], place, place.position);
      for (int32_t node : spills_.stored[number]) {
        b_.CreateStore(value(node, place), scratch_address(spills_.slots.at(node), kernel_.dag.nodes[node].kind, place))
            ->setAlignment(llvm::Align(1));
      }
    });
  };
  has_serial() ? serial_loops(row, 0, body) : body(row);
  std::vector<Partial> partials;
  for (const Accumulator& a : accumulators) partials.push_back(read(a));
  for (size_t n = partials.size(); n > 1; n /= 2) {
    for (size_t i = 0; i < n / 2; ++i) partials[i] = merge(stage, partials[i], partials[i + n / 2]);
  }
  Partial result = across_lanes(stage, partials[0], target_.lanes);
  if (scalar_tail) result = merge(stage, result, read(tail));
  row_scalars_[number] = result.position ? result.position : result.value;
}

void KernelEmitter::emit_columns(Place& row, Value* begin, Value* end) {
  const int lanes = target_.lanes;
  int count = 4;
  bool narrow = false;
  for (const Stage& stage : kernel_.stages) {
    count = std::min(count, unroll(stage));
    narrow |= unmasked_tail(stage);
  }
  Value* length = b_.CreateSub(end, begin);
  Value* main_end = b_.CreateSub(end, b_.CreateSRem(length, i64(lanes * count)));
  loop(begin, main_end, i64(lanes * count), [&](Value* i) { emit_column_chunk(row, i, lanes, count, nullptr); });
  if (narrow) {
    Value* vectors_end = b_.CreateSub(end, b_.CreateSRem(length, i64(lanes)));
    loop(main_end, vectors_end, i64(lanes), [&](Value* i) { emit_column_chunk(row, i, lanes, 1, nullptr); });
    loop(vectors_end, end, i64(1), [&](Value* i) { emit_column_chunk(row, i, 1, 1, nullptr); });
    return;
  }
  loop(main_end, end, i64(lanes), [&](Value* i) {
    Value* left = b_.CreateTrunc(b_.CreateSub(end, i), b_.getInt32Ty());
    std::vector<llvm::Constant*> numbers;
    for (int l = 0; l < lanes; ++l) numbers.push_back(b_.getInt32(static_cast<uint32_t>(l)));
    emit_column_chunk(row, i, lanes, 1, b_.CreateICmpSLT(llvm::ConstantVector::get(numbers), splat(b_, left, lanes)));
  });
}

// `count` neighbouring vectors of columns through all stages.
void KernelEmitter::emit_column_chunk(Place& outer, Value* inner, int lanes, int count, Value* mask) {
  Place row = outer;
  row.values.clear(), row.bases.clear(), row.conditions.clear();
  std::vector<std::vector<Value*>> scalars(count, std::vector<Value*>(kernel_.stages.size(), nullptr));
  auto for_each_vector = [&](Place& place, const std::function<void(Place&, int)>& body) {
    for (int u = 0; u < count; ++u) {
      Place vector = vector_place(place, u ? b_.CreateAdd(inner, i64(u * lanes)) : inner, lanes, mask);
      vector.scalars = scalars[u];
      body(vector, u);
    }
  };
  for (stage_ = 0; stage_ < kernel_.stages.size(); ++stage_) {
    const Stage& stage = kernel_.stages[stage_];
    prepare(stage, row);
    if (!stage.reduce) {
      for_each_vector(row, [&](Place& place, int) {
        store_all(stage, place);
      });
      continue;
    }
    std::vector<Accumulator> accumulators;
    std::vector<llvm::AllocaInst*> totals;
    for (int u = 0; u < count; ++u) accumulators.push_back(make_accumulator(stage, lanes));
    const bool in_blocks = sums_in_blocks(stage);
    for (int u = 0; in_blocks && u < count; ++u) totals.push_back(make_total(lanes));
    std::function<void()> after_block;
    if (in_blocks) after_block = [&] {
      for (int u = 0; u < count; ++u) add_to_total(stage, accumulators[u], totals[u]);
    };
    serial_loops(row, 0, [&](Place& place) {
      prepare(stage, place);
      Value* position = place.position;
      for_each_vector(place, [&](Place& vector, int u) { accumulate(stage, accumulators[u], vector, position); });
    }, after_block);
    for (int u = 0; u < count; ++u) {
      Partial result = in_blocks ? read_total(totals[u]) : read(accumulators[u]);
      scalars[u][stage_] = result.position ? result.position : result.value;
    }
  }
}

}  // namespace keirin::codegen::native
