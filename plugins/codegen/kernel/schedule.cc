// SPDX-License-Identifier: Apache-2.0
#include "plugins/codegen/kernel/schedule.h"

#include <algorithm>
#include <climits>
#include <cmath>
#include <optional>
#include <utility>

#include "plugins/codegen/kernel/registers.h"
#include "plugins/codegen/kernel/rows.h"

namespace keirin::codegen {
namespace {

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
int power_of_two_at_least(int64_t n) {
  int p = 1;
  while (p < n) p *= 2;
  return p;
}

int64_t product(const Kernel& k, AxisKind kind) {
  int64_t out = 1;
  for (const Axis& a : k.axes)
    if (a.kind == kind) out *= a.size;
  return out;
}

// Elements that make 16 bytes of the narrowest contiguous access, fewer where rows are short.
int vector_length(const Kernel& k) {
  int narrowest = 16;
  for (const Access& a : k.accesses)
    if (a.index.coeff.back() == 1) narrowest = std::min(narrowest, dtype_bytes(a.dtype));
  int vec = std::min(8, 16 / narrowest);
  const int64_t inner = k.axes.back().size;
  while (vec > 1 && inner % vec != 0 && inner < 8 * vec) vec /= 2;
  return vec;
}

// Whether an element index, or a count of points, may leave 31 bits.
bool needs_wide(const Kernel& k) {
  constexpr double kLimit = 1 << 30;
  double points = 1, edges = 1;  // of all rows together there are no more edges than the CSR has
  for (const Axis& a : k.axes) {
    const bool along_edges = k.has_csr && (a.kind == AxisKind::kSerial || a.kind == AxisKind::kSegment);
    (along_edges ? edges : points) *= static_cast<double>(std::max<int64_t>(a.size, 1));
  }
  if (points > kLimit || edges > kLimit) return true;
  auto reach = [&](const Linear& f) {
    double most = std::abs(static_cast<double>(f.offset));
    for (size_t a = 0; a < k.axes.size(); ++a)
      most += std::abs(static_cast<double>(f.coeff[a])) * static_cast<double>(std::max<int64_t>(k.axes[a].size, 1));
    return most;
  };
  for (const Access& a : k.accesses) {
    double most = reach(a.index);
    for (const auto& i : a.indirects) most += std::abs(static_cast<double>(i.stride)) * static_cast<double>(i.limit);
    if (most > kLimit) return true;
    for (const auto& g : a.guards)
      if (reach(g.form) + static_cast<double>(std::abs(g.limit)) > kLimit) return true;
  }
  return false;
}

// A plain strided load whose neighbours lie along an outer axis: what a tile in shared memory turns round. None where so many
// loads would be turned that their tiles (8 KB each) fill shared memory.
int transposed_axis(const Kernel& k) {
  int axis = -1, turned = 0;
  for (const Access& a : k.accesses) {
    if (a.index.coeff.back() == 0 || std::abs(a.index.coeff.back()) == 1) continue;
    if (!a.indirects.empty() || !a.guards.empty()) continue;
    ++turned;
    for (size_t o = 0; o + 1 < k.axes.size(); ++o)
      if (a.index.coeff[o] == 1 && k.axes[o].size >= 16 && axis < 0) axis = static_cast<int>(o);
  }
  return turned <= 4 ? axis : -1;
}

// Rows that a gather brings, contiguous along inner.
bool gathers_rows(const Kernel& k) {
  return std::any_of(k.accesses.begin(), k.accesses.end(),
                     [](const Access& a) { return !a.indirects.empty() && a.index.coeff.back() == 1; });
}

// Rows whose index lies in memory itself.
bool waits_for_indices(const Kernel& k) {
  return std::any_of(k.accesses.begin(), k.accesses.end(), [&](const Access& a) {
    if (a.index.coeff.back() != 1) return false;
    std::vector<bool> in(k.dag.nodes.size());
    for (const Access::Indirect& i : a.indirects) mark_cone(k, i.node, in);
    for (size_t n = 0; n < in.size(); ++n)
      if (in[n] && k.dag.nodes[n].prim == Prim::kLoad) return true;
    return false;
  });
}

bool stores_all_contiguous(const Kernel& k) {
  for (const Stage& s : k.stages)
    for (const auto& st : s.stores)
      if (k.accesses[st.access].index.coeff.back() != 1) return false;
  return true;
}

// Whether, where `axis` moves on, a store goes on behind its run of inner: as pixels of a filter do from channel to channel.
bool stores_runs(const Kernel& k, int axis) {
  for (const Stage& s : k.stages)
    for (const auto& st : s.stores)
      if (k.accesses[st.access].index.coeff[axis] != k.axes.back().size) return false;
  return true;
}

class Chooser {
 public:
  Chooser(const Kernel& k, const GpuFacts& f) : k_(k), f_(f) {
    outer_ = product(k, AxisKind::kOuter);
    inner_ = k.axes.back().size;
    serial_ = product(k, AxisKind::kSerial);
    wanted_threads_ = int64_t{f.num_units} * f.threads_per_unit;
  }

  // The widest pieces whose kernel has room in registers; rather narrower ones than rows that are read again in each pass.
  Schedule choose() {
    const int widest = vector_length(k_);
    for (bool keeps : {true, false})
      for (int vec = widest; vec > 0; vec /= 2)
        if (lay_out(vec, keeps), fits()) return s_;
    return s_;
  }

  std::optional<Schedule> choose(const std::function<bool(const Schedule&)>& is_there) {
    const int widest = vector_length(k_);
    const int64_t wanted_threads = wanted_threads_;
    for (const double share : {1.0, 0.25, 4.0, 0.0625, 16.0})  // of the threads, as if there were more or less of the work
      for (bool shares : {true, false})
        for (bool keeps : {true, false})
          for (int vec = widest; vec > 0; vec /= 2) {
            shares_ = shares;
            wanted_threads_ = std::max<int64_t>(1, std::llround(static_cast<double>(wanted_threads) * share));
            lay_out(vec, keeps);
            if (!fits()) continue;
            if (is_there(s_)) return s_;
            if (s_.ahead || s_.staged > 0) continue;
            Schedule loose = s_;
            for (bool* promise : {&loose.full, &loose.whole})
              if (std::exchange(*promise, false) && is_there(loose)) return loose;
          }
    return std::nullopt;
  }

 private:
  bool fits() const { return f_.registers == 0 || registers_needed(k_, s_) <= registers_of_thread(f_, s_.threads); }

  void lay_out(int vec, bool keeps) {
    s_ = {};
    s_.vec = vec;
    keeps_ = keeps;
    s_.wide = needs_wide(k_);
    bool reduces = std::any_of(k_.stages.begin(), k_.stages.end(), [](const Stage& s) { return s.reduce; });
    bool once = std::any_of(k_.stages.begin(), k_.stages.end(), [](const Stage& s) { return s.once; });
    if (k_.column) column();
    else if (reduces || once || has_axis(k_, AxisKind::kSerial)) row();
    else flat();
    s_.whole = inner_ % s_.vec == 0;
    const int64_t rows_at_once = s_.threads / s_.group;
    s_.full = s_.whole && s_.shape == GpuShape::kRow && s_.chunks > 0 &&
              serial_ * inner_ == int64_t{s_.group} * s_.cluster * s_.chunks * s_.vec && outer_ % rows_at_once == 0;
  }

  void flat() {
    if (int axis = transposed_axis(k_); axis >= 0 && stores_all_contiguous(k_)) {
      if (inner_ >= 16) return tile(axis);
      if (inner_ > 2 && stores_runs(k_, axis)) return narrow_tile(axis);
    }
    // Short tensors: less per thread, so that more of them share the work.
    int64_t pieces = outer_ * ceil_div(inner_, s_.vec);
    while (shares_ && s_.vec > 1 && pieces < wanted_threads_ / 8) s_.vec /= 2, pieces = outer_ * ceil_div(inner_, s_.vec);
    // Where an index stands between a row and its address, several are asked for at once.
    const bool gathers = waits_for_indices(k_) && pieces >= 4 * wanted_threads_;
    if (gathers) {
      for (s_.chunks = 4; s_.chunks > 1 && !fits();) s_.chunks /= 2;
      pieces = ceil_div(pieces, s_.chunks);
      if (s_.chunks == 1) s_.chunks = 0;
    }
    // A thread ends with its piece, and the next block comes: faster than to walk on where little but memory moves (an H200).
    s_.blocks = std::clamp<int64_t>(ceil_div(pieces, s_.threads), 1, int64_t{f_.num_units} * 4096);
  }

  void tile(int axis) {
    s_.shape = GpuShape::kTile;
    s_.tile_axis = axis;
    int widest = 1, turned = 0;
    bool contiguous = true;  // across, in what is turned
    for (const Access& a : k_.accesses) {
      widest = std::max(widest, dtype_bytes(a.dtype));
      const int64_t along = a.index.coeff.back();
      if (along == 0 || along == 1 || a.index.coeff[axis] == 0) continue;
      contiguous &= a.index.coeff[axis] == 1;
      turned += dtype_bytes(a.dtype);
    }
    constexpr int kSharedBytes = 48 << 10;
    s_.tile = contiguous && turned * 64 * 65 <= kSharedBytes && inner_ >= 64 && k_.axes[axis].size >= 64 ? 64 : 32;
    s_.vec = s_.tile == 64 ? std::min({s_.vec, 8, 16 / widest}) : 1;  // sixteen bytes a thread
    const int64_t others = outer_ / std::max<int64_t>(k_.axes[axis].size, 1);
    s_.blocks = std::max<int64_t>(others * ceil_div(k_.axes[axis].size, s_.tile) * ceil_div(inner_, s_.tile), 1);
    s_.blocks = std::min<int64_t>(s_.blocks, int64_t{f_.num_units} * 64);
  }

  // Elements of a run through both axes that make a word: 1 where something else than what is turned does not lie in such runs, or where
  // values depend on the place.
  int words_of_runs(int axis) const {
    const auto at = static_cast<uint64_t>(axis), last = k_.axes.size() - 1;
    for (const Node& n : k_.dag.nodes)
      if (n.prim == Prim::kCoord && (n.imm == at || n.imm == last)) return 1;
    int narrowest = 16;
    for (const Access& a : k_.accesses) {
      const int64_t along = a.index.coeff.back(), across = a.index.coeff[axis];
      if (!a.indirects.empty() || !a.guards.empty()) return 1;
      if (along == 0 && across == 0) continue;
      if (along == 1 && across == inner_) narrowest = std::min(narrowest, dtype_bytes(a.dtype));
      else if (along == 0 || along == 1 || across != 1) return 1;
    }
    return std::min(8, 16 / narrowest);
  }

  // Inner is too short for a side of a tile: it has all of it, and as much of the axis as there is work for.
  void narrow_tile(int axis) {
    s_.shape = GpuShape::kTile;
    s_.tile_axis = axis;
    s_.vec = words_of_runs(axis);
    s_.narrow = static_cast<int>(inner_);
    const int64_t size = k_.axes[axis].size, others = outer_ / std::max<int64_t>(size, 1);
    for (s_.tile = 256; s_.tile > 32 && (s_.tile > size || others * ceil_div(size, s_.tile) < 2 * f_.num_units);) s_.tile /= 2;
    s_.blocks = std::clamp<int64_t>(others * ceil_div(size, s_.tile), 1, int64_t{f_.num_units} * 4096);
  }

  // Only reductions followed by stages that run once for each row.
  bool may_split() const {
    if (!k_.stages[0].reduce) return false;
    const size_t first = pass_length(k_, 0);
    for (size_t s = first; s < k_.stages.size(); ++s)
      if (k_.stages[s].reduce || (!k_.column && !k_.stages[s].once)) return false;
    return true;
  }

  void row() {
    s_.shape = GpuShape::kRow;
    if (stage_rows()) return;
    const int64_t pieces = serial_ * ceil_div(inner_, s_.vec);
    const int registers = std::max(4, 32 / s_.vec);  // 32 values a thread hold a row of 32k in a block of 1024
    int64_t group = std::min<int64_t>(power_of_two_at_least(ceil_div(pieces, std::min(registers, 4))), f_.max_row_threads);
    // Few rows: more threads for each.
    while (group < f_.max_row_threads && group * outer_ < wanted_threads_ / 2 && group < pieces) group *= 2;
    s_.group = static_cast<int>(group);
    s_.threads = s_.group > f_.wave ? s_.group : 128;  // above a wave a group is the whole block
    const int64_t chunks = ceil_div(pieces, group);
    s_.chunks = keeps_ && chunks <= registers ? static_cast<int>(std::max<int64_t>(chunks, 1)) : 0;
    s_.blocks = std::clamp<int64_t>(ceil_div(outer_ * group, s_.threads), 1, int64_t{f_.num_units} * 64);
    if (s_.chunks > 0) {
      if (group == 1024 && f_.max_cluster > 1 && outer_ >= f_.num_units && accesses_ahead(k_, s_).size() > 1) halve_row();
      else if (group >= 512 && s_.chunks * s_.vec >= 32) come_ahead(2);
      return;
    }
    if (outer_ < f_.num_units && may_split() && pieces > 8 * group) return split_row(pieces);
    if (keeps_) share_row(pieces, registers);
  }

  // Some rows for each block, so that all but its first are there when it comes to them.
  void come_ahead(int64_t most_rows) {
    const int64_t blocks_at_once = int64_t{f_.num_units} * std::max(1, 1024 / s_.threads);
    const int64_t rows = std::min(most_rows, outer_ * s_.cluster / (2 * blocks_at_once));
    if (rows < 2) return;
    add_ahead(k_, s_);
    if (s_.shared_bytes * blocks_at_once > int64_t{f_.num_units} * f_.shared_bytes) s_.ahead = false, s_.shared_bytes = 0;
    if (s_.ahead) s_.blocks = ceil_div(outer_, rows) * s_.cluster;
  }

  // With the rows of two operands in its registers a block of 1024 has a multiprocessor for itself, where nothing is under way while its
  // threads wait for each other. Two blocks of 512 that share the row take turns there with two others.
  void halve_row() {
    s_.cluster = 2;
    s_.group = s_.threads = 512;
    s_.blocks = 2 * std::clamp<int64_t>(outer_, 1, int64_t{f_.num_units} * 32);
  }

  // A row that no block can hold is held by several: by small ones, of which a multiprocessor has some, of different rows.
  void share_row(int64_t pieces, int registers) {
    for (int most : {std::min(registers, 4), registers}) {
      const int64_t wanted = power_of_two_at_least(ceil_div(pieces, int64_t{f_.max_cluster} * most));
      const auto threads = static_cast<int>(std::min<int64_t>({std::max<int64_t>(wanted, 256), 512, f_.max_row_threads}));
      const int64_t cluster = power_of_two_at_least(ceil_div(pieces, int64_t{threads} * most));
      if (cluster > f_.max_cluster) continue;
      s_.cluster = static_cast<int>(cluster);
      s_.group = s_.threads = threads;
      s_.chunks = static_cast<int>(ceil_div(pieces, threads * cluster));
      s_.blocks = std::clamp<int64_t>(outer_, 1, int64_t{f_.num_units} * 64 / cluster) * cluster;
      come_ahead(4);
      return;
    }
  }

  // Many short rows whose starts are not whole words, reduced: a thread each, out of what the block brought in whole words.
  bool stage_rows() {
    constexpr int64_t kLongest = 64;
    constexpr int kSharedBytes = 32 << 10;
    if (inner_ > kLongest || inner_ < 3 || serial_ != 1 || has_axis(k_, AxisKind::kSerial) || outer_ < wanted_threads_) return false;
    int bytes = 0;
    for (const Access& a : k_.accesses) {
      if (a.index.coeff.back() == 0 && a.indirects.empty()) continue;
      if (bytes > 0 || !rows_touch(k_, a)) return false;
      bytes = dtype_bytes(a.dtype);
    }
    if (bytes < 2 || bytes > 4 || inner_ * bytes % 16 == 0 || !may_split()) return false;
    s_.staged = static_cast<int>(ceil_div(inner_, 8) * 8);
    s_.vec = s_.group = 1;
    s_.threads = 256;
    while (s_.threads * s_.staged * bytes > kSharedBytes) s_.threads /= 2;
    s_.blocks = std::clamp<int64_t>(ceil_div(outer_, s_.threads), 1, int64_t{f_.num_units} * 32);
    return true;
  }

  void split_row(int64_t pieces) {
    s_.split = true;
    s_.group = s_.threads = 512;
    const int64_t wanted = std::max<int64_t>(1, 4 * f_.num_units / std::max<int64_t>(outer_, 1));
    set_splits(pieces, std::clamp<int64_t>(pieces / (4 * s_.group), 1, wanted));
    s_.blocks = outer_ * s_.splits;
    s_.finish_blocks = std::max<int64_t>(outer_, 1);
    s_.workspace_bytes = workspace(outer_);
  }

  void column() {
    s_.shape = GpuShape::kColumn;
    int64_t length = serial_;
    if (k_.has_csr) length *= std::max<int64_t>(1, k_.csr.num_edges / std::max<int64_t>(1, k_.csr.num_rows));
    // Where a row is found only after two indices were read, what a thread waits for pays for twice the bytes.
    if (k_.has_csr && gathers_rows(k_) && inner_ % (2 * s_.vec) == 0 && outer_ * inner_ >= 2 * s_.vec * wanted_threads_) {
      s_.vec *= 2;
      if (!fits()) s_.vec /= 2;
    }
    auto pieces = [&] { return outer_ * ceil_div(inner_, s_.vec); };
    while (s_.vec > 2 && pieces() * std::max<int64_t>(1, length / 8) < wanted_threads_ / 4) s_.vec /= 2;
    int64_t group = 1;
    while (group < 32 && pieces() * group < wanted_threads_ && length / (group * 2) >= 4) group *= 2;
    s_.group = static_cast<int>(group);
    const int64_t across = s_.threads / s_.group;
    s_.blocks = std::clamp<int64_t>(ceil_div(pieces(), across), 1, int64_t{f_.num_units} * 64);
    if (!k_.has_csr && may_split() && s_.blocks < 2 * f_.num_units && length / s_.group >= 32) {
      s_.split = true;
      const int64_t units = ceil_div(pieces(), across);
      set_splits(length, std::clamp<int64_t>(length / (8 * s_.group), 1, ceil_div(int64_t{4} * f_.num_units, units)));
      s_.blocks = units * s_.splits;
      s_.finish_blocks = std::clamp<int64_t>(ceil_div(outer_ * inner_, across), 1, int64_t{f_.num_units} * 64);
      s_.workspace_bytes = workspace(pieces() * s_.vec);
    }
    if (s_.group == 1 && !s_.split && !k_.has_csr) fix_window();
  }

  // With its sizes compiled in, a pooling window is walked without a division for each of its points.
  void fix_window() {
    constexpr int64_t kMostPoints = 9;
    std::array<int, 3> sizes{};
    size_t n = 0;
    for (const Axis& a : k_.axes) {
      if (a.kind != AxisKind::kSerial) continue;
      if (n == sizes.size()) return;
      sizes[n++] = static_cast<int>(std::min<int64_t>(a.size, kMostPoints + 1));
    }
    if (n == 0 || serial_ <= 1 || serial_ > kMostPoints) return;
    s_.window = sizes;
    fix_slide();
  }

  // Windows along inner overlap, or have gaps between their elements of one thread: a thread then loads the line under all of its
  // windows once, in whole words if `skew` is right.
  void fix_slide() {
    constexpr int64_t kMostSteps = 4;
    const Access* line = nullptr;
    for (const Access& a : k_.accesses) {
      if (!slides(k_, a)) continue;
      if (line) return;
      line = &a;
    }
    if (!line || line->index.coeff.back() > kMostSteps) return;
    s_.slide = static_cast<int>(line->index.coeff.back());
    const int64_t word = 16 / dtype_bytes(line->dtype);
    s_.skew = static_cast<int>((line->index.offset % word + word) % word);
  }

  void set_splits(int64_t length, int64_t wanted) {
    s_.split_length = ceil_div(length, wanted);
    s_.splits = ceil_div(length, s_.split_length);
  }
  int64_t workspace(int64_t cells) const { return static_cast<int64_t>(pass_length(k_, 0)) * s_.splits * cells * 16; }

  const Kernel& k_;
  const GpuFacts& f_;
  Schedule s_;
  int64_t outer_, inner_, serial_, wanted_threads_;
  bool keeps_ = true;   // whether a row may stay in registers
  bool shares_ = true;  // whether a thread of a short tensor takes less, so that more of them share the work
};

}  // namespace

int registers_of_thread(const GpuFacts& facts, int threads) {
  constexpr int kNamed = 255, kStep = 8;  // as many as instructions can name; how many are given at once
  return facts.registers == 0 ? INT_MAX : std::min(kNamed, facts.registers / threads / kStep * kStep);
}

bool has_axis(const Kernel& k, AxisKind kind) {
  return std::any_of(k.axes.begin(), k.axes.end(), [&](const Axis& a) { return a.kind == kind; });
}

size_t window_axis(const Kernel& k) {
  size_t last = 0;
  for (size_t x = 0; x < k.axes.size(); ++x)
    if (k.axes[x].kind == AxisKind::kSerial) last = x;
  return last;
}

bool slides(const Kernel& k, const Access& a) {
  const size_t axis = window_axis(k);
  const int64_t step = a.index.coeff.back();
  const auto alike = [&](const Linear& form) { return form.coeff.back() == step && form.coeff[axis] == 1; };
  const bool real = compute_kind(a.dtype) == Kind::kF32;  // what fills the outside is the same number as stored
  if (k.axes[axis].kind != AxisKind::kSerial || !real || step < 1 || !a.indirects.empty() || !alike(a.index)) return false;
  int along = 0;
  for (const auto& g : a.guards) {
    const bool moves = g.form.coeff.back() != 0 || g.form.coeff[axis] != 0;
    along += moves;
    if (moves && !alike(g.form)) return false;
  }
  return along <= 1 && (step > 1 || along == 1);  // step 1 without a guard is an ordinary contiguous load
}

bool rows_touch(const Kernel& k, const Access& a) {
  if (a.index.coeff.back() != 1 || !a.indirects.empty() || !a.guards.empty()) return false;
  int64_t step = k.axes.back().size;
  for (size_t x = k.axes.size() - 1; x-- > 0; step *= k.axes[x].size)
    if (k.axes[x].kind != AxisKind::kOuter || a.index.coeff[x] != step) return false;
  return true;
}

int words_of_piece(const Access& a, const Schedule& s) { return s.vec * dtype_bytes(a.dtype) / 16; }

void add_ahead(const Kernel& k, Schedule& s) {
  s.shared_bytes = 0;
  for (uint32_t a : accesses_ahead(k, s)) s.shared_bytes += int64_t{words_of_piece(k.accesses[a], s)} * s.chunks * s.threads * 16;
  s.ahead = s.shared_bytes > 0;
}

std::vector<uint32_t> accesses_ahead(const Kernel& k, const Schedule& s) {
  if (!k.stages[0].reduce) return {};
  std::vector<bool> in(k.dag.nodes.size());
  for (size_t i = 0; i < pass_length(k, 0); ++i) {
    if (k.stages[i].reduce) mark_cone(k, k.stages[i].value, in);
    for (const auto& st : k.stages[i].stores) mark_cone(k, st.node, in);
  }
  std::vector<uint32_t> out;
  for (size_t n = 0; n < in.size(); ++n) {
    if (!in[n] || k.dag.nodes[n].prim != Prim::kLoad) continue;
    const auto number = static_cast<uint32_t>(k.dag.nodes[n].imm);
    const Access& a = k.accesses[number];
    bool moves = false;
    for (size_t x = 0; x < k.axes.size(); ++x) moves |= k.axes[x].kind == AxisKind::kOuter && a.index.coeff[x] != 0;
    const bool plain = a.index.coeff.back() == 1 && a.indirects.empty() && a.guards.empty() && !k.buffers[a.buffer].written;
    if (moves && plain && words_of_piece(a, s) > 0 && std::find(out.begin(), out.end(), number) == out.end()) out.push_back(number);
  }
  return out;
}

void mark_cone(const Kernel& k, int32_t node, std::vector<bool>& in) {
  if (node < 0 || in[node]) return;
  in[node] = true;
  const Node& n = k.dag.nodes[node];
  for (int32_t operand : {n.a, n.b, n.c}) mark_cone(k, operand, in);
  if (n.prim == Prim::kLoad)
    for (const auto& i : k.accesses[n.imm].indirects) mark_cone(k, i.node, in);
}

namespace {

bool reads_scalar_since(const Kernel& k, const Stage& stage, size_t first) {
  std::vector<bool> in(k.dag.nodes.size());
  mark_cone(k, stage.value, in);
  for (size_t n = 0; n < in.size(); ++n)
    if (in[n] && k.dag.nodes[n].prim == Prim::kScalar && k.dag.nodes[n].imm >= first) return true;
  return false;
}

bool reads_stores_since(const Kernel& k, const Stage& stage, size_t first, size_t end) {
  std::vector<bool> in(k.dag.nodes.size());
  for (const auto& st : stage.stores) mark_cone(k, st.node, in);
  for (size_t s = first; s < end; ++s)
    for (const auto& st : k.stages[s].stores)
      for (size_t n = 0; n < in.size(); ++n)
        if (in[n] && k.dag.nodes[n].prim == Prim::kLoad && k.accesses[k.dag.nodes[n].imm].buffer == k.accesses[st.access].buffer)
          return true;
  return false;
}

}  // namespace

Schedule finish_schedule(const Schedule& partial) {
  Schedule out = partial;
  out.vec = 1, out.whole = true;
  return out;
}

size_t pass_length(const Kernel& k, size_t first) {
  const Stage& head = k.stages[first];
  size_t end = first + 1;
  if (head.once) return 1;
  for (; end < k.stages.size() && k.stages[end].reduce == head.reduce && !k.stages[end].once; ++end) {
    if (head.reduce ? reads_scalar_since(k, k.stages[end], first) : reads_stores_since(k, k.stages[end], first, end)) break;
  }
  return end - first;
}

Schedule choose_schedule(const Kernel& kernel, const GpuFacts& facts) { return Chooser(kernel, facts).choose(); }

Schedule choose_schedule(const Kernel& kernel, const GpuFacts& facts, const std::function<bool(const Schedule&)>& is_there) {
  const Schedule best = choose_schedule(kernel, facts);
  if (is_there(best)) return best;
  return Chooser(kernel, facts).choose(is_there).value_or(best);
}

std::string schedule_key(const Schedule& s) {
  std::string out;
  for (int v : {static_cast<int>(s.shape), s.vec, s.threads, s.group, s.chunks, int{s.wide}, int{s.whole}, int{s.full}, int{s.split},
                s.window[0], s.window[1], s.window[2], s.tile_axis, s.tile, s.narrow, s.cluster, int{s.ahead}, s.staged, s.slide, s.skew,
                s.many})
    out += "/" + std::to_string(v);
  return out;
}

std::string describe_schedule(const Kernel& k, const Schedule& s) {
  static constexpr const char* kNames[] = {"flat", "row", "column", "tile"};
  std::string out = std::string(kNames[static_cast<int>(s.shape)]) + " [";
  for (size_t a = 0; a < k.axes.size(); ++a) {
    static constexpr const char* kMarks[] = {"", "s", "e", ""};
    out += (a ? (a + 1 == k.axes.size() ? ", " : "x") : "") + std::to_string(k.axes[a].size) + kMarks[static_cast<int>(k.axes[a].kind)];
  }
  out += "] vec" + std::to_string(s.vec) + " group" + std::to_string(s.group);
  if (s.chunks) out += (s.shape == GpuShape::kFlat ? " takes" : " keeps") + std::to_string(s.chunks);
  if (s.cluster > 1) out += " cluster" + std::to_string(s.cluster);
  if (s.ahead) out += " ahead";
  if (s.staged) out += " staged";
  if (s.slide) out += " slides" + std::to_string(s.slide);
  if (s.split) out += " splits" + std::to_string(s.splits);
  return out + (s.wide ? " wide" : "");
}

}  // namespace keirin::codegen
