// SPDX-License-Identifier: Apache-2.0
//
// LibTorch's memory, copies, threads and streams behind the core's interface. No torch in this header.
#pragma once

#include <memory>

#include "core/base/services.h"

namespace keirin {

// Any number may exist; they share LibTorch's allocators and its thread pool. The first one installs a counting layer
// over LibTorch's CPU allocator, which is what peak_bytes reads on the CPU.
std::unique_ptr<TensorServices> make_tensor_services();

// Makes the device usable: loads LibTorch's GPU library on first need. `unsupported` if this LibTorch has none or the
// device is not there.
Status ensure_device(Device device);

}  // namespace keirin
