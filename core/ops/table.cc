// SPDX-License-Identifier: Apache-2.0
#include "core/ops/table.h"

#include <algorithm>
#include <array>

namespace keirin {
namespace {

struct AttrRow {
  AttrKey key;
  std::string_view name;
  char kind;
};

constexpr AttrRow kAttrs[] = {
#define KRN_ATTR(id, name, kind) {AttrKey::k_##name, #name, #kind[0]},
#include "abi/attrs.def"
#undef KRN_ATTR
};

std::vector<AttrKey> parse_attrs(std::string_view names) {
  std::vector<AttrKey> keys;
  while (!names.empty()) {
    size_t end = names.find(' ');
    if (auto key = attr_from_name(names.substr(0, end))) keys.push_back(*key);
    names = end == std::string_view::npos ? std::string_view() : names.substr(end + 1);
  }
  return keys;
}

std::vector<Row> make_rows() {
  using K = RowKind;
  using T = RowDTypes;
  using R = RowResult;
  using D = RowDomain;
  std::vector<Row> rows;
  auto scalar_attrs = [](R result) { return result == R::k_attr ? parse_attrs("dtype") : std::vector<AttrKey>(); };
#define KRN_SCALAR(id, name, arity, dtypes, result, domain, tolerance)                                                    \
  rows.push_back({OpCode::k_##name, #name, K::kScalar, arity, arity, 1, T::k_##dtypes, R::k_##result, D::k_##domain,      \
                  tolerance, false, scalar_attrs(R::k_##result)});
#define KRN_REDUCE(id, name, dtypes, result) \
  rows.push_back(                            \
      {OpCode::k_##name, #name, K::kReduce, 1, 1, 1, T::k_##dtypes, R::k_##result, D::k_all, 0, false, parse_attrs("dims keepdim")});
#define KRN_MOVE(id, name, arity, attrs)                                                                             \
  rows.push_back({OpCode::k_##name, #name, K::kMove, arity < 0 ? 1 : arity, arity, 1, T::k_any, R::k_own, D::k_all, 0, \
                  false, parse_attrs(attrs)});
#define KRN_FACTORY(id, name, attrs) \
  rows.push_back({OpCode::k_##name, #name, K::kFactory, 0, 0, 1, T::k_any, R::k_attr, D::k_all, 0, false, parse_attrs(attrs)});
#define KRN_COMPOSITE(id, name, arity_min, arity_max, results, kind, attrs)                                            \
  rows.push_back({OpCode::k_##name, #name, K::kComposite, arity_min, arity_max, results, T::k_any, R::k_own, D::k_all, \
                  0, std::string_view(#kind) == "anchor", parse_attrs(attrs)});
#include "abi/ops.def"
#undef KRN_SCALAR
#undef KRN_REDUCE
#undef KRN_MOVE
#undef KRN_FACTORY
#undef KRN_COMPOSITE
  std::sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) { return a.code < b.code; });
  return rows;
}

}  // namespace

const std::vector<Row>& all_rows() {
  static const std::vector<Row> rows = make_rows();
  return rows;
}

const Row* find_row(OpCode code) {
  const auto& rows = all_rows();
  auto it = std::lower_bound(rows.begin(), rows.end(), code, [](const Row& row, OpCode c) { return row.code < c; });
  return it != rows.end() && it->code == code ? &*it : nullptr;
}

const Row* find_row(std::string_view name) {
  for (const Row& row : all_rows())
    if (row.name == name) return &row;
  return nullptr;
}

std::string_view op_name(OpCode code) {
  if (code == OpCode::kOpaque) return "opaque";
  const Row* row = find_row(code);
  return row != nullptr ? row->name : "?";
}

bool accepts(RowDTypes dtypes, DType dtype) {
  DTypeClass c = dtype_class(dtype);
  switch (dtypes) {
    case RowDTypes::k_num: return c == DTypeClass::i || c == DTypeClass::f;
    case RowDTypes::k_flt: return c == DTypeClass::f;
    case RowDTypes::k_int: return c == DTypeClass::i;
    case RowDTypes::k_bool: return c == DTypeClass::b;
    case RowDTypes::k_any: return c != DTypeClass::x;
  }
  return false;
}

std::string_view attr_name(AttrKey key) {
  for (const AttrRow& row : kAttrs)
    if (row.key == key) return row.name;
  return "?";
}

std::optional<AttrKey> attr_from_name(std::string_view name) {
  for (const AttrRow& row : kAttrs)
    if (row.name == name) return row.key;
  return std::nullopt;
}

char attr_kind(AttrKey key) {
  for (const AttrRow& row : kAttrs)
    if (row.key == key) return row.kind;
  return 0;
}

bool attr_holds(AttrKey key, const AttrValue& value) {
  constexpr char kKinds[] = {'i', 'd', 'b', 'I', 's'};  // in the order of AttrValue's alternatives
  return attr_kind(key) == kKinds[value.index()];
}

}  // namespace keirin
