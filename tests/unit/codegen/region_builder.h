// SPDX-License-Identifier: Apache-2.0
//
// Writes region bytes for tests, straight from abi/graph.h and independent of core/ir. It infers shapes for the few ops that tests
// need and checks nothing: the reader under test does.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "plugins/codegen/region/region.h"

namespace keirin::codegen::test {

using AttrList = std::vector<std::pair<uint32_t, std::variant<int64_t, double, bool, Dims, std::string>>>;

class RegionBuilder {
 public:
  int input(uint8_t dtype, Dims sizes, Dims strides = {}, bool weight = false);
  int op(uint32_t op, std::vector<int> operands, uint8_t dtype, Dims sizes, AttrList attrs = {}, int results = 1);
  void output(int v, int alias_input = -1) { outputs_.push_back({v, alias_input}); }
  // Gives the node that made `v` a decomposition: a region of its own whose inputs are the node's present operands.
  void set_body(int v, const RegionBuilder& body);
  void observe(int v) { values_[v].observed = true; }
  void set_strides(int v, Dims strides) { values_[v].strides = std::move(strides); }
  std::vector<uint8_t> bytes() const;

  const Dims& sizes(int v) const { return values_[v].sizes; }
  uint8_t dtype(int v) const { return values_[v].dtype; }

  // Short forms; operands broadcast from the right where sizes differ.
  int unary(uint32_t o, int x) { return op(o, {x}, dtype(x), sizes(x)); }
  int binary(uint32_t o, int a, int b);
  int compare(uint32_t o, int a, int b);
  int where(int c, int a, int b) { return op(kOp_select, {c, a, b}, dtype(a), sizes(a)); }
  int scalar(double v, int like);
  int cast(int x, uint8_t to) { return op(kOp_cast, {x}, to, sizes(x), {{kAttr_dtype, int64_t{to}}}); }
  int expand(int x, Dims to);  // aligns from the right
  int reshape(int x, Dims to) { return op(kOp_reshape, {x}, dtype(x), to, {{kAttr_sizes, to}}); }
  int permute(int x, Dims dims);
  int slice(int x, int64_t dim, int64_t start, int64_t end, int64_t step = 1);
  int flip(int x, Dims dims) { return op(kOp_flip, {x}, dtype(x), sizes(x), {{kAttr_dims, dims}}); }
  int cat(std::vector<int> x, int64_t dim);
  int pad(int x, Dims low, Dims high, double value);
  int take(int x, int index, int64_t dim);
  int reduce(uint32_t o, int x, Dims dims, bool keepdim);
  int linear(int x, int w, int b);
  int matmul(int a, int b);
  int conv(int x, int w, int b, int64_t stride, int64_t padding);

  // Decompositions as the host writes them.
  int mean(int x, Dims dims);
  int softmax(int x, int64_t dim);
  int layer_norm(int x, int w, int b, double eps);
  int rms_norm(int x, int w, double eps);
  int group_norm(int x, int w, int b, int64_t groups, double eps);
  // A parameter of so many elements, its gradient, its velocity and the count of its steps; all but the gradient are written in place.
  void momentum_step(int64_t elements);

 private:
  struct Value {
    uint8_t dtype;
    Dims sizes, strides;
    bool observed = false;
    int producer = -1, result = 0;
  };
  struct Node {
    uint32_t op;
    std::vector<int> operands;
    int first_result, num_results;
    AttrList attrs;
    int body = -1;
  };
  std::vector<RegionBuilder> bodies_;
  std::vector<Value> values_;
  std::vector<Node> nodes_;
  std::vector<std::pair<int, uint32_t>> inputs_;  // value, weight id or KRN_NONE
  std::vector<std::pair<int, int>> outputs_;
  uint32_t weights_ = 0;
};

}  // namespace keirin::codegen::test
