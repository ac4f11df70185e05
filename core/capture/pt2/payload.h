// SPDX-License-Identifier: Apache-2.0
//
// The weights and constants of a program: names bound to strided views of whole storages. Names that share a record
// share one Storage, so tying is kept. Nothing is unpickled, and no view reaches beyond its storage.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/capture/pt2/schema.h"
#include "core/capture/pt2/zip_archive.h"

namespace keirin::pt2 {

struct Weight {
  TensorMeta meta;                      // all sizes and strides are literals; copied below
  std::vector<int64_t> sizes, strides;  // in elements
  int64_t storage_offset = 0;           // in elements
  bool is_param = false;
  std::string record;                // "data/weights/weight_0"
  std::shared_ptr<Storage> storage;  // null: no bytes in the file

  int64_t num_elements() const;
  // Its bytes are to be supplied later: the record is empty although the tensor is not. Never a sign of tying.
  bool is_pending() const { return storage == nullptr && num_elements() > 0; }
  // First element; null if there is none or no storage.
  std::byte* data() const;
};

struct Payload {
  Named<Weight> weights;    // parameters and persistent buffers
  Named<Weight> constants;  // tensor constants and non-persistent buffers
  // The weight behind an input of the program, or null for user inputs and constant inputs.
  const Weight* find(const InputSpec& input) const;
};

// Reads what `program` needs from the archive, whose root was taken.
Result<Payload> read_payload(const ZipArchive& archive, const Program& program, const Limits& limits);

}  // namespace keirin::pt2
