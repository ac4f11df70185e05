// SPDX-License-Identifier: Apache-2.0
#include "core/partition/levels.h"

#include <algorithm>

#include "abi/planted.h"

namespace keirin {
namespace {

class Levels {
 public:
  Levels(const Graph& graph, const std::vector<uint32_t>& classes)
      : graph_(graph), classes_(classes), level_(graph.ops.size()) {}

  std::vector<uint32_t> run() {
    sweep_down();
    sweep_up();
    return std::move(level_);
  }

 private:
  template <class F>
  void for_each_producer(OpId op, OpId last_effect, F&& f) const {
    for (ValueId v : graph_.ops[op].operands)
      if (v != kNone && graph_.values[v].producer != kNone) f(graph_.values[v].producer);
    if (graph_.ops[op].effects && last_effect != kNone) f(last_effect);
  }
  uint32_t gap(OpId a, OpId b) const { return classes_[a] != classes_[b] && !KRN_PLANTED(claims_not_convex); }

  // The least level that the producers allow.
  void sweep_down() {
    OpId last_effect = kNone;
    for (OpId op = 0; op < graph_.ops.size(); ++op) {
      if (classes_[op] == kFloatingClass) continue;
      for_each_producer(op, last_effect, [&](OpId p) {
        if (classes_[p] != kFloatingClass) level_[op] = std::max(level_[op], level_[p] + gap(p, op));
      });
      if (graph_.ops[op].effects) last_effect = op;
    }
  }

  // An op is lifted to the greatest level that its consumers allow if that joins it to one of its class; a claimed op that
  // would only move away from its mates stays. Eager ops form no regions: they rise freely and make room.
  void sweep_up() {
    std::vector<OpId> effect_before(graph_.ops.size(), kNone);
    OpId last_effect = kNone;
    for (OpId op = 0; op < graph_.ops.size(); ++op) {
      if (!graph_.ops[op].effects) continue;
      effect_before[op] = last_effect;
      last_effect = op;
    }
    std::vector<uint32_t> bound(graph_.ops.size(), kNone);      // the greatest legal level; kNone: no consumer
    std::vector<uint32_t> mate(graph_.ops.size(), kNone);       // the least level of a consumer of the same class
    for (OpId op = static_cast<OpId>(graph_.ops.size()); op-- > 0;) {
      if (classes_[op] == kFloatingClass) continue;
      bool joins = bound[op] == mate[op] || classes_[op] == kEagerClass;
      if (bound[op] != kNone && joins) level_[op] = std::max(level_[op], bound[op]);
      for_each_producer(op, effect_before[op], [&](OpId p) {
        bound[p] = std::min(bound[p], level_[op] - gap(p, op));
        if (!gap(p, op)) mate[p] = std::min(mate[p], level_[op]);
      });
    }
  }

  const Graph& graph_;
  const std::vector<uint32_t>& classes_;
  std::vector<uint32_t> level_;
};

}  // namespace

std::vector<uint32_t> assign_levels(const Graph& graph, const std::vector<uint32_t>& classes) {
  return Levels(graph, classes).run();
}

}  // namespace keirin
