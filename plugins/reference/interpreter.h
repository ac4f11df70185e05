// SPDX-License-Identifier: Apache-2.0
//
// The oracle: runs the bytes of a region node by node. Formulas in double, every value rounded once to its dtype where
// the rounding is observed, to the compute dtype where it is not. Slow on purpose: nothing here is shared with a code
// generator but the formulas of abi/scalar.h.
#pragma once

#include <cstdint>
#include <vector>

#include "abi/graph.h"
#include "abi/plugin.h"
#include "plugins/reference/array.h"

namespace keirin::reference {

// Whether the interpreter computes a row. Opaque and unknown ids are not computed.
bool computes(uint32_t op);

class Interpreter {
 public:
  // Copies the bytes. Throws kit::Error: `corrupt` for bytes that do not open, `unsupported` for a node it does not
  // compute.
  explicit Interpreter(krn_span bytes);

  // Reads all inputs before it writes an output, so a failure leaves every tensor as it was. Any thread, concurrently.
  void run(const krn_tensor* inputs, uint32_t num_inputs, const krn_tensor* outputs, uint32_t num_outputs) const;

  uint32_t num_nodes() const { return krn_graph_function(&graph_, 0)->num_nodes; }

 private:
  uint8_t dtype_of(uint32_t value) const { return krn_graph_value_type(&graph_, value)->dtype; }

  std::vector<uint64_t> bytes_;  // aligned to 8, as the reader asks
  krn_graph graph_;
  std::vector<uint32_t>
      last_use_;  // node after which a value is dropped; KRN_NONE for outputs and values without readers
};

}  // namespace keirin::reference
