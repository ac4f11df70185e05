// SPDX-License-Identifier: Apache-2.0
#include "core/ops/builder.h"

#include <algorithm>

#include "core/ops/infer.h"
#include "core/ops/infer_rules.h"
#include "core/ops/table.h"

namespace keirin {

Result<ValueIds> Builder::emit(OpCode code, ValueIds operands, Attrs attrs) {
  Op op;
  op.code = code;
  op.origin = origin_;
  for (Attr& attr : attrs) op.set(attr.key, std::move(attr.value));
  std::vector<const Type*> types;
  for (ValueId v : operands) {
    if (v != kNone && v >= graph_.values.size())
      return rules::malformed(op, "operand %" + std::to_string(v) + " does not exist");
    types.push_back(v == kNone ? nullptr : &graph_.type(v));
  }
  KRN_TRY_LET(std::vector<Type> results, infer_types(op, types));
  OpId id = graph_.add_op(code, std::move(operands), std::move(op.attrs), std::move(results));
  graph_.ops[id].origin = origin_;
  return graph_.ops[id].results;
}

Result<ValueId> Builder::emit1(OpCode code, ValueIds operands, Attrs attrs) {
  KRN_TRY_LET(ValueIds results, emit(code, std::move(operands), std::move(attrs)));
  return results[0];
}

Result<ValueId> Builder::full(double value, DType dtype, Dims sizes) {
  if (!is_float(dtype)) return full_i(static_cast<int64_t>(value), dtype, std::move(sizes));
  return emit1(OpCode::k_full, {},
               {{AttrKey::k_sizes, std::move(sizes)},
                {AttrKey::k_dtype, static_cast<int64_t>(dtype)},
                {AttrKey::k_value_d, value}});
}

Result<ValueId> Builder::full_i(int64_t value, DType dtype, Dims sizes) {
  if (is_float(dtype)) return full(static_cast<double>(value), dtype, std::move(sizes));
  if (dtype == DType::k_bool) value = value != 0;
  return emit1(OpCode::k_full, {},
               {{AttrKey::k_sizes, std::move(sizes)},
                {AttrKey::k_dtype, static_cast<int64_t>(dtype)},
                {AttrKey::k_value_i, value}});
}

Result<ValueId> Builder::cast(ValueId x, DType dtype) {
  if (type(x).dtype == dtype) return x;
  return emit1(OpCode::k_cast, {x}, {{AttrKey::k_dtype, static_cast<int64_t>(dtype)}});
}

Result<ValueId> Builder::expand_to(ValueId x, const Dims& sizes) {
  Dims own = type(x).sizes;
  if (own == sizes) return x;
  Op probe;
  probe.code = OpCode::k_expand;
  probe.origin = origin_;
  if (own.size() > sizes.size())
    return rules::malformed(probe, "operand " + rules::text(own) + " does not expand to " + rules::text(sizes));
  if (own.size() < sizes.size()) {
    Dims ranked(sizes.size() - own.size(), 1);
    ranked.insert(ranked.end(), own.begin(), own.end());
    KRN_TRY_LET(x, reshape(x, ranked));
    if (ranked == sizes) return x;
  }
  return emit1(OpCode::k_expand, {x}, {{AttrKey::k_sizes, sizes}});
}

Result<ValueId> Builder::reshape(ValueId x, Dims sizes) {
  if (type(x).sizes == sizes) return x;
  return emit1(OpCode::k_reshape, {x}, {{AttrKey::k_sizes, std::move(sizes)}});
}

Result<ValueId> Builder::permute(ValueId x, Dims dims) {
  bool identity = static_cast<int64_t>(dims.size()) == type(x).rank();
  for (size_t i = 0; i < dims.size(); ++i) identity = identity && dims[i] == static_cast<int64_t>(i);
  if (identity) return x;
  return emit1(OpCode::k_permute, {x}, {{AttrKey::k_dims, std::move(dims)}});
}

Result<ValueId> Builder::binary(OpCode code, ValueId a, ValueId b, DType dtype) {
  Op probe;
  probe.code = code;
  probe.origin = origin_;
  Dims x = type(a).sizes, y = type(b).sizes;
  Dims sizes(std::max(x.size(), y.size()), 1);
  for (size_t i = 0; i < sizes.size(); ++i) {
    int64_t p = i < x.size() ? x[x.size() - 1 - i] : 1, q = i < y.size() ? y[y.size() - 1 - i] : 1;
    if (p != q && p != 1 && q != 1)
      return rules::malformed(probe, "operands " + rules::text(x) + " and " + rules::text(y) + " do not broadcast");
    sizes[sizes.size() - 1 - i] = p == 1 ? q : p;
  }
  KRN_TRY_LET(a, cast(a, dtype));
  KRN_TRY_LET(b, cast(b, dtype));
  KRN_TRY_LET(a, expand_to(a, sizes));
  KRN_TRY_LET(b, expand_to(b, sizes));
  return emit1(code, {a, b});
}

}  // namespace keirin
