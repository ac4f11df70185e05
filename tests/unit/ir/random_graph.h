// SPDX-License-Identifier: Apache-2.0
//
// Random well-formed graphs and reorderings of them, for property tests. The seed is the whole input: a failure is repeated
// by its number.
#pragma once

#include <algorithm>
#include <random>

#include "core/ir/graph.h"

namespace keirin::testing {

struct RandomGraphOptions {
  int num_ops = 30;
  double opaque = 0.15;   // share of opaque ops
  double effects = 0.3;   // share of the opaque ones that have effects
};

inline Type f32_type(Dims sizes) {
  Dims strides = contiguous_strides(sizes);
  return Type{DType::k_f32, std::move(sizes), std::move(strides)};
}

inline Graph random_graph(uint32_t seed, const RandomGraphOptions& options = {}) {
  std::mt19937 rng(seed);
  auto pick = [&](size_t n) { return static_cast<uint32_t>(rng() % n); };
  auto chance = [&](double p) { return rng() % 10000 < p * 10000; };
  Graph g;
  const Dims sizes = {4, 4};
  std::vector<ValueId> pool;
  for (uint32_t i = 0; i < 3; ++i) pool.push_back(g.add_input(f32_type(sizes), i, "in" + std::to_string(i)));
  for (uint32_t i = 0; i < 3; ++i) pool.push_back(g.add_constant(f32_type(sizes), 10 + i, ValueKind::kConstant));
  ValueId state = g.add_constant(f32_type(sizes), 20, ValueKind::kState);
  pool.push_back(state);
  auto read = [&] { return pool[chance(0.6) ? pool.size() - 1 - pick(std::min<size_t>(pool.size(), 4)) : pick(pool.size())]; };
  const OpCode kUnary[] = {OpCode::k_exp, OpCode::k_neg, OpCode::k_tanh, OpCode::k_relu};
  const OpCode kBinary[] = {OpCode::k_add, OpCode::k_mul, OpCode::k_maximum, OpCode::k_matmul};
  for (int i = 0; i < options.num_ops; ++i) {
    OpId op;
    if (chance(options.opaque)) {
      op = g.add_op(OpCode::kOpaque, {read(), read()}, {{AttrKey::k_aten, std::string("aten::foo")}},
                    {f32_type(sizes), f32_type(sizes)});
      g.ops[op].call = static_cast<uint32_t>(i);
      g.ops[op].effects = chance(options.effects);
    } else if (chance(0.15)) {
      op = g.add_op(OpCode::k_permute, {read()}, {{AttrKey::k_dims, Dims{1, 0}}}, {Type{DType::k_f32, {4, 4}, {1, 4}}});
    } else if (chance(0.4)) {
      op = g.add_op(kUnary[pick(4)], {read()}, {}, {f32_type(sizes)});
    } else {
      op = g.add_op(kBinary[pick(4)], {read(), read()}, {}, {f32_type(sizes)});
    }
    for (ValueId v : g.ops[op].results) pool.push_back(v);
  }
  for (int i = 0; i < 3; ++i) g.outputs.push_back({read(), kNone, kNone});
  g.outputs.push_back({g.ops.back().results[0], state, kNone});
  return g;
}

// The same computation with ops in another legal order and values under other ids.
inline Graph shuffled(const Graph& g, uint32_t seed) {
  std::mt19937 rng(seed);
  std::vector<OpId> order;
  std::vector<uint8_t> done(g.ops.size());
  while (order.size() < g.ops.size()) {
    std::vector<OpId> ready;
    OpId first_effect = kNone;
    for (OpId i = 0; i < g.ops.size(); ++i)
      if (!done[i] && g.ops[i].effects && first_effect == kNone) first_effect = i;
    for (OpId i = 0; i < g.ops.size(); ++i) {
      if (done[i] || (g.ops[i].effects && i != first_effect)) continue;
      bool is_ready = true;
      for (ValueId v : g.ops[i].operands)
        if (v != kNone && g.values[v].producer != kNone) is_ready = is_ready && done[g.values[v].producer];
      if (is_ready) ready.push_back(i);
    }
    OpId next = ready[rng() % ready.size()];
    done[next] = 1;
    order.push_back(next);
  }
  std::vector<ValueId> to(g.values.size());
  for (ValueId v = 0; v < to.size(); ++v) to[v] = v;
  std::shuffle(to.begin(), to.end(), rng);
  std::vector<OpId> op_to(g.ops.size());
  for (OpId i = 0; i < order.size(); ++i) op_to[order[i]] = i;
  auto move_to = [&](ValueId v) { return v == kNone ? kNone : to[v]; };
  Graph out;
  out.values.resize(g.values.size());
  out.bodies = g.bodies;
  for (ValueId v = 0; v < g.values.size(); ++v) {
    out.values[to[v]] = g.values[v];
    if (g.values[v].producer != kNone) out.values[to[v]].producer = op_to[g.values[v].producer];
  }
  for (OpId i : order) {
    Op op = g.ops[i];
    for (ValueId& v : op.operands) v = move_to(v);
    for (ValueId& v : op.results) v = move_to(v);
    out.ops.push_back(std::move(op));
  }
  for (ValueId v : g.inputs) out.inputs.push_back(to[v]);
  for (const Output& o : g.outputs) out.outputs.push_back({move_to(o.value), move_to(o.updates), move_to(o.alias_of)});
  return out;
}

}  // namespace keirin::testing
