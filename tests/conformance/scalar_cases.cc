// SPDX-License-Identifier: Apache-2.0
//
// Cases of the SCALAR and REDUCE rows, from their columns alone.
#include <algorithm>

#include "core/ops/table.h"
#include "tests/conformance/sheet.h"

namespace keirin::conformance {
namespace {

struct Shape {
  const char* name;
  Dims sizes;
};

const std::vector<Shape>& plain_shapes() {
  static const std::vector<Shape> shapes = {{"ordinary", {3, 5, 7}}, {"tail", {2, 67}},   {"ones", {1, 17}}, {"column", {6, 1}},
                                            {"zero_d", {}},          {"empty", {3, 0, 2}}, {"edge", {4097}}};
  return shapes;
}
bool is_main(DType dtype) { return std::find(std::begin(kMain), std::end(kMain), dtype) != std::end(kMain); }

Feed feed_of(OpCode row, int operand) {
  Feed feed;
  const RowDomain domain = row_meaning(row).domain;
  if (row == OpCode::k_softplus || row == OpCode::k_elu) {
    if (operand > 0) feed.fill = Feed::kPositive, feed.edges = false;  // these are numbers in every model
  } else if (domain == RowDomain::k_pos) {
    if (operand == 0) feed.fill = Feed::kPositive;
  } else if (domain == RowDomain::k_nonneg) {
    feed.fill = Feed::kNonneg;
  } else if (domain == RowDomain::k_nonzero) {
    const bool unary = find_row(row)->arity_min == 1;
    if (unary || operand == 1) feed.fill = Feed::kNonzero;
  }
  return feed;
}

Case scalar_case(OpCode row, DType dtype, const Shape& shape, Layout layout) {
  Sheet sheet(row, dtype, shape.name, layout, Law::kFormula);
  ValueIds operands;
  for (int i = 0; i < find_row(row)->arity_min; ++i)
    operands.push_back(sheet.operand(row == OpCode::k_select && i == 0 ? DType::k_bool : dtype, shape.sizes, feed_of(row, i)));
  return sheet.finish(std::move(operands));
}

Case cast_case(DType from, DType to, const Shape& shape, Layout layout) {
  Sheet sheet(OpCode::k_cast, from, "to_" + std::string(dtype_name(to)) + "_" + shape.name, layout, Law::kFormula);
  Feed feed;
  // Out of the integer's range a float has no defined value, and what is negative is out of u8's.
  if (is_float(from) && is_int(to)) feed.fill = Feed::kSmall, feed.edges = false;
  return sheet.finish({sheet.operand(from, shape.sizes, feed)}, {{AttrKey::k_dtype, static_cast<int64_t>(to)}});
}

template <class F>
void each_place(DType dtype, bool numbers, F add) {
  const auto& shapes = plain_shapes();
  if (!is_main(dtype)) return add(shapes[0], Layout::kContiguous), add(shapes[1], Layout::kTransposed);
  for (const Shape& shape : shapes) add(shape, Layout::kContiguous);
  for (Layout layout : kLayouts) {
    add(shapes[0], layout);
    add(shapes[1], layout);
  }
  if (numbers) add(shapes[1], Layout::kNumbers);
}

}  // namespace

std::vector<Case> scalar_cases(OpCode row) {
  std::vector<Case> out;
  const bool several = find_row(row)->arity_min > 1;
  for (DType dtype : kAll) {
    if (!accepts(row_meaning(row).dtypes, dtype)) continue;
    if (row != OpCode::k_cast) {
      each_place(dtype, several && row != OpCode::k_select,
                 [&](const Shape& shape, Layout layout) { out.push_back(scalar_case(row, dtype, shape, layout)); });
      if (dtype == DType::k_f32 || dtype == DType::k_bf16) {
        out.push_back(scalar_case(row, dtype, {"large", {9, 2051}}, Layout::kContiguous));
        out.back().large = true;
      }
      continue;
    }
    for (DType to : kAll) {
      out.push_back(cast_case(dtype, to, plain_shapes()[0], Layout::kContiguous));
      out.push_back(cast_case(dtype, to, plain_shapes()[1], Layout::kTransposed));
    }
  }
  return out;
}

namespace {

struct Reduction {
  const char* name;
  Dims sizes, dims;
  bool keepdim;
};

Case reduce_case(OpCode row, DType dtype, const Reduction& r, Layout layout) {
  const bool folds = row == OpCode::k_sum || row == OpCode::k_prod;
  const bool extreme = row == OpCode::k_amax || row == OpCode::k_amin;
  Sheet sheet(row, dtype, r.name, layout, folds && is_float(dtype) ? Law::kError : extreme ? Law::kValue : Law::kBits);
  Feed feed;
  if (row == OpCode::k_prod && is_float(dtype)) feed.fill = Feed::kNearOne;
  if (row == OpCode::k_argmax || row == OpCode::k_argmin) feed.fill = Feed::kCoarse;
  return sheet.finish({sheet.operand(dtype, r.sizes, feed)}, {{AttrKey::k_dims, r.dims}, {AttrKey::k_keepdim, r.keepdim}});
}

}  // namespace

std::vector<Case> reduce_cases(OpCode row) {
  static const std::vector<Reduction> all = {
      {"last", {3, 5, 7}, {2}, false},       {"last_keep", {3, 5, 7}, {2}, true},   {"first", {3, 5, 7}, {0}, false},
      {"middle", {3, 5, 7}, {1}, false},     {"outer_two", {3, 5, 7}, {0, 1}, false}, {"ends", {3, 5, 7}, {0, 2}, true},
      {"all", {3, 5, 7}, {0, 1, 2}, false},  {"row_of_one", {6, 1}, {1}, false},    {"one_row", {1, 67}, {1}, true},
      {"tail", {5, 67}, {1}, false},         {"columns", {67, 5}, {0}, false},      {"long_row", {3, 4099}, {1}, false},
      {"long_column", {2051, 3}, {0}, false}, {"vector", {4097}, {0}, false},       {"kept_empty", {0, 4}, {1}, false},
      {"over_empty", {3, 0, 2}, {1}, false}, {"no_dims", {4, 5}, {}, false},        {"zero_d", {}, {}, false}};
  const bool index = row == OpCode::k_argmax || row == OpCode::k_argmin;
  const bool needs_elements = index || row == OpCode::k_amax || row == OpCode::k_amin;
  std::vector<Case> out;
  for (DType dtype : kAll) {
    if (!accepts(row_meaning(row).dtypes, dtype)) continue;
    for (const Reduction& r : all) {
      if (index && r.dims.size() != 1) continue;
      if (needs_elements && std::string(r.name) == "over_empty") continue;
      out.push_back(reduce_case(row, dtype, r, Layout::kContiguous));
      if (!is_main(dtype)) break;
      const bool layouts = r.sizes == Dims{3, 5, 7} || std::string(r.name) == "tail" || std::string(r.name) == "columns";
      for (Layout layout : kLayouts)
        if (layouts) out.push_back(reduce_case(row, dtype, r, layout));
    }
  }
  return out;
}

}  // namespace keirin::conformance
