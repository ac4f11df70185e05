// SPDX-License-Identifier: Apache-2.0
//
// The entry of type inference and the rules that whole kinds of rows share. Moves and composites have files of their
// own.
#include "core/ops/infer.h"

#include <algorithm>

#include "core/ops/infer_rules.h"
#include "core/ops/strides.h"

namespace keirin {
namespace rules {

Status malformed(const Op& op, const std::string& what) {
  std::string where = "op " + std::string(op_name(op.code));
  if (!op.origin.empty()) where += " (" + op.origin.str() + ")";
  return Status(Code::k_invalid_input,
                Message{what, where, "the op was not added", "correct the operands or attributes"});
}

std::string text(const Dims& dims) {
  std::string out = "[";
  for (size_t i = 0; i < dims.size(); ++i) out += (i ? ", " : "") + std::to_string(dims[i]);
  return out + "]";
}

Result<Dims> reduced_sizes(const Op& op, const Dims& sizes) {
  const Dims& dims = op.ints(AttrKey::k_dims);
  bool keep = op.b(AttrKey::k_keepdim);
  int64_t last = -1;
  for (int64_t d : dims) {
    KRN_RULE(d > last && d < static_cast<int64_t>(sizes.size()),
             "dims " + text(dims) + " are not ascending axes of rank " + std::to_string(sizes.size()));
    last = d;
  }
  Dims out;
  for (size_t i = 0; i < sizes.size(); ++i) {
    bool reduced = std::find(dims.begin(), dims.end(), static_cast<int64_t>(i)) != dims.end();
    if (!reduced)
      out.push_back(sizes[i]);
    else if (keep)
      out.push_back(1);
  }
  return out;
}

namespace {

std::string dtype_text(DType dtype) { return std::string(dtype_name(dtype)); }

Status check_operands(const Op& op, const OpRow& row, const Operands& operands) {
  int n = static_cast<int>(operands.size());
  KRN_RULE(n >= row.arity_min && (row.arity_max < 0 || n <= row.arity_max), std::to_string(n) + " operands");
  for (const Type* t : operands) {
    if (t == nullptr) {
      KRN_RULE(row.kind == RowKind::kComposite, "an operand is absent");
      continue;
    }
    KRN_RULE(accepts(RowDTypes::k_any, t->dtype), "dtype " + dtype_text(t->dtype) + " is carried, not computed in");
    KRN_RULE(t->strides.size() == t->sizes.size(), "strides and sizes of an operand differ in length");
  }
  return {};
}

Status check_attrs(const Op& op, const OpRow& row) {
  for (const Attr& attr : op.attrs) {
    std::string name(attr_name(attr.key));
    KRN_RULE(reads_attr(row, attr.key), "unknown attribute " + name);
    KRN_RULE(attr_has_kind(attr), "attribute " + name + " is of the wrong kind");
  }
  return {};
}

Result<DType> attr_dtype(const Op& op) {
  DType dtype = static_cast<DType>(op.i(AttrKey::k_dtype));
  KRN_RULE(op.find(AttrKey::k_dtype) != nullptr && accepts(RowDTypes::k_any, dtype),
           "attribute dtype is missing or not computed in");
  return dtype;
}

Result<Types> scalar(const Op& op, const OpRow&, const Operands& operands) {
  bool is_select = op.code == OpCode::k_select;
  const Type& lead = *operands[is_select ? 1 : 0];
  for (size_t i = 0; i < operands.size(); ++i) {
    const Type& t = *operands[i];
    KRN_RULE(t.sizes == lead.sizes, "sizes " + text(t.sizes) + " and " + text(lead.sizes) + " differ");
    bool condition = is_select && i == 0;
    DType want = condition ? DType::k_bool : lead.dtype;
    KRN_RULE(t.dtype == want, "dtype " + dtype_text(t.dtype) + " where " + dtype_text(want) + " is expected");
    KRN_RULE(condition || accepts(row_meaning(op.code).dtypes, t.dtype),
             "the row does not take " + dtype_text(t.dtype));
  }
  const RowResult result = row_meaning(op.code).result;
  DType dtype = lead.dtype;
  if (result == RowResult::k_bool) dtype = DType::k_bool;
  if (result == RowResult::k_attr) {
    KRN_TRY_LET(dtype, attr_dtype(op));
  }
  return Types{Type{dtype, lead.sizes, pointwise_strides(lead.sizes, operands)}};
}

Result<Types> reduce(const Op& op, const OpRow&, const Operands& operands) {
  const Type& x = *operands[0];
  const RowResult result = row_meaning(op.code).result;
  KRN_RULE(accepts(row_meaning(op.code).dtypes, x.dtype), "the row does not take " + dtype_text(x.dtype));
  KRN_TRY_LET(Dims sizes, reduced_sizes(op, x.sizes));
  const Dims& dims = op.ints(AttrKey::k_dims);
  bool needs_elements = op.code == OpCode::k_amax || op.code == OpCode::k_amin || result == RowResult::k_index;
  for (int64_t d : dims) KRN_RULE(!needs_elements || x.sizes[d] > 0, "axis " + std::to_string(d) + " is empty");
  DType dtype = x.dtype;
  if (result == RowResult::k_index) {
    KRN_RULE(dims.size() == 1, "needs exactly one axis, dims are " + text(dims));
    dtype = DType::k_i64;
  } else if (result == RowResult::k_bool) {
    dtype = DType::k_bool;
  } else if (result == RowResult::k_accum && is_int(dtype)) {
    dtype = DType::k_i64;
  }
  return Types{row_major(dtype, std::move(sizes))};
}

Result<Types> factory(const Op& op, const OpRow&, const Operands&) {
  KRN_TRY_LET(DType dtype, attr_dtype(op));
  const Dims& sizes = op.ints(AttrKey::k_sizes);
  for (int64_t size : sizes) KRN_RULE(size >= 0, "sizes " + text(sizes) + " hold a negative number");
  if (op.code == OpCode::k_iota) {
    KRN_RULE(sizes.size() == 1, "sizes " + text(sizes) + " are not one number");
    KRN_RULE(dtype != DType::k_bool, "dtype bool has no steps");
  }
  return Types{row_major(dtype, sizes)};
}

}  // namespace
}  // namespace rules

Result<std::vector<Type>> infer_types(const Op& op, const std::vector<const Type*>& operands) {
  const OpRow* row = find_row(op.code);
  if (row == nullptr || row->kind == RowKind::kOpaque)
    return rules::malformed(op, "id " + std::to_string(static_cast<int>(op.code)) + " is not a row of the table");
  KRN_TRY(rules::check_operands(op, *row, operands));
  KRN_TRY(rules::check_attrs(op, *row));
  switch (row->kind) {
    case RowKind::kOpaque:
      break;
    case RowKind::kScalar:
      return rules::scalar(op, *row, operands);
    case RowKind::kReduce:
      return rules::reduce(op, *row, operands);
    case RowKind::kFactory:
      return rules::factory(op, *row, operands);
    case RowKind::kMove:
      return rules::move(op, *row, operands);
    case RowKind::kComposite:
      return rules::composite(op, *row, operands);
  }
  return rules::malformed(op, "the row's kind is unknown");
}

}  // namespace keirin
