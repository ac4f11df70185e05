// SPDX-License-Identifier: Apache-2.0
//
// Pass 10: another legal order of the ops if its computed peak is lower, by list scheduling: of the ops that can run, the one
// that grows live memory least. Views share their operand's memory. Never raises the computed peak.
#include <algorithm>
#include <set>

#include "core/ir/rows.h"
#include "core/passes/pass.h"

namespace keirin {
namespace {

// Who owns the memory of each value, and how many ops and outputs still need it.
class Memory {
 public:
  explicit Memory(const Graph& graph) : graph_(graph), owner_(graph.values.size()), readers_(graph.values.size()) {
    for (ValueId v = 0; v < owner_.size(); ++v) owner_[v] = v;
    for (const Op& op : graph.ops)
      if (is_view(op.code)) owner_[op.results[0]] = owner_[op.operands[0]];
    for (const Op& op : graph.ops)
      for (ValueId v : owners(op)) ++readers_[v];
    for (const Output& output : graph.outputs) ++readers_[owner_[output.value]];  // never released
  }

  // Memory owners that the op reads, each once.
  std::vector<ValueId> owners(const Op& op) const {
    std::vector<ValueId> list;
    for (ValueId v : op.operands)
      if (v != kNone && std::find(list.begin(), list.end(), owner_[v]) == list.end()) list.push_back(owner_[v]);
    return list;
  }
  int64_t made(const Op& op) const {
    int64_t n = 0;
    for (ValueId v : op.results) n += owner_[v] == v ? graph_.type(v).bytes() : 0;
    return n;
  }
  // Results of ops are released; what the caller and the model own is not.
  int64_t released_by(const Op& op) const {
    int64_t n = 0;
    for (ValueId v : owners(op)) n += readers_[v] == 1 && graph_.values[v].producer != kNone ? graph_.type(v).bytes() : 0;
    return n;
  }
  // Owners of which one reader is left after the op.
  std::vector<ValueId> run(const Op& op) {
    std::vector<ValueId> last;
    for (ValueId v : owners(op))
      if (--readers_[v] == 1) last.push_back(v);
    return last;
  }
  ValueId owner(ValueId v) const { return owner_[v]; }

 private:
  const Graph& graph_;
  std::vector<ValueId> owner_;
  std::vector<uint32_t> readers_;
};

int64_t peak_of(const Graph& graph, const std::vector<OpId>& order) {
  Memory memory(graph);
  int64_t live = 0, peak = 0;
  for (OpId id : order) {
    const Op& op = graph.ops[id];
    live += memory.made(op);
    peak = std::max(peak, live);
    live -= memory.released_by(op);
    memory.run(op);
  }
  return peak;
}

std::vector<OpId> schedule(const Graph& graph) {
  const size_t n = graph.ops.size();
  std::vector<std::vector<OpId>> consumers(n), readers(graph.values.size());
  std::vector<uint32_t> waits(n);
  Memory memory(graph);
  OpId last_effect = kNone;
  auto edge = [&](OpId from, OpId to) {
    consumers[from].push_back(to);
    ++waits[to];
  };
  for (OpId id = 0; id < n; ++id) {
    const Op& op = graph.ops[id];
    for (ValueId v : op.operands)
      if (v != kNone && graph.values[v].producer != kNone) edge(graph.values[v].producer, id);
    for (ValueId v : memory.owners(op)) readers[v].push_back(id);
    if (!op.effects) continue;
    if (last_effect != kNone) edge(last_effect, id);
    last_effect = id;
  }
  using Entry = std::pair<int64_t, OpId>;  // growth of live memory, then the old order
  std::set<Entry> ready;
  std::vector<int64_t> growth(n);
  std::vector<uint8_t> is_ready(n);
  auto push = [&](OpId id) {
    growth[id] = memory.made(graph.ops[id]) - memory.released_by(graph.ops[id]);
    is_ready[id] = 1;
    ready.insert({growth[id], id});
  };
  for (OpId id = 0; id < n; ++id)
    if (waits[id] == 0) push(id);
  std::vector<OpId> order;
  while (!ready.empty()) {
    OpId id = ready.begin()->second;
    ready.erase(ready.begin());
    is_ready[id] = 0;
    order.push_back(id);
    for (ValueId v : memory.run(graph.ops[id]))
      for (OpId reader : readers[v])
        if (is_ready[reader]) {
          ready.erase({growth[reader], reader});
          push(reader);
        }
    for (OpId next : consumers[id])
      if (--waits[next] == 0) push(next);
  }
  return order;
}

void reorder(Graph& graph, const std::vector<OpId>& order) {
  std::vector<Op> ops;
  for (OpId id : order) {
    for (ValueId v : graph.ops[id].results) graph.values[v].producer = static_cast<OpId>(ops.size());
    ops.push_back(std::move(graph.ops[id]));
  }
  graph.ops = std::move(ops);
}

}  // namespace

Status passes::order_for_memory(Graph& graph, PassContext&) {
  std::vector<OpId> now(graph.ops.size());
  for (OpId id = 0; id < now.size(); ++id) now[id] = id;
  int64_t peak = peak_of(graph, now);
  for (int round = 0; round < 8; ++round) {  // ties go by the order found before: a round or two until nothing changes
    std::vector<OpId> order = schedule(graph);
    int64_t lower = peak_of(graph, order);
    if (lower >= peak) break;
    peak = lower;
    reorder(graph, order);
  }
  return {};
}

}  // namespace keirin
