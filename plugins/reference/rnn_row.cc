// SPDX-License-Identifier: Apache-2.0
//
// LSTM and GRU, step by step in double. Gates in LibTorch's order: i f g o, and r z n.
#include <algorithm>
#include <cmath>

#include "plugins/reference/node.h"

namespace keirin::reference {
namespace {

double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

// The weights of one layer in one direction.
struct Cell {
  const Array &input, &hidden;
  const Array *input_bias, *hidden_bias;
  int64_t gates, size;

  // The pre-activations of both halves: W x + b, and U h + c.
  void affine(const double* x, int64_t width, const double* h, std::vector<double>& wx, std::vector<double>& uh) const {
    for (int64_t g = 0; g < gates * size; ++g) {
      wx[g] = input_bias != nullptr ? input_bias->d[g] : 0;
      uh[g] = hidden_bias != nullptr ? hidden_bias->d[g] : 0;
      for (int64_t c = 0; c < width; ++c) wx[g] += input.d[g * width + c] * x[c];
      for (int64_t c = 0; c < size; ++c) uh[g] += hidden.d[g * size + c] * h[c];
    }
  }
};

void lstm_step(const std::vector<double>& wx, const std::vector<double>& uh, int64_t n, double* h, double* c) {
  for (int64_t j = 0; j < n; ++j) {
    auto gate = [&](int64_t g) { return wx[g * n + j] + uh[g * n + j]; };
    c[j] = sigmoid(gate(1)) * c[j] + sigmoid(gate(0)) * std::tanh(gate(2));
    h[j] = sigmoid(gate(3)) * std::tanh(c[j]);
  }
}

void gru_step(const std::vector<double>& wx, const std::vector<double>& uh, int64_t n, double* h) {
  for (int64_t j = 0; j < n; ++j) {
    double r = sigmoid(wx[j] + uh[j]), z = sigmoid(wx[n + j] + uh[n + j]);
    double candidate = std::tanh(wx[2 * n + j] + r * uh[2 * n + j]);
    h[j] = (1 - z) * candidate + z * h[j];
  }
}

}  // namespace

Arrays rnn_row(const Node& node) {
  const bool lstm = node.op() == kOp_lstm;
  if (!lstm && node.op() != kOp_gru) return {};
  const int64_t layers = node.i(kAttr_layers), directions = node.b(kAttr_bidirectional) ? 2 : 1, gates = lstm ? 4 : 3;
  const bool batch_first = node.b(kAttr_batch_first), biases = node.b(kAttr_has_biases);
  const size_t first = lstm ? 3 : 2, per = biases ? 4 : 2;
  const Array& x = node.operand(0);
  const int64_t batch = x.sizes[batch_first ? 0 : 1], steps = x.sizes[batch_first ? 1 : 0];
  Array h = node.operand(1), c = lstm ? node.operand(2) : Array{};
  const int64_t n = h.sizes[2];

  // The sequence as [steps, batch, width], whatever the layout outside.
  int64_t width = x.sizes[2];
  std::vector<double> sequence(x.d.size());
  for (int64_t t = 0; t < steps; ++t)
    for (int64_t b = 0; b < batch; ++b)
      for (int64_t k = 0; k < width; ++k)
        sequence[(t * batch + b) * width + k] = x.d[((batch_first ? b * steps + t : t * batch + b)) * width + k];

  std::vector<double> wx(gates * n), uh(gates * n);
  for (int64_t layer = 0; layer < layers; ++layer) {
    std::vector<double> next(steps * batch * n * directions);
    for (int64_t direction = 0; direction < directions; ++direction) {
      const int64_t at = layer * directions + direction;
      const size_t w = first + per * static_cast<size_t>(at);
      const Cell cell{node.operand(w),
                      node.operand(w + 1),
                      biases ? &node.operand(w + 2) : nullptr,
                      biases ? &node.operand(w + 3) : nullptr,
                      gates,
                      n};
      for (int64_t s = 0; s < steps; ++s) {
        const int64_t t = direction == 0 ? s : steps - 1 - s;
        for (int64_t b = 0; b < batch; ++b) {
          double* hidden = h.d.data() + (at * batch + b) * n;
          cell.affine(sequence.data() + (t * batch + b) * width, width, hidden, wx, uh);
          if (lstm)
            lstm_step(wx, uh, n, hidden, c.d.data() + (at * batch + b) * n);
          else
            gru_step(wx, uh, n, hidden);
          std::copy(hidden, hidden + n, next.data() + (t * batch + b) * n * directions + direction * n);
        }
      }
    }
    sequence = std::move(next);
    width = n * directions;
  }
  Array out = node.result(0);
  for (int64_t t = 0; t < steps; ++t)
    for (int64_t b = 0; b < batch; ++b)
      for (int64_t k = 0; k < width; ++k)
        out.d[(batch_first ? b * steps + t : t * batch + b) * width + k] = sequence[(t * batch + b) * width + k];
  Arrays results{std::move(out), std::move(h)};
  if (lstm) results.push_back(std::move(c));
  return results;
}

}  // namespace keirin::reference
