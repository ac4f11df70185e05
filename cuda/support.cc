// SPDX-License-Identifier: Apache-2.0
//
// What the CUDA plugin takes away from the table's default: dtypes that no row computes in, and the anchors that neither
// the libraries nor generated code do well yet; eager runs those through cuDNN.
#include "cuda/backend.h"
#include "plugins/kit/tables.h"

namespace keirin::cuda {

bool supports_row(uint32_t op, uint8_t dtype, std::string& why_not) {
  if (dtype < kit::kDType_bool || dtype > kit::kDType_f64) {
    why_not = "a dtype that is carried only, not computed in";
    return false;
  }
  switch (op) {
    case kit::kOp_lstm:
    case kit::kOp_gru: why_not = "recurrent layers run in eager's cuDNN"; return false;
    default: return true;
  }
}

}  // namespace keirin::cuda
