// SPDX-License-Identifier: Apache-2.0
//
// Shape rules of the MOVE rows, one function each. Those that eager does as a view keep view strides.
#include <algorithm>

#include "core/ops/infer_rules.h"
#include "core/ops/strides.h"

namespace keirin::rules {
namespace {

int64_t product(const Dims& dims) {
  int64_t n = 1;
  for (int64_t d : dims) n *= d;
  return n;
}

// The attribute `dim`, checked against a rank.
Result<int64_t> axis(const Op& op, int64_t rank) {
  int64_t dim = op.i(AttrKey::k_dim);
  KRN_RULE(dim >= 0 && dim < rank, "dim " + std::to_string(dim) + " is not an axis of rank " + std::to_string(rank));
  return dim;
}

Result<Types> expand(const Op& op, const Operands& operands) {
  Type t = *operands[0];
  const Dims& sizes = op.ints(AttrKey::k_sizes);
  KRN_RULE(sizes.size() == t.sizes.size(),
           "sizes " + text(sizes) + " and operand " + text(t.sizes) + " differ in rank");
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] == t.sizes[i]) continue;
    KRN_RULE(t.sizes[i] == 1 && sizes[i] >= 0, "operand " + text(t.sizes) + " does not expand to " + text(sizes));
    t.strides[i] = 0;
  }
  t.sizes = sizes;
  return Types{t};
}

Result<Types> reshape(const Op& op, const Operands& operands) {
  const Type& x = *operands[0];
  const Dims& sizes = op.ints(AttrKey::k_sizes);
  for (int64_t size : sizes) KRN_RULE(size >= 0, "sizes " + text(sizes) + " hold a negative number");
  KRN_RULE(product(sizes) == x.num_elements(),
           "sizes " + text(sizes) + " do not hold the elements of " + text(x.sizes));
  Type t = row_major(x.dtype, sizes);
  if (auto strides = view_strides(x, sizes)) t.strides = *strides;
  return Types{t};
}

Result<Types> permute(const Op& op, const Operands& operands) {
  const Type& x = *operands[0];
  const Dims& dims = op.ints(AttrKey::k_dims);
  KRN_RULE(dims.size() == x.sizes.size(), "dims " + text(dims) + " do not name each axis of " + text(x.sizes));
  Type t{x.dtype, {}, {}};
  std::vector<bool> seen(dims.size(), false);
  for (int64_t d : dims) {
    KRN_RULE(d >= 0 && d < x.rank() && !seen[d], "dims " + text(dims) + " are not a permutation");
    seen[d] = true;
    t.sizes.push_back(x.sizes[d]);
    t.strides.push_back(x.strides[d]);
  }
  return Types{t};
}

// Sizes of the range start:end:step along `dim` of x.
Result<Dims> range_sizes(const Op& op, const Type& x) {
  KRN_TRY_LET(int64_t dim, axis(op, x.rank()));
  int64_t start = op.i(AttrKey::k_start), end = op.i(AttrKey::k_end), step = op.i(AttrKey::k_step);
  KRN_RULE(0 <= start && start <= end && end <= x.sizes[dim] && step >= 1,
           "range " + std::to_string(start) + ":" + std::to_string(end) + ":" + std::to_string(step) + " leaves size " +
               std::to_string(x.sizes[dim]));
  Dims sizes = x.sizes;
  sizes[dim] = (end - start) / step + ((end - start) % step != 0);
  return sizes;
}

Result<Types> slice(const Op& op, const Operands& operands) {
  Type t = *operands[0];
  KRN_TRY_LET(Dims sizes, range_sizes(op, t));
  t.sizes = sizes;
  t.strides[op.i(AttrKey::k_dim)] *= op.i(AttrKey::k_step);
  return Types{t};
}

Result<Types> slice_scatter(const Op& op, const Operands& operands) {
  const Type& x = *operands[0];
  KRN_TRY_LET(Dims sizes, range_sizes(op, x));
  KRN_RULE(operands[1]->sizes == sizes,
           "source " + text(operands[1]->sizes) + " does not fit the range " + text(sizes));
  KRN_RULE(operands[1]->dtype == x.dtype, "source and operand differ in dtype");
  return Types{Type{x.dtype, x.sizes, preserved_strides(x)}};
}

Result<Types> cat(const Op& op, const Operands& operands) {
  const Type& first = *operands[0];
  KRN_TRY_LET(int64_t dim, axis(op, first.rank()));
  Dims sizes = first.sizes;
  sizes[dim] = 0;
  bool channels_last = true;
  for (const Type* t : operands) {
    KRN_RULE(t->dtype == first.dtype, "operands differ in dtype");
    KRN_RULE(t->rank() == first.rank(), "operands differ in rank");
    for (int64_t i = 0; i < first.rank(); ++i)
      KRN_RULE(i == dim || t->sizes[i] == first.sizes[i],
               "operands " + text(first.sizes) + " and " + text(t->sizes) + " differ");
    sizes[dim] += t->sizes[dim];
    channels_last = channels_last && suggests_channels_last(*t);
  }
  Type t = row_major(first.dtype, sizes);
  if (channels_last) t.strides = channels_last_strides(sizes);
  return Types{t};
}

Result<Types> pad(const Op& op, const Operands& operands) {
  const Type& x = *operands[0];
  const Dims& low = op.ints(AttrKey::k_low);
  const Dims& high = op.ints(AttrKey::k_high);
  KRN_RULE(low.size() == x.sizes.size() && high.size() == x.sizes.size(), "low and high do not name each axis");
  Dims sizes = x.sizes;
  for (size_t i = 0; i < sizes.size(); ++i) {
    sizes[i] += low[i] + high[i];
    const int64_t kept = x.sizes[i] + std::min<int64_t>(low[i], 0) + std::min<int64_t>(high[i], 0);  // eager crops first
    KRN_RULE(kept >= 0, "padding " + text(low) + " " + text(high) + " crops more than " + text(x.sizes));
  }
  Dims strides = strides_like(x, sizes);
  return Types{Type{x.dtype, std::move(sizes), std::move(strides)}};
}

Result<Types> flip(const Op& op, const Operands& operands) {
  const Type& x = *operands[0];
  for (int64_t d : op.ints(AttrKey::k_dims))
    KRN_RULE(d >= 0 && d < x.rank(), "dim " + std::to_string(d) + " is not an axis");
  return Types{Type{x.dtype, x.sizes, preserved_strides(x)}};
}

Status check_index(const Op& op, const Type& index) {
  KRN_RULE(index.dtype == DType::k_i64 || index.dtype == DType::k_i32, "the index is neither i32 nor i64");
  return {};
}

Result<Types> take(const Op& op, const Operands& operands) {
  const Type& x = *operands[0];
  KRN_TRY_LET(int64_t dim, axis(op, x.rank()));
  KRN_TRY(check_index(op, *operands[1]));
  Dims sizes(x.sizes.begin(), x.sizes.begin() + dim);
  sizes.insert(sizes.end(), operands[1]->sizes.begin(), operands[1]->sizes.end());
  sizes.insert(sizes.end(), x.sizes.begin() + dim + 1, x.sizes.end());
  return Types{row_major(x.dtype, std::move(sizes))};
}

Result<Types> gather(const Op& op, const Operands& operands) {
  const Type& x = *operands[0];
  const Type& index = *operands[1];
  KRN_TRY_LET(int64_t dim, axis(op, x.rank()));
  KRN_TRY(check_index(op, index));
  KRN_RULE(index.rank() == x.rank(), "index and operand differ in rank");
  for (int64_t i = 0; i < x.rank(); ++i)
    KRN_RULE(i == dim || index.sizes[i] <= x.sizes[i], "index " + text(index.sizes) + " leaves " + text(x.sizes));
  return Types{row_major(x.dtype, index.sizes)};
}

Status check_reduce(const Op& op) {
  static constexpr std::string_view kNames[] = {"none", "sum", "prod", "amax", "amin", "mean"};
  const std::string& reduce = op.s(AttrKey::k_reduce);
  KRN_RULE(std::find(std::begin(kNames), std::end(kNames), reduce) != std::end(kNames), "reduce is \"" + reduce + "\"");
  return {};
}

Result<Types> scatter(const Op& op, const Operands& operands) {
  const Type &x = *operands[0], &index = *operands[1], &src = *operands[2];
  KRN_TRY_LET(int64_t dim, axis(op, x.rank()));
  KRN_TRY(check_index(op, index));
  KRN_TRY(check_reduce(op));
  KRN_RULE(src.dtype == x.dtype, "source and operand differ in dtype");
  KRN_RULE(index.rank() == x.rank() && src.rank() == x.rank(), "index, source and operand differ in rank");
  for (int64_t i = 0; i < x.rank(); ++i) {
    KRN_RULE(index.sizes[i] <= src.sizes[i], "index " + text(index.sizes) + " leaves the source " + text(src.sizes));
    KRN_RULE(i == dim || index.sizes[i] <= x.sizes[i], "index " + text(index.sizes) + " leaves " + text(x.sizes));
  }
  return Types{row_major(x.dtype, x.sizes)};
}

Result<Types> index_reduce(const Op& op, const Operands& operands) {
  const Type &x = *operands[0], &index = *operands[1], &src = *operands[2];
  KRN_TRY_LET(int64_t dim, axis(op, x.rank()));
  KRN_TRY(check_index(op, index));
  KRN_TRY(check_reduce(op));
  KRN_RULE(index.rank() == 1, "the index is not 1-d");
  KRN_RULE(src.dtype == x.dtype, "source and operand differ in dtype");
  Dims want = x.sizes;
  want[dim] = index.sizes[0];
  KRN_RULE(src.sizes == want, "source " + text(src.sizes) + " is not " + text(want));
  return Types{row_major(x.dtype, x.sizes)};
}

Result<Types> relayout(const Op& op, const Operands& operands) {
  const Type& x = *operands[0];
  const std::string& encoding = op.s(AttrKey::k_encoding);
  if (encoding == "contiguous") return Types{row_major(x.dtype, x.sizes)};
  KRN_RULE(encoding == "channels_last" && (x.rank() == 4 || x.rank() == 5),
           "encoding \"" + encoding + "\" at rank " + std::to_string(x.rank()));
  return Types{Type{x.dtype, x.sizes, channels_last_strides(x.sizes)}};
}

Result<Types> cumsum(const Op& op, const Operands& operands) {
  const Type& x = *operands[0];
  KRN_TRY(axis(op, x.rank()).status());
  KRN_RULE(accepts(RowDTypes::k_num, x.dtype), "the row does not take bool");
  return Types{row_major(x.dtype, x.sizes)};
}

}  // namespace

Result<Types> move(const Op& op, const OpRow&, const Operands& operands) {
  switch (op.code) {
    case OpCode::k_expand:
      return expand(op, operands);
    case OpCode::k_reshape:
      return reshape(op, operands);
    case OpCode::k_permute:
      return permute(op, operands);
    case OpCode::k_slice:
      return slice(op, operands);
    case OpCode::k_cat:
      return cat(op, operands);
    case OpCode::k_pad:
      return pad(op, operands);
    case OpCode::k_flip:
      return flip(op, operands);
    case OpCode::k_take:
      return take(op, operands);
    case OpCode::k_gather:
      return gather(op, operands);
    case OpCode::k_scatter:
      return scatter(op, operands);
    case OpCode::k_index_reduce:
      return index_reduce(op, operands);
    case OpCode::k_slice_scatter:
      return slice_scatter(op, operands);
    case OpCode::k_relayout:
      return relayout(op, operands);
    case OpCode::k_cumsum:
      return cumsum(op, operands);
    default:
      return malformed(op, "the move has no shape rule");
  }
}

}  // namespace keirin::rules
