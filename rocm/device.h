// SPDX-License-Identifier: Apache-2.0
//
// One GPU as HIP describes it, over a row of target.def. Looking at a device creates no context.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "plugins/gpu/device.h"

namespace keirin::rocm {

struct Target {
  const char* arch;
  int wave;
  double f32, matrix_rate, special;
  const char* unit;
  int registers;
  int since;
};

std::span<const Target> targets();
const Target* target_named(const std::string& arch);  // null: no row
int wave_of(const std::string& arch);                 // 32 for what has no row

// Whether HIP and hipRTC are installed, be there a GPU or not; else what is missing and how to get it, in one line.
bool could_look(std::string& why_not);
// The device of that PCI address, or else of that number; null with the reason, in one line that says what to install.
std::unique_ptr<gpu::Gpu> look_at_gpu(const std::string& pci, int index, std::string& why_not);
// A device that is not there, for all that compiles without one. Throws kit::Error for what has no row.
gpu::Gpu imagine_gpu(const std::string& arch);
// The same without libraries, if hipRTC or else clang compiles for it; null with the reason.
std::unique_ptr<gpu::Gpu> imagine_for_launches(const std::string& arch, std::string& why_not);

}  // namespace keirin::rocm
