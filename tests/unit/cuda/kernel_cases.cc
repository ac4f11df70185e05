// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/cuda/kernel_cases.h"

#include <algorithm>
#include <cmath>

#include "plugins/codegen/kernel/registers.h"
#include "tests/unit/cpu/kernel_maker.h"

namespace keirin::test {
namespace {

using namespace codegen;

class Cases {
 public:
  explicit Cases(int64_t n) : n_(n) {
    pointwise();
    dtypes();
    primitives();
    strides();
    norms();
    monoids();
    windows();
    guards();
    gathers();
    segments();
  }
  std::vector<KernelCase> out;

 private:
  KernelCase& add(const std::string& name, const KernelMaker& m) {
    out.push_back({name + "_" + std::to_string(n_), m.k, 0, {}, {}, 1, false});
    return out.back();
  }

  static int32_t gelu(KernelMaker& m, int32_t x) {
    const int32_t half = m.op(Prim::kMul, m.real(0.5), x);
    return m.op(Prim::kMul, half, m.op(Prim::kAdd, m.real(1), m.op(Prim::kErf, m.op(Prim::kMul, x, m.real(0.70710678118654752)))));
  }

  void pointwise() {
    for (uint8_t dtype : {kF32, kBf16}) {
      KernelMaker m;
      m.outer(3).inner(n_);
      const int32_t x = m.load(dtype, {n_, 1}), bias = m.load(dtype, {0, 1}), scale = m.load(kF32, {1, 0});
      m.store(m.op(Prim::kMul, gelu(m, m.op(Prim::kAdd, x, bias)), scale), dtype, {n_, 1});
      add("gelu_bias_scale" + std::to_string(dtype), m).loosen = 4;
    }
    KernelMaker offset;  // starts that no vector load may take whole
    offset.outer(2).inner(n_);
    offset.store(offset.load(kBf16, {n_ + 3, 1}, 1), kF32, {n_, 1});
    add("misaligned", offset);
  }

  void dtypes() {
    for (uint8_t from : {kBool, kU8, kI8, kI16, kI32, kI64, kF16, kBf16, kF32, kF64}) {
      KernelMaker m;
      m.outer(2).inner(n_);
      const int32_t x = m.load(from, {n_, 1});
      for (uint8_t to : {kBool, kU8, kI8, kI16, kI32, kI64, kF16, kBf16, kF32, kF64}) m.store(m.convert(x, kind_for(to)), to, {n_, 1});
      KernelCase& c = add("converts_from" + std::to_string(from), m);
      c.index_below = 100, c.positive = true;
    }
  }

  void primitives() {
    for (Kind kind : {Kind::kF32, Kind::kF64}) {
      const uint8_t dtype = kind == Kind::kF32 ? kF32 : kF64;
      KernelMaker m;
      m.outer(2).inner(n_);
      const int32_t x = m.load(dtype, {n_, 1}), y = m.load(dtype, {n_, 1});
      for (Prim p : {Prim::kNeg, Prim::kAbs, Prim::kSqrt, Prim::kRsqrt, Prim::kExp, Prim::kExp2, Prim::kExpm1, Prim::kLog, Prim::kLog1p,
                     Prim::kLog2, Prim::kTanh, Prim::kErf, Prim::kSin, Prim::kCos, Prim::kFloor, Prim::kCeil, Prim::kTrunc, Prim::kRound})
        m.store(m.op(p, x), dtype, {n_, 1});
      for (Prim p : {Prim::kAdd, Prim::kSub, Prim::kMul, Prim::kDiv, Prim::kMinimum, Prim::kMaximum, Prim::kPow, Prim::kFmod})
        m.store(m.op(p, x, y), dtype, {n_, 1});
      for (Prim p : {Prim::kLt, Prim::kLe, Prim::kGt, Prim::kGe, Prim::kEq, Prim::kNe}) m.store(m.op(p, x, y), kBool, {n_, 1});
      m.store(m.op(Prim::kSelect, m.op(Prim::kIsNan, m.op(Prim::kDiv, x, m.real(-0.0, kind))), x, m.real(HUGE_VAL, kind)), dtype, {n_, 1});
      KernelCase& c = add("primitives_f" + std::to_string(dtype), m);
      c.positive = true, c.loosen = 8;
    }
    for (uint8_t dtype : {kI32, kI64}) {
      KernelMaker m;
      m.outer(2).inner(n_);
      const int32_t x = m.load(dtype, {n_, 1}), y = m.load(dtype, {n_, 1});
      int32_t v = m.op(Prim::kSub, m.op(Prim::kMul, x, y), m.op(Prim::kNeg, m.op(Prim::kAbs, x)));
      v = m.op(Prim::kXor, m.op(Prim::kAnd, v, m.whole(0xffff)), m.op(Prim::kOr, m.op(Prim::kNot, y), m.op(Prim::kMinimum, x, y)));
      const int32_t less = m.op(Prim::kLt, x, y), same = m.op(Prim::kEq, x, x);
      const int32_t truth = m.op(Prim::kOr, m.op(Prim::kNot, less), m.op(Prim::kXor, same, m.op(Prim::kNe, x, y)));
      m.store(m.op(Prim::kSelect, truth, v, m.op(Prim::kMaximum, x, y)), dtype, {n_, 1});
      m.store(truth, kBool, {n_, 1});
      m.store(m.k.dag.add({Prim::kRound16, Kind::kI64, v, -1, -1, kI8}), kI64, {n_, 1});
      add("integers" + std::to_string(dtype), m);
    }
    KernelMaker rounds;
    rounds.outer(2).inner(n_);
    const int32_t x = rounds.load(kF32, {n_, 1});
    for (uint64_t to : {kF16, kBf16}) rounds.store(rounds.k.dag.add({Prim::kRound16, Kind::kF32, x, -1, -1, to}), kF32, {n_, 1});
    rounds.store(rounds.convert(rounds.coord(1), Kind::kF32), kF32, {n_, 1});
    add("rounds", rounds);
  }

  void strides() {
    KernelMaker m;
    m.outer(4).outer(3).inner(n_);
    const int32_t a = m.load(kF32, {0, 0, 0}), b = m.load(kBf16, {3 * n_, 1, 3}), c = m.load(kF32, {2 * n_ * 3, 2 * n_, 2}),
                  d = m.load(kF32, {n_, 0, -1}, n_ - 1), e = m.load(kF64, {0, 1, 12});
    const int32_t sum = m.op(Prim::kAdd, m.op(Prim::kAdd, a, b), m.op(Prim::kMul, c, d));
    m.store(m.op(Prim::kAdd, m.convert(sum, Kind::kF64), e), kF32, {n_ * 3, n_, 1});
    add("strides", m);
    for (uint8_t dtype : {kF32, kBf16, kF64, kU8}) {
      KernelMaker t;  // [2, rows, n] -> the same with the last two turned, plus an operand that is not turned
      const int64_t rows = 70;
      t.outer(2).outer(rows).inner(n_);
      const int32_t turned = t.load(dtype, {rows * n_, 1, rows}), straight = t.load(dtype, {0, n_, 1});
      t.store(t.op(dtype == kU8 ? Prim::kXor : Prim::kAdd, turned, straight), dtype, {rows * n_, n_, 1});
      add("transpose" + std::to_string(dtype), t);
    }
    KernelMaker filter;  // of 3x3 from channels last to channels first, cast, beside what lies there already
    filter.outer(3).outer(300).inner(9);
    const int32_t moved = filter.convert(filter.load(kBf16, {2700, 1, 300}), Kind::kF32);
    filter.store(filter.op(Prim::kAdd, moved, filter.load(kF32, {2700, 9, 1})), kF32, {2700, 9, 1});
    add("filter", filter);
    for (uint8_t dtype : {kU8, kBf16, kF64}) {  // runs that end, and begin, amid a word
      KernelMaker odd;
      odd.outer(3).outer(77).inner(5);
      const int32_t mine = odd.load(dtype, {385, 1, 77}), other = odd.load(dtype, {385, 5, 1});
      odd.store(odd.op(dtype == kU8 ? Prim::kXor : Prim::kMul, mine, other), dtype, {385, 5, 1});
      add("odd_filter" + std::to_string(dtype), odd);
    }
    for (const bool by_place : {false, true}) {  // a factor for each row, or each place of it
      KernelMaker scaled;
      scaled.outer(2).outer(90).inner(9);
      const int32_t factor = by_place ? scaled.convert(scaled.coord(2), Kind::kF32) : scaled.load(kF32, {0, 1, 0});
      scaled.store(scaled.op(Prim::kMul, scaled.load(kF16, {810, 1, 90}), factor), kF16, {810, 9, 1});
      add(by_place ? "filter_by_place" : "filter_by_row", scaled);
    }
  }

  void norms() {
    for (uint8_t dtype : {kF32, kBf16, kF16}) {
      KernelMaker m;
      m.outer(5).inner(n_);
      const int32_t x = m.load(dtype, {n_, 1});
      const int32_t e = m.op(Prim::kExp, m.op(Prim::kSub, x, m.reduce(Monoid::kMax, x)));
      m.store(m.op(Prim::kDiv, e, m.reduce(Monoid::kSum, e)), dtype, {n_, 1});
      add("softmax" + std::to_string(dtype), m).loosen = 4;
    }
    for (bool one_pass : {false, true}) {
      KernelMaker m;
      m.outer(3).inner(n_);
      const int32_t x = m.op(Prim::kAdd, m.load(kF32, {n_, 1}), m.load(kBf16, {n_, 1}));
      const int32_t inverse = m.real(1.0 / static_cast<double>(n_));
      const int32_t mean = m.op(Prim::kMul, m.reduce(Monoid::kSum, x), inverse);
      const int32_t centred = m.op(Prim::kSub, x, mean);
      const int32_t square = one_pass ? m.op(Prim::kMul, x, x) : m.op(Prim::kMul, centred, centred);
      const int32_t moment = m.op(Prim::kMul, m.reduce(Monoid::kSum, square), inverse);
      const int32_t scale = m.op(Prim::kRsqrt, m.op(Prim::kAdd, moment, m.real(1e-5)));
      m.store(mean, kF32, {1, 0}, true);
      m.store(m.op(Prim::kAdd, m.op(Prim::kMul, m.op(Prim::kMul, centred, scale), m.load(kF32, {0, 1})), m.load(kF32, {0, 1})), kBf16,
              {n_, 1});
      add(one_pass ? "moments" : "layer_norm", m).loosen = 10;
    }
    KernelMaker group;  // serial axis in the row: group norm
    group.outer(2).outer(2).serial(3).inner(n_);
    const int32_t x = group.load(kF32, {6 * n_, 3 * n_, n_, 1}), weight = group.load(kF32, {0, 3, 1, 0});
    const int32_t mean = group.op(Prim::kMul, group.reduce(Monoid::kSum, x), group.real(1.0 / static_cast<double>(3 * n_)));
    group.store(group.op(Prim::kMul, group.op(Prim::kSub, x, mean), weight), kF32, {6 * n_, 3 * n_, n_, 1});
    add("group_norm", group).loosen = 10;
  }

  void monoids() {
    struct Case {
      Monoid monoid;
      uint8_t dtype;
      Kind accumulator;
    };
    for (const Case& c :
         {Case{Monoid::kSum, kF32, Kind::kF32}, Case{Monoid::kSum, kF64, Kind::kF64}, Case{Monoid::kSum, kI32, Kind::kI64},
          Case{Monoid::kProd, kF32, Kind::kF32}, Case{Monoid::kMax, kF32, Kind::kF32}, Case{Monoid::kMin, kBf16, Kind::kF32},
          Case{Monoid::kMax, kI8, Kind::kI64}, Case{Monoid::kAny, kBool, Kind::kBool}, Case{Monoid::kAll, kBool, Kind::kBool},
          Case{Monoid::kArgMax, kF32, Kind::kF32}, Case{Monoid::kArgMin, kF32, Kind::kF32}, Case{Monoid::kArgMax, kI32, Kind::kI64},
          Case{Monoid::kArgMin, kF16, Kind::kF32}}) {
      const bool arg = c.monoid == Monoid::kArgMax || c.monoid == Monoid::kArgMin;
      const uint8_t out_type = arg || c.accumulator == Kind::kI64 ? uint8_t{kI64} : c.dtype;
      const std::string tag = std::to_string(static_cast<int>(c.monoid)) + "_" + std::to_string(c.dtype);
      auto finish = [&](const std::string& name, const KernelMaker& m) {
        KernelCase& k = add(name + tag, m);
        k.loosen = 40, k.index_below = 3;
        k.positive = c.monoid == Monoid::kProd;
      };
      KernelMaker row;
      row.outer(3).inner(n_);
      row.store(row.reduce(c.monoid, row.load(c.dtype, {n_, 1}), c.accumulator), out_type, {1, 0}, true);
      finish("row_monoid", row);
      KernelMaker serial;
      serial.outer(2).serial(3).inner(n_);
      serial.store(serial.reduce(c.monoid, serial.load(c.dtype, {3 * n_, n_, 1}), c.accumulator), out_type, {1, 0, 0}, true);
      finish("serial_monoid", serial);
      KernelMaker column;
      column.outer(2).serial(37).inner(n_);
      column.k.column = true;
      column.store(column.reduce(c.monoid, column.load(c.dtype, {37 * n_, n_, 1}), c.accumulator), out_type, {n_, 0, 1});
      finish("column_monoid", column);
    }
    KernelMaker variance;  // batch-norm statistics: a second column reduction reads the first
    variance.outer(1).serial(3).serial(11).inner(n_);
    variance.k.column = true;
    const int32_t x = variance.load(kF32, {0, 11 * n_, n_, 1});
    const int32_t mean = variance.op(Prim::kMul, variance.reduce(Monoid::kSum, x), variance.real(1.0 / 33));
    const int32_t centred = variance.op(Prim::kSub, x, mean);
    const int32_t moment = variance.reduce(Monoid::kSum, variance.op(Prim::kMul, centred, centred));
    variance.store(variance.op(Prim::kMul, moment, variance.load(kF32, {0, 0, 0, 1})), kF32, {0, 0, 0, 1});
    add("column_variance", variance).loosen = 40;
    for (uint8_t dtype : {kF32, kBf16}) {  // both in one pass, over values that are far from zero
      KernelMaker m;
      m.outer(2).serial(7).serial(19).inner(n_);
      m.k.column = true;
      const int32_t value = m.op(Prim::kAdd, m.load(dtype, {7 * 19 * n_, 19 * n_, n_, 1}), m.real(100));
      const int32_t sum = m.reduce(Monoid::kSum, value), squares = m.reduce(Monoid::kDeviations, value);
      m.store(m.op(Prim::kMul, sum, m.real(1.0 / 133)), kF32, {n_, 0, 0, 1});
      m.store(m.op(Prim::kRsqrt, m.op(Prim::kMul, squares, m.real(1.0 / 133))), kF32, {n_, 0, 0, 1});
      add("column_deviations" + std::to_string(dtype), m).loosen = 40;
      KernelMaker far;  // all alike, and the square of their mean overflows f32 when it is multiplied by their number
      far.outer(2).serial(1500).inner(n_);
      far.k.column = true;
      const int32_t same = far.op(Prim::kAdd, far.load(dtype, {1500 * n_, n_, 1}), far.real(1e19));
      far.store(far.reduce(Monoid::kDeviations, same), kF32, {n_, 0, 1});
      add("column_deviations_far" + std::to_string(dtype), far);
    }
  }

  // Rows of images: windows along inner, with and without padding, at places that are and are not whole words.
  void line_windows(uint8_t dtype, int64_t step, int64_t pad, int64_t width, int64_t first) {
    const int64_t h = 4, results = (width + 2 * pad - 3) / step + 1;
    if (results < 1) return;
    KernelMaker m;
    m.outer(2).outer(h).serial(3).serial(3).inner(results);
    m.k.column = true;
    const uint32_t in = m.access(m.buffer(dtype), {(h + 2) * width, width, width, 1, step}, first - pad);
    if (pad > 0) m.k.accesses[in].guards.push_back({{-pad, {0, 0, 0, 1, step}}, width});
    m.k.accesses[in].guards.push_back({{-1, {0, 1, 1, 0, 0}}, h});
    m.k.accesses[in].fill = -INFINITY;
    const int32_t x = m.load_access(in);
    m.store(m.reduce(Monoid::kMax, x), dtype, {h * results, results, 0, 0, 1});
    m.store(m.reduce(Monoid::kArgMax, x), kI64, {h * results, results, 0, 0, 1});
    add("row_pool" + std::to_string(dtype) + "_" + std::to_string(step) + std::to_string(pad) + std::to_string(first), m).index_below = 3;
  }

  void short_rows() {
    for (uint8_t dtype : {kF32, kBf16})
      for (int64_t length : {int64_t{7}, int64_t{49}}) {
        KernelMaker m;
        m.outer(200 + n_ % 64).outer(2).inner(length);
        m.store(m.op(Prim::kMul, m.reduce(Monoid::kSum, m.load(dtype, {2 * length, length, 1}, 8)), m.load(kF32, {1, 0, 0})), dtype,
                {2, 1, 0}, true);
        add("short_rows" + std::to_string(dtype) + "_" + std::to_string(length), m).loosen = 40;
      }
  }

  void windows() {
    const int64_t even = (n_ + 15) / 16 * 16;
    for (uint8_t dtype : {kF32, kBf16}) {
      line_windows(dtype, 2, 1, even, 0), line_windows(dtype, 2, 1, n_, 0), line_windows(dtype, 2, 0, even, 3);
      line_windows(dtype, 1, 1, even, 0), line_windows(dtype, 3, 0, n_, 0);
    }
    short_rows();
    const int64_t h = 5, w = 6, c = n_;
    KernelMaker m;
    m.outer(h).outer(w).serial(3).serial(3).inner(c);
    m.k.column = true;
    const uint32_t in = m.access(m.buffer(kF32), {w * c, c, w * c, c, 1}, -w * c - c);
    m.k.accesses[in].guards.push_back({{-1, {1, 0, 1, 0, 0}}, h});
    m.k.accesses[in].guards.push_back({{-1, {0, 1, 0, 1, 0}}, w});
    m.k.accesses[in].fill = -INFINITY;
    m.store(m.reduce(Monoid::kMax, m.load_access(in)), kF32, {w * c, c, 0, 0, 1});
    add("max_pool", m);
  }

  void guards() {
    for (uint8_t dtype : {kF32, kBf16, kI64}) {
      const int64_t first = std::max<int64_t>(n_ / 2, 1);
      KernelMaker m;
      m.outer(3).inner(n_);
      const uint32_t a = m.access(m.buffer(dtype), {first, 1}), b = m.access(m.buffer(dtype), {n_ - first, 1}, -first);
      m.k.accesses[a].guards.push_back({{0, {0, 1}}, first});
      m.k.accesses[b].guards.push_back({{-first, {0, 1}}, n_ - first});
      m.k.accesses[b].fill = 7;
      const int32_t left = m.op(Prim::kLt, m.coord(1), m.whole(first));
      const uint32_t out_access = m.store(m.op(Prim::kSelect, left, m.load_access(a), m.load_access(b)), dtype, {n_, 1});
      add("cat" + std::to_string(dtype), m);
      m.k.accesses[out_access].guards.push_back({{-2, {0, 1}}, n_ - 3});
      m.k.accesses[out_access].guards.push_back({{0, {1, 0}}, 2});
      add("guarded_store" + std::to_string(dtype), m);
    }
  }

  void gathers() {
    for (uint8_t dtype : {kF32, kBf16, kF64}) {
      KernelMaker rows;
      rows.outer(6).inner(n_);
      const int32_t index = rows.load(kI64, {1, 0});
      const uint32_t table = rows.access(rows.buffer(dtype), {0, 1});
      rows.k.accesses[table].indirects.push_back({index, n_, 11});
      rows.store(rows.load_access(table), dtype, {n_, 1});
      add("embedding" + std::to_string(dtype), rows).index_below = 11;
      KernelMaker elements;
      elements.outer(4).inner(n_);
      const int32_t where = elements.load(kI32, {n_, 1});
      const uint32_t from = elements.access(elements.buffer(dtype), {9, 0});
      elements.k.accesses[from].indirects.push_back({where, 1, 9});
      elements.store(elements.load_access(from), dtype, {n_, 1});
      add("gather" + std::to_string(dtype), elements).index_below = 9;
    }
    KernelMaker scatter;  // rows to places given by a permutation that the identity of coordinates makes unique
    scatter.outer(6).inner(n_);
    const int32_t place = scatter.op(Prim::kSub, scatter.whole(5), scatter.coord(0));
    const int32_t value = scatter.load(kF32, {n_, 1});
    const uint32_t to = scatter.store(value, kF32, {0, 1});
    scatter.k.accesses[to].indirects.push_back({place, n_, 6});
    add("scatter_rows", scatter);
    // An index that leads nowhere, where a guard says that nothing is read or written.
    for (const bool along : {false, true}) {
      KernelMaker m;
      m.outer(6).inner(n_);
      const int64_t limit = along ? n_ - 3 : 4, stride = along ? 1 : n_;
      const std::vector<int64_t> rest = along ? std::vector<int64_t>{n_, 0} : std::vector<int64_t>{0, 1};
      const std::vector<int64_t> axis = along ? std::vector<int64_t>{0, 1} : std::vector<int64_t>{1, 0};
      const int32_t index = m.coord(along ? 1 : 0);
      const uint32_t from = m.access(m.buffer(kF32), rest);
      m.k.accesses[from].indirects.push_back({index, stride, limit});
      m.k.accesses[from].guards.push_back({{0, axis}, limit});
      m.k.accesses[from].fill = 3;
      const uint32_t to = m.store(m.load_access(from), kF32, rest);
      m.k.accesses[to].indirects.push_back({index, stride, limit});
      m.k.accesses[to].guards.push_back({{0, axis}, limit});
      m.store(m.load_access(from), kF32, {n_, 1});
      add(along ? "guarded_gather" : "guarded_embedding", m);
    }
  }

  void segments() {
    for (Monoid monoid : {Monoid::kSum, Monoid::kMax}) {
      KernelMaker m;
      m.outer(5).axis(9, AxisKind::kSegment).inner(n_);
      m.k.column = true;
      m.k.has_csr = true;
      m.k.csr.num_rows = 5, m.k.csr.num_edges = 9;
      const int32_t source = m.load(kI64, {0, 1, 0}), weight = m.load(kF32, {0, 1, 0});
      const uint32_t x = m.access(m.buffer(kF32), {0, 0, 1});
      m.k.accesses[x].indirects.push_back({source, n_, 5});
      const int32_t sum = m.reduce(monoid, m.op(Prim::kMul, m.load_access(x), weight));
      m.store(m.op(Prim::kMaximum, sum, m.load(kF32, {0, 0, 1})), kF32, {n_, 0, 1});
      KernelCase& c = add("segment" + std::to_string(static_cast<int>(monoid)), m);
      c.index_below = 5;
      c.rows = {0, 3, 3, 4, 8, 9};
      c.order = {2, 5, 8, 0, 1, 3, 7, 4, 6};
    }
  }

  int64_t n_;
};

}  // namespace

std::vector<KernelCase> kernel_cases(int64_t n) { return Cases(n).out; }

std::vector<Schedule> schedules_for(const Kernel& k, bool clusters, const GpuFacts& facts) {
  std::vector<Schedule> out;
  std::vector<std::string> keys;
  auto add = [&](const Schedule& s) {
    const std::string key = schedule_key(s) + "#" + std::to_string(s.splits) + "#" + std::to_string(s.blocks);
    if (std::find(keys.begin(), keys.end(), key) != keys.end()) return;
    if (registers_needed(k, s) > registers_of_thread(facts, s.threads)) return;
    keys.push_back(key);
    out.push_back(s);
  };
  const Schedule large = choose_schedule(k, facts);
  add(large);
  GpuFacts tiny = facts;
  tiny.num_units = 2, tiny.threads_per_unit = 32, tiny.max_row_threads = 64;
  add(choose_schedule(k, tiny));
  Schedule wide = large;
  wide.wide = true;
  wide.blocks = 1;  // one block walks over all of it
  if (!wide.split) add(wide);
  if (large.shape == GpuShape::kTile) {
    Schedule flat = large;
    flat.shape = GpuShape::kFlat, flat.tile_axis = -1, flat.tile = 32, flat.narrow = 0, flat.whole = false;
    add(flat);
  }
  if (large.shape == GpuShape::kRow && !large.split) {
    for (int group : {1, 8, 32, 256}) {
      Schedule again = large;
      again.group = group, again.threads = std::max(group, 64), again.chunks = 0, again.blocks = 2, again.full = false;
      add(again);
    }
  }
  if (large.shape == GpuShape::kRow && large.chunks > 0) {
    Schedule ahead = large;
    ahead.blocks = 2;  // several rows for each
    add_ahead(k, ahead);
    if (ahead.ahead) add(ahead);
  }
  if (large.shape == GpuShape::kFlat) {
    Schedule strips = large;
    strips.chunks = 4;
    add(strips);
  }
  if (large.shape == GpuShape::kColumn && !large.split && !k.has_csr) {
    Schedule whole = large;
    whole.group = whole.group == 1 ? 8 : 1;
    whole.slide = 0, whole.skew = 0;
    add(whole);
  }
  if (clusters && large.shape == GpuShape::kRow && !large.split) {
    Schedule shared = large;
    shared.cluster = 2, shared.group = shared.threads = 64, shared.blocks = 4, shared.full = false;
    int64_t pieces = (k.axes.back().size + shared.vec - 1) / shared.vec;
    for (const Axis& a : k.axes)
      if (a.kind == AxisKind::kSerial) pieces *= a.size;
    shared.chunks = static_cast<int>(std::max<int64_t>((pieces + 127) / 128, 1));
    if (shared.chunks <= 8) {
      add(shared);
      shared.blocks = 2;
      add_ahead(k, shared);
      if (shared.ahead) add(shared);
    }
  }
  return out;
}

}  // namespace keirin::test
