// SPDX-License-Identifier: Apache-2.0
#include "python/native/draws.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace keirin::python {

std::vector<at::Tensor> DropoutMasks::draw() const {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  std::vector<at::Tensor> masks;
  masks.reserve(draws_.size());
  at::Tensor memory;  // its numbers say nothing of the mask: several draws may read the same
  for (size_t i = 0; i < draws_.size(); ++i) {
    const auto& [sizes, strides, dtype, p] = draws_[i];
    const auto is_like = [&](const Draw& other) {
      return std::get<0>(other) == sizes && std::get<1>(other) == strides && std::get<2>(other) == dtype;
    };
    if (i == 0 || !is_like(draws_[i - 1])) memory = at::empty_strided(sizes, strides, at::TensorOptions(device_).dtype(dtype));
    masks.push_back(std::get<1>(at::native_dropout(memory, p, true)));
  }
  return masks;
}

}  // namespace keirin::python
