// SPDX-License-Identifier: Apache-2.0
//
// Named dense tensors in one file: 8 bytes of length, a JSON table, raw little-endian data. What `--inputs` and
// `--outputs` read and write. Every offset is checked against the file before it is used; strides are always row-major.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "core/base/services.h"
#include "core/base/status.h"

namespace keirin {

using NamedTensors = std::vector<std::pair<std::string, TensorRef>>;

// What the format calls a dtype; null for one that it has no name for.
const char* safetensors_name(DType dtype);
// In the order of their data. `corrupt` names what breaks the format; nothing is returned in part.
Result<NamedTensors> read_safetensors(const std::string& path, TensorServices& services);
// Whole or not at all: written beside the target and renamed. Tensors on a device are fetched first; a null one is
// refused.
Status write_safetensors(const std::string& path, const NamedTensors& tensors, TensorServices& services);

}  // namespace keirin
