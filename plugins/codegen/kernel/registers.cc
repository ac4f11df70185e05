// SPDX-License-Identifier: Apache-2.0
#include "plugins/codegen/kernel/registers.h"

#include <algorithm>

#include "plugins/codegen/kernel/rows.h"

namespace keirin::codegen {
namespace {

// Indices and addresses: as much as kernels have that hold little else. And what a function of mathematics needs while it is computed.
constexpr int kOthers = 48, kFunction = 32;

int words_of(Kind kind) { return kind == Kind::kF64 || kind == Kind::kI64 ? 2 : 1; }
int words_of_bytes(int64_t bytes) { return static_cast<int>((bytes + 3) / 4); }

// Down from what stages compute or store, each node once; `enter` says whether to go on below one.
template <class Enter>
void walk_down(const Kernel& k, size_t first, size_t count, Enter enter) {
  std::vector<bool> seen(k.dag.nodes.size());
  std::vector<int32_t> stack;
  for (size_t s = first; s < first + count; ++s) add_roots(k, k.stages[s], stack);
  while (!stack.empty()) {
    const int32_t id = stack.back();
    stack.pop_back();
    if (id < 0 || seen[id]) continue;
    seen[id] = true;
    if (!enter(id)) continue;
    const Node& n = k.dag.nodes[id];
    for (int32_t x : {n.a, n.b, n.c}) stack.push_back(x);
    if (n.prim == Prim::kLoad)
      for (const auto& i : k.accesses[n.imm].indirects) stack.push_back(i.node);
  }
}

class Counter {
 public:
  Counter(const Kernel& k, const Schedule& s) : k_(k), s_(s), moves_(moves_along_inner(k)) {
    if (s.shape == GpuShape::kRow && s.chunks > 0 && !s.split) kept_ = find_kept(k);
    else kept_.made_in.assign(k.dag.nodes.size(), -1), kept_.taken.resize(k.stages.size());
    all_kept_ = kept_.all();
  }

  int most() const {
    int out = s_.staged > 0 ? staged_words() : 0;
    for (size_t s = 0; s < k_.stages.size(); s += pass_length(k_, s))
      if (!k_.stages[s].once) out = std::max(out, of_pass(s, pass_length(k_, s)));
    return out + kOthers + of_functions();
  }

 private:
  int of_functions() const {
    int words = 0;
    for (const Node& n : k_.dag.nodes)
      if (is_special(n.prim)) words = std::max(words, kFunction * words_of(n.kind));
    return words;
  }

  // What the row keeps before and after a pass, words under way, what waits to be stored, accumulators, what one element needs meanwhile.
  int of_pass(size_t first, size_t count) const {
    const std::vector<bool> in = needed(first, count);
    int waiting = 0, accumulators = 0;
    for (size_t s = first; s < first + count; ++s) {
      const Stage& stage = k_.stages[s];
      if (stage.reduce) accumulators += result_words(stage, true);
      for (const auto& st : stage.stores) {
        const Access& a = k_.accesses[st.access];
        if (takes_words(a, moves_)) waiting += s_.vec * words_of_bytes(dtype_bytes(a.dtype));
      }
    }
    for (size_t s = 0; k_.column && s < first; ++s)
      if (k_.stages[s].reduce) accumulators += result_words(k_.stages[s], false);
    const int before = kept(first, false), after = kept(first, true);
    return std::max(before + under_way(in, first), after) + waiting + accumulators + of_element(in, first, count);
  }

  // Of a reduce stage, or of its result: one of a row, one for each element of a piece of columns.
  int result_words(const Stage& stage, bool running) const {
    const bool place = stage.monoid == Monoid::kArgMax || stage.monoid == Monoid::kArgMin;
    const int parts = running && stage.monoid == Monoid::kDeviations ? 2 : 1;  // their count is the same for all of a thread's
    const int words = !place ? parts * words_of(stage.accumulator) : running ? 2 + words_of(k_.dag.nodes[stage.value].kind) : 2;
    return words * (k_.column ? s_.vec : 1);
  }

  // Nodes that the pass computes, down to those that it takes from an earlier one.
  std::vector<bool> needed(size_t first, size_t count) const {
    std::vector<bool> in(k_.dag.nodes.size());
    walk_down(k_, first, count, [&](int32_t id) {
      in[id] = true;
      return !takes(first, id);
    });
    return in;
  }
  bool takes(size_t stage, int32_t id) const {
    return std::find(kept_.taken[stage].begin(), kept_.taken[stage].end(), id) != kept_.taken[stage].end();
  }

  // Words that lie between passes: before the pass that begins with this stage, or after it.
  int kept(size_t stage, bool after) const {
    int words = 0;
    for (int32_t id : all_kept_) {
      const auto made = static_cast<size_t>(kept_.made_in[id]);
      bool later = false;
      for (size_t s = after ? stage + 1 : stage; s < kept_.taken.size(); ++s) later |= takes(s, id);
      if (later && (after ? made <= stage : made < stage)) words += s_.chunks * s_.vec * words_of(k_.dag.nodes[id].kind);
    }
    return words;
  }

  // Contiguous loads of all pieces that the pass reads at once.
  int under_way(const std::vector<bool>& in, size_t stage) const {
    int loads = 0, words = 0;
    for (size_t id = 0; id < in.size(); ++id) {
      if (!fetched(in, id, stage)) continue;
      ++loads;
      words += words_of_bytes(int64_t{s_.vec} * dtype_bytes(k_.accesses[k_.dag.nodes[id].imm].dtype));
    }
    return words * pieces(loads, k_.stages[stage].reduce) + (k_.stages[stage].reduce ? line_words() : 0);
  }
  bool fetched(const std::vector<bool>& in, size_t id, size_t stage) const {
    const Node& n = k_.dag.nodes[id];
    return in[id] && n.prim == Prim::kLoad && moves_[id] && s_.staged == 0 && takes_words(k_.accesses[n.imm], moves_) &&
           !takes(stage, static_cast<int32_t>(id));
  }
  int pieces(int loads, bool reduce) const {
    switch (s_.shape) {
      case GpuShape::kFlat: return std::max(1, s_.chunks);
      case GpuShape::kTile: return 1;
      case GpuShape::kRow: return s_.chunks > 0 && !s_.split ? s_.chunks : strip_length(s_, loads);
      default: return reduce ? strip_length(s_, loads) : 1;
    }
  }

  // The lines under windows, element by element.
  int line_words() const {
    int words = 0;
    for (const Access& a : k_.accesses)
      if (s_.slide > 0 && slides(k_, a)) words += s_.slide * (s_.vec - 1) + static_cast<int>(k_.axes[window_axis(k_)].size);
    return words;
  }

  // Nodes in their order, each alive from where it is computed to where it is last read: of an element one set, what is the same for
  // all of them throughout.
  int of_element(const std::vector<bool>& in, size_t first, size_t count) const {
    std::vector<size_t> last(in.size(), 0);
    for (size_t id = 0; id < in.size(); ++id) {
      if (!in[id] || takes(first, static_cast<int32_t>(id))) continue;
      const Node& n = k_.dag.nodes[id];
      for (int32_t x : {n.a, n.b, n.c})
        if (x >= 0) last[x] = moves_[x] == moves_[id] ? id : in.size();
    }
    std::vector<int32_t> ends;
    for (size_t s = first; s < first + count; ++s) add_roots(k_, k_.stages[s], ends);
    for (int32_t id : ends) last[id] = in.size();
    int now = 0, most = 0;
    std::vector<int> freed(in.size() + 1);
    for (size_t id = 0; id < in.size(); ++id) {
      now -= freed[id];
      const Node& n = k_.dag.nodes[id];
      const bool stored = std::find(ends.begin(), ends.end(), static_cast<int32_t>(id)) != ends.end();
      if (!in[id] || n.prim == Prim::kLiteral || stored || takes(first, static_cast<int32_t>(id))) continue;
      if (last[id] <= id) continue;
      now += words_of(n.kind);
      if (last[id] < in.size()) freed[last[id]] += words_of(n.kind);
      most = std::max(most, now);
    }
    return most;
  }

  // A block brings its rows in whole words, all of a thread's at once.
  int staged_words() const {
    int words = 0;
    for (const Access& a : k_.accesses)
      if (a.index.coeff.back() != 0) words += words_of_bytes(int64_t{s_.staged} * dtype_bytes(a.dtype));
    return words;
  }

  const Kernel& k_;
  const Schedule& s_;
  const std::vector<bool> moves_;
  Kept kept_;
  std::vector<int32_t> all_kept_;
};

}  // namespace

std::vector<bool> moves_along_inner(const Kernel& k) {
  std::vector<bool> out;
  const auto moves = [&](int32_t node) { return node >= 0 && out[node]; };
  for (const Node& n : k.dag.nodes) {
    bool here = moves(n.a) || moves(n.b) || moves(n.c) || (n.prim == Prim::kScalar && k.column) ||
                (n.prim == Prim::kCoord && n.imm + 1 == k.axes.size());
    if (n.prim == Prim::kLoad) {
      const Access& a = k.accesses[n.imm];
      here |= a.index.coeff.back() != 0;
      for (const auto& g : a.guards) here |= g.form.coeff.back() != 0;
      for (const auto& i : a.indirects) here |= moves(i.node);
    }
    out.push_back(here);
  }
  return out;
}

bool takes_words(const Access& a, const std::vector<bool>& moves) {
  return a.index.coeff.back() == 1 && std::none_of(a.indirects.begin(), a.indirects.end(), [&](const auto& i) { return moves[i.node]; }) &&
         std::all_of(a.guards.begin(), a.guards.end(), [](const auto& g) { return g.form.coeff.back() == 0; });
}

int strip_length(const Schedule& s, int loads) {
  int window = 1;
  for (int size : s.window) window *= std::max(size, 1);
  if (window > 1 && loads == 1) return window;
  return loads <= 2 ? 4 : loads <= 4 ? 2 : 1;
}

void add_roots(const Kernel& k, const Stage& stage, std::vector<int32_t>& out) {
  if (stage.reduce) out.push_back(stage.value);
  for (const auto& st : stage.stores) {
    out.push_back(st.node);
    for (const auto& i : k.accesses[st.access].indirects) out.push_back(i.node);
  }
}

std::vector<int32_t> Kept::all() const {
  std::vector<int32_t> out;
  for (const auto& list : taken) out.insert(out.end(), list.begin(), list.end());
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

// A later stage takes the highest nodes that an earlier one computed out of registers: softmax's exponentials, a row that was
// loaded. They stay where they are computed, so nothing is stored twice.
Kept find_kept(const Kernel& k) {
  const std::vector<bool> moves = moves_along_inner(k);
  Kept out{std::vector<int>(k.dag.nodes.size(), -1), std::vector<std::vector<int32_t>>(k.stages.size())};
  for (size_t s = 0; s < k.stages.size(); s += pass_length(k, s)) {
    const size_t count = pass_length(k, s);
    if (k.stages[s].once) continue;
    std::vector<bool> seen(k.dag.nodes.size());
    walk_down(k, s, count, [&](int32_t id) {
      seen[id] = true;
      const Prim prim = k.dag.nodes[id].prim;
      const bool taken = out.made_in[id] >= 0 && moves[id] && prim != Prim::kCoord && prim != Prim::kConvert;
      if (taken) out.taken[s].push_back(id);
      return !taken;
    });
    for (size_t id = 0; id < seen.size(); ++id)
      if (seen[id] && out.made_in[id] < 0) out.made_in[id] = static_cast<int>(s);
  }
  return out;
}

int registers_needed(const Kernel& kernel, const Schedule& schedule) { return Counter(kernel, schedule).most(); }

}  // namespace keirin::codegen
