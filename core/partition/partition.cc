// SPDX-License-Identifier: Apache-2.0
#include "core/partition/partition.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "abi/planted.h"
#include "core/ir/rows.h"
#include "core/partition/levels.h"

namespace keirin {
namespace {

constexpr int kMostSweeps = 8;  // three are rare

// Work of its own: neither a view nor a factory.
bool is_real(const Op& op) { return !is_view(op.code) && find_row(op.code)->kind != RowKind::kFactory; }

class Cutter {
 public:
  Cutter(const Graph& graph, const std::vector<Claim>& claims)
      : graph_(graph), claimer_(graph.ops.size(), kEagerClass) {
    for (const Claim& claim : claims)
      for (OpId op : claim.ops)
        if (op < graph.ops.size() && graph.ops[op].code != OpCode::kOpaque && claimer_[op] == kEagerClass)
          claimer_[op] = claim.plugin;
  }

  Partition run() {
    find_floating();
    // An island that goes back to eager may free its neighbours to join, or leave another one alone: once more, as often as that
    // is linear. Islands that the last sweep leaves need none, since a whole class of a level may turn eager in place.
    for (int sweep = 0; sweep < kMostSweeps; ++sweep) {
      levels_ = assign_levels(graph_, claimer_);
      if (!drop_islands()) break;
    }
    group();
    pull_floating();
    find_escapes();
    find_updates();
    return assemble();
  }

 private:
  using Key = std::pair<uint32_t, uint32_t>;  // level, plugin

  bool claimed(OpId op) const { return claimer_[op] != kEagerClass && claimer_[op] != kFloatingClass; }

  // Factories and views of what never changes while the graph runs.
  void find_floating() {
    std::vector<uint8_t> still(graph_.values.size());
    for (ValueId v = 0; v < still.size(); ++v)
      still[v] = graph_.values[v].kind == ValueKind::kInput || graph_.values[v].kind == ValueKind::kConstant;
    for (const Output& output : graph_.outputs)
      if (output.updates != kNone) still[output.updates] = 0;
    owner_ = claimer_;
    for (OpId id = 0; id < graph_.ops.size(); ++id) {
      const Op& op = graph_.ops[id];
      if (claimer_[id] == kEagerClass || is_real(op)) continue;
      bool floats = true;
      for (ValueId v : op.operands) floats = floats && still[v];
      if (!floats) continue;
      claimer_[id] = kFloatingClass;
      for (ValueId v : op.results) still[v] = 1;
    }
  }

  // Regions that cannot pay for their border: no anchor and fewer than two real ops.
  bool drop_islands() {
    std::map<Key, int> worth;
    for (OpId id = 0; id < graph_.ops.size(); ++id) {
      if (!claimed(id)) continue;
      const Op& op = graph_.ops[id];
      worth[{levels_[id], claimer_[id]}] += find_row(op.code)->is_anchor() ? 2 : is_real(op);
    }
    std::vector<OpId> dropped;
    for (OpId id = 0; id < graph_.ops.size(); ++id)
      if (claimed(id) && worth[{levels_[id], claimer_[id]}] < 2) dropped.push_back(id);
    for (OpId id : dropped) claimer_[id] = kEagerClass;
    return !dropped.empty();
  }

  void group() {
    std::map<Key, uint32_t> number;
    for (OpId id = 0; id < graph_.ops.size(); ++id)
      if (claimed(id)) number[{levels_[id], claimer_[id]}] = 0;
    for (auto& [key, region] : number) {
      region = static_cast<uint32_t>(regions_.size());
      regions_.push_back({key.second, {}, {}});
    }
    region_of_.assign(graph_.ops.size(), kNone);
    for (OpId id = 0; id < graph_.ops.size(); ++id) {
      if (!claimed(id)) continue;
      region_of_[id] = number[{levels_[id], claimer_[id]}];
      regions_[region_of_[id]].ops.push_back(id);
    }
  }

  // Copies floating ops into the regions of their plugin that read them; for other readers they become eager steps.
  void pull_floating() {
    std::vector<std::vector<uint32_t>> wanted(graph_.ops.size());  // regions that need a copy of a floating op
    std::vector<uint8_t> eager(graph_.ops.size());
    auto want = [&](OpId producer, uint32_t region) {
      if (region == kNone || regions_[region].plugin != owner_[producer])
        eager[producer] = 1;
      else if (std::find(wanted[producer].begin(), wanted[producer].end(), region) == wanted[producer].end())
        wanted[producer].push_back(region);
    };
    for (const Output& output : graph_.outputs) {
      OpId producer = graph_.values[output.value].producer;
      if (producer != kNone && claimer_[producer] == kFloatingClass) eager[producer] = 1;
    }
    for (OpId id = static_cast<OpId>(graph_.ops.size()); id-- > 0;) {
      bool floating = claimer_[id] == kFloatingClass;
      if (floating && wanted[id].empty()) eager[id] = 1;  // read by nobody else
      for (ValueId v : graph_.ops[id].operands) {
        if (v == kNone) continue;
        OpId producer = graph_.values[v].producer;
        if (producer == kNone || claimer_[producer] != kFloatingClass) continue;
        if (!floating) want(producer, region_of_[id]);
        for (uint32_t region : wanted[id]) want(producer, region);
        if (floating && eager[id]) eager[producer] = 1;
      }
      if (!floating) continue;
      for (uint32_t region : wanted[id]) regions_[region].ops.push_back(id);
      if (eager[id]) first_.push_back(id);
    }
    for (Region& region : regions_) std::sort(region.ops.begin(), region.ops.end());
  }

  // Values made by a region and read outside it. Floating results never do: every reader has its own.
  void find_escapes() {
    escapes_.assign(graph_.values.size(), 0);
    auto home = [&](ValueId v) { return graph_.values[v].producer == kNone ? kNone : region_of_[graph_.values[v].producer]; };
    for (OpId id = 0; id < graph_.ops.size(); ++id)
      for (ValueId v : graph_.ops[id].operands)
        if (v != kNone && home(v) != kNone && home(v) != region_of_[id]) escapes_[v] = 1;
  }

  // An update is done in place by the region that computes it if that region alone reads the old content, the new one has the
  // target's layout, and no output of the user's is the old value.
  void find_updates() {
    updates_.assign(regions_.size(), {});
    in_place_.assign(graph_.outputs.size(), 0);
    std::vector<uint32_t> reader(graph_.values.size(), kNone);  // region that reads a leaf; kSeveral if not one region
    constexpr uint32_t kSeveral = kNone - 1;
    auto read = [&](ValueId v, uint32_t region) {
      if (region == kNone) region = kSeveral;
      reader[v] = reader[v] == kNone || reader[v] == region ? region : kSeveral;
    };
    for (OpId id = 0; id < graph_.ops.size(); ++id)
      for (ValueId v : graph_.ops[id].operands)
        if (v != kNone && graph_.values[v].producer == kNone) read(v, region_of_[id]);
    std::vector<uint32_t> times(graph_.values.size());
    for (const Output& output : graph_.outputs) {
      read(output.value, kSeveral);
      if (output.alias_of != kNone) read(output.alias_of, kSeveral);
      if (output.updates != kNone) ++times[output.updates];
    }
    for (size_t k = 0; k < graph_.outputs.size(); ++k) {
      const Output& output = graph_.outputs[k];
      OpId producer = graph_.values[output.value].producer;
      bool ours =
          output.updates != kNone && producer != kNone && region_of_[producer] != kNone && times[output.updates] == 1 &&
          (KRN_PLANTED(update_before_reader) || reader[output.updates] == kNone || reader[output.updates] == region_of_[producer]) &&
          graph_.type(output.updates) == graph_.type(output.value);
      if (ours) {
        in_place_[k] = 1;
        updates_[region_of_[producer]].push_back(output);
      } else if (producer != kNone && region_of_[producer] != kNone) {
        escapes_[output.value] = 1;
      }
    }
  }

  Partition assemble() {
    struct At {
      uint32_t level;
      OpId first;
      Step step;
    };
    std::vector<At> order;
    for (OpId id : first_) order.push_back({0, id, {Step::kEager, id}});
    for (OpId id = 0; id < graph_.ops.size(); ++id)
      if (claimer_[id] == kEagerClass) order.push_back({levels_[id] + 1, id, {Step::kEager, id}});
    for (uint32_t r = 0; r < regions_.size(); ++r) {
      OpId first = kNone;
      for (OpId id : regions_[r].ops)
        if (region_of_[id] == r) first = std::min(first, id);
      order.push_back({levels_[first] + 1, first, {Step::kRegion, r}});
      regions_[r].cut = extract_region(graph_, regions_[r].ops, escapes_, updates_[r]);
    }
    // Within a level only ops of one class depend on each other, and eager ones keep their order.
    std::sort(order.begin(), order.end(),
              [](const At& a, const At& b) { return std::tie(a.level, a.first) < std::tie(b.level, b.first); });
    Partition result;
    result.regions = std::move(regions_);
    result.updated_in_place = std::move(in_place_);
    for (const At& at : order) result.steps.push_back(at.step);
    return result;
  }

  const Graph& graph_;
  std::vector<uint32_t> claimer_;    // class of each op
  std::vector<uint32_t> owner_;      // the claimer of floating ops
  std::vector<OpId> first_;          // floating ops that are eager steps, too: they wait for nothing and go first
  std::vector<uint32_t> levels_, region_of_;
  std::vector<Region> regions_;
  std::vector<uint8_t> escapes_, in_place_;
  std::vector<std::vector<Output>> updates_;
};

}  // namespace

Result<Partition> partition(const Graph& graph, const std::vector<Claim>& claims) {
  for (const Claim& claim : claims)
    for (OpId op : claim.ops)
      if (op >= graph.ops.size())
        return Status(Code::k_invalid_input, {"plugin " + std::to_string(claim.plugin) + " claims op " + std::to_string(op),
                                              "a graph of " + std::to_string(graph.ops.size()) + " ops",
                                              "its claims were dropped", "report it to the plugin's author"});
  return Cutter(graph, claims).run();
}

}  // namespace keirin
