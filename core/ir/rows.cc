// SPDX-License-Identifier: Apache-2.0
#include "core/ir/rows.h"

#include <array>
#include <unordered_map>

namespace keirin {
namespace {

constexpr std::string_view scalar_attrs(OpCode code) { return code == OpCode::k_cast ? "dtype" : ""; }

constexpr OpRow kRows[] = {
    {OpCode::kOpaque, "opaque", RowKind::kOpaque, 0, -1, -1, "", "", "aten"},
#define KRN_SCALAR(id, name, arity, dtypes, result, domain, tol) \
  {OpCode::k_##name, #name, RowKind::kScalar, arity, arity, 1, #dtypes, #result, scalar_attrs(OpCode::k_##name)},
#define KRN_REDUCE(id, name, dtypes, result) {OpCode::k_##name, #name, RowKind::kReduce, 1, 1, 1, #dtypes, #result, "dims keepdim"},
#define KRN_MOVE(id, name, arity, attrs) \
  {OpCode::k_##name, #name, RowKind::kMove, arity < 0 ? 1 : arity, arity, 1, "", "", attrs},
#define KRN_FACTORY(id, name, attrs) {OpCode::k_##name, #name, RowKind::kFactory, 0, 0, 1, "", "", attrs},
#define KRN_COMPOSITE(id, name, least, most, results, kind, attrs) \
  {OpCode::k_##name, #name, RowKind::kComposite, least, most, results, "", #kind, attrs},
#include "abi/ops.def"
#undef KRN_SCALAR
#undef KRN_REDUCE
#undef KRN_MOVE
#undef KRN_FACTORY
#undef KRN_COMPOSITE
};

struct AttrRow {
  AttrKey key;
  std::string_view name;
  char kind;
};
constexpr AttrRow kAttrRows[] = {
#define KRN_ATTR(id, name, kind) {AttrKey::k_##name, #name, #kind[0]},
#include "abi/attrs.def"
#undef KRN_ATTR
};

const AttrRow* find_attr_row(AttrKey key) {
  size_t i = static_cast<size_t>(key) - 1;  // ids are dense so far; the scan below keeps it right if that ends
  if (i < std::size(kAttrRows) && kAttrRows[i].key == key) return &kAttrRows[i];
  for (const AttrRow& row : kAttrRows)
    if (row.key == key) return &row;
  return nullptr;
}

constexpr size_t kCodes = 512;  // above every id; a larger one does not compile
constexpr auto index_rows() {
  std::array<int16_t, kCodes> index{};
  for (auto& i : index) i = -1;
  for (size_t i = 0; i < std::size(kRows); ++i) index.at(static_cast<size_t>(kRows[i].code)) = static_cast<int16_t>(i);
  return index;
}
constexpr std::array<int16_t, kCodes> kRowOfCode = index_rows();

}  // namespace

const OpRow* find_row(OpCode code) {
  size_t i = static_cast<size_t>(code);
  return i < kCodes && kRowOfCode[i] >= 0 ? &kRows[kRowOfCode[i]] : nullptr;
}

const OpRow* find_row(std::string_view name) {
  static const auto* const kByName = [] {
    auto* map = new std::unordered_map<std::string_view, const OpRow*>;
    for (const OpRow& row : kRows) map->emplace(row.name, &row);
    return map;
  }();
  auto at = kByName->find(name);
  return at == kByName->end() ? nullptr : at->second;
}

std::string_view op_name(OpCode code) {
  const OpRow* row = find_row(code);
  return row ? row->name : "?";
}

std::string_view attr_name(AttrKey key) {
  const AttrRow* row = find_attr_row(key);
  return row ? row->name : std::string_view{};
}

char attr_kind(AttrKey key) {
  const AttrRow* row = find_attr_row(key);
  return row ? row->kind : '?';
}

std::optional<AttrKey> attr_from_name(std::string_view name) {
  for (const AttrRow& row : kAttrRows)
    if (row.name == name) return row.key;
  return std::nullopt;
}

bool attr_has_kind(const Attr& attr) {
  switch (attr_kind(attr.key)) {
    case 'i': return std::holds_alternative<int64_t>(attr.value);
    case 'd': return std::holds_alternative<double>(attr.value);
    case 'b': return std::holds_alternative<bool>(attr.value);
    case 'I': return std::holds_alternative<Dims>(attr.value);
    case 's': return std::holds_alternative<std::string>(attr.value);
    default: return false;
  }
}

}  // namespace keirin
