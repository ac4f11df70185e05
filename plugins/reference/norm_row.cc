// SPDX-License-Identifier: Apache-2.0
//
// Norms, softmaxes and statistics straight from their definitions, in double: an independent witness for their
// decompositions.
#include <algorithm>
#include <cmath>

#include "plugins/reference/node.h"

namespace keirin::reference {
namespace {

struct Moments {
  double mean, variance;
};

// Two passes over n elements, `step` apart.
Moments moments(const double* x, int64_t n, int64_t step = 1) {
  double sum = 0, squares = 0;
  for (int64_t k = 0; k < n; ++k) sum += x[k * step];
  const double mean = sum / static_cast<double>(n);
  for (int64_t k = 0; k < n; ++k) squares += (x[k * step] - mean) * (x[k * step] - mean);
  return {mean, squares / static_cast<double>(n)};
}

double mean_square(const double* x, int64_t n) {
  double sum = 0;
  for (int64_t k = 0; k < n; ++k) sum += x[k] * x[k];
  return sum / static_cast<double>(n);
}

double parameter(const Node& node, size_t operand, int64_t k, double absent) {
  return node.has(operand) ? node.operand(operand).d[k] : absent;
}

Array batch_norm(const Node& node) {
  const Array& x = node.operand(0);
  Array out = node.result();
  const int64_t channels = x.sizes[1], inner = row_major(x.sizes)[1];
  for (int64_t k = 0, count = out.count(); k < count; ++k) {
    const int64_t c = k / inner % channels;
    double v = (x.d[k] - node.operand(3).d[c]) / std::sqrt(node.operand(4).d[c] + node.d(kAttr_eps));
    out.d[k] = v * parameter(node, 1, c, 1) + parameter(node, 2, c, 0);
  }
  return out;
}

Array trailing_norm(const Node& node, bool centred) {
  const Array& x = node.operand(0);
  Array out = node.result();
  const int64_t n = product(Dims(x.sizes.end() - node.i(kAttr_rank), x.sizes.end()));
  for (int64_t row = 0, count = n == 0 ? 0 : x.count() / n; row < count; ++row) {
    const Moments m = centred ? moments(x.d.data() + row * n, n) : Moments{0, mean_square(x.d.data() + row * n, n)};
    const double scale = 1.0 / std::sqrt(m.variance + node.d(kAttr_eps));
    for (int64_t k = 0; k < n; ++k)
      out.d[row * n + k] = (x.d[row * n + k] - m.mean) * scale * parameter(node, 1, k, 1) + parameter(node, 2, k, 0);
  }
  return out;
}

Array group_norm(const Node& node) {
  const Array& x = node.operand(0);
  Array out = node.result();
  const int64_t groups = node.i(kAttr_groups), channels = x.sizes[1], inner = row_major(x.sizes)[1];
  const int64_t n = channels / groups * inner;
  for (int64_t g = 0, count = n == 0 ? 0 : x.count() / n; g < count; ++g) {
    const Moments m = moments(x.d.data() + g * n, n);
    const double scale = 1.0 / std::sqrt(m.variance + node.d(kAttr_eps));
    for (int64_t k = 0; k < n; ++k) {
      const int64_t c = (g % groups) * (channels / groups) + k / inner;
      out.d[g * n + k] = (x.d[g * n + k] - m.mean) * scale * parameter(node, 1, c, 1) + parameter(node, 2, c, 0);
    }
  }
  return out;
}

Array softmax(const Node& node, bool log) {
  const Array& x = node.operand(0);
  Array out = node.result();
  const int64_t dim = node.i(kAttr_dim), n = x.sizes[dim], step = row_major(x.sizes)[dim];
  for (int64_t row = 0, count = n == 0 ? 0 : x.count() / n; row < count; ++row) {
    const int64_t base = row / step * step * n + row % step;
    double top = -INFINITY, sum = 0;
    for (int64_t k = 0; k < n; ++k)
      top = std::isnan(x.d[base + k * step]) || x.d[base + k * step] > top ? x.d[base + k * step] : top;
    for (int64_t k = 0; k < n; ++k) sum += std::exp(x.d[base + k * step] - top);
    for (int64_t k = 0; k < n; ++k) {
      const double shifted = x.d[base + k * step] - top;
      out.d[base + k * step] = log ? shifted - std::log(sum) : std::exp(shifted) / sum;
    }
  }
  return out;
}

Array statistic(const Node& node, bool variance) {
  const Array& x = node.operand(0);
  Array out = node.result();
  const Dims dims = node.ints(kAttr_dims), own = row_major(x.sizes);
  Dims outer_sizes, outer, inner_sizes, inner;
  for (int64_t a = 0; a < x.rank(); ++a) {
    const bool reduced = std::find(dims.begin(), dims.end(), a) != dims.end();
    (reduced ? inner_sizes : outer_sizes).push_back(x.sizes[a]);
    (reduced ? inner : outer).push_back(own[a]);
  }
  const int64_t n = product(inner_sizes);
  std::vector<double> row(n);
  walk<1>(outer_sizes, {outer}, [&](int64_t k, const auto& at) {
    walk<1>(inner_sizes, {inner}, [&](int64_t j, const auto& in) { row[j] = x.d[at[0] + in[0]]; });
    const Moments m = moments(row.data(), n);
    const double divisor = std::max(0.0, static_cast<double>(n) - node.d(kAttr_correction));
    out.d[k] = variance ? m.variance * static_cast<double>(n) / divisor : m.mean;
  });
  return out;
}

}  // namespace

Arrays norm_row(const Node& node) {
  switch (node.op()) {
    case kOp_batch_norm:
      return {batch_norm(node)};
    case kOp_layer_norm:
      return {trailing_norm(node, true)};
    case kOp_rms_norm:
      return {trailing_norm(node, false)};
    case kOp_group_norm:
      return {group_norm(node)};
    case kOp_softmax:
      return {softmax(node, false)};
    case kOp_log_softmax:
      return {softmax(node, true)};
    case kOp_mean:
      return {statistic(node, false)};
    case kOp_var:
      return {statistic(node, true)};
    default:
      return {};
  }
}

}  // namespace keirin::reference
