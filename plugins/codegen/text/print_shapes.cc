// SPDX-License-Identifier: Apache-2.0
//
// The loops of printed kernels: how threads find their row, piece or column, the passes over it, and the joining of partial
// results. Barriers and exchanges stand only where every thread of the block comes by, whatever it has to do.
#include <algorithm>

#include "plugins/codegen/kernel/rows.h"
#include "plugins/codegen/text/print_parts.h"
#include "plugins/kit/error.h"

namespace keirin::codegen::text {

std::string Printer::print() {
  if (s_.shape == GpuShape::kRow && s_.group > d_.wave && s_.group != s_.threads)
    throw kit::Error(KRN_STATUS_internal, "a group above a wave must be the whole block");
  switch (s_.shape) {
    case GpuShape::kFlat: print_flat(); break;
    case GpuShape::kTile: print_tile(); break;
    case GpuShape::kRow:
      if (!s_.split) print_row(Part::kWhole);
      else print_row(Part::kPartial), print_row(Part::kFinish);
      break;
    case GpuShape::kColumn:
      if (!s_.split) print_column(Part::kWhole);
      else print_column(Part::kPartial), finish_column();
      break;
  }
  return std::move(out_);
}

void Printer::finish_column() {
  const Schedule schedule = finish_schedule(s_);
  Printer finish(k_, schedule, d_, symbol_);
  finish.partial_vec_ = s_.vec;
  finish.print_column(Part::kFinish);
  out_ += finish.out_;
}

void Printer::head(const std::string& symbol) {
  for (std::string& name : names_) name.clear();
  const size_t pointers = k_.buffers.size() + (k_.has_csr ? 2 : 0) + (s_.split ? 1 : 0);
  const std::string idx = s_.wide ? "i64" : "int";
  const std::string cluster = s_.cluster > 1 ? "_CLUSTER(" + number(s_.cluster) + ", " : "(";
  const int64_t sizes = num_arguments_ + 3, firsts = s_.many > 1 ? s_.many + 1 : 0;
  open("KRN_KERNEL" + cluster + number(s_.threads) + ") " + symbol + "(KRN_PARAMETER(KrnSizes<" + idx + ", " +
       number(firsts + s_.many * sizes) + ">) a, KRN_PARAMETER(KrnPointers<" + number(s_.many * static_cast<int64_t>(pointers)) + ">) p)");
  line("typedef " + idx + " idx;");
  if (s_.many > 1) {
    line("int own_kernel = 0;");
    line("KRN_UNROLL for (int half = " + number(s_.many / 2) +
         "; half > 0; half /= 2) if (KRN_BLOCK >= a.v[own_kernel + half]) own_kernel += half;");
    line("const int block = KRN_BLOCK - (int)a.v[own_kernel], blocks = (int)(a.v[own_kernel + 1] - a.v[own_kernel]);");
    line("const int own = " + number(firsts) + " + own_kernel * " + number(sizes) + ", own_pointers = own_kernel * " +
         number(static_cast<int64_t>(pointers)) + ";");
  }
  line("if (" + a(num_arguments_ + 2) + ") krn_let_next_begin();");
  for (size_t i = 0; i < k_.accesses.size(); ++i) {
    const std::string type = storage_name(k_.accesses[i].dtype) + "::Stored*";
    line(type + " const q" + number(static_cast<int64_t>(i)) + " = (" + type + ")p.v[" + (s_.many > 1 ? "own_pointers + " : "") +
         number(k_.accesses[i].buffer) + "];");
  }
  for (size_t x = 0, serial = 0; x < k_.axes.size(); ++x) {
    const bool fixed = k_.axes[x].kind == AxisKind::kSerial && s_.window[0] > 0;
    line("const idx size" + number(static_cast<int64_t>(x)) + " = " + (fixed ? number(s_.window[serial++]) : a(static_cast<int>(x))) + ";");
  }
  const std::string inner = "size" + number(static_cast<int64_t>(k_.axes.size()) - 1);
  std::string rows = "1", serial = "1";
  for (size_t x = 0; x < k_.axes.size(); ++x) {
    if (k_.axes[x].kind == AxisKind::kOuter) rows += " * size" + number(static_cast<int64_t>(x));
    if (k_.axes[x].kind == AxisKind::kSerial) serial += " * size" + number(static_cast<int64_t>(x));
  }
  line("const idx inner = " + inner + ", rows = " + rows + ", serial = " + serial + ";");
  line("const idx pieces = (inner + " + number(s_.vec - 1) + ") / " + number(s_.vec) + ";");
  if (s_.split) {
    line("const idx splits = " + a(num_arguments_) + ", split_length = " + a(num_arguments_ + 1) + ";");
    line("char* const workspace = (char*)p.v[" + number(static_cast<int64_t>(pointers) - 1) + "];");
  }
}

// Indices of the outer axes from a row number, the last fastest.
void Printer::decode_outer(const std::string& row, int except) {
  std::vector<int> axes;
  for (size_t x = 0; x < k_.axes.size(); ++x)
    if (k_.axes[x].kind == AxisKind::kOuter && static_cast<int>(x) != except) axes.push_back(static_cast<int>(x));
  std::string rest = row;
  for (size_t i = axes.size(); i-- > 0;) {
    const std::string n = number(axes[i]);
    if (i == 0) {
      line("const idx i" + n + " = " + rest + ";");
    } else {
      line("const idx rest" + n + " = " + rest + " / size" + n + ", i" + n + " = " + rest + " - rest" + n + " * size" + n + ";");
      rest = "rest" + n;
    }
  }
}

void Printer::print_flat() {
  head(symbol_);
  line("const idx total = rows * pieces;");
  const std::string threads = number(s_.threads);
  if (in_strips()) {
    const std::string step = number(int64_t{s_.threads} * s_.chunks);
    open("for (idx base = (idx)" + block() + " * " + step + " + KRN_THREAD; base < total; base += (idx)" + blocks() + " * " + step + ")");
    for (size_t s = 0; s < k_.stages.size(); s += pass_length(k_, s)) {
      const size_t count = pass_length(k_, s);
      const std::vector<bool> in = needed(s, count);
      print_level(in, kRowLevel);
      strip(in, s, s_.chunks, [&] {
        line("const bool there = base + c * " + threads + " < total;");
        line("const idx u = there ? base + c * " + threads + " : 0, row = u / pieces, i = (u - row * pieces) * " + number(s_.vec) + ";");
        line("const int m = !there ? 0 : " + whole_or("inner - i < " + number(s_.vec) + " ? (int)(inner - i) : " + number(s_.vec)) + ";");
        decode_outer("row");
      }, [&] { map_body(in, s, count); });
    }
    close();
    close();
    return;
  }
  open("for (idx u = (idx)" + block() + " * " + threads + " + KRN_THREAD; u < total; u += (idx)" + blocks() + " * " + threads + ")");
  line("const idx row = u / pieces, i = (u - row * pieces) * " + number(s_.vec) + ";");
  line("const int m = " + whole_or("inner - i < " + number(s_.vec) + " ? (int)(inner - i) : " + number(s_.vec)) + ";");
  decode_outer("row");
  for (size_t s = 0; s < k_.stages.size(); s += pass_length(k_, s)) map_piece(s, pass_length(k_, s));
  close();
  close();
}

// One piece through map stages: what is fixed first, then element by element, then the contiguous stores.
void Printer::map_piece(size_t first, size_t count) {
  const std::vector<bool> in = needed(first, count);
  print_level(in, kRowLevel);
  open("");
  print_level(in, kPieceLevel);
  prepare_element_loads(in, Fetch::kNow);
  map_body(in, first, count);
  close();
  forget(kElementLevel);
  forget(kPieceLevel);
}

void Printer::map_body(const std::vector<bool>& in, size_t first, size_t count) {
  for (size_t s = first; s < first + count; ++s)
    for (const auto& st : k_.stages[s].stores) prepare_store(st.access);
  open_elements();
  print_level(in, kElementLevel);
  put_kept(in, first);
  for (size_t s = first; s < first + count; ++s) print_stage_stores(k_.stages[s]);
  close();
  for (size_t s = first; s < first + count; ++s) flush_stores(k_.stages[s]);
}

// `pieces` pieces: their contiguous loads in a first loop, the work in a second. Where those loads go through an index, all indices
// are read in a loop before: the address of the first would otherwise be waited for before the second index is asked for.
void Printer::strip(const std::vector<bool>& in, size_t first, int pieces, const std::function<void()>& head,
                    const std::function<void()>& body) {
  const std::string loop = "KRN_UNROLL for (int c = 0; c < " + number(pieces) + "; ++c)";
  take_kept(first);
  bool ahead = false;
  for (size_t id = 0; id < in.size(); ++id) {
    if (!fetched_load(in, id)) continue;
    ahead = true;
    line("KrnPack<" + storage_name(k_.accesses[k_.dag.nodes[id].imm].dtype) + ", " + number(s_.vec) + "> x" +
         number(static_cast<int64_t>(id)) + "[" + number(pieces) + "];");
  }
  std::vector<size_t> indices;
  for (size_t id = 0; ahead && id < in.size(); ++id)
    if (in[id] && level_[id] == kPieceLevel && k_.dag.nodes[id].prim == Prim::kLoad && k_.dag.nodes[id].kind == Kind::kI64)
      indices.push_back(id);
  const auto take_indices = [&] {
    for (size_t id : indices) names_[id] = "p" + number(static_cast<int64_t>(id)) + "[c]";
  };
  if (!indices.empty()) {
    for (size_t id : indices) line("i64 p" + number(static_cast<int64_t>(id)) + "[" + number(pieces) + "];");
    open(loop);
    head();
    print_level(in, kPieceLevel);
    for (size_t id : indices) line("p" + number(static_cast<int64_t>(id)) + "[c] = " + names_[id] + ";");
    close();
    forget(kPieceLevel);
  }
  if (ahead) {
    open(loop);
    head();
    take_indices();
    print_level(in, kPieceLevel);
    prepare_element_loads(in, Fetch::kAhead);
    close();
    forget(kPieceLevel);
  }
  open(loop);
  head();
  take_indices();
  print_level(in, kPieceLevel);
  prepare_element_loads(in, Fetch::kDone);
  body();
  close();
  forget(kElementLevel);
  forget(kPieceLevel);
}

int Printer::strip_length(const std::vector<bool>& in) const {
  int loads = 0;
  for (size_t id = 0; id < in.size(); ++id) loads += fetched_load(in, id);
  return codegen::strip_length(s_, loads);
}

void Printer::open_elements() {
  open("KRN_UNROLL for (int j = 0; j < " + number(s_.vec) + "; ++j)");
  line("const idx ij = i + j;");
  line("(void)ij;");
}

void Printer::take_kept(size_t stage) {
  for (int32_t id : kept_.taken[stage]) names_[id] = "c" + number(id) + "[c][j]";
}

void Printer::put_kept(const std::vector<bool>& in, size_t stage) {
  for (int32_t id : kept_.all())
    if (in[id] && kept_.made_in[id] == static_cast<int>(stage)) line("c" + number(id) + "[c][j] = " + names_[id] + ";");
}

// ---- tile

// `pad`: places beyond a line, so that a column of a tile does not lie in one bank.
std::vector<size_t> Printer::declare_tiles(int lines, int pad) {
  std::vector<size_t> turned;
  for (size_t i = 0; i < k_.accesses.size(); ++i) {
    const Access& access = k_.accesses[i];
    bool stored = false;
    for (const Stage& stage : k_.stages)
      for (const auto& st : stage.stores) stored |= st.access == i;
    if (stored || !tiled(access)) continue;
    turned.push_back(i);
    line("alignas(16) KRN_SHARED " + storage_name(access.dtype) + "::Stored tile" + number(static_cast<int64_t>(i)) + "[" + number(lines) +
         "][" + number(s_.tile + pad) + "];");
  }
  return turned;
}

std::string Printer::tile_source(size_t access) {
  return "q" + number(static_cast<int64_t>(access)) + " + (" + linear(k_.accesses[access].index, arguments_[access].offset, true) + ")";
}

constexpr int kNarrowPad = 8;  // lines of a narrow tile begin at whole words of 8 bytes, and in other banks

// All of inner and a piece of the axis: read along the axis, written as one run.
void Printer::print_narrow_tile() {
  head(symbol_);
  const std::string t = number(s_.tile), across = number(s_.tile_axis), narrow = number(s_.narrow), threads = number(s_.threads);
  const std::vector<size_t> turned = declare_tiles(s_.narrow, kNarrowPad);
  line("const idx tiles_across = (size" + across + " + " + t + " - 1) / " + t + ", total = rows / size" + across + " * tiles_across;");
  open("for (idx u = KRN_BLOCK; u < total; u += KRN_BLOCKS)");
  line("const idx row = u / tiles_across, across_first = (u - row * tiles_across) * " + t + ";");
  decode_outer("row", s_.tile_axis);
  line("krn_sync();  // the tile before has been read");
  const auto open_pieces = [&](int length) {
    const int pieces = s_.narrow * s_.tile / length;
    open("KRN_UNROLL for (int c = 0; c < " + number((pieces + s_.threads - 1) / s_.threads) + "; ++c)");
    line("const int e = (KRN_THREAD + c * " + threads + ")" + (length > 1 ? " * " + number(length) : "") + ";");
    return "e < " + number(s_.narrow * s_.tile);
  };
  for (size_t i : turned) {
    const Access& access = k_.accesses[i];
    const bool runs = access.index.coeff[s_.tile_axis] == 1;
    const int length = runs ? std::min(8, 16 / dtype_bytes(access.dtype)) : 1;
    const std::string n = number(static_cast<int64_t>(i)), v = number(length);
    const std::string there = open_pieces(length), fetch = "krn_fetch<" + storage_name(access.dtype) + ", " + v + ">(";
    line("const int ty = e / " + t + ", tx = e % " + t + ";");
    line("const idx i" + across + " = across_first + tx, ij = ty, left = size" + across + " - i" + across + ";");
    line("if (" + there + " && left > 0) krn_lay(&tile" + n + "[ty][tx], " + fetch + tile_source(i) + ", left < " + v + " ? (int)left : " +
         v + "));");
    close();
  }
  line("krn_sync();");
  const std::string there = open_pieces(s_.vec), v = number(s_.vec);
  if (s_.vec > 1) {  // all lies in runs: places are counted through both axes
    line("const idx left = (size" + across + " - across_first) * " + narrow + " - e, i" + across + " = across_first, i = e;");
    line("const int m = left < " + v + " ? (int)left : " + v + ";");
    open("if (" + there + " && left > 0)");
  } else {
    line("const int ty = e / " + narrow + ", tx = e % " + narrow + ", m = 1;");
    line("const idx i" + across + " = across_first + ty, i = tx;");
    open("if (" + there + " && i" + across + " < size" + across + ")");
  }
  for (size_t s = 0; s < k_.stages.size(); s += pass_length(k_, s)) map_piece(s, pass_length(k_, s));
  close();
  close();
  close();
  close();
}

void Printer::print_tile() {
  if (s_.narrow) return print_narrow_tile();
  head(symbol_);
  const std::string t = number(s_.tile), across = number(s_.tile_axis), rows = number(s_.threads * s_.vec / s_.tile), v = number(s_.vec);
  const std::vector<size_t> turned = declare_tiles(s_.tile, 1);
  line("const idx tiles_across = (size" + across + " + " + t + " - 1) / " + t + ", tiles_along = (inner + " + t + " - 1) / " + t + ";");
  line("const idx total = rows / size" + across + " * tiles_across * tiles_along;");
  const std::string wide = number(s_.tile / s_.vec);  // threads along a side
  line("const int tx = KRN_THREAD % " + wide + " * " + v + ", first_ty = KRN_THREAD / " + wide + ";");
  open("for (idx u = KRN_BLOCK; u < total; u += KRN_BLOCKS)");
  line("const idx along = u / tiles_along, i_first = (u - along * tiles_along) * " + t + ";");
  line("const idx row = along / tiles_across, across_first = (along - row * tiles_across) * " + t + ";");
  decode_outer("row", s_.tile_axis);
  line("krn_sync();  // the tile before has been read");
  open("KRN_UNROLL for (int step = 0; step < " + number(s_.tile / (s_.threads * s_.vec / s_.tile)) + "; ++step)");
  line("const int ty = first_ty + step * " + rows + ";");
  line("const idx i" + across + " = across_first + tx, ij = i_first + ty;");
  open("if (i" + across + " < size" + across + " && ij < inner)");
  if (s_.vec > 1)
    line("const int m = size" + across + " - i" + across + " < " + v + " ? (int)(size" + across + " - i" + across + ") : " + v + ";");
  for (size_t i : turned) {
    const std::string n = number(static_cast<int64_t>(i)), storage = storage_name(k_.accesses[i].dtype);
    const std::string from = tile_source(i);
    if (s_.vec == 1) {
      line("tile" + n + "[ty][tx] = *(" + from + ");");
      continue;
    }
    line("const KrnPack<" + storage + ", " + v + "> x" + n + " = krn_fetch<" + storage + ", " + v + ">(" + from + ", m);");
    line("KRN_UNROLL for (int j = 0; j < " + v + "; ++j) tile" + n + "[ty][tx + j] = x" + n + ".s[j];");
  }
  close();
  close();
  line("krn_sync();");
  open("for (int ty = first_ty; ty < " + t + "; ty += " + rows + ")");
  line("const idx i" + across + " = across_first + ty, i = i_first + tx;");
  open("if (i" + across + " < size" + across + " && i < inner)");
  line("const int m = inner - i < " + v + " ? (int)(inner - i) : " + v + ";");
  for (size_t s = 0; s < k_.stages.size(); s += pass_length(k_, s)) map_piece(s, pass_length(k_, s));
  close();
  close();
  close();
  close();
}

// ---- row

void Printer::print_row(Part part) {
  head(symbol_ + (part == Part::kFinish ? "_finish" : ""));
  const std::string group = number(s_.group), per_block = number(s_.threads / s_.group);
  const std::string cluster = number(s_.cluster);
  if (s_.cluster > 1) line("const int t = KRN_THREAD + KRN_BLOCK % " + cluster + " * " + group + ";");
  else line("const int t = KRN_THREAD % " + group + ";");
  line("const idx total = serial * pieces;");
  if (s_.staged) {
    for (size_t i = 0; i < k_.accesses.size(); ++i)
      if (staged(k_.accesses[i]))
        line("KRN_SHARED Krn16 stage" + number(static_cast<int64_t>(i)) + "[" +
             number(int64_t{s_.threads} * s_.staged * dtype_bytes(k_.accesses[i].dtype) / 16) + "];");
  }
  if (s_.ahead) line("KRN_SHARED_AHEAD(ahead, " + number(s_.shared_bytes / 16) + ");");
  if (s_.cluster > 1) line("int turn = 0;"), line("KRN_SHARED KrnMeeting met[2];");
  if (part == Part::kPartial) {
    line("const idx row = KRN_BLOCK / splits, split = KRN_BLOCK - row * splits;");
    line("const idx begin = split * split_length, end = begin + split_length < total ? begin + split_length : total;");
    line("const bool active = true;");
    open("");
  } else {
    const std::string start = s_.cluster > 1 ? "KRN_BLOCK / " + cluster : "(idx)KRN_BLOCK * " + per_block;
    line("const idx stride = " + (s_.cluster > 1 ? "KRN_BLOCKS / " + cluster : "(idx)KRN_BLOCKS * " + per_block) + ";");
    if (s_.ahead) bring_ahead(start);
    if (s_.cluster > 1) line("krn_open_meetings(met);");
    open("for (idx first = " + start + "; first < rows; first += stride)");
    find_row("first");
    if (s_.ahead) line("krn_await_copies();");
  }
  if (s_.staged) bring_rows();
  decode_outer("row");
  if (part == Part::kWhole)
    for (int32_t id : kept_.all())
      line(kind_name(k_.dag.nodes[id].kind) + " c" + number(id) + "[" + number(s_.chunks) + "][" + number(s_.vec) + "];");
  for (size_t s = 0; s < k_.stages.size();) {
    const size_t count = pass_length(k_, s);
    row_pass(s, count, part);
    s += count;
    if (part == Part::kPartial) break;
  }
  close();
  close();
}

void Printer::find_row(const std::string& first) {
  const std::string mine = first + " + KRN_THREAD / " + number(s_.group);
  line("const bool active = " + (s_.full || s_.cluster > 1 ? "true" : mine + " < rows") + ";");
  line("const idx row = active ? " + mine + " : 0;");
}

// What the first pass over the row from `first` on will read sets out for shared memory: into the places that the same thread
// reads, so that no barrier stands between.
void Printer::bring_ahead(const std::string& first) {
  open("");
  line("const idx next = " + first + ";");
  open("if (next < rows)");
  find_row("next");
  decode_outer("row");
  line("const idx base = t;");
  open("KRN_UNROLL for (int c = 0; c < " + number(s_.chunks) + "; ++c)");
  piece_head("total");
  for (size_t i = 0; i < ahead_.size(); ++i) {
    if (ahead_[i] < 0) continue;
    const auto access = static_cast<uint32_t>(i);
    line("krn_bring<" + storage_name(k_.accesses[i].dtype) + ", " + number(s_.vec) + ", " + number(s_.threads) + ">(" +
         place_ahead(access) + ", q" + number(access) + " + (" + access_base(access) + ") + i, m);");
  }
  close();
  close();
  close();
}

// The block's rows lie side by side: they come in whole words, whatever each row starts with.
void Printer::bring_rows() {
  const std::string threads = number(s_.threads);
  line("krn_sync();  // the rows before have been read");
  line("const idx here = (rows - first < " + threads + " ? rows - first : " + threads + ") * inner;");
  for (size_t i = 0; i < k_.accesses.size(); ++i) {
    if (!staged(k_.accesses[i])) continue;
    const std::string n = number(static_cast<int64_t>(i)), storage = storage_name(k_.accesses[i].dtype),
                      v = number(16 / dtype_bytes(k_.accesses[i].dtype));
    const int words = s_.staged * dtype_bytes(k_.accesses[i].dtype) / 16;  // of a thread, all under way at once
    line("KrnPack<" + storage + ", " + v + "> x" + n + "[" + number(words) + "];");
    open("KRN_UNROLL for (int c = 0; c < " + number(words) + "; ++c)");
    line("const idx at = ((idx)KRN_THREAD + c * " + threads + ") * " + v + ";");
    line("x" + n + "[c] = krn_fetch<" + storage + ", " + v + ">(q" + n + " + " + a(arguments_[i].offset) +
         " + first * inner + at, here - at < " + v + " ? (int)(here - at) : " + v + ");");
    close();
    line("KRN_UNROLL for (int c = 0; c < " + number(words) + "; ++c) stage" + n + "[KRN_THREAD + c * " + threads + "] = x" + n +
         "[c].w[0];");
  }
  line("krn_sync();");
}

void Printer::over_pieces(const std::vector<bool>& in, size_t first, bool split, const std::function<void()>& body) {
  const bool keeps = s_.chunks > 0 && !split;
  const int pieces = keeps ? s_.chunks : strip_length(in);
  const std::string end = split ? "end" : "total";
  if (keeps) {
    open("");
    line("const idx base = t;");
  } else {
    open("for (idx base = " + std::string(split ? "begin + t" : "active ? t : total") + "; base < " + end + "; base += " +
         number(int64_t{reach()} * pieces) + ")");
  }
  strip(in, first, pieces, [&] { piece_head(end); }, body);
  close();
}

// The piece with number c of a strip.
void Printer::piece_head(const std::string& end) {
  const std::string mine = "base + (idx)c * " + number(reach()), v = number(s_.vec);
  line("const bool there = " + (s_.full ? "true" : "active && " + mine + " < " + end) + ";");
  line("const idx piece = there ? " + mine + " : 0;");
  std::string along = "piece";
  if (has_axis(k_, AxisKind::kSerial)) {
    line("const idx s = pieces > 0 ? piece / pieces : 0;");
    decode_serial();
    along = "(piece - s * pieces)";
  }
  line("const idx i = " + along + " * " + v + ";");
  line("const int m = !there ? 0 : " + whole_or("inner - i < " + v + " ? (int)(inner - i) : " + v) + ";");
}

// Indices of the serial axes from the serial point `s`, the last fastest.
void Printer::decode_serial() { decode_serial_but(k_.axes.size(), k_.has_csr ? "dense" : "s"); }

void Printer::decode_serial_but(size_t except, std::string rest) {
  std::vector<size_t> axes;
  for (size_t x = 0; x < k_.axes.size(); ++x)
    if (k_.axes[x].kind == AxisKind::kSerial && x != except) axes.push_back(x);
  for (size_t i = axes.size(); i-- > 0;) {
    const std::string n = number(static_cast<int64_t>(axes[i]));
    if (i == 0) {
      line("const idx i" + n + " = " + rest + ";");
    } else {
      line("const idx rest" + n + " = " + rest + " / size" + n + ", i" + n + " = " + rest + " - rest" + n + " * size" + n + ";");
      rest = "rest" + n;
    }
  }
}

void Printer::partial_slot(size_t k, const std::string& cells, const std::string& cell, const std::string& split, std::string& out) const {
  const std::string type = accumulator_type(k_.stages[k]);
  out = "((" + type + "*)(workspace + (i64)" + number(static_cast<int64_t>(k)) + " * splits * " + cells + " * 16))[(i64)" + split + " * " +
        cells + " + " + cell + "]";
}

void Printer::row_pass(size_t first, size_t count, Part part) {
  const Stage& stage = k_.stages[first];
  const std::vector<bool> in = needed(first, count);
  print_level(in, kRowLevel);
  if (!stage.reduce && stage.once) {
    for (const auto& st : stage.stores) {
      const Access& acc = k_.accesses[st.access];
      const std::string guard = access_guard(st.access, false), type = kind_name(storage_kind(acc.dtype));
      const std::string rows = rows_inside(st.access, false), check = rows.empty() ? "" : "krn_in_rows(" + rows + "), ";
      line("if (t == 0 && active" + (guard.empty() ? "" : " && " + guard) + ") " + check + "q" + number(st.access) + "[" +
           access_base(st.access) + "] = " + storage_name(acc.dtype) + "::put(" + value_as(st.node, type) + ");");
    }
    return;
  }
  if (!stage.reduce) {
    over_pieces(in, first, false, [&] { map_body(in, first, count); });
    return;
  }
  for (size_t s = first; s < first + count; ++s)
    line(accumulator_type(k_.stages[s]) + " acc" + number(static_cast<int64_t>(s)) + " = " + start(k_.stages[s]) + ";");
  std::string slot;
  if (part == Part::kFinish) {
    open("for (idx split = active ? t : splits; split < splits; split += " + number(s_.group) + ")");
    for (size_t s = first; s < first + count; ++s) {
      const std::string n = number(static_cast<int64_t>(s)), type = accumulator_type(k_.stages[s]);
      partial_slot(s, "rows", "row", "split", slot);
      line("acc" + n + " = (" + type + ")" + monoid(k_.stages[s]) + "::step(acc" + n + ", " + slot + ");");
    }
    close();
  } else {
    over_pieces(in, first, part == Part::kPartial, [&] {
      open_elements();
      print_level(in, kElementLevel);
      put_kept(in, first);
      const std::string place = has_axis(k_, AxisKind::kSerial) ? "(i64)s * inner + ij" : "(i64)ij";
      for (size_t s = first; s < first + count; ++s) {
        const std::string acc = "acc" + number(static_cast<int64_t>(s));
        line(if_live() + step(k_.stages[s], acc, value_as(k_.stages[s].value, result_type(k_.stages[s])), place) + ";");
      }
      close();
    });
  }
  if (s_.ahead && first == 0) bring_ahead("first + stride");
  for (size_t s = first; s < first + count; ++s) {
    const std::string n = number(static_cast<int64_t>(s)), type = accumulator_type(k_.stages[s]);
    if (s_.cluster == 1) line("acc" + n + " = krn_join<" + monoid(k_.stages[s]) + ", " + number(s_.group) + ">(acc" + n + ");");
    else
      line("acc" + n + " = krn_join_cluster<" + monoid(k_.stages[s]) + ", " + number(s_.group) + ", " + number(s_.cluster) + ">(acc" + n +
           ", met, turn);");
    if (part == Part::kPartial) {
      partial_slot(s, "rows", "row", "split", slot);
      line("if (t == 0) " + slot + " = acc" + n + ";");
    } else {
      line("const " + reduced_type(k_.stages[s]) + " r" + n + " = acc" + n + result_of(k_.stages[s]) + ";");
    }
  }
}

// ---- column

void Printer::print_column(Part part) {
  head(symbol_ + (part == Part::kFinish ? "_finish" : ""));
  const std::string across = number(s_.threads / s_.group);
  line(s_.group == 1 ? "const int x = KRN_THREAD, y = 0;" : "const int x = KRN_THREAD % " + across + ", y = KRN_THREAD / " + across + ";");
  line("const idx cells = rows * pieces;");
  if (part != Part::kWhole) {
    const std::string partial = number(partial_vec_);
    line("const idx slots = (inner + " + number(partial_vec_ - 1) + ") / " + partial + " * " + partial + ";");  // of a row
  }
  if (part == Part::kPartial) {
    line("const idx unit = KRN_BLOCK / splits, split = KRN_BLOCK - unit * splits, first = unit * " + across + ";");
    open("");
  } else {
    open("for (idx first = (idx)KRN_BLOCK * " + across + "; first < cells; first += (idx)KRN_BLOCKS * " + across + ")");
  }
  line("const bool active = first + x < cells;");
  line("const idx cell = active ? first + x : 0, row = cell / pieces, i = (cell - row * pieces) * " + number(s_.vec) + ";");
  line("const int lanes = !active ? 0 : " + whole_or("inner - i < " + number(s_.vec) + " ? (int)(inner - i) : " + number(s_.vec)) + ";");
  decode_outer("row");
  if (k_.has_csr) {
    std::string destination = "0";
    for (size_t x = 0; x < k_.axes.size(); ++x)
      if (k_.axes[x].kind == AxisKind::kOuter) destination = axis_[x];
    const std::string n = number(static_cast<int64_t>(k_.buffers.size()));
    line("const int* const row_ptr = (const int*)p.v[" + n + "]; const int* const perm = (const int*)p.v[" + n + " + 1];");
    line("const idx edge = row_ptr[" + destination + "], degree = row_ptr[" + destination + " + 1] - edge;");
    line("const idx points = serial * degree;");
  } else {
    line("const idx points = serial;");
  }
  if (part == Part::kPartial)
    line("const idx begin = split * split_length, end = begin + split_length < points ? begin + split_length : points;");
  else line("const idx begin = 0, end = points;");
  for (size_t s = 0; s < k_.stages.size();) {
    const size_t count = pass_length(k_, s);
    if (k_.stages[s].reduce) column_pass(s, count, part);
    else column_map(s, count);
    s += count;
    if (part == Part::kPartial) break;
  }
  close();
  close();
}

void Printer::column_map(size_t first, size_t count) {
  print_level(needed(first, count), kRowLevel);
  open("if (y == 0)");
  line("const int m = lanes;");
  map_piece(first, count);
  close();
}

// Pooling windows along inner: under all windows of a piece lies one line of the input, which is loaded once for each point of the
// other serial axes.
void Printer::over_lines(const std::vector<bool>& in, const std::function<void()>& body) {
  const size_t axis = window_axis(k_);
  int along = 0, others = 1;
  for (size_t x = 0, serial = 0; x < k_.axes.size(); ++x) {
    if (k_.axes[x].kind != AxisKind::kSerial) continue;
    if (x == axis) along = s_.window[serial++];
    else others *= s_.window[serial++];
  }
  const std::string last = axis_[axis];
  open("KRN_UNROLL for (int c = 0; c < " + number(others) + "; ++c)");
  line("const idx " + last + " = 0;");
  decode_serial_but(axis, "c");
  for (size_t i = 0; i < k_.accesses.size(); ++i)
    if (slides(k_, k_.accesses[i])) fetch_line(static_cast<uint32_t>(i), along);
  open("KRN_UNROLL for (int k = 0; k < " + number(along) + "; ++k)");
  line("const idx " + last + " = k, s = (idx)c * " + number(along) + " + k;");
  line("const int m = lanes;");
  print_level(in, kPieceLevel);
  for (size_t id = 0; id < in.size(); ++id) {
    const Node& n = k_.dag.nodes[id];
    if (!in[id] || n.prim != Prim::kLoad || !slides(k_, k_.accesses[n.imm])) continue;
    const std::string storage = storage_name(k_.accesses[n.imm].dtype),
                      cast = n.kind == storage_kind(k_.accesses[n.imm].dtype) ? "" : "(" + kind_name(n.kind) + ")";
    names_[id] = cast + storage + "::get(line" + number(static_cast<int64_t>(n.imm)) + "[j * " + number(s_.slide) + " + k])";
  }
  prepare_element_loads(in, Fetch::kNow);
  body();
  close();
  forget(kElementLevel);
  forget(kPieceLevel);
  close();
}

void Printer::fetch_line(uint32_t access, int along) {
  const Access& acc = k_.accesses[access];
  const std::string n = number(access), storage = storage_name(acc.dtype), step = number(s_.slide);
  const int length = s_.slide * (s_.vec - 1) + along;
  std::string at = "(idx)0", limit = "(idx)(" + step + " * (lanes - 1) + " + number(along) + ")", there = access_guard(access, false);
  for (size_t g = 0; g < acc.guards.size(); ++g) {
    if (acc.guards[g].form.coeff.back() == 0) continue;
    const int first = arguments_[access].guards[g];
    at = "(idx)(" + linear(acc.guards[g].form, first, false) + " + i * " + step + ")";
    limit = a(first + 1 + static_cast<int>(k_.axes.size()));
  }
  line(storage + "::Stored line" + n + "[" + number(length) + "];");
  line("krn_line<" + storage + ", " + number(length) + ", " + number(s_.skew) + ", idx>(line" + n + ", q" + n + " + (" +
       access_base(access) + " + i * " + step + "), " + at + ", " + limit + ", lanes > 0" + (there.empty() ? "" : " && " + there) + ", " +
       storage + "::put(" + fill(acc, storage_kind(acc.dtype)) + "));");
}

void Printer::over_points(const std::vector<bool>& in, const std::function<void()>& body) {
  if (s_.slide > 0) return over_lines(in, body);
  const int points = strip_length(in);
  open("for (idx base = begin + y; base < end; base += " + number(int64_t{s_.group} * points) + ")");
  strip(in, 0, points, [&] { point_head(); }, body);
  close();
}

// The serial point with number c of a strip.
void Printer::point_head() {
  const std::string mine = "base + (idx)c * " + number(s_.group);
  line("const bool there = " + mine + " < end;");
  line("const idx s = there ? " + mine + " : base;");
  line("const int m = there ? lanes : 0;");
  if (!k_.has_csr) return decode_serial();
  const bool dense = has_axis(k_, AxisKind::kSerial);
  if (dense) {
    line("const idx dense = s / degree;");
    decode_serial();
  }
  for (size_t x = 0; x < k_.axes.size(); ++x)
    if (k_.axes[x].kind == AxisKind::kSegment)
      line("const idx " + axis_[x] + " = perm[edge + s" + (dense ? " - dense * degree" : "") + "];");
}

void Printer::column_pass(size_t first, size_t count, Part part) {
  const std::vector<bool> in = needed(first, count);
  print_level(in, kRowLevel);
  const std::string v = number(s_.vec), group = number(s_.group), across = number(s_.threads / s_.group);
  for (size_t s = first; s < first + count; ++s) {
    const std::string n = number(static_cast<int64_t>(s)), type = accumulator_type(k_.stages[s]);
    line(type + " acc" + n + "[" + v + "];");
    line("KRN_UNROLL for (int j = 0; j < " + v + "; ++j) acc" + n + "[j] = " + type + start_braced(k_.stages[s]) + ";");
  }
  std::string slot;
  if (part == Part::kFinish) {
    // Several are on their way before the first is needed.
    constexpr int64_t kStrip = 4;
    const std::string strip = number(kStrip), each = "KRN_UNROLL for (int c = 0; c < " + strip + "; ++c)";
    open("for (idx base = y; base < splits; base += " + number(kStrip * s_.group) + ")");
    for (size_t s = first; s < first + count; ++s) {
      const std::string n = number(static_cast<int64_t>(s)), type = accumulator_type(k_.stages[s]);
      partial_slot(s, "(rows * slots)", "(row * slots + i)", "split", slot);
      line(type + " part" + n + "[" + strip + "];");
      open(each);
      line("const idx split = base + (idx)c * " + group + ";");
      line("part" + n + "[c] = " + type + start_braced(k_.stages[s]) + ";");
      line("if (lanes > 0 && split < splits) part" + n + "[c] = " + slot + ";");
      close();
    }
    for (size_t s = first; s < first + count; ++s) {
      const std::string n = number(static_cast<int64_t>(s)), type = accumulator_type(k_.stages[s]);
      line(each + " acc" + n + "[0] = (" + type + ")" + monoid(k_.stages[s]) + "::step(acc" + n + "[0], part" + n + "[c]);");
    }
    close();
  } else {
    std::vector<size_t> counting;
    for (size_t s = first; s < first + count; ++s)
      if (k_.stages[s].monoid == Monoid::kDeviations) counting.push_back(s);
    if (!counting.empty()) line("float taken = 0.0f;");
    over_points(in, [&] {
      if (!counting.empty()) {
        line("taken += m > 0 ? 1.0f : 0.0f;");
        line("const float share = 1.0f / taken;");
      }
      open_elements();
      print_level(in, kElementLevel);
      for (size_t s = first; s < first + count; ++s) {
        const std::string acc = "acc" + number(static_cast<int64_t>(s)) + "[j]";
        line(if_live() + step(k_.stages[s], acc, value_as(k_.stages[s].value, result_type(k_.stages[s])), "(i64)s") + ";");
      }
      close();
    });
    for (size_t s : counting)
      line("KRN_UNROLL for (int j = 0; j < " + v + "; ++j) acc" + number(static_cast<int64_t>(s)) + "[j].count = taken;");
  }
  for (size_t s = first; s < first + count; ++s) {
    const std::string n = number(static_cast<int64_t>(s)), type = accumulator_type(k_.stages[s]);
    line("krn_join_columns<" + monoid(k_.stages[s]) + ", " + group + ", " + across + ", " + v + ">(acc" + n + ");");
    if (part == Part::kPartial) {
      partial_slot(s, "(rows * slots)", "(row * slots + i + j)", "split", slot);
      line("KRN_UNROLL for (int j = 0; j < " + v + "; ++j) if (y == 0 && j < lanes) " + slot + " = acc" + n + "[j];");
    } else {
      line(reduced_type(k_.stages[s]) + " r" + n + "[" + v + "];");
      line("KRN_UNROLL for (int j = 0; j < " + v + "; ++j) r" + n + "[j] = acc" + n + "[j]" + result_of(k_.stages[s]) + ";");
    }
  }
}

}  // namespace keirin::codegen::text
