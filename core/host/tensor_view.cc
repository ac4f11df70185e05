// SPDX-License-Identifier: Apache-2.0
#include "core/host/tensor_view.h"

namespace keirin {

krn_tensor view_of(const Tensor& tensor, uint32_t flags) {
  krn_tensor view{};
  view.data = tensor.data();
  view.device_type = tensor.device().kind;
  view.device_id = tensor.device().index;
  view.ndim = static_cast<int32_t>(tensor.rank());
  view.dtype_code = dtype_dl_code(tensor.dtype());
  view.dtype_bits = static_cast<uint8_t>(dtype_bytes(tensor.dtype()) * 8);
  view.dtype_lanes = 1;
  view.shape = tensor.sizes();
  view.strides = tensor.strides();
  view.flags = flags;
  view.memory = tensor.device().kind == Device::kCpu ? KRN_MEM_HOST : KRN_MEM_DEVICE;
  view.storage_bytes = static_cast<uint64_t>(tensor.storage_bytes());
  return view;
}

}  // namespace keirin
