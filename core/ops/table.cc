// SPDX-License-Identifier: Apache-2.0
#include "core/ops/table.h"

#include <algorithm>
#include <vector>

namespace keirin {
namespace {

struct Entry {
  OpCode code;
  RowMeaning meaning;
};

// Ids in ops.def ascend within a kind and the kinds ascend, so the list is sorted.
constexpr Entry kEntries[] = {
#define KRN_SCALAR(id, name, arity, dtypes, result, domain, tolerance) \
  {OpCode::k_##name, {RowDTypes::k_##dtypes, RowResult::k_##result, RowDomain::k_##domain, tolerance}},
#define KRN_REDUCE(id, name, dtypes, result) \
  {OpCode::k_##name, {RowDTypes::k_##dtypes, RowResult::k_##result, RowDomain::k_all, 0}},
#define KRN_MOVE(id, name, ...) {OpCode::k_##name, {}},
#define KRN_FACTORY(id, name, ...) {OpCode::k_##name, {RowDTypes::k_any, RowResult::k_attr, RowDomain::k_all, 0}},
#define KRN_COMPOSITE(id, name, ...) {OpCode::k_##name, {}},
#include "abi/ops.def"
#undef KRN_SCALAR
#undef KRN_REDUCE
#undef KRN_MOVE
#undef KRN_FACTORY
#undef KRN_COMPOSITE
};

constexpr bool before(const Entry& a, const Entry& b) { return a.code < b.code; }
static_assert(std::is_sorted(std::begin(kEntries), std::end(kEntries), before),
              "rows of ops.def stand in ascending id");

}  // namespace

const RowMeaning& row_meaning(OpCode code) {
  static constexpr RowMeaning kNothing;
  auto it = std::lower_bound(std::begin(kEntries), std::end(kEntries), Entry{code, {}}, before);
  return it != std::end(kEntries) && it->code == code ? it->meaning : kNothing;
}

bool accepts(RowDTypes dtypes, DType dtype) {
  DTypeClass c = dtype_class(dtype);
  switch (dtypes) {
    case RowDTypes::k_num:
      return c == DTypeClass::i || c == DTypeClass::f;
    case RowDTypes::k_flt:
      return c == DTypeClass::f;
    case RowDTypes::k_int:
      return c == DTypeClass::i;
    case RowDTypes::k_bool:
      return c == DTypeClass::b;
    case RowDTypes::k_any:
      return c != DTypeClass::x;
  }
  return false;
}

bool reads_attr(const OpRow& row, AttrKey key) {
  std::string_view rest = row.attrs, name = attr_name(key);
  while (!rest.empty()) {
    size_t end = rest.find(' ');
    if (rest.substr(0, end) == name) return true;
    rest = end == std::string_view::npos ? std::string_view() : rest.substr(end + 1);
  }
  return false;
}

}  // namespace keirin
