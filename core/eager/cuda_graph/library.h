// SPDX-License-Identifier: Apache-2.0
//
// The recording library (shim.h), which is opened when it is first asked for: it needs a LibTorch with CUDA, which core does not.
#pragma once

#include <string>

#include "core/base/tensor.h"
#include "core/eager/cuda_graph/shim.h"

namespace keirin {

// Any thread. Null with the reason where it is not there.
const KeirinCudaGraph* cuda_graph_library(std::string& why_not);

// Whether what this thread enqueues on the device is recorded, by whomever; false where nothing can be recorded.
bool is_recorded(Device device);

}  // namespace keirin
