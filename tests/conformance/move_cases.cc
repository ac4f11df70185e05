// SPDX-License-Identifier: Apache-2.0
//
// Cases of the MOVE and FACTORY rows: each row's own attributes, over all dtypes and layouts.
#include <cmath>
#include <functional>
#include <tuple>

#include "core/ops/table.h"
#include "tests/conformance/sheet.h"

namespace keirin::conformance {
namespace {

using K = AttrKey;

const Dims kSizes = {3, 5, 7};

struct Move {
  std::string name;
  std::function<Case(Sheet&, DType)> write;
  Law float_law = Law::kBits;  // integers are always bits
  bool layouts = true;
  bool numbers_only = false;  // the row takes no bool
};

Move one(std::string name, Dims sizes, Attrs attrs, bool layouts = true) {
  return {std::move(name), [=](Sheet& s, DType t) { return s.finish({s.operand(t, sizes)}, attrs); }, Law::kBits, layouts};
}

Feed index(int64_t bound, bool distinct = false) {
  return {distinct ? Feed::kDistinct : Feed::kIndex, bound, false};
}

Attrs range(int64_t dim, int64_t start, int64_t end, int64_t step) {
  return {{K::k_dim, dim}, {K::k_start, start}, {K::k_end, end}, {K::k_step, step}};
}

Attrs padding(Dims low, Dims high, int64_t i, double d) {
  return {{K::k_low, std::move(low)}, {K::k_high, std::move(high)}, {K::k_value_i, i}, {K::k_value_d, d}};
}

void views(OpCode row, std::vector<Move>& out) {
  switch (row) {
    case OpCode::k_expand:
      out.push_back(one("first", {1, 5, 7}, {{K::k_sizes, Dims{4, 5, 7}}}));
      out.push_back(one("last", {3, 5, 1}, {{K::k_sizes, Dims{3, 5, 67}}}));
      out.push_back(one("both", {1, 5, 1}, {{K::k_sizes, Dims{2, 5, 9}}}));
      out.push_back(one("to_empty", {1, 5}, {{K::k_sizes, Dims{0, 5}}}, false));
      out.push_back(one("same", kSizes, {{K::k_sizes, kSizes}}, false));
      return;
    case OpCode::k_reshape:
      out.push_back(one("flat", kSizes, {{K::k_sizes, Dims{105}}}));
      out.push_back(one("split", {6, 20}, {{K::k_sizes, Dims{2, 3, 4, 5}}}));
      out.push_back(one("regroup", {6, 20}, {{K::k_sizes, Dims{8, 15}}}));
      out.push_back(one("ones", {5, 7}, {{K::k_sizes, Dims{1, 5, 1, 7, 1}}}));
      out.push_back(one("to_zero_d", {1, 1}, {{K::k_sizes, Dims{}}}));
      out.push_back(one("from_zero_d", {}, {{K::k_sizes, Dims{1}}}, false));
      out.push_back(one("empty", {0, 4}, {{K::k_sizes, Dims{2, 0}}}, false));
      return;
    case OpCode::k_permute:
      out.push_back(one("reverse", kSizes, {{K::k_dims, Dims{2, 1, 0}}}));
      out.push_back(one("rotate", kSizes, {{K::k_dims, Dims{1, 2, 0}}}));
      out.push_back(one("matrix", {67, 33}, {{K::k_dims, Dims{1, 0}}}));
      out.push_back(one("heads", {2, 3, 4, 5}, {{K::k_dims, Dims{0, 2, 1, 3}}}));
      out.push_back(one("zero_d", {}, {{K::k_dims, Dims{}}}, false));
      out.push_back(one("empty", {0, 4}, {{K::k_dims, Dims{1, 0}}}, false));
      return;
    default:  // slice
      out.push_back(one("middle", kSizes, range(1, 1, 4, 1)));
      out.push_back(one("last_step", kSizes, range(2, 1, 7, 2)));
      out.push_back(one("first", kSizes, range(0, 2, 3, 1)));
      out.push_back(one("step_3", {4, 67}, range(1, 0, 67, 3)));
      out.push_back(one("to_empty", kSizes, range(1, 2, 2, 1), false));
      return;
  }
}

void joins(OpCode row, std::vector<Move>& out) {
  if (row == OpCode::k_cat) {
    for (int64_t dim : {0, 1, 2})
      out.push_back({"dim_" + std::to_string(dim), [dim](Sheet& s, DType t) {
                       Dims b = kSizes, c = kSizes;
                       b[dim] = 1, c[dim] = 4;
                       const ValueId x = s.operand(t, kSizes), y = s.operand(t, b), z = s.operand(t, c);
                       return s.finish({x, y, z}, {{K::k_dim, dim}});
                     }});
    out.push_back({"one", [](Sheet& s, DType t) { return s.finish({s.operand(t, kSizes)}, {{K::k_dim, int64_t{1}}}); }});
    out.push_back({"twice", [](Sheet& s, DType t) {
                     const ValueId x = s.operand(t, kSizes);
                     return s.finish({x, x}, {{K::k_dim, int64_t{2}}});
                   }});
    out.push_back({"with_empty", [](Sheet& s, DType t) {
                     const ValueId x = s.operand(t, kSizes), y = s.operand(t, {3, 0, 7});
                     return s.finish({x, y}, {{K::k_dim, int64_t{1}}});
                   }, Law::kBits, false});
  } else if (row == OpCode::k_pad) {
    out.push_back(one("grow", kSizes, padding({1, 0, 2}, {0, 3, 1}, 1, -1.5)));
    out.push_back(one("crop", kSizes, padding({0, -1, 0}, {0, -2, -3}, 0, 0)));
    out.push_back(one("shift", {4, 67}, padding({0, 2}, {0, -2}, 1, 0.1)));
    out.push_back(one("from_empty", {0, 2}, padding({1, 0}, {2, 0}, 1, 3), false));
  } else {  // slice_scatter
    const auto write = [](Dims src, Attrs attrs) {
      return [=](Sheet& s, DType t) {
        const ValueId x = s.operand(t, kSizes), y = s.operand(t, src);
        return s.finish({x, y}, attrs);
      };
    };
    out.push_back({"middle", write({3, 2, 7}, range(1, 2, 4, 1))});
    out.push_back({"first", write({1, 5, 7}, range(0, 0, 1, 1))});
    out.push_back({"step", write({3, 5, 3}, range(2, 1, 7, 2))});
    out.push_back({"nothing", write({3, 0, 7}, range(1, 2, 2, 1)), Law::kBits, false});
  }
}

void picks(OpCode row, std::vector<Move>& out) {
  const auto take = [&](std::string name, Dims x, Dims at, int64_t dim, DType kind) {
    out.push_back({std::move(name), [=](Sheet& s, DType t) {
                     const ValueId a = s.operand(t, x), i = s.plain(kind, at, index(x[dim]));
                     return s.finish({a, i}, {{K::k_dim, dim}});
                   }});
  };
  if (row == OpCode::k_take) {
    take("rows", {9, 33}, {4}, 0, DType::k_i64);
    take("rows_2d", {9, 33}, {2, 3}, 0, DType::k_i64);
    take("columns", {4, 9}, {11}, 1, DType::k_i64);
    take("i32", {9, 33}, {4}, 0, DType::k_i32);
    take("one", kSizes, {}, 1, DType::k_i64);
    take("none", kSizes, {0}, 1, DType::k_i64);
  } else {
    take("last", kSizes, {3, 5, 4}, 2, DType::k_i64);
    take("first", kSizes, {6, 5, 7}, 0, DType::k_i64);
    take("part", kSizes, {2, 9, 3}, 1, DType::k_i64);
    take("i32", kSizes, {3, 5, 4}, 2, DType::k_i32);
  }
}

void reductions(OpCode row, std::vector<Move>& out) {
  for (const char* how : {"none", "sum", "prod", "amax", "amin", "mean"}) {
    for (bool self : {true, false}) {
      const std::string reduce = how;
      if (reduce == "none" && !self) continue;
      const bool folds = reduce == "sum" || reduce == "prod" || reduce == "mean";
      const bool bags = row == OpCode::k_index_reduce;
      Feed numbers;
      if (reduce == "prod") numbers.fill = Feed::kNearOne;
      // Duplicates under `none` leave it open who wins.
      const auto write = [=](Dims x, Dims at, Dims src, int64_t dim) {
        return [=](Sheet& s, DType t) {
          const ValueId a = s.operand(t, x, numbers), i = s.plain(DType::k_i64, at, index(x[dim], reduce == "none"));
          const ValueId b = s.operand(t, src, numbers);
          return s.finish({a, i, b}, {{K::k_dim, dim}, {K::k_reduce, reduce}, {K::k_include_self, self}});
        };
      };
      const std::string name = reduce + (self ? "" : "_without_self");
      const Law law = folds ? Law::kError : reduce == "none" ? Law::kBits : Law::kValue;
      if (bags) {
        out.push_back({name + "_rows", write({9, 33}, {7}, {7, 33}, 0), law, true, reduce != "none"});
        out.push_back({name + "_columns", write({4, 9}, {6}, {4, 6}, 1), law, false, reduce != "none"});
        if (reduce != "none") out.push_back({name + "_many", write({5, 20}, {90}, {90, 20}, 0), law, false, true});
      } else {
        out.push_back({name + "_last", write({3, 5, 7}, {3, 5, 6}, {3, 5, 6}, 2), law, true, reduce != "none"});
        out.push_back({name + "_first", write({6, 5}, {4, 3}, {5, 4}, 0), law, false, reduce != "none"});
      }
    }
  }
}

void orders(OpCode row, std::vector<Move>& out) {
  if (row == OpCode::k_flip) {
    out.push_back(one("last", kSizes, {{K::k_dims, Dims{2}}}));
    out.push_back(one("ends", kSizes, {{K::k_dims, Dims{0, 2}}}));
    out.push_back(one("tail", {2, 67}, {{K::k_dims, Dims{1}}}));
    out.push_back(one("nothing", kSizes, {{K::k_dims, Dims{}}}, false));
    out.push_back(one("empty", {0, 4}, {{K::k_dims, Dims{0, 1}}}, false));
  } else if (row == OpCode::k_relayout) {
    out.push_back(one("channels_last", {2, 5, 3, 4}, {{K::k_encoding, std::string("channels_last")}}));
    out.push_back(one("channels_last_3d", {2, 3, 2, 3, 4}, {{K::k_encoding, std::string("channels_last")}}));
    out.push_back(one("contiguous", {2, 5, 3, 4}, {{K::k_encoding, std::string("contiguous")}}));
  } else {  // cumsum
    for (int64_t dim : {0, 1, 2})
      out.push_back({"dim_" + std::to_string(dim),
                     [dim](Sheet& s, DType t) { return s.finish({s.operand(t, kSizes)}, {{K::k_dim, dim}}); }, Law::kError, true, true});
    out.push_back({"long", [](Sheet& s, DType t) { return s.finish({s.operand(t, {2, 1027})}, {{K::k_dim, int64_t{1}}}); },
                   Law::kError, false, true});
  }
}

}  // namespace

std::vector<Case> move_cases(OpCode row) {
  std::vector<Move> moves;
  switch (row) {
    case OpCode::k_expand:
    case OpCode::k_reshape:
    case OpCode::k_permute:
    case OpCode::k_slice: views(row, moves); break;
    case OpCode::k_cat:
    case OpCode::k_pad:
    case OpCode::k_slice_scatter: joins(row, moves); break;
    case OpCode::k_take:
    case OpCode::k_gather: picks(row, moves); break;
    case OpCode::k_scatter:
    case OpCode::k_index_reduce: reductions(row, moves); break;
    case OpCode::k_flip:
    case OpCode::k_relayout:
    case OpCode::k_cumsum: orders(row, moves); break;
    default: return {};
  }
  std::vector<Case> out;
  for (const Move& move : moves) {
    for (DType dtype : kAll) {
      if (move.numbers_only && dtype == DType::k_bool) continue;
      const bool narrow = dtype == DType::k_i16 || dtype == DType::k_i8 || dtype == DType::k_u8;
      const auto add = [&](Layout layout) {
        Sheet sheet(row, dtype, move.name, layout, is_float(dtype) ? move.float_law : Law::kBits);
        out.push_back(move.write(sheet, dtype));
      };
      add(Layout::kContiguous);
      for (Layout layout : kLayouts)
        if (move.layouts && !narrow) add(layout);
    }
  }
  return out;
}

std::vector<Case> factory_cases(OpCode row) {
  std::vector<Case> out;
  for (DType dtype : kAll) {
    const auto add = [&](const std::string& name, Attrs attrs) {
      attrs.push_back({K::k_dtype, static_cast<int64_t>(dtype)});
      Sheet sheet(row, dtype, name, Layout::kContiguous, Law::kBits);
      out.push_back(sheet.finish({}, std::move(attrs)));
    };
    if (row == OpCode::k_full) {
      for (const Dims& sizes : {Dims{}, Dims{3, 5}, Dims{0, 2}, Dims{67}})
        for (double value : {0.0, 1.0, -2.5, 0.1, 1e30, -0.0, HUGE_VAL, std::nan("")}) {
          // An integer's value is exact; a float's is rounded as the dtype stores it.
          const int64_t whole = std::isfinite(value) && std::abs(value) < 100 ? static_cast<int64_t>(std::abs(value)) : 7;
          add("at" + std::to_string(out.size()),
              {{K::k_sizes, sizes}, {K::k_value_i, dtype == DType::k_bool ? whole != 0 : whole}, {K::k_value_d, value}});
        }
    } else if (row == OpCode::k_iota) {
      if (dtype == DType::k_bool) continue;
      for (const auto& [n, start, step] : {std::tuple<int64_t, int64_t, int64_t>{9, 0, 1}, {67, 3, 1}, {20, 40, -2}, {0, 0, 1}, {1, 5, 5}})
        add("n" + std::to_string(n), {{K::k_sizes, Dims{n}}, {K::k_start, start}, {K::k_step, step}});
    }
  }
  return out;
}

}  // namespace keirin::conformance
