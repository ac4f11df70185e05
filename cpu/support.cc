// SPDX-License-Identifier: Apache-2.0
//
// What the x86 plugin takes away from the table's default: dtypes that no row computes in.
#include "cpu/backend.h"
#include "plugins/codegen/rows.h"

namespace keirin::cpu {

bool supports_row(uint32_t /*op*/, uint8_t dtype, std::string& why_not) {
  if (codegen::is_computable(dtype)) return true;
  why_not = "a dtype that is carried only, not computed in";
  return false;
}

}  // namespace keirin::cpu
