// SPDX-License-Identifier: Apache-2.0
//
// LibTorch's settings as names and values, for what is decided once and kept: more of them than `numeric_modes`, which
// every call asks, because a decision also depends on how fast eager is. No torch in this header.
#pragma once

#include <map>
#include <string>

#include "core/base/tensor.h"

namespace keirin {

// What decides which kernels LibTorch's operators run on the device: precision of f32 (TF32), determinism, autocast,
// which libraries and which kinds of attention are allowed. Those of the whole process and of the calling thread. Any
// thread; the device was made usable before.
std::map<std::string, std::string> library_settings(Device device);

// Whether LibTorch may round the f32 operands of convolutions, of products, of recurrent layers, to TF32 on the device: on GPUs alone.
struct Tf32Settings {
  bool convolutions = false, products = false, recurrent = false;
};
Tf32Settings tf32_settings(Device device);
inline bool allows_tf32(Device device) {
  const Tf32Settings tf32 = tf32_settings(device);
  return tf32.convolutions || tf32.products || tf32.recurrent;
}

}  // namespace keirin
