// SPDX-License-Identifier: Apache-2.0
//
// Values and memory of printed kernels; the loops around them are in print_shapes.cc.
#include "plugins/codegen/text/c_printer.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>

#include "plugins/codegen/kernel/registers.h"
#include "plugins/codegen/kernel/rows.h"
#include "plugins/codegen/text/print_parts.h"
#include "plugins/kit/error.h"

namespace keirin::codegen::text {
namespace {

std::string float_literal(double v, Kind kind) {
  char text[64];
  if (kind == Kind::kF32) {
    const float f = static_cast<float>(v);
    if (std::isfinite(f)) {
      std::snprintf(text, sizeof text, "%.9g", static_cast<double>(f));
    } else {
      std::snprintf(text, sizeof text, "krn_bits_f32(0x%08xu)", std::bit_cast<uint32_t>(f));
      return text;
    }
  } else if (std::isfinite(v)) {
    std::snprintf(text, sizeof text, "%.17g", v);
  } else {
    std::snprintf(text, sizeof text, "krn_bits_f64(0x%016llxull)", static_cast<unsigned long long>(std::bit_cast<uint64_t>(v)));
    return text;
  }
  std::string out = text;
  if (out.find_first_of(".e") == std::string::npos) out += ".0";
  if (out[0] == '-') out = "(" + out + (kind == Kind::kF32 ? "f" : "") + ")";
  else if (kind == Kind::kF32) out += "f";
  return out;
}

std::string literal(Kind kind, uint64_t bits) {
  if (kind == Kind::kBool) return bits ? "true" : "false";
  if (kind == Kind::kI64) {
    const auto v = static_cast<int64_t>(bits);
    if (v == INT64_MIN) return "(-9223372036854775807ll - 1)";
    return v < 0 ? "(" + number(v) + "ll)" : number(v) + "ll";
  }
  return float_literal(std::bit_cast<double>(bits), kind);
}

const char* function_name(Prim prim) {
  switch (prim) {
    case Prim::kSqrt: return "sqrt";
    case Prim::kRsqrt: return "rsqrt";
    case Prim::kExp: return "exp";
    case Prim::kExp2: return "exp2";
    case Prim::kExpm1: return "expm1";
    case Prim::kLog: return "log";
    case Prim::kLog1p: return "log1p";
    case Prim::kLog2: return "log2";
    case Prim::kTanh: return "tanh";
    case Prim::kErf: return "erf";
    case Prim::kSin: return "sin";
    case Prim::kCos: return "cos";
    case Prim::kPow: return "pow";
    case Prim::kFloor: return "floor";
    case Prim::kCeil: return "ceil";
    case Prim::kTrunc: return "trunc";
    case Prim::kRound: return "rint";
    case Prim::kFmod: return "fmod";
    case Prim::kAbs: return "fabs";
    default: return nullptr;
  }
}

const char* infix(Prim prim) {
  switch (prim) {
    case Prim::kAdd: return " + ";
    case Prim::kSub: return " - ";
    case Prim::kMul: return " * ";
    case Prim::kDiv: return " / ";
    case Prim::kLt: return " < ";
    case Prim::kLe: return " <= ";
    case Prim::kGt: return " > ";
    case Prim::kGe: return " >= ";
    case Prim::kEq: return " == ";
    case Prim::kNe: return " != ";
    case Prim::kAnd: return " & ";
    case Prim::kOr: return " | ";
    case Prim::kXor: return " ^ ";
    default: return nullptr;
  }
}

}  // namespace

std::string kind_name(Kind kind) {
  switch (kind) {
    case Kind::kBool: return "bool";
    case Kind::kI64: return "i64";
    case Kind::kF32: return "float";
    default: return "double";
  }
}

std::string storage_name(uint8_t dtype) {
  switch (dtype) {
#define KRN_DTYPE(id, name, bits, dl, cls) \
  case id:                                 \
    return "d_" #name;
#include "abi/dtypes.def"
#undef KRN_DTYPE
    default:
      throw kit::Error(KRN_STATUS_corrupt, "dtype " + number(dtype) + " in a kernel");
  }
}

Kind storage_kind(uint8_t dtype) { return compute_kind(dtype); }

Printer::Printer(const Kernel& kernel, const Schedule& schedule, const Dialect& dialect, const std::string& symbol)
    : k_(kernel),
      s_(schedule),
      d_(dialect),
      symbol_(symbol),
      moves_(moves_along_inner(kernel)),
      names_(kernel.dag.nodes.size()),
      kept_{{}, std::vector<std::vector<int32_t>>(kernel.stages.size())} {
  const auto axes = static_cast<int>(k_.axes.size());
  int next = axes;
  for (const Access& access : k_.accesses) {
    if (!is_computable(access.dtype)) throw kit::Error(KRN_STATUS_unsupported, "no generated code for dtype " + number(access.dtype));
    AccessArguments out{next, next + 1, {}, {}};
    next += 1 + axes;
    for (size_t i = 0; i < access.indirects.size(); ++i) out.indirects.push_back(next), next += 2;
    for (size_t g = 0; g < access.guards.size(); ++g) out.guards.push_back(next), next += 2 + axes;
    arguments_.push_back(std::move(out));
  }
  for (const Node& n : k_.dag.nodes) literals_.push_back(is_argument(n) ? next++ : -1);
  num_arguments_ = next;
  for (int i = 0; i < axes; ++i) axis_.push_back("i" + number(i));
  find_levels();
  find_divisors();
  if (s_.shape == GpuShape::kRow && s_.chunks > 0 && !s_.split) kept_ = find_kept(k_);
  ahead_.assign(k_.accesses.size(), -1);
  int words = 0;
  for (uint32_t access : s_.ahead ? accesses_ahead(k_, s_) : std::vector<uint32_t>()) {
    ahead_[access] = words;
    words += words_of_piece(k_.accesses[access], s_) * s_.chunks * s_.threads;
  }
}

// ---- lines

void Printer::line(const std::string& text) { out_.append(static_cast<size_t>(2 * indent_), ' ').append(text).append("\n"); }
void Printer::open(const std::string& text) {
  line(text + " {");
  ++indent_;
}
void Printer::close(const std::string& tail) {
  --indent_;
  line("}" + tail);
}

// ---- levels

Level Printer::access_level(const Access& access, bool with_inner) const {
  Level level = kRowLevel;
  auto add = [&](const Linear& form) {
    for (size_t x = 0; x < k_.axes.size(); ++x) {
      if (form.coeff[x] == 0) continue;
      const AxisKind kind = k_.axes[x].kind;
      if (kind == AxisKind::kInner && with_inner) level = kElementLevel;
      if (kind == AxisKind::kOuter && in_strips()) level = std::max(level, kPieceLevel);
      if (kind == AxisKind::kSerial || kind == AxisKind::kSegment) level = std::max(level, kPieceLevel);
    }
  };
  add(access.index);
  for (const auto& g : access.guards) add(g.form);
  for (const auto& i : access.indirects)
    if (with_inner || level_[i.node] != kElementLevel) level = std::max(level, level_[i.node]);
  return level;
}

void Printer::find_levels() {
  for (const Node& n : k_.dag.nodes) {
    Level level = kRowLevel;
    for (int32_t x : {n.a, n.b, n.c})
      if (x >= 0) level = std::max(level, level_[x]);
    if (n.prim == Prim::kLoad) level = access_level(k_.accesses[n.imm], true);
    if (n.prim == Prim::kScalar && k_.column) level = kElementLevel;
    if (n.prim == Prim::kCoord) {
      const AxisKind kind = k_.axes[n.imm].kind;
      if (kind == AxisKind::kInner) level = kElementLevel;
      if (kind == AxisKind::kOuter && in_strips()) level = kPieceLevel;
      if (kind == AxisKind::kSerial || kind == AxisKind::kSegment) level = kPieceLevel;
    }
    level_.push_back(level);
  }
}

void Printer::needed_below(int32_t node, size_t stage, std::vector<bool>& in) const {
  if (node < 0 || in[node]) return;
  in[node] = true;
  const std::vector<int32_t>& taken = kept_.taken[stage];
  if (std::find(taken.begin(), taken.end(), node) != taken.end()) return;
  const Node& n = k_.dag.nodes[node];
  for (int32_t x : {n.a, n.b, n.c}) needed_below(x, stage, in);
  if (n.prim == Prim::kLoad)
    for (const auto& i : k_.accesses[n.imm].indirects) needed_below(i.node, stage, in);
}

std::vector<bool> Printer::needed(size_t first, size_t count) const {
  std::vector<bool> in(k_.dag.nodes.size());
  std::vector<int32_t> out;
  for (size_t s = first; s < first + count; ++s) add_roots(k_, k_.stages[s], out);
  for (int32_t id : out) needed_below(id, first, in);
  return in;
}

void Printer::forget(Level level) {
  for (size_t n = 0; n < names_.size(); ++n)
    if (level_[n] == level) names_[n].clear();
}

// ---- values

void Printer::print_level(const std::vector<bool>& in, Level level) {
  for (size_t n = 0; n < in.size(); ++n)
    if (in[n] && level_[n] == level && names_[n].empty()) print_node(static_cast<int32_t>(n));
}

void Printer::print_node(int32_t id) {
  const Node& n = k_.dag.nodes[id];
  if (n.prim == Prim::kLiteral) {
    names_[id] = literals_[id] < 0 ? literal(n.kind, n.imm) : "((" + kind_name(n.kind) + ")" + a(literals_[id]) + ")";
    return;
  }
  const std::string name = "n" + number(id);
  if (n.prim == Prim::kLoad) {
    const auto access = static_cast<uint32_t>(n.imm);
    const Access& acc = k_.accesses[access];
    const std::string q = "q" + number(access);
    std::string index = access_base(access), guard = access_guard(access, false);
    if (level_[id] == kElementLevel) {
      index = "o" + number(access);
      const std::string inner = access_guard(access, true);
      guard = live();
      if (!acc.guards.empty()) guard += std::string(guard.empty() ? "" : " && ") + "g" + number(access);
      if (!inner.empty()) guard += std::string(guard.empty() ? "" : " && ") + inner;
      for (size_t i = 0; i < acc.indirects.size(); ++i)
        if (level_[acc.indirects[i].node] == kElementLevel) index += " + " + clamped(acc.indirects[i], arguments_[access].indirects[i]);
      if (acc.index.coeff.back() == 1) index += " + ij";
      else if (acc.index.coeff.back() != 0) index += " + ij * " + a(arguments_[access].coeff + static_cast<int>(k_.axes.size()) - 1);
    } else if (level_[id] == kPieceLevel) {
      guard = "m > 0" + (guard.empty() ? "" : " && " + guard);
    }
    const std::string get = storage_name(acc.dtype) + "::get(" + q + "[" + index + "])";
    const std::string type = kind_name(n.kind);
    const std::string rows = rows_inside(access, level_[id] == kElementLevel), check = rows.empty() ? "" : "krn_in_rows(" + rows + "), ";
    const std::string cast = "(" + check + (n.kind == storage_kind(acc.dtype) ? get : "(" + type + ")" + get) + ")";
    line("const " + type + " " + name + " = " + (guard.empty() ? cast : guard + " ? " + cast + " : " + fill(acc, n.kind)) + ";");
    names_[id] = name;
    return;
  }
  const std::string divided = divided_by_row(id);
  line("const " + kind_name(n.kind) + " " + name + " = " + (divided.empty() ? expression(n) : divided) + ";");
  names_[id] = name;
  if (divides_[id]) line("const float " + name + "_inverse = krn_inverse(" + name + ");");
}

// Elements of a row over one value of the row: that value's inverse is computed once (unless numerics are strict, see the prelude).
std::string Printer::divided_by_row(int32_t id) const {
  const Node& n = k_.dag.nodes[id];
  if (n.prim != Prim::kDiv || n.kind != Kind::kF32 || level_[id] == kRowLevel || !divides_[n.b]) return "";
  return "krn_over(" + names_[n.a] + ", " + names_[n.b] + ", " + names_[n.b] + "_inverse)";
}

void Printer::find_divisors() {
  divides_.assign(k_.dag.nodes.size(), false);
  for (size_t id = 0; id < k_.dag.nodes.size(); ++id) {
    const Node& n = k_.dag.nodes[id];
    if (n.prim != Prim::kDiv || n.kind != Kind::kF32 || level_[id] == kRowLevel || level_[n.b] != kRowLevel) continue;
    const Prim by = k_.dag.nodes[n.b].prim;
    divides_[n.b] = by != Prim::kLiteral && by != Prim::kLoad;
  }
}

// As in GELU: then the error beside 1 counts, and the fast erf is as good as the library's.
bool Printer::only_added_to_one(int32_t id) const {
  for (const Stage& stage : k_.stages) {
    if (stage.value == id) return false;
    for (const auto& store : stage.stores)
      if (store.node == id) return false;
  }
  for (const Node& n : k_.dag.nodes) {
    if (n.a != id && n.b != id && n.c != id) continue;
    const int32_t other = n.a == id ? n.b : n.a;
    if (n.prim != Prim::kAdd || k_.dag.nodes[other].prim != Prim::kLiteral || std::bit_cast<double>(k_.dag.nodes[other].imm) != 1.0)
      return false;
  }
  return true;
}

std::string Printer::expression(const Node& n) const {
  const std::string x = n.a >= 0 ? names_[n.a] : "", y = n.b >= 0 ? names_[n.b] : "", z = n.c >= 0 ? names_[n.c] : "";
  const Kind from = n.a >= 0 ? k_.dag.nodes[n.a].kind : n.kind;
  const bool whole = from == Kind::kI64;
  switch (n.prim) {
    case Prim::kCoord: {
      const std::string index = is_inner(n.imm) ? "ij" : axis_[n.imm];
      return "(" + kind_name(n.kind) + ")" + index;
    }
    case Prim::kScalar: {
      const std::string lane = k_.column ? "[j]" : "";
      return "(" + kind_name(n.kind) + ")r" + number(static_cast<int64_t>(n.imm)) + lane;
    }
    case Prim::kAdd: if (whole) return "krn_add(" + x + ", " + y + ")"; break;
    case Prim::kSub: if (whole) return "krn_sub(" + x + ", " + y + ")"; break;
    case Prim::kMul: if (whole) return "krn_mul(" + x + ", " + y + ")"; break;
    case Prim::kDiv: if (whole) return "krn_div(" + x + ", " + y + ")"; break;
    case Prim::kNeg: return whole ? "krn_sub(0ll, " + x + ")" : "-" + x;
    case Prim::kAbs: if (whole) return "krn_abs(" + x + ")"; break;
    case Prim::kMinimum: return "krn_min(" + x + ", " + y + ")";
    case Prim::kMaximum: return "krn_max(" + x + ", " + y + ")";
    case Prim::kFloor: case Prim::kCeil: case Prim::kTrunc: case Prim::kRound: if (whole) return x; break;
    case Prim::kIsNan: return x + " != " + x;
    case Prim::kNot: return from == Kind::kBool ? "!" + x : "~" + x;
    case Prim::kSelect: return x + " ? " + y + " : " + z;
    case Prim::kConvert: return n.kind == Kind::kBool ? x + " != 0" : "(" + kind_name(n.kind) + ")" + x;
    case Prim::kRound16: {
      const std::string d = storage_name(static_cast<uint8_t>(n.imm));
      return "(" + kind_name(n.kind) + ")" + d + "::get(" + d + "::put(" + x + "))";
    }
    default: break;
  }
  if (const char* op = infix(n.prim)) return x + op + y;
  if (n.prim == Prim::kErf && n.kind == Kind::kF32 && only_added_to_one(static_cast<int32_t>(&n - k_.dag.nodes.data())))
    return "krn_erf(" + x + ")";
  if (const char* f = function_name(n.prim)) {
    return std::string(f) + (n.kind == Kind::kF32 ? "f(" : "(") + x + (n.b >= 0 ? ", " + y : "") + ")";
  }
  throw kit::Error(KRN_STATUS_internal, "the printer does not know primitive " + number(static_cast<int>(n.prim)));
}

std::string Printer::value_as(int32_t node, const std::string& type) const {
  const std::string have = kind_name(k_.dag.nodes[node].kind);
  if (have == type) return names_[node];
  return type == "bool" ? "(" + names_[node] + " != 0)" : "(" + type + ")(" + names_[node] + ")";
}

std::string Printer::fill(const Access& access, Kind kind) const {
  if (kind == Kind::kF32 || kind == Kind::kF64) return float_literal(access.fill, kind);
  return literal(kind, static_cast<uint64_t>(static_cast<int64_t>(access.fill)));
}

// ---- memory

std::string Printer::linear(const Linear& form, int first, bool with_inner) const {
  std::string sum = a(first);
  for (size_t x = 0; x < form.coeff.size(); ++x) {
    if (form.coeff[x] == 0 || (is_inner(x) && !with_inner)) continue;
    sum += " + " + (is_inner(x) ? std::string("ij") : axis_[x]) + " * " + a(first + 1 + static_cast<int>(x));
  }
  return sum;
}

std::string Printer::inside(const Access::Indirect& indirect, int stride) {
  // A negative index is a huge one.
  return "(unsigned long long)" + value_as(indirect.node, "i64") + " < (unsigned long long)" + a(stride + 1);
}

std::string Printer::rows_inside(uint32_t number_, bool of_elements) {
  const Access& access = k_.accesses[number_];
  std::string all;
  for (size_t i = 0; i < access.indirects.size(); ++i)
    if (!access.indirects[i].inside && (level_[access.indirects[i].node] == kElementLevel) == of_elements)
      all += (all.empty() ? "" : " && ") + inside(access.indirects[i], arguments_[number_].indirects[i]);
  return all;
}

// What is not refused is clamped all the same: an address may be made of the index of an element that is not there. Of rows all are.
std::string Printer::clamped(const Access::Indirect& indirect, int stride) {
  if (indirect.inside && level_[indirect.node] != kElementLevel) return "(idx)" + value_as(indirect.node, "i64") + " * " + a(stride);
  return "(" + inside(indirect, stride) + " ? (idx)" + value_as(indirect.node, "i64") + " : (idx)0) * " + a(stride);
}

std::string Printer::access_base(uint32_t number_) {
  const Access& access = k_.accesses[number_];
  std::string sum = linear(access.index, arguments_[number_].offset, false);
  for (size_t i = 0; i < access.indirects.size(); ++i)
    if (level_[access.indirects[i].node] != kElementLevel) sum += " + " + clamped(access.indirects[i], arguments_[number_].indirects[i]);
  return sum;
}

std::string Printer::access_guard(uint32_t number_, bool inner) {
  const Access& access = k_.accesses[number_];
  const std::string huge = s_.wide ? "(unsigned long long)" : "(unsigned)";
  std::string all;
  for (size_t g = 0; g < access.guards.size(); ++g) {
    const Linear& form = access.guards[g].form;
    if ((form.coeff.back() != 0) != inner) continue;
    const int first = arguments_[number_].guards[g];
    all += std::string(all.empty() ? "" : " && ") + huge + "(" + linear(form, first, inner) + ") < " + huge +
           a(first + 1 + static_cast<int>(k_.axes.size()));
  }
  return all;
}

bool Printer::vector_access(const Access& access) const { return takes_words(access, moves_); }

bool Printer::tiled(const Access& access) const {
  const int64_t along = access.index.coeff.back();
  return s_.shape == GpuShape::kTile && along != 0 && along != 1 && access.index.coeff[s_.tile_axis] != 0 &&
         access.indirects.empty() && access.guards.empty();
}

bool Printer::staged(const Access& access) const { return s_.staged > 0 && access.index.coeff.back() != 0; }

std::string Printer::live() const {
  const bool flat = s_.shape == GpuShape::kTile || s_.shape == GpuShape::kFlat;
  if (s_.full || (flat && (s_.vec == 1 || (s_.whole && s_.shape == GpuShape::kFlat)) && !in_strips())) return "";
  return s_.whole && s_.shape != GpuShape::kTile ? "m > 0" : "j < m";
}

std::string Printer::if_live() const {
  const std::string test = live();
  return test.empty() ? "" : "if (" + test + ") ";
}

bool Printer::fetched_load(const std::vector<bool>& in, size_t id) const {
  const Node& n = k_.dag.nodes[id];
  return in[id] && n.prim == Prim::kLoad && level_[id] == kElementLevel && names_[id].empty() && !tiled(k_.accesses[n.imm]) &&
         !staged(k_.accesses[n.imm]) && vector_access(k_.accesses[n.imm]);
}

// At the head of a piece: addresses, guards and contiguous loads of the elements' accesses.
void Printer::prepare_element_loads(const std::vector<bool>& in, Fetch fetch) {
  for (size_t id = 0; id < in.size(); ++id) {
    const Node& n = k_.dag.nodes[id];
    if (!in[id] || n.prim != Prim::kLoad || level_[id] != kElementLevel || !names_[id].empty()) continue;
    const auto access = static_cast<uint32_t>(n.imm);
    const Access& acc = k_.accesses[access];
    const std::string q = number(access), storage = storage_name(acc.dtype),
                      cast = n.kind == storage_kind(acc.dtype) ? "" : "(" + kind_name(n.kind) + ")";
    if (tiled(acc)) {
      const std::string at = s_.narrow && s_.vec > 1 ? "[(e + j) % " + number(s_.narrow) + "][(e + j) / " + number(s_.narrow) + "]"
                                                     : "[tx + j][ty]";
      names_[id] = cast + storage + "::get(tile" + q + at + ")";
      continue;
    }
    if (staged(acc)) {
      names_[id] = cast + storage + "::get(((const " + storage + "::Stored*)stage" + q + ")[(idx)KRN_THREAD * inner + ij])";
      continue;
    }
    const bool contiguous = vector_access(acc);
    if (fetch == Fetch::kAhead && !contiguous) continue;
    const std::string x = "x" + number(static_cast<int64_t>(id)) + (fetch == Fetch::kNow ? "" : "[c]"), v = number(s_.vec);
    if (!contiguous || fetch != Fetch::kDone) line("const idx o" + q + " = " + access_base(access) + ";");
    const std::string guard = access_guard(access, false);
    if (!acc.guards.empty()) line("const bool g" + q + " = " + (guard.empty() ? "true" : guard) + ";");
    if (!contiguous || fetch != Fetch::kDone) check_rows(access);
    if (!contiguous) continue;
    if (fetch == Fetch::kAhead && ahead_[access] >= 0)
      line(x + " = krn_brought<" + storage + ", " + v + ", " + number(s_.threads) + ">(" + place_ahead(access) + ");");
    else if (fetch != Fetch::kDone)
      line((fetch == Fetch::kNow ? "const KrnPack<" + storage + ", " + v + "> " : "") + x + " = krn_fetch<" + storage + ", " + v + ">(q" +
           q + " + o" + q + " + i, " + (acc.guards.empty() ? "m" : "g" + q + " ? m : 0") + ");");
    if (fetch == Fetch::kAhead) continue;
    names_[id] = cast + storage + "::get(" + x + ".s[j])";
    if (!acc.guards.empty()) names_[id] = "(g" + q + " ? " + names_[id] + " : " + fill(acc, n.kind) + ")";
  }
}

// The thread's own words of piece c.
std::string Printer::place_ahead(uint32_t access) const {
  return "ahead + " + number(ahead_[access]) + " + c * " + number(int64_t{words_of_piece(k_.accesses[access], s_)} * s_.threads) +
         " + KRN_THREAD";
}

// Of a piece, behind its guard.
void Printer::check_rows(uint32_t access) {
  const std::string rows = rows_inside(access, false), guarded = k_.accesses[access].guards.empty() ? "" : " && g" + number(access);
  if (!rows.empty()) line("if (m > 0" + guarded + ") krn_in_rows(" + rows + ");");
}

void Printer::prepare_store(uint32_t access) {
  const Access& acc = k_.accesses[access];
  const std::string n = number(access), guard = access_guard(access, false);
  line("const idx o" + n + " = " + access_base(access) + ";");
  if (!acc.guards.empty()) line("const bool g" + n + " = " + (guard.empty() ? "true" : guard) + ";");
  check_rows(access);
  if (vector_access(acc)) line(kind_name(storage_kind(acc.dtype)) + " y" + n + "[" + number(s_.vec) + "];");
}

// Inside the loop over a piece: a contiguous store is collected, another one is done.
void Printer::print_stage_stores(const Stage& stage) {
  for (const auto& st : stage.stores) {
    const Access& acc = k_.accesses[st.access];
    const std::string n = number(st.access), type = kind_name(storage_kind(acc.dtype)), value = value_as(st.node, type);
    if (vector_access(acc)) {
      line("y" + n + "[j] = " + value + ";");
      continue;
    }
    std::string index = "o" + n, guard = live();
    for (size_t i = 0; i < acc.indirects.size(); ++i)
      if (level_[acc.indirects[i].node] == kElementLevel) index += " + " + clamped(acc.indirects[i], arguments_[st.access].indirects[i]);
    if (acc.index.coeff.back() == 1) index += " + ij";
    else if (acc.index.coeff.back() != 0) index += " + ij * " + a(arguments_[st.access].coeff + static_cast<int>(k_.axes.size()) - 1);
    if (!acc.guards.empty()) guard += std::string(guard.empty() ? "" : " && ") + "g" + n;
    if (std::string inner = access_guard(st.access, true); !inner.empty()) guard += std::string(guard.empty() ? "" : " && ") + inner;
    const std::string rows = rows_inside(st.access, true), check = rows.empty() ? "" : "krn_in_rows(" + rows + "), ";
    const std::string put = storage_name(acc.dtype) + "::put(" + value + ");";
    line((guard.empty() ? "" : "if (" + guard + ") ") + check + "q" + n + "[" + index + "] = " + put);
  }
}

void Printer::flush_stores(const Stage& stage) {
  for (const auto& st : stage.stores) {
    const Access& acc = k_.accesses[st.access];
    if (!vector_access(acc)) continue;
    const std::string n = number(st.access);
    line("krn_store<" + storage_name(acc.dtype) + ", " + number(s_.vec) + ">(q" + n + " + o" + n + " + i, " +
         (acc.guards.empty() ? "(int)m" : "g" + n + " ? (int)m : 0") + ", y" + n + ");");
  }
}

// ---- reductions

static bool finds_place(const Stage& s) { return s.monoid == Monoid::kArgMax || s.monoid == Monoid::kArgMin; }

std::string Printer::reduced_type(const Stage& s) const { return finds_place(s) ? "i64" : kind_name(s.accumulator); }

std::string Printer::result_of(const Stage& s) const {
  return finds_place(s) ? ".place" : s.monoid == Monoid::kDeviations ? ".squares" : "";
}

std::string Printer::result_type(const Stage& s) const {
  return finds_place(s) ? kind_name(k_.dag.nodes[s.value].kind) : kind_name(s.accumulator);
}

std::string Printer::accumulator_type(const Stage& s) const {
  if (s.monoid == Monoid::kDeviations) return "krn_deviations";
  return finds_place(s) ? "krn_arg<" + result_type(s) + ">" : result_type(s);
}

std::string Printer::start(const Stage& s) const {
  const Kind kind = finds_place(s) ? k_.dag.nodes[s.value].kind : s.accumulator;
  const bool real = kind == Kind::kF32 || kind == Kind::kF64;
  auto of = [&](double r, int64_t w) { return literal(kind, real ? std::bit_cast<uint64_t>(r) : static_cast<uint64_t>(w)); };
  switch (s.monoid) {
    case Monoid::kDeviations: return "{0.0f, 0.0f, 0.0f}";
    case Monoid::kSum: case Monoid::kAny: return of(0, 0);
    case Monoid::kProd: case Monoid::kAll: return of(1, 1);
    case Monoid::kMax: return of(-HUGE_VAL, kind == Kind::kBool ? 0 : INT64_MIN);
    case Monoid::kMin: return of(HUGE_VAL, kind == Kind::kBool ? 1 : INT64_MAX);
    // A place past every other: whoever has seen nothing loses against an equal value.
    case Monoid::kArgMax: return "{" + of(-HUGE_VAL, kind == Kind::kBool ? 0 : INT64_MIN) + ", 9223372036854775807ll}";
    default: return "{" + of(HUGE_VAL, kind == Kind::kBool ? 1 : INT64_MAX) + ", 9223372036854775807ll}";
  }
}

std::string Printer::start_braced(const Stage& s) const {
  const std::string v = start(s);
  return v.front() == '{' ? v : "(" + v + ")";
}

std::string Printer::monoid(const Stage& s) const {
  static constexpr const char* kNames[] = {"m_sum", "m_prod", "m_max", "m_min", "m_any", "m_all", "m_argmax", "m_argmin",
                                           "m_deviations"};
  return kNames[static_cast<int>(s.monoid)];
}

std::string Printer::step(const Stage& s, const std::string& acc, const std::string& value, const std::string& place) const {
  const std::string type = accumulator_type(s);
  if (s.monoid == Monoid::kDeviations) return acc + ".take(" + value + ", share)";
  if (finds_place(s)) return acc + " = " + monoid(s) + "::step(" + acc + ", " + type + "{" + value + ", " + place + "})";
  return acc + " = (" + type + ")" + monoid(s) + "::step(" + acc + ", " + value + ")";
}

}  // namespace keirin::codegen::text

namespace keirin::codegen {

std::string print_kernel(const Kernel& kernel, const Schedule& schedule, const Dialect& dialect, const std::string& symbol) {
  return text::Printer(kernel, schedule, dialect, symbol).print();
}

}  // namespace keirin::codegen
