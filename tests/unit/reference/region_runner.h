// SPDX-License-Identifier: Apache-2.0
//
// Runs a Graph through the reference plugin as a host would: bytes, entry, tables, krn_tensors. For tests that need an
// oracle.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "abi/plugin.h"
#include "core/base/status.h"
#include "core/ir/graph.h"

namespace keirin::testing {

// A tensor in memory with its own strides; values go in and out as double.
struct HostTensor {
  Type type;
  std::vector<uint8_t> bytes;
  static HostTensor of(Type type, const std::vector<double>& row_major_values);
  static HostTensor empty(Type type);
  std::vector<double> values() const;  // in row-major order
};

class ReferencePlugin {
 public:
  static ReferencePlugin& get();  // loaded once, never unloaded
  const krn_table* table(const char* name) const { return answer_.get_table(name, 1); }
  krn_dev* device() const { return device_; }
  const krn_answer& answer() const { return answer_; }

  // Inputs by the graph's input number. Outputs get the graph's own strides.
  Result<std::vector<HostTensor>> run(const Graph& graph, std::vector<HostTensor> inputs);
  // What it says of the code that it made for the graph; zeros where it made none.
  krn_exec_info info(const Graph& graph);

 private:
  ReferencePlugin();
  krn_answer answer_{};
  krn_plugin* plugin_ = nullptr;
  krn_dev* device_ = nullptr;
};

// What the plugin said last through the host's err_set.
const std::string& last_error();

krn_tensor view_of(HostTensor& tensor);

}  // namespace keirin::testing
