// SPDX-License-Identifier: Apache-2.0
//
// What is written after which node of a graph, by the marks of the operators' schemas: whether a value may be a copy
// where the file says view. Errs on the side of "written".
#pragma once

#include <cstddef>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "core/capture/pt2/schema.h"

namespace keirin {

// Of all values that go into the node or come out of it.
std::vector<std::string> all_names(const pt2::Node& node);
// Whether the node's operator writes one of its arguments, or one of its inner graphs' does.
bool writes(const pt2::Node& node);

class LaterWrites {
 public:
  // `written_after`: inputs and outputs of the graph that are written once all its nodes ran.
  LaterWrites(const pt2::Graph& graph, const std::set<std::string>& written_after);
  // Whether a node behind the `node`th, or whoever comes after the graph, may write memory that `value` shares.
  bool of(const std::string& value, size_t node) const;
  // Whether any node may, of an input of the graph.
  bool ever_of(const std::string& input) const;
  // Whether two values may share memory.
  bool share(const std::string& a, const std::string& b) const { return root(a) == root(b); }

 private:
  void read(const pt2::Node& node, size_t number);
  std::string root(std::string name) const;
  void join(const std::string& a, const std::string& b);
  std::map<std::string, std::string> parent_;  // of values that may share memory; a root has none
  std::map<std::string, size_t>
      last_write_;  // one more than the node's number; by name, and of roots over all their names
};

}  // namespace keirin
