// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/sheet.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <numeric>

#include "core/ops/aten.h"
#include "core/ops/table.h"

namespace keirin::conformance {
namespace {

int64_t count(const Dims& sizes) {
  int64_t n = 1;
  for (int64_t s : sizes) n *= s;
  return n;
}

// For each element of `sizes` in row-major order: coordinates times strides.
std::vector<int64_t> walk(const Dims& sizes, const Dims& strides) {
  std::vector<int64_t> out(static_cast<size_t>(count(sizes)));
  for (size_t k = 0; k < out.size(); ++k) {
    auto rest = static_cast<int64_t>(k);
    for (size_t d = sizes.size(); d-- > 0;) out[k] += rest % sizes[d] * strides[d], rest /= sizes[d];
  }
  return out;
}

template <class T>
T must(Result<T> result, const std::string& name) {
  if (result.ok()) return std::move(result).value();
  std::fprintf(stderr, "case %s cannot be written: %s\n", name.c_str(), result.status().text().c_str());
  std::abort();
}

}  // namespace

const char* layout_name(Layout layout) {
  switch (layout) {
    case Layout::kContiguous: return "contiguous";
    case Layout::kShifted: return "shifted";
    case Layout::kStrided: return "strided";
    case Layout::kTransposed: return "transposed";
    case Layout::kPermuted: return "permuted";
    case Layout::kExpanded: return "expanded";
    case Layout::kNumbers: return "numbers";
  }
  return "?";
}

bool has_layout(Layout layout, size_t rank) {
  if (layout == Layout::kContiguous || layout == Layout::kShifted || layout == Layout::kNumbers) return true;
  return layout == Layout::kStrided ? rank >= 1 : rank >= 2;
}

Sheet::Sheet(OpCode row, DType dtype, const std::string& variant, Layout layout, Law law) : builder_(case_.graph), layout_(layout) {
  case_.name = std::string(op_name(row)) + "/" + std::string(dtype_name(dtype)) + "/" + variant + "/" + layout_name(layout);
  case_.row = row;
  case_.dtype = dtype;
  case_.law = law;
  case_.shifted = layout == Layout::kShifted;
}

ValueId Sheet::input(Type type, Feed feed) {
  const auto index = static_cast<uint32_t>(case_.graph.inputs.size());
  feed.value = case_.graph.add_input(std::move(type), index);
  case_.feeds.push_back(feed);
  return feed.value;
}

void Sheet::see(int feed, std::vector<int64_t> from) {
  if (case_.law == Law::kFormula) case_.operands.push_back({feed, 0, std::move(from)});
}

ValueId Sheet::plain(DType dtype, const Dims& sizes, Feed feed) {
  const ValueId v = input({dtype, sizes, contiguous_strides(sizes)}, feed);
  see(static_cast<int>(case_.feeds.size()) - 1, walk(sizes, contiguous_strides(sizes)));
  return v;
}

ValueId Sheet::constant(DType dtype, const Dims& sizes, Feed feed) {
  feed.value = case_.graph.add_constant({dtype, sizes, contiguous_strides(sizes)}, num_constants_++, ValueKind::kConstant);
  case_.feeds.push_back(feed);
  return feed.value;
}

ValueId Sheet::operand(DType dtype, const Dims& sizes, Feed feed) {
  const int number = num_operands_++;
  const size_t rank = sizes.size();
  const auto feed_index = static_cast<int>(case_.feeds.size());
  Type type{dtype, sizes, contiguous_strides(sizes)};
  switch (has_layout(layout_, rank) ? layout_ : Layout::kContiguous) {
    case Layout::kContiguous:
    case Layout::kShifted: break;
    case Layout::kStrided:
      for (int64_t& s : type.strides) s *= 2;
      break;
    case Layout::kTransposed: {
      Dims reversed(sizes.rbegin(), sizes.rend());
      Dims strides = contiguous_strides(reversed);
      type.strides.assign(strides.rbegin(), strides.rend());
      break;
    }
    case Layout::kPermuted: {
      Dims reversed(sizes.rbegin(), sizes.rend()), dims(rank);
      for (size_t d = 0; d < rank; ++d) dims[d] = static_cast<int64_t>(rank - 1 - d);
      const Dims strides = contiguous_strides(reversed);
      const ValueId v = input({dtype, reversed, strides}, feed);
      see(feed_index, walk(sizes, Dims(strides.rbegin(), strides.rend())));
      return must(builder_.permute(v, dims), case_.name);
    }
    case Layout::kExpanded: {  // the first operand along the first axis, the second along the last, and so on
      Dims small = sizes;
      const size_t axis = number % 2 == 0 ? 0 : rank - 1;
      small[axis] = 1;
      Dims strides = contiguous_strides(small);
      const ValueId v = input({dtype, small, strides}, feed);
      strides[axis] = 0;
      see(feed_index, walk(sizes, strides));
      return must(builder_.expand_to(v, sizes), case_.name);
    }
    case Layout::kNumbers:
      if (number > 0) {
        const double x = dtype == DType::k_bool ? 1 : is_int(dtype) ? 3 : feed.fill == Feed::kNumbers ? -0.75 : 1.25;
        case_.operands.push_back({-1, x, {}});
        return must(builder_.expand_to(must(builder_.full(x, dtype, Dims(rank, 1)), case_.name), sizes), case_.name);
      }
      break;
  }
  const ValueId v = input(type, feed);
  see(feed_index, walk(sizes, contiguous_strides(sizes)));
  return v;
}

Case Sheet::finish(ValueIds operands, Attrs attrs) {
  Graph& graph = case_.graph;
  for (Feed& feed : case_.feeds) feed.extremes = case_.law != Law::kError;
  const ValueIds results = must(builder_.emit(case_.row, std::move(operands), std::move(attrs)), case_.name);
  case_.op = graph.values[results[0]].producer;
  if (find_row(case_.row)->kind == RowKind::kComposite && !find_row(case_.row)->is_anchor()) {
    Graph body = must(decompose(graph, graph.ops[case_.op]), case_.name);
    graph.ops[case_.op].body = static_cast<uint32_t>(graph.bodies.size());
    graph.bodies.push_back(std::move(body));
  }
  for (ValueId v : results) {
    // A view of an input has its strides, and a region writes outputs of its own: row-major but where only the order differs.
    Type& type = graph.values[v].type;
    if (is_view(case_.row) && case_.row != OpCode::k_permute) type.strides = contiguous_strides(type.sizes);
    if (layout_ == Layout::kStrided && case_.row == OpCode::k_permute) type.strides = contiguous_strides(type.sizes);
    if (std::any_of(type.strides.begin(), type.strides.end(), [](int64_t s) { return s == 0; }) && count(type.sizes) != 0)
      type.strides = contiguous_strides(type.sizes);
    graph.outputs.push_back({v, kNone, kNone});
  }
  return std::move(case_);
}

std::vector<Case> cases_of(OpCode row) {
  switch (find_row(row)->kind) {
    case RowKind::kScalar: return scalar_cases(row);
    case RowKind::kReduce: return reduce_cases(row);
    case RowKind::kMove: return move_cases(row);
    case RowKind::kFactory: return factory_cases(row);
    case RowKind::kComposite: return composite_cases(row);
    case RowKind::kOpaque: break;
  }
  return {};
}

}  // namespace keirin::conformance
