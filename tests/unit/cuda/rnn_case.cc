// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/cuda/rnn_case.h"

#include <cmath>
#include <cstring>
#include <random>

#include "plugins/kit/tables.h"

namespace keirin::test {

using codegen::AnchorDesc;
using codegen::TensorDesc;

AnchorDesc rnn_anchor(uint32_t op, uint8_t dtype, int64_t time, int64_t batch, int64_t input, int64_t hidden) {
  uint32_t buffers = 0;
  const auto tensor = [&](std::vector<int64_t> sizes) {
    TensorDesc t;
    t.buffer = buffers++, t.dtype = dtype, t.strides.assign(sizes.size(), 1), t.sizes = std::move(sizes);
    for (size_t i = t.sizes.size() - 1; i-- > 0;) t.strides[i] = t.strides[i + 1] * t.sizes[i + 1];
    return t;
  };
  const int64_t gates = op == kit::kOp_lstm ? 4 : 3;
  AnchorDesc a;
  a.op = op, a.has_biases = true;
  a.operands = {tensor({time, batch, input}), tensor({1, batch, hidden})};
  if (gates == 4) a.operands.push_back(tensor({1, batch, hidden}));
  for (int64_t columns : {input, hidden}) a.operands.push_back(tensor({gates * hidden, columns}));
  for (int i = 0; i < 2; ++i) a.operands.push_back(tensor({gates * hidden}));
  a.results = {tensor({time, batch, hidden}), tensor({1, batch, hidden})};
  if (gates == 4) a.results.push_back(tensor({1, batch, hidden}));
  return a;
}

RnnCase::RnnCase(uint32_t op, uint8_t dtype, int64_t time, int64_t batch, int64_t hidden, int64_t way, FirstState first_state, bool rounded)
    : anchor(rnn_anchor(op, dtype, time, batch, 8, hidden)), direction(way) {
  const int64_t gates = op == kit::kOp_lstm ? 4 : 3, first = gates - 1, cells = batch * hidden, bytes = element_bytes(dtype);
  name = std::string(gates == 4 ? "lstm" : "gru") + " of dtype " + std::to_string(dtype) + ", " + std::to_string(time) + "x" +
         std::to_string(batch) + ", " + std::to_string(hidden) + (direction ? ", backward" : "");
  // y has the other direction's columns beside these.
  anchor.bidirectional = true;
  for (int i = 0; i < 4; ++i) anchor.operands.push_back(anchor.operands[static_cast<size_t>(first + i)]);
  anchor.results[0].sizes[2] = 2 * hidden, anchor.results[0].strides = {batch * 2 * hidden, 2 * hidden, 1};
  std::mt19937 random(7);
  const auto drawn = [&](int64_t n, double scale, uint8_t type) {
    Storage s(type, n);
    for (int64_t e = 0; e < n; ++e) write_element(s.data(), e, type, std::normal_distribution<double>(0, scale)(random), 0);
    return s;
  };
  Storage inputs = drawn(time * cells * gates, 1, kit::kDType_f32), w = drawn(gates * hidden * hidden, 1.5 / std::sqrt(hidden), dtype),
          b_ih = drawn(gates * hidden, 0.3, dtype), b_hh = drawn(gates * hidden, 0.3, dtype), h0 = drawn(2 * cells, 0.5, dtype),
          c0 = drawn(2 * cells, 0.5, dtype), y = drawn(2 * time * cells, 1, dtype), h_n = drawn(2 * cells, 1, dtype),
          c_n = drawn(2 * cells, 1, dtype);
  if (first_state == FirstState::kStartsWithNan) std::memset(static_cast<char*>(h0.data()) + direction * cells * bytes, 0xff, 4);
  if (first_state == FirstState::kStartsWithInfinity) {
    write_element(h0.data(), direction * cells, dtype, HUGE_VAL, 0);
    for (int64_t e = 0; e < gates * hidden * hidden; ++e)
      write_element(w.data(), e, dtype, (std::floor(64 * read_element(w.data(), e, dtype).real) + 0.5) / 64, 0);
  }
  room = dtype == kit::kDType_bf16 ? 0.02 : dtype == kit::kDType_f16 || rounded ? 0.0025 : 4e-6;

  const auto at = [](Storage& s, int64_t i) { return read_element(s.data(), i, s.dtype()).real; };
  const auto sigmoid = [](double x) { return 1 / (1 + std::exp(-x)); };
  std::vector<double> h, kept;
  for (int64_t i = 0; i < cells; ++i)
    h.push_back(at(h0, direction * cells + i)), kept.push_back(at(gates == 4 ? c0 : h0, direction * cells + i));
  for (int64_t step = 0; step < time; ++step) {
    const int64_t t = direction == 0 ? step : time - 1 - step;
    std::vector<double> next = h;
    for (int64_t row = 0; row < batch; ++row)
      for (int64_t unit = 0; unit < hidden; ++unit) {
        double x[4], r[4];
        for (int64_t g = 0; g < gates; ++g) {
          const int64_t line = g * hidden + unit;
          x[g] = at(inputs, ((t * batch + row) * gates + g) * hidden + unit) + at(b_ih, line), r[g] = at(b_hh, line);
          for (int64_t i = 0; i < hidden; ++i) r[g] += h[static_cast<size_t>(row * hidden + i)] * at(w, line * hidden + i);
        }
        double& c = kept[static_cast<size_t>(row * hidden + unit)];
        if (gates == 4) c = sigmoid(x[1] + r[1]) * c + sigmoid(x[0] + r[0]) * std::tanh(x[2] + r[2]);
        else c = (1 - sigmoid(x[1] + r[1])) * std::tanh(x[2] + sigmoid(x[0] + r[0]) * r[2]) + sigmoid(x[1] + r[1]) * c;
        const double now = next[static_cast<size_t>(row * hidden + unit)] = gates == 4 ? sigmoid(x[3] + r[3]) * std::tanh(c) : c;
        expected.push_back({6, (t * batch + row) * 2 * hidden + direction * hidden + unit, now});
      }
    h = next;
  }
  for (int64_t i = 0; i < cells; ++i) {
    expected.push_back({7, direction * cells + i, h[static_cast<size_t>(i)]});
    if (gates == 4) expected.push_back({8, direction * cells + i, kept[static_cast<size_t>(i)]});
  }
  const int64_t part = direction * cells * bytes;
  skipped = {0, 0, 0, 0, part, part, direction * hidden * bytes, part, part};
  for (Storage* s : {&inputs, &w, &b_ih, &b_hh, &h0, &c0, &y, &h_n, &c_n}) buffers.push_back(std::move(*s));
}

std::vector<void*> RnnCase::pointers(std::vector<Storage>& of) const {
  std::vector<void*> out;
  for (size_t i = 0; i < of.size(); ++i) out.push_back(static_cast<char*>(of[i].data()) + skipped[i]);
  return out;
}

std::string RnnCase::difference(std::vector<Storage>& got) const {
  for (const Expected& e : expected) {
    const double x = read_element(got[e.pointer].data(), e.element, got[e.pointer].dtype()).real;
    if (std::isnan(e.value) ? std::isnan(x) : std::fabs(x - e.value) < room) continue;
    return "element " + std::to_string(e.element) + " of pointer " + std::to_string(e.pointer) + ": " + std::to_string(x) + ", want " +
           std::to_string(e.value);
  }
  for (Storage& s : got)
    if (!s.zones_intact()) return "a write beside a buffer";
  return "";
}

std::vector<RnnCase> rnn_cases() {
  using enum FirstState;
  std::vector<RnnCase> out;
  const auto add = [&](uint32_t op, uint8_t dtype, int64_t time, int64_t batch, int64_t hidden, int64_t way, FirstState state = kNumbers) {
    out.emplace_back(op, dtype, time, batch, hidden, way, state);
  };
  for (uint8_t dtype : {kit::kDType_bf16, kit::kDType_f16, kit::kDType_f32}) {
    add(kit::kOp_lstm, dtype, 3, 20, 16, 0);
    add(kit::kOp_gru, dtype, 3, 17, 48, 1);
    add(kit::kOp_lstm, dtype, 2, 3, 72, 1);
    add(kit::kOp_gru, dtype, 2, 2, 13, 0);
    add(kit::kOp_lstm, dtype, 2, 17, 11, 1);
    add(kit::kOp_lstm, dtype, 2, 2, 16, 0, kStartsWithNan);
    add(kit::kOp_lstm, dtype, 2, 2, 9, 0, kStartsWithInfinity);
    add(kit::kOp_lstm, dtype, 2, 5, 264, 0);
  }
  return out;
}

}  // namespace keirin::test
