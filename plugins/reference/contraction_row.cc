// SPDX-License-Identifier: Apache-2.0
//
// Matrix products, also of groups of rows, convolutions and attention in plain loops with double accumulators.
#include <algorithm>
#include <cmath>

#include "plugins/reference/node.h"

namespace keirin::reference {
namespace {

// Element access that does not care for the class: integers multiply in 64 bits, exact below 2^53.
double at(const Array& a, int64_t k) { return a.as_double(k); }

void put(Array& a, int64_t k, double v) {
  if (a.floats())
    a.d[k] = v;
  else
    a.i[k] = static_cast<int64_t>(v);
}

Array matmul(const Node& node) {
  const Array &a = node.operand(0), &b = node.operand(1);
  Array out = node.result();
  const int64_t r = a.rank(), m = a.sizes[r - 2], inner = a.sizes[r - 1], n = b.sizes[r - 1];
  const int64_t batches = m * n == 0 ? 0 : out.count() / (m * n);
  for (int64_t p = 0; p < batches; ++p)
    for (int64_t i = 0; i < m; ++i)
      for (int64_t j = 0; j < n; ++j) {
        double sum = 0;
        for (int64_t k = 0; k < inner; ++k) sum += at(a, (p * m + i) * inner + k) * at(b, (p * inner + k) * n + j);
        put(out, (p * m + i) * n + j, sum);
      }
  return out;
}

Array linear(const Node& node) {
  const Array &x = node.operand(0), &w = node.operand(1);
  Array out = node.result();
  const int64_t n = w.sizes[0], inner = w.sizes[1];
  for (int64_t k = 0, count = out.count(); k < count; ++k) {
    const int64_t row = k / n, column = k % n;
    double sum = node.has(2) ? at(node.operand(2), column) : 0;
    for (int64_t c = 0; c < inner; ++c) sum += at(x, row * inner + c) * at(w, column * inner + c);
    put(out, k, sum);
  }
  return out;
}

Array grouped_matmul(const Node& node) {
  const Array &x = node.operand(0), &w = node.operand(1), &ends = node.operand(2);
  Array out = node.result();
  const int64_t inner = x.sizes[1], n = w.sizes[2];
  int64_t row = 0;
  for (int64_t group = 0; group < ends.count(); ++group) {
    if (ends.i[group] < row || ends.i[group] > x.sizes[0])
      throw kit::Error(KRN_STATUS_invalid_input, "the ends of groups of rows do not ascend, or lie behind the last row");
    for (; row < ends.i[group]; ++row)
      for (int64_t j = 0; j < n; ++j) {
        double sum = 0;
        for (int64_t k = 0; k < inner; ++k) sum += at(x, row * inner + k) * at(w, (group * inner + k) * n + j);
        put(out, row * n + j, sum);
      }
  }
  return out;
}

// A convolution over three spatial axes; the ones that are not there have size 1.
struct Conv {
  int64_t in[3] = {1, 1, 1}, out[3] = {1, 1, 1}, kernel[3] = {1, 1, 1};
  int64_t stride[3] = {1, 1, 1}, padding[3] = {0, 0, 0}, dilation[3] = {1, 1, 1};

  Conv(const Node& node, const Dims& x, const Dims& w, const Dims& y) {
    const size_t n = x.size() - 2;
    const Dims s = node.ints(kAttr_stride), p = node.ints(kAttr_padding), d = node.ints(kAttr_dilation);
    for (size_t a = 0; a < n; ++a) {
      const size_t t = 3 - n + a;
      in[t] = x[a + 2], out[t] = y[a + 2], kernel[t] = w[a + 2];
      stride[t] = s.at(a), padding[t] = p.at(a), dilation[t] = d.at(a);
    }
  }
  int64_t inputs() const { return in[0] * in[1] * in[2]; }
  int64_t outputs() const { return out[0] * out[1] * out[2]; }
  int64_t taps() const { return kernel[0] * kernel[1] * kernel[2]; }

  // fn(small position, tap) for the taps of `large`, a position on the strided side, that fall inside.
  template <class F>
  void each_tap(int64_t position, const int64_t (&side)[3], const int64_t (&other)[3], F&& fn) const {
    int64_t at[3] = {position / (side[1] * side[2]), position / side[2] % side[1], position % side[2]};
    for (int64_t tap = 0; tap < taps(); ++tap) {
      int64_t t[3] = {tap / (kernel[1] * kernel[2]), tap / kernel[2] % kernel[1], tap % kernel[2]}, c[3];
      bool inside = true;
      for (int a = 0; a < 3; ++a) {
        c[a] = at[a] * stride[a] - padding[a] + t[a] * dilation[a];
        inside = inside && c[a] >= 0 && c[a] < other[a];
      }
      if (inside) fn((c[0] * other[1] + c[1]) * other[2] + c[2], tap);
    }
  }
};

Array conv(const Node& node) {
  const Array &x = node.operand(0), &w = node.operand(1);
  Array y = node.result();
  const Conv c(node, x.sizes, w.sizes, y.sizes);
  const bool transposed = node.b(kAttr_transposed);
  const int64_t groups = node.i(kAttr_groups), batch = x.sizes[0], from = x.sizes[1], to = y.sizes[1];
  const int64_t per_from = from / groups, per_to = to / groups, positions = c.outputs(), inputs = c.inputs(),
                taps = c.taps();
  for (int64_t k = 0, count = y.count(); k < count; ++k)
    y.d[k] = node.has(2) ? node.operand(2).d[k / positions % to] : 0;
  for (int64_t n = 0; n < batch; ++n)
    for (int64_t o = 0; o < to; ++o)
      for (int64_t i = o / per_to * per_from, end = i + per_from; i < end; ++i) {
        const double* source = x.d.data() + (n * from + i) * inputs;
        double* target = y.d.data() + (n * to + o) * positions;
        if (transposed) {
          const double* weight = w.d.data() + (i * per_to + o % per_to) * taps;
          for (int64_t p = 0; p < inputs; ++p)
            c.each_tap(p, c.in, c.out, [&](int64_t at, int64_t tap) { target[at] += source[p] * weight[tap]; });
        } else {
          const double* weight = w.d.data() + (o * per_from + i % per_from) * taps;
          for (int64_t p = 0; p < positions; ++p)
            c.each_tap(p, c.out, c.in, [&](int64_t at, int64_t tap) { target[p] += source[at] * weight[tap]; });
        }
      }
  return y;
}

// x and the gradient of conv's result, as torch.nn.grad.conv2d_weight.
Array conv_grad_weight(const Node& node) {
  const Array &x = node.operand(0), &grad = node.operand(1);
  Array w = node.result();
  const Conv c(node, x.sizes, w.sizes, grad.sizes);
  const int64_t groups = node.i(kAttr_groups), batch = x.sizes[0], from = x.sizes[1], to = grad.sizes[1];
  const int64_t per_from = from / groups, per_to = to / groups, positions = c.outputs(), inputs = c.inputs(), taps = c.taps();
  std::fill(w.d.begin(), w.d.end(), 0);
  for (int64_t n = 0; n < batch; ++n)
    for (int64_t o = 0; o < to; ++o)
      for (int64_t i = 0; i < per_from; ++i) {
        const double* source = x.d.data() + (n * from + o / per_to * per_from + i) * inputs;
        const double* slope = grad.d.data() + (n * to + o) * positions;
        double* target = w.d.data() + (o * per_from + i) * taps;
        for (int64_t p = 0; p < positions; ++p)
          c.each_tap(p, c.out, c.in, [&](int64_t at, int64_t tap) { target[tap] += source[at] * slope[p]; });
      }
  return w;
}

// One row of scores, already masked, to weights. A row with nothing to attend to gives zeros.
void normalise(std::vector<double>& scores) {
  double top = -INFINITY, sum = 0;
  for (double s : scores) top = std::isnan(s) || s > top ? s : top;
  for (double& s : scores) sum += s = top == -INFINITY ? 0 : std::exp(s - top);
  for (double& s : scores) s = sum == 0 ? 0 : s / sum;
}

Array attention(const Node& node) {
  const Array &q = node.operand(0), &k = node.operand(1), &v = node.operand(2);
  Array out = node.result();
  const int64_t r = q.rank(), queries = q.sizes[r - 2], depth = q.sizes[r - 1], keys = k.sizes[r - 2],
                width = v.sizes[r - 1];
  const int64_t heads = q.sizes[r - 3], shared = heads == 0 ? 1 : heads / std::max<int64_t>(k.sizes[r - 3], 1);
  const double scale = node.d(kAttr_scale);
  const bool causal = node.b(kAttr_causal), masked = node.has(3);
  const int64_t groups = queries * depth == 0 ? 0 : q.count() / (queries * depth);
  std::vector<double> scores(keys);
  for (int64_t g = 0; g < groups; ++g) {
    const int64_t kv = g / shared;  // heads are innermost, so this counts key heads over the whole batch
    for (int64_t i = 0; i < queries; ++i) {
      for (int64_t j = 0; j < keys; ++j) {
        double sum = 0;
        for (int64_t c = 0; c < depth; ++c)
          sum += q.d[(g * queries + i) * depth + c] * k.d[(kv * keys + j) * depth + c];
        sum *= scale;
        if (masked) {
          const Array& mask = node.operand(3);
          const int64_t m = (g * queries + i) * keys + j;
          if (mask.floats())
            sum += mask.d[m];
          else if (mask.i[m] == 0)
            sum = -INFINITY;
        }
        scores[j] = causal && j > i ? -INFINITY : sum;
      }
      normalise(scores);
      for (int64_t c = 0; c < width; ++c) {
        double sum = 0;
        for (int64_t j = 0; j < keys; ++j)
          if (scores[j] != 0) sum += scores[j] * v.d[(kv * keys + j) * width + c];
        out.d[(g * queries + i) * width + c] = sum;
      }
    }
  }
  return out;
}

}  // namespace

Arrays contraction_row(const Node& node) {
  switch (node.op()) {
    case kOp_matmul:
      return {matmul(node)};
    case kOp_linear:
      return {linear(node)};
    case kOp_grouped_matmul:
      return {grouped_matmul(node)};
    case kOp_conv:
      return {conv(node)};
    case kOp_conv_grad_weight:
      return {conv_grad_weight(node)};
    case kOp_attention:
      return {attention(node)};
    default:
      return {};
  }
}

}  // namespace keirin::reference
