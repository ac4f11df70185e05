// SPDX-License-Identifier: Apache-2.0
#include "core/host/call/tensor_view.h"

namespace keirin {
namespace {

krn_tensor describe(DType dtype, Device device, int64_t rank, const int64_t* sizes, const int64_t* strides, uint32_t flags) {
  krn_tensor view{};
  view.device_type = device.kind;
  view.device_id = device.index;
  view.ndim = static_cast<int32_t>(rank);
  view.dtype_code = dtype_dl_code(dtype);
  view.dtype_bits = static_cast<uint8_t>(dtype_bytes(dtype) * 8);
  view.dtype_lanes = 1;
  view.shape = sizes;
  view.strides = strides;
  view.flags = flags;
  view.memory = device.kind == Device::kCpu ? KRN_MEM_HOST : KRN_MEM_DEVICE;
  return view;
}

}  // namespace

krn_tensor view_of(const Tensor& tensor, uint32_t flags) {
  krn_tensor view = describe(tensor.dtype(), tensor.device(), tensor.rank(), tensor.sizes(), tensor.strides(), flags);
  view.data = tensor.data();
  view.storage_bytes = static_cast<uint64_t>(tensor.storage_bytes());
  return view;
}

krn_tensor view_of(const Type& type, Device device, uint32_t flags) {
  return describe(type.dtype, device, type.rank(), type.sizes.data(), type.strides.data(), flags);
}

int64_t span_bytes(const Type& type) {
  if (type.num_elements() == 0) return 0;
  int64_t last = 0;
  for (size_t d = 0; d < type.sizes.size(); ++d) last += (type.sizes[d] - 1) * type.strides[d];
  return (last + 1) * dtype_bytes(type.dtype);
}

}  // namespace keirin
