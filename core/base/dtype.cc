// SPDX-License-Identifier: Apache-2.0
#include "core/base/dtype.h"

namespace keirin {
namespace {

struct Row {
  std::string_view name;
  int64_t bytes;
  uint8_t dl;
  DTypeClass cls;
};

constexpr Row kRows[] = {
    {"none", 0, 0, DTypeClass::x},
#define KRN_DTYPE(id, name, bits, dl, cls) {#name, bits / 8, dl, DTypeClass::cls},
#include "abi/dtypes.def"
#undef KRN_DTYPE
};
constexpr size_t kNumRows = sizeof(kRows) / sizeof(kRows[0]);

const Row& row(DType dtype) {
  size_t i = static_cast<size_t>(dtype);
  return kRows[i < kNumRows ? i : 0];
}

}  // namespace

std::string_view dtype_name(DType dtype) { return row(dtype).name; }
int64_t dtype_bytes(DType dtype) { return row(dtype).bytes; }
uint8_t dtype_dl_code(DType dtype) { return row(dtype).dl; }
DTypeClass dtype_class(DType dtype) { return row(dtype).cls; }

std::optional<DType> dtype_from_name(std::string_view name) {
  for (size_t i = 1; i < kNumRows; ++i)
    if (kRows[i].name == name) return static_cast<DType>(i);
  return std::nullopt;
}

}  // namespace keirin
