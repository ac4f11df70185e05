// SPDX-License-Identifier: Apache-2.0
//
// Priority fusion. A candidate is tried by really building the fused kernel, so that legality and price come from the same
// place; only the neighbours of an applied candidate are priced again.
#include "plugins/codegen/plan/fuse.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <queue>
#include <set>

#include "abi/planted.h"
#include "plugins/codegen/kernel/price.h"
#include "plugins/codegen/kernel/shape_kernel.h"
#include "plugins/codegen/plan/emitter.h"
#include "plugins/kit/error.h"

namespace keirin::codegen {
namespace {

constexpr int kMaxConsumersTried = 8;
constexpr int kMaxSiblingsTried = 6;

class Fuser {
 public:
  Fuser(PreparedRegion& p, const TargetInfo& target) : p_(p), target_(target) {
    writer_.assign(p.region.tensors.size(), -1);
    readers_.resize(p.region.tensors.size());
  }

  std::vector<Group> search() {
    start();
    order_.resize(groups_.size());
    rank_.resize(groups_.size());
    std::iota(order_.begin(), order_.end(), 0);
    sort_window(0, count() - 1);
    for (int g = 0; g < count(); ++g) push_candidate(g);
    while (!queue_.empty()) {
      Candidate c = queue_.top();
      queue_.pop();
      if (c.version == version_[c.producer] && alive_[c.producer]) apply(c);
    }
    return ordered();
  }

  // What start() would store is stored where a known kernel does so, and what add_kernel() stored besides is among theirs.
  std::vector<Group> resume(const Grouping& known) {
    std::vector<bool> kept(p_.region.tensors.size(), false);
    for (const auto& results : known) {
      for (int t : results) {
        if (t < 0 || t >= static_cast<int>(kept.size()) || !p_.region.producer(t) || kept[t]) unknown(t, "is not what a kernel stores");
        kept[t] = true;
      }
    }
    add_anchors();
    for (int t : kernel_results()) {
      if (!kept[t] && p_.forced[t]) unknown(t, "has to be stored, and no kernel does");
      if (!kept[t]) p_.layout.drop(t);
    }
    for (const auto& results : known) {
      for (int t : results) {
        if (!p_.layout.stored(t)) p_.layout.place_in_temp(p_.region, t);
      }
    }
    for (const auto& results : known) {
      Group g;
      std::string why = "a kernel stores nothing";
      for (int t : results)
        if (writer_[t] >= 0) unknown(t, "is stored by a library already");
      if (results.empty() || !build({results.begin(), results.end()}, g, nullptr, &why)) unknown(results.empty() ? -1 : results[0], why);
      // One result alone is computed whatever it takes, as add_kernel() does.
      if (results.size() > 1)
        if (const std::string refused = veto(g.kernel, target_); !refused.empty()) unknown(results[0], refused);
      add(std::move(g));
    }
    return ordered();
  }

 private:
  [[noreturn]] void unknown(int t, const std::string& why) const {
    const bool known = t >= 0 && t < static_cast<int>(p_.region.tensors.size());
    const TensorNode* node = known ? p_.region.producer(t) : nullptr;
    throw kit::Error(KRN_STATUS_corrupt, "kernels that were planned before cannot be built now (tensor " + std::to_string(t) +
                                             (node ? ", a result of " + std::string(op_name(node->op)) : "") + ": " + why +
                                             "); the region is compiled again");
  }

  struct Candidate {
    double gain = 0;
    int producer = -1;
    int consumer = -1;  // -1: into all consumers
    uint64_t version = 0;
    bool operator<(const Candidate& o) const { return gain != o.gain ? gain < o.gain : producer > o.producer; }
  };

  int count() const { return static_cast<int>(groups_.size()); }

  // ---- the first partition: one group for each stored tensor that has elements ----

  void start() {
    add_anchors();
    for (int t : kernel_results()) add_kernel(t);
  }

  void add_anchors() {
    for (int a = 0; a < static_cast<int>(p_.anchors.size()); ++a) add_anchor(a);
  }

  // What is stored and no anchor computes.
  std::vector<int> kernel_results() const {
    std::vector<int> out;
    for (int n = 0; n < static_cast<int>(p_.region.nodes.size()); ++n) {
      if (p_.absorbed[n]) continue;
      for (int t : p_.region.nodes[n].results) {
        if (p_.layout.stored(t) && writer_[t] < 0 && !p_.is_cat_in_place(t) && p_.region.tensors[t].numel() != 0) out.push_back(t);
      }
    }
    return out;
  }

  void add_anchor(int a) {
    const AnchorPlan& plan = p_.anchors[a];
    Group g;
    g.anchor = a;
    g.results = plan.results;
    std::set<int> reads;
    for (int o : p_.region.nodes[plan.node].operands) {
      if (o >= 0) expand_read(view_base_stored(o), reads);
    }
    for (const AnchorPlan::Post& post : plan.post_ops) {
      if (post.operand >= 0) expand_read(view_base_stored(post.operand), reads);
    }
    g.reads.assign(reads.begin(), reads.end());
    add(std::move(g));
  }

  int view_base_stored(int t) const {
    while (!p_.layout.stored(t)) t = p_.region.producer(t)->operands[0];
    return t;
  }

  // A tensor that cannot be built because an operand must be stored first stores that operand and tries again.
  void add_kernel(int t) {
    if (writer_[t] >= 0) return;
    for (;;) {
      Group g;
      int store_first = -1;
      std::string why;
      std::vector<int> results{t};
      if (build(results, g, &store_first, &why)) {
        add(std::move(g));
        return;
      }
      if (store_first < 0 || store_first == t || p_.layout.stored(store_first)) {
        const TensorNode* node = p_.region.producer(t);
        throw kit::Error(KRN_STATUS_unsupported, "no kernel for " + std::string(op_name(node ? node->op : 0)) + ": " + why);
      }
      p_.layout.place_in_temp(p_.region, store_first);
      add_kernel(store_first);
    }
  }

  void add(Group g) {
    int id = count();
    for (int t : g.results) writer_[t] = id;
    for (int t : g.reads) readers_[t].insert(id);
    groups_.push_back(std::move(g));
    alive_.push_back(true);
    version_.push_back(0);
  }

  // ---- building ----

  void expand_read(int t, std::set<int>& out) const {
    if (!p_.is_cat_in_place(t)) {
      out.insert(t);
      return;
    }
    for (int x : p_.region.producer(t)->operands) expand_read(x, out);
  }

  bool build(const std::vector<int>& results, Group& out, int* store_first = nullptr, std::string* why = nullptr) {
    auto built = emit_kernel(p_.region, p_.layout, results);
    if (const Refusal* r = std::get_if<Refusal>(&built)) {
      if (store_first) *store_first = r->store_first;
      if (why) *why = r->why;
      return false;
    }
    out.results = results;
    out.draft = std::get<Draft>(std::move(built));
    out.anchor = -1;
    describe_csr(out.draft);
    out.kernel = shape_kernel(out.draft, target_);
    if (!update_in_place_is_safe(out)) {
      // A copy of a view of what it overwrites: of the view's elements in memory of their own it can be one.
      const TensorNode* copy = p_.region.producer(results[0]);
      if (store_first && copy && copy->op == kOp_relayout) *store_first = copy->operands[0];
      if (why) *why = "an update would overwrite what the kernel still reads";
      return false;
    }
    out.cost_ns = price(out.kernel, target_);
    std::set<int> reads;
    for (const DraftAccess& a : out.draft.accesses) {
      if (!a.store) expand_read(a.tensor, reads);
    }
    if (out.draft.has_csr) expand_read(view_base_stored(out.draft.csr_index), reads);
    for (int t : results) {  // a concatenation whose pieces the same kernel writes, or the whole of which it writes rows
      if (!reads.count(t) && (p_.shown_by[t] < 0 || !reads.count(p_.shown_by[t]))) continue;
      if (why) *why = "the kernel would read what it writes";
      return false;
    }
    out.reads.assign(reads.begin(), reads.end());
    return true;
  }

  void describe_csr(Draft& d) const {
    if (!d.has_csr) return;
    StridedView view;
    resolve_view(p_.region, p_.layout, d.csr_index, view);
    const Tensor& index = p_.region.tensors[d.csr_index];
    d.csr.index_buffer = p_.layout.at(view.base).buffer;
    d.csr.index_offset = view.offset;
    d.csr.index_dtype = index.dtype;
    d.csr.num_edges = index.numel();
    for (const DraftAxis& a : d.axes) {
      if (a.pinned && !a.segment) d.csr.num_rows = a.size;
    }
  }

  // An output that is written into an input may be computed from that input element by element only.
  bool update_in_place_is_safe(const Group& g) const {
    for (const DraftAccess& store : g.draft.accesses) {
      if (!store.store || p_.alias_of[store.tensor] < 0) continue;
      for (const DraftAccess& load : g.draft.accesses) {
        if (load.store || load.tensor != p_.alias_of[store.tensor]) continue;
        bool same = load.index.coeff == store.index.coeff && (load.index.offset == store.index.offset || KRN_PLANTED(shift_in_place)) &&
                    load.indirects.empty();
        if ((!same || g.kernel.stages.size() > 1) && !KRN_PLANTED(update_in_place)) return false;  // a later stage reads it again
      }
    }
    return true;
  }

  // ---- graph of groups ----

  int first_index(const Group& g) const {
    int out = std::numeric_limits<int>::max();
    for (int t : g.results) out = std::min(out, p_.region.tensors[t].producer);
    return out;
  }
  std::set<int> consumers(int g) const {
    std::set<int> out;
    for (int t : groups_[g].results) {
      out.insert(readers_[t].begin(), readers_[t].end());
      if (p_.shown_by[t] >= 0) out.insert(readers_[p_.shown_by[t]].begin(), readers_[p_.shown_by[t]].end());
    }
    return out;
  }

  // Whether merging the two would close a cycle: a path from one to the other through a third group. Groups are kept in a
  // topological order, so only those between the two can lie on it.
  bool path_through_third(int from, int to) const {
    std::vector<int> todo{from};
    std::set<int> seen;
    while (!todo.empty()) {
      int g = todo.back();
      todo.pop_back();
      for (int c : consumers(g)) {
        if (c == to && g != from) return !KRN_PLANTED(fused_cycle);
        if (c != to && c != from && rank_[c] < rank_[to] && seen.insert(c).second) todo.push_back(c);
      }
    }
    return false;
  }

  // A kernel that is built anew may read what none of the groups that it stands for did: a view that they read through was stored since,
  // for another kernel. Whether all of it is there before the first of them; else what computes it might wait for this kernel.
  bool reads_in_order(const Group& built, const std::vector<int>& groups) const {
    int first = std::numeric_limits<int>::max();
    for (int g : groups) first = std::min(first, rank_[g]);
    return std::all_of(built.reads.begin(), built.reads.end(), [&](int t) {
      const int writer = writer_[t];
      if (writer < 0 || rank_[writer] < first || KRN_PLANTED(fused_cycle)) return true;
      return std::any_of(groups.begin(), groups.end(), [&](int g) { return g == writer || readers_[t].count(g) > 0; });
    });
  }

  // Puts the groups at positions [first, last] in topological order again; no edge leads back into the window from after it.
  void sort_window(int first, int last) {
    std::map<int, int> waiting;
    for (int p = first; p <= last; ++p) {
      if (order_[p] >= 0 && alive_[order_[p]]) waiting[order_[p]] = 0;
    }
    for (const auto& [g, n] : waiting) {
      for (int c : consumers(g)) {
        if (auto it = waiting.find(c); c != g && it != waiting.end()) ++it->second;
      }
    }
    std::vector<int> ready;
    for (const auto& [g, n] : waiting) {
      if (n == 0) ready.push_back(g);
    }
    int p = first;
    while (!ready.empty()) {
      int g = ready.back();
      ready.pop_back();
      rank_[g] = p;
      order_[p++] = g;
      for (int c : consumers(g)) {
        if (auto it = waiting.find(c); c != g && it != waiting.end() && --it->second == 0) ready.push_back(c);
      }
    }
    while (p <= last) order_[p++] = -1;
  }

  bool updates(const Group& g) const {
    return std::any_of(g.results.begin(), g.results.end(), [&](int t) { return p_.alias_of[t] >= 0; });
  }

  // ---- candidates ----

  struct Dropped {
    int tensor;
    Storage storage;
  };
  void drop(int t, std::vector<Dropped>& out) {
    out.push_back({t, p_.layout.at(t)});
    p_.layout.drop(t);
  }
  void restore(std::vector<Dropped>& dropped) {
    for (Dropped& d : dropped) p_.layout.place(d.tensor, d.storage);
    dropped.clear();
  }

  // The kernel that does the work of both; what only the two of them read is no longer stored.
  bool try_merge(int producer, int consumer, Group& out, std::vector<Dropped>& dropped) {
    const Group& a = groups_[producer];
    const Group& b = groups_[consumer];
    std::vector<int> results = b.results;
    for (int t : a.results) {
      bool needed = p_.forced[t];
      for (int r : readers_[t]) needed |= r != producer && r != consumer;
      if (needed) {
        results.push_back(t);
      } else {
        drop(t, dropped);
      }
    }
    // A group that updates an input runs after all readers of the old value, so nobody may wait for it.
    for (int g : {producer, consumer}) {
      for (int r : consumers(g)) {
        if ((updates(a) || updates(b)) && r != producer && r != consumer) return restore(dropped), false;
      }
    }
    bool cycle = path_through_third(producer, consumer) || path_through_third(consumer, producer);
    bool built = !cycle && build(results, out) && reads_in_order(out, {producer, consumer}) && veto(out.kernel, target_).empty();
    if (!built) restore(dropped);
    return built;
  }

  // Groups that read what `g` reads and walk as many elements: one kernel reads it once.
  std::set<int> siblings(int g) const {
    std::set<int> out;
    for (int t : groups_[g].reads) {
      for (int other : readers_[t]) {
        if (other == g || groups_[other].anchor >= 0 || static_cast<int>(out.size()) >= kMaxSiblingsTried) continue;
        if (iterations(groups_[other].kernel) == iterations(groups_[g].kernel)) out.insert(other);
      }
    }
    return out;
  }

  double merge_gain(int producer, int consumer) {
    Group merged;
    std::vector<Dropped> dropped;
    if (groups_[consumer].anchor >= 0 || !try_merge(producer, consumer, merged, dropped)) return 0;
    restore(dropped);
    return groups_[producer].cost_ns + groups_[consumer].cost_ns - merged.cost_ns;
  }

  bool try_inline(int producer, std::vector<std::pair<int, Group>>& out, std::vector<Dropped>& dropped) {
    const Group& g = groups_[producer];
    if (g.results.size() != 1 || p_.forced[g.results[0]] || !g.draft.reduces.empty()) return false;
    std::set<int> users = consumers(producer);
    if (users.size() < 2 || users.size() > kMaxConsumersTried) return false;
    for (int c : users) {
      if (groups_[c].anchor >= 0) return false;
    }
    drop(g.results[0], dropped);
    for (int c : users) {
      Group next;
      if (!build(groups_[c].results, next) || !reads_in_order(next, {producer, c}) || !veto(next.kernel, target_).empty()) {
        restore(dropped);
        return false;
      }
      out.emplace_back(c, std::move(next));
    }
    return true;
  }

  double inline_gain(int producer) {
    std::vector<std::pair<int, Group>> built;
    std::vector<Dropped> dropped;
    if (!try_inline(producer, built, dropped)) return 0;
    restore(dropped);
    double gain = groups_[producer].cost_ns;
    for (const auto& [c, g] : built) gain += groups_[c].cost_ns - g.cost_ns;
    return gain;
  }

  void push_candidate(int producer) {
    if (!alive_[producer] || groups_[producer].anchor >= 0) return;
    Candidate best{0, producer, -1, ++version_[producer]};
    std::set<int> users = consumers(producer);
    int tried = 0;
    for (int c : users) {
      if (++tried > kMaxConsumersTried) break;
      double gain = merge_gain(producer, c);
      if (gain > best.gain) best.gain = gain, best.consumer = c;
    }
    for (int other : siblings(producer)) {
      if (users.count(other)) continue;
      double gain = merge_gain(producer, other);
      if (gain > best.gain) best.gain = gain, best.consumer = other;
    }
    double gain = inline_gain(producer);
    if (gain > best.gain) best.gain = gain, best.consumer = -1;
    if (best.gain > 0) queue_.push(best);
  }

  void replace(int id, Group g) {
    for (int t : groups_[id].reads) readers_[t].erase(id);
    for (int t : g.reads) readers_[t].insert(id);
    for (int t : g.results) writer_[t] = id;
    groups_[id] = std::move(g);
  }

  void remove(int id) {
    for (int t : groups_[id].reads) readers_[t].erase(id);
    alive_[id] = false;
    ++version_[id];
  }

  void apply(const Candidate& c) {
    std::vector<Dropped> dropped;
    std::set<int> changed;
    if (c.consumer >= 0) {
      Group merged;
      if (!alive_[c.consumer] || !try_merge(c.producer, c.consumer, merged, dropped)) return;
      remove(c.producer);
      replace(c.consumer, std::move(merged));
      sort_window(std::min(rank_[c.producer], rank_[c.consumer]), std::max(rank_[c.producer], rank_[c.consumer]));
      changed.insert(c.consumer);
    } else {
      std::vector<std::pair<int, Group>> built;
      if (!try_inline(c.producer, built, dropped)) return;
      remove(c.producer);
      for (auto& [id, g] : built) replace(id, std::move(g)), changed.insert(id);
    }
    std::set<int> again = changed;
    for (int id : changed) {
      for (int t : groups_[id].reads) {
        if (writer_[t] >= 0 && alive_[writer_[t]]) again.insert(writer_[t]);
      }
    }
    for (int id : again) push_candidate(id);
  }

  // ---- order ----

  // An update of an input comes after every other group that reads the old value.
  std::vector<Group> ordered() {
    std::vector<std::set<int>> next(groups_.size());
    std::vector<int> waiting(groups_.size(), 0);
    auto edge = [&](int from, int to) {
      if (from != to && next[from].insert(to).second) ++waiting[to];
    };
    for (int g = 0; g < count(); ++g) {
      if (!alive_[g]) continue;
      for (int c : consumers(g)) edge(g, c);
      for (int t : groups_[g].results) {
        if (p_.alias_of[t] < 0) continue;
        for (int r : readers_[p_.alias_of[t]]) edge(r, g);
      }
    }
    using Key = std::pair<int, int>;
    std::priority_queue<Key, std::vector<Key>, std::greater<Key>> ready;
    for (int g = 0; g < count(); ++g) {
      if (alive_[g] && waiting[g] == 0) ready.emplace(first_index(groups_[g]), g);
    }
    std::vector<Group> out;
    while (!ready.empty()) {
      int g = ready.top().second;
      ready.pop();
      out.push_back(std::move(groups_[g]));
      for (int c : next[g]) {
        if (--waiting[c] == 0) ready.emplace(first_index(groups_[c]), c);
      }
    }
    if (static_cast<long>(out.size()) != std::count(alive_.begin(), alive_.end(), true)) {
      throw kit::Error(KRN_STATUS_unsupported, "kernels wait for each other, or updates of this region's inputs for their readers");
    }
    return out;
  }

  PreparedRegion& p_;
  const TargetInfo& target_;
  std::vector<Group> groups_;
  std::vector<bool> alive_;
  std::vector<uint64_t> version_;
  std::vector<int> writer_;                // by tensor
  std::vector<std::set<int>> readers_;     // by tensor
  std::vector<int> order_;                 // groups in topological order, -1 where one was merged away
  std::vector<int> rank_;                  // by group: its place there
  std::priority_queue<Candidate> queue_;
};

}  // namespace

Grouping grouping_of(const std::vector<Group>& groups) {
  Grouping out;
  for (const Group& g : groups) {
    if (g.anchor < 0) out.emplace_back(g.results.begin(), g.results.end());
  }
  return out;
}

std::vector<Group> fuse(PreparedRegion& prepared, const TargetInfo& target, const Grouping* known) {
  Fuser fuser(prepared, target);
  return known ? fuser.resume(*known) : fuser.search();
}

}  // namespace keirin::codegen
