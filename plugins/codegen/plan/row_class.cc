// SPDX-License-Identifier: Apache-2.0
#include "plugins/codegen/plan/row_class.h"

#include <algorithm>
#include <bit>

#include "plugins/codegen/kernel/rows.h"
#include "plugins/kit/tables.h"

namespace keirin::codegen {
namespace {

constexpr uint32_t kNoWeight = 0xffffffffu;
constexpr int kClassBits = 5;  // of a number of rows, the leading one among them

// It is a dense matrix, and all that is in a buffer of the plan's own.
bool has_room(const TensorDesc& t, int64_t rows, int64_t columns, const std::vector<BufferInfo>& buffers) {
  int64_t dense = 1;
  for (size_t i = t.sizes.size(); i-- > 0; dense *= t.sizes[i])
    if (t.sizes[i] != 1 && t.strides[i] != dense) return false;
  const BufferInfo& buffer = buffers[t.buffer];
  return dense == rows * columns && t.offset == 0 && buffer.role == BufferInfo::Role::kTemp &&
         buffer.bytes == dense * dtype_bytes(t.dtype);
}

// The same numbers in each row. Of a tensor as long as the result in each axis, so of two axes at least.
bool is_one_row(const TensorDesc& t) {
  return std::all_of(t.strides.begin(), t.strides.end() - 1, [](int64_t stride) { return stride == 0; });
}

void set_rows(TensorDesc& t, int64_t rows, int64_t columns) {
  const bool repeats = is_one_row(t);
  const int64_t step = t.strides.back();
  t.sizes = {rows, columns};
  t.strides = {repeats ? 0 : columns, repeats ? step : 1};
}

}  // namespace

int64_t row_class(int64_t rows) {
  const int below = static_cast<int>(std::bit_width(static_cast<uint64_t>(rows))) - kClassBits;
  if (below <= 0) return rows;
  const int64_t step = int64_t{1} << below;
  return (rows + step - 1) / step * step;
}

std::optional<AnchorDesc> of_row_class(const AnchorDesc& anchor, const std::vector<BufferInfo>& buffers) {
  if (anchor.op != kit::kOp_linear || anchor.operands[1].weight == kNoWeight) return std::nullopt;
  const TensorDesc &source = anchor.operands[0], &result = anchor.results[0];
  if (source.sizes.size() < 2 || source.sizes.back() == 0) return std::nullopt;
  int64_t rows = 1;
  for (size_t i = 0; i + 1 < source.sizes.size(); ++i) rows *= source.sizes[i];
  const int64_t padded = row_class(rows), depth = source.sizes.back(), columns = result.sizes.back();
  if (padded == rows || !has_room(source, rows, depth, buffers) || !has_room(result, rows, columns, buffers)) return std::nullopt;
  AnchorDesc out = anchor;
  set_rows(out.operands[0], padded, depth);
  set_rows(out.results[0], padded, columns);
  for (PostOp& post : out.post_ops) {
    if (!post.operand.present()) continue;
    if (!is_one_row(post.operand) && !has_room(post.operand, rows, columns, buffers)) return std::nullopt;
    set_rows(post.operand, padded, columns);
  }
  return out;
}

}  // namespace keirin::codegen
