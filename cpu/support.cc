// SPDX-License-Identifier: Apache-2.0
//
// What the x86 plugin takes away from the table's default: dtypes that no row computes in.
#include "cpu/backend.h"
#include "plugins/kit/tables.h"

namespace keirin::cpu {

using enum kit::DType;

bool supports_row(uint32_t /*op*/, uint8_t dtype, std::string& why_not) {
  if (dtype < kDType_bool || dtype > kDType_f64) {
    why_not = "a dtype that is carried only, not computed in";
    return false;
  }
  return true;
}

}  // namespace keirin::cpu
