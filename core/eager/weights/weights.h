// SPDX-License-Identifier: Apache-2.0
//
// The table of a model's parameters, buffers and constants: a name and a tensor each, at a fixed position that
// kConstant and kState values of a Graph name. Names that were tied in the file are views of one storage, here and
// after a move.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/services.h"
#include "core/base/status.h"
#include "core/base/tensor.h"

namespace keirin {

struct Weight {
  std::string name;
  TensorRef tensor;
  uint32_t storage = 0;     // equal numbers share one storage
  int64_t byte_offset = 0;  // of the first element in it
};

class WeightTable {
 public:
  size_t size() const { return weights_.size(); }
  const Weight& operator[](size_t position) const { return weights_[position]; }
  std::optional<uint32_t> find(std::string_view name) const;
  // Of all storages, each once.
  int64_t storage_bytes() const;

  // A weight with a storage of its own, or one that shares that of `tied_to`.
  uint32_t add(std::string name, TensorRef tensor);
  uint32_t add_view(std::string name, TensorRef tensor, uint32_t storage, int64_t byte_offset);

  // The same names on another device, tying kept; the table itself if it is there already.
  Result<WeightTable> to_device(TensorServices& services, Device device) const;
  // Own copies of all storages on the same device, so that two candidates can write their state apart.
  Result<WeightTable> clone(TensorServices& services) const;
  // The same names and types, the elements of some given anew: their storages are copied first, all others stay shared with this table.
  // Of tied weights naming one is enough. `invalid_input` for a name that is not here, or another dtype or other sizes.
  using Values = std::vector<std::pair<std::string, TensorRef>>;
  Result<WeightTable> with_values(TensorServices& services, const Values& values) const;

 private:
  template <class Copy>
  Result<WeightTable> map_storages(TensorServices& services, Device device, Copy&& copy) const;
  std::vector<Weight> weights_;
  std::map<std::string, uint32_t, std::less<>> positions_;
  uint32_t num_storages_ = 0;
};

}  // namespace keirin
