// SPDX-License-Identifier: Apache-2.0
#include "core/base/services.h"

#include "core/base/dtype.h"

namespace keirin {

TensorSpec spec_of(const Tensor& t) {
  return {t.dtype(), {t.sizes(), t.sizes() + t.rank()}, {t.strides(), t.strides() + t.rank()}, t.device()};
}

std::string spec_text(const TensorSpec& spec) {
  std::string out(dtype_name(spec.dtype));
  for (size_t d = 0; d < spec.sizes.size(); ++d) out += (d == 0 ? "[" : ",") + std::to_string(spec.sizes[d]);
  return out + (spec.sizes.empty() ? "[]" : "]");
}

}  // namespace keirin
