// SPDX-License-Identifier: Apache-2.0
#include "core/base/services.h"

#include "core/base/dtype.h"

namespace keirin {

std::string spec_text(const TensorSpec& spec) {
  std::string out(dtype_name(spec.dtype));
  for (size_t d = 0; d < spec.sizes.size(); ++d) out += (d == 0 ? "[" : ",") + std::to_string(spec.sizes[d]);
  return out + (spec.sizes.empty() ? "[]" : "]");
}

}  // namespace keirin
