// SPDX-License-Identifier: Apache-2.0
#include <unordered_map>

#include "core/partition/partition.h"

namespace keirin {
namespace {

// Costs time and memory by the size of the region, not of the whole graph: a graph may have hundreds of regions.
class Extractor {
 public:
  explicit Extractor(const Graph& whole) : whole_(whole) {}

  void add_op(const Op& from) {
    Op op = from;
    for (ValueId& v : op.operands) v = value_of(v);
    op.body = body_of(op.body);
    for (ValueId& v : op.results) {
      Value value = whole_.values[v];
      value.producer = static_cast<OpId>(out_.graph.ops.size());
      v = append(v, std::move(value));
    }
    out_.graph.ops.push_back(std::move(op));
  }

  // The region's value for one of the whole graph; one that nobody in the region made is an input of the region.
  ValueId value_of(ValueId v) {
    if (v == kNone) return kNone;
    if (auto at = to_.find(v); at != to_.end()) return at->second;
    Value value = whole_.values[v];
    bool input = value.kind == ValueKind::kResult || value.kind == ValueKind::kInput;
    if (input) {
      value.kind = ValueKind::kInput;
      value.producer = kNone;
      value.index = static_cast<uint32_t>(out_.graph.inputs.size());
    }
    ValueId id = append(v, std::move(value));
    if (input) out_.graph.inputs.push_back(id);
    return id;
  }

  void add_output(ValueId value, ValueId updates) {
    ValueId v = value_of(value), target = value_of(updates);
    out_.graph.outputs.push_back({v, target, kNone});
  }

  RegionGraph take() { return std::move(out_); }

 private:
  ValueId append(ValueId v, Value value) {
    ValueId id = static_cast<ValueId>(out_.graph.values.size());
    to_[v] = id;
    out_.graph.values.push_back(std::move(value));
    out_.values.push_back(v);
    return id;
  }

  uint32_t body_of(uint32_t body) {
    if (body == kNone) return kNone;
    auto [at, fresh] = body_to_.emplace(body, static_cast<uint32_t>(out_.graph.bodies.size()));
    if (fresh) out_.graph.bodies.push_back(whole_.bodies[body]);
    return at->second;
  }

  const Graph& whole_;
  std::unordered_map<ValueId, ValueId> to_;
  std::unordered_map<uint32_t, uint32_t> body_to_;
  RegionGraph out_;
};

}  // namespace

RegionGraph extract_region(const Graph& graph, const std::vector<OpId>& ops, const std::vector<uint8_t>& escapes,
                           const std::vector<Output>& updates) {
  Extractor extractor(graph);
  for (OpId id : ops) extractor.add_op(graph.ops[id]);
  for (OpId id : ops)
    for (ValueId v : graph.ops[id].results)
      if (escapes[v]) extractor.add_output(v, kNone);
  for (const Output& update : updates) extractor.add_output(update.value, update.updates);
  return extractor.take();
}

}  // namespace keirin
