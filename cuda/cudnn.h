// SPDX-License-Identifier: Apache-2.0
//
// Convolutions and attention as cuDNN graphs. cuDNN itself is opened at run time and used through NVIDIA's header-only
// frontend, which only cudnn.cc includes. Where the plugin was built without the headers, it supports nothing and says
// why (cudnn_none.cc).
#pragma once

#include "plugins/gpu/plan.h"

namespace keirin::cuda {

const gpu::PlanLibrary& cudnn();
// Empty, or why cuDNN cannot be used here. Any thread.
const std::string& cudnn_missing();

}  // namespace keirin::cuda
