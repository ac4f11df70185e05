// SPDX-License-Identifier: Apache-2.0
//
// Recurrent layers on a real GPU against plain loops that round a state where the kernel does: one block and many, rows that share
// blocks in turn, edges in every direction, and what a step costs. Skips, with the reason, where there is no GPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <random>

#include "cuda/cublaslt.h"
#include "cuda/device.h"
#include "cuda/driver.h"
#include "cuda/nvrtc.h"
#include "plugins/codegen/region/rnn.h"
#include "plugins/gpu/backend.h"
#include "plugins/gpu/choose.h"
#include "plugins/gpu/csr.h"
#include "plugins/gpu/rnn.h"
#include "plugins/kit/error.h"
#include "plugins/kit/tables.h"
#include "tests/device/machine.h"
#include "tests/unit/cuda/case_runner.h"

namespace keirin::cuda {
namespace {

using namespace gpu;

using codegen::AnchorDesc;
using codegen::RnnShape;
using codegen::TensorDesc;
using Dims = std::vector<int64_t>;

struct Case {
  int64_t time, batch, input, hidden, layers = 1;
  bool both = false, batch_first = false, biases = true, turned = false;  // turned: y lies the other way round in memory
};

class CudaRnn : public testing::Test {
 protected:
  void SetUp() override {
    if (!machine().context) GTEST_SKIP() << "no GPU to run on: " << machine().why_not;
    std::string why_not;
    if (!cublas_products().usable(why_not)) GTEST_SKIP() << why_not;
    machine().gpu->driver->make_current(machine().context->handle());
  }
};

// A tensor on the device with its values here.
struct Tensor {
  TensorDesc desc;
  std::vector<float> values;  // by address
  std::unique_ptr<DeviceMemory> memory;
};

struct Problem {
  AnchorDesc anchor;
  std::vector<Tensor> tensors;  // by buffer

  Problem(const Case& c, uint32_t op, uint8_t dtype) {
    const int64_t gates = op == kit::kOp_lstm ? 4 : 3, dirs = c.both ? 2 : 1;
    std::mt19937 random(5);
    const auto add = [&](Dims sizes, double scale) {
      TensorDesc t;
      t.buffer = static_cast<uint32_t>(tensors.size()), t.dtype = dtype, t.sizes = sizes, t.strides.assign(sizes.size(), 1);
      for (size_t i = sizes.size() - 1; i-- > 0;) t.strides[i] = t.strides[i + 1] * sizes[i + 1];
      Tensor made{t, {}, nullptr};
      std::vector<char> bytes(static_cast<size_t>(float_bytes(dtype) * t.strides[0] * sizes[0]));
      for (int64_t i = 0; i < t.strides[0] * sizes[0]; ++i) {
        test::write_element(bytes.data(), i, dtype, std::normal_distribution<double>(0, scale)(random), 0);
        made.values.push_back(static_cast<float>(test::read_element(bytes.data(), i, dtype).real));
      }
      made.memory = std::make_unique<DeviceMemory>(bytes);
      tensors.push_back(std::move(made));
      return t;
    };
    AnchorDesc& a = anchor;
    a.op = op, a.layers = c.layers, a.bidirectional = c.both, a.batch_first = c.batch_first, a.has_biases = c.biases;
    const auto sequence = [&](int64_t width) { return c.batch_first ? Dims{c.batch, c.time, width} : Dims{c.time, c.batch, width}; };
    a.operands.push_back(add(sequence(c.input), 1));
    for (int i = 0; i < (gates == 4 ? 2 : 1); ++i) a.operands.push_back(add({c.layers * dirs, c.batch, c.hidden}, 0.5));
    const double scale = 1.5 / std::sqrt(static_cast<double>(c.hidden));
    for (int64_t l = 0; l < c.layers * dirs; ++l) {
      a.operands.push_back(add({gates * c.hidden, l < dirs ? c.input : dirs * c.hidden}, scale));
      a.operands.push_back(add({gates * c.hidden, c.hidden}, scale));
      for (int i = 0; c.biases && i < 2; ++i) a.operands.push_back(add({gates * c.hidden}, scale));
    }
    a.results.push_back(add(sequence(dirs * c.hidden), 1));
    if (c.turned) a.results[0].strides = {dirs * c.hidden, a.results[0].sizes[0] * dirs * c.hidden, 1};
    for (int i = 0; i < (gates == 4 ? 2 : 1); ++i) a.results.push_back(add({c.layers * dirs, c.batch, c.hidden}, 1));
  }
};

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

float rounded(double v, uint8_t dtype) {
  char bytes[4];
  test::write_element(bytes, 0, dtype, v, 0);
  return static_cast<float>(test::read_element(bytes, 0, dtype).real);
}

// Results in the order of the anchor's, each row-major by the sizes of its descriptor.
std::vector<std::vector<float>> expected(const Problem& p, const Case& c, uint8_t dtype) {
  const AnchorDesc& a = p.anchor;
  const RnnShape s(a);
  const auto value = [&](const TensorDesc& t) { return p.tensors[t.buffer].values.data(); };
  std::vector<float> in(static_cast<size_t>(s.time * s.batch * s.input));  // time-first
  for (int64_t t = 0; t < s.time; ++t)
    for (int64_t b = 0; b < s.batch; ++b)
      for (int64_t i = 0; i < s.input; ++i)
        in[static_cast<size_t>((t * s.batch + b) * s.input + i)] =
            value(a.operands[0])[(c.batch_first ? b * s.time + t : t * s.batch + b) * s.input + i];
  const int64_t n = s.hidden, width = s.directions * n, cells = s.batch * n;
  std::vector<float> out, hs(static_cast<size_t>(s.layers * s.directions * cells)), cs = hs;
  for (int64_t layer = 0; layer < s.layers; ++layer) {
    out.assign(static_cast<size_t>(s.time * s.batch * width), 0);
    const int64_t k = s.layer_input(layer);
    for (int64_t d = 0; d < s.directions; ++d) {
      const int64_t place = (layer * s.directions + d) * cells;
      std::vector<float> h(value(a.operands[1]) + place, value(a.operands[1]) + place + cells);
      std::vector<double> state(h.begin(), h.end());  // of an LSTM c, of a GRU h before it is rounded
      if (s.lstm) state.assign(value(a.operands[2]) + place, value(a.operands[2]) + place + cells);
      const float *w = value(s.weight(a, layer, d, 0)), *u = value(s.weight(a, layer, d, 1));
      for (int64_t step = 0; step < s.time; ++step) {
        const int64_t t = d == 0 ? step : s.time - 1 - step;
        std::vector<float> next(h.size());
        for (int64_t b = 0; b < s.batch; ++b) {
          for (int64_t j = 0; j < n; ++j) {
            double x[4], r[4];
            for (int64_t g = 0; g < s.gates; ++g) {
              const int64_t line = g * n + j;
              double of_x = 0, of_h = 0;
              const float *xs = &in[static_cast<size_t>((t * s.batch + b) * k)], *hb = &h[static_cast<size_t>(b * n)];
              for (int64_t i = 0; i < k; ++i) of_x += static_cast<double>(xs[i]) * w[line * k + i];
              for (int64_t i = 0; i < n; ++i) of_h += static_cast<double>(hb[i]) * u[line * n + i];
              x[g] = of_x + (s.biases ? value(s.weight(a, layer, d, 2))[line] : 0),
              r[g] = of_h + (s.biases ? value(s.weight(a, layer, d, 3))[line] : 0);
            }
            double& kept = state[static_cast<size_t>(b * n + j)];
            double now;
            if (s.lstm) {
              kept = sigmoid(x[1] + r[1]) * kept + sigmoid(x[0] + r[0]) * std::tanh(x[2] + r[2]);
              now = sigmoid(x[3] + r[3]) * std::tanh(kept);
            } else {
              const double z = sigmoid(x[1] + r[1]);
              kept = now = (1 - z) * std::tanh(x[2] + sigmoid(x[0] + r[0]) * r[2]) + z * kept;
            }
            next[static_cast<size_t>(b * n + j)] = rounded(now, dtype);
          }
        }
        h = next;
        for (int64_t b = 0; b < s.batch; ++b)
          std::copy_n(&h[static_cast<size_t>(b * n)], n, &out[static_cast<size_t>((t * s.batch + b) * width + d * n)]);
      }
      std::copy(h.begin(), h.end(), hs.begin() + place);
      std::copy(state.begin(), state.end(), cs.begin() + place);
    }
    in = out;
  }
  std::vector<float> y(out.size());
  for (int64_t t = 0; t < s.time; ++t)
    for (int64_t b = 0; b < s.batch; ++b)
      std::copy_n(&out[static_cast<size_t>((t * s.batch + b) * width)], width,
                  &y[static_cast<size_t>((c.batch_first ? b * s.time + t : t * s.batch + b) * width)]);
  return s.lstm ? std::vector{y, hs, cs} : std::vector{y, hs};
}

struct Made {
  std::unique_ptr<codegen::Step> step;
  std::unique_ptr<DeviceMemory> workspace;
  std::vector<void*> buffers;
};

// Where f32 may be rounded.
const Numerics kRounded(KRN_NUMERICS_DEFAULT, KRN_POLICY_TF32_RECURRENT);

Made make(const Problem& p, const Numerics& numerics = {}) {
  Made m;
  m.step = chosen_step(p.anchor, numerics);
  for (const Tensor& t : p.tensors) m.buffers.push_back(t.memory->data());
  m.workspace = std::make_unique<DeviceMemory>(static_cast<size_t>(m.step->workspace_bytes()));
  m.step->set_workspace(static_cast<uint32_t>(m.buffers.size()));
  m.buffers.push_back(m.workspace->data());
  return m;
}

TEST_F(CudaRnn, AgreesWithPlainLoops) {
  const Case cases[] = {{5, 3, 6, 8},
                        {1, 1, 16, 32},
                        {4, 5, 3, 8, 2, true},
                        {9, 33, 10, 104, 1, false, true},
                        {7, 17, 40, 72, 2, true, true},
                        {6, 35, 8, 72, 3, false, false, false},
                        {4, 20, 24, 264, 1, true, false, true, true},
                        {5, 1, 64, 1024},
                        {4, 20, 7, 61, 2, true},
                        {3, 70, 32, 520},    // more rows than groups of blocks: sets in turn
                        {3, 64, 16, 1024}};  // most of the device's registers and shared memory
  for (const Case& c : cases) {
    for (uint32_t op : {kit::kOp_lstm, kit::kOp_gru}) {
      for (const auto& [dtype, numerics] : {std::pair<uint8_t, Numerics>{kit::kDType_bf16, {}},
                                            {kit::kDType_f16, {}},
                                            {kit::kDType_f32, {}},
                                            {kit::kDType_f32, kRounded}}) {
        const std::string name = std::string(op == kit::kOp_lstm ? "lstm" : "gru") + " of " + std::to_string(c.hidden) + ", batch " +
                                 std::to_string(c.batch) + ", dtype " + std::to_string(dtype);
        const Problem p(c, op, dtype);
        Made m;
        try {
          m = make(p, numerics);
        } catch (const kit::Error& error) {
          ADD_FAILURE() << name << ": " << error.what();
          continue;
        }
        const auto want = expected(p, c, dtype);
        std::vector<std::vector<char>> first;
        // A state rounded the other way is off by a step of its dtype, and that goes on through the steps.
        const double room = dtype == kit::kDType_bf16 ? 0.03 : dtype == kit::kDType_f16 || numerics.tf32_recurrent ? 0.004 : 1e-5;
        for (int round = 0; round < 3; ++round) {
          ASSERT_EQ(run_step(*m.step, m.buffers), KRN_STATUS_ok) << name;
          for (size_t r = 0; r < want.size(); ++r) {
            const TensorDesc& t = p.anchor.results[r];
            const std::vector<char> got = p.tensors[t.buffer].memory->get(want[r].size() * static_cast<size_t>(float_bytes(dtype)));
            int64_t wrong = 0, first_wrong = 0;
            for (int64_t i = static_cast<int64_t>(want[r].size()); i-- > 0;) {
              const int64_t at = i / (t.sizes[1] * t.sizes[2]) * t.strides[0] + i / t.sizes[2] % t.sizes[1] * t.strides[1] + i % t.sizes[2];
              const double value = test::read_element(got.data(), at, dtype).real;
              if (!(std::fabs(value - static_cast<double>(want[r][static_cast<size_t>(i)])) < room)) ++wrong, first_wrong = i;
            }
            EXPECT_EQ(wrong, 0) << name << ", " << m.step->describe() << ": wrong in result " << r << ", first at "
                                << first_wrong / (t.sizes[1] * t.sizes[2]) << ", " << first_wrong / t.sizes[2] % t.sizes[1] << ", "
                                << first_wrong % t.sizes[2] << " of " << t.sizes[0] << "x" << t.sizes[1] << "x" << t.sizes[2];
            // Equal runs give equal bits: sums are taken in one order.
            if (round == 0) first.push_back(got);
            ASSERT_EQ(got, first[r]) << name << ", result " << r << ", round " << round;
          }
        }
      }
    }
  }
}

TEST_F(CudaRnn, SpeedOfAStep) {
  struct Kind {
    uint8_t dtype;
    const char* name;
    Numerics numerics;
  };
  const Case cases[] = {{128, 64, 1024, 1024}, {128, 32, 1024, 1024}, {128, 1, 1024, 1024},
                        {128, 64, 512, 512},   {128, 64, 256, 256},   {128, 128, 1024, 1024}};
  for (const Kind& kind :
       {Kind{kit::kDType_bf16, "bf16", {}}, Kind{kit::kDType_f32, "f32 in TF32", kRounded}, Kind{kit::kDType_f32, "f32", {}}}) {
    for (int i = 0; i < 12; ++i) {
      const Case& c = cases[i / 2];
      const Problem p(c, i % 2 ? kit::kOp_gru : kit::kOp_lstm, kind.dtype);
      Made m = make(p, kind.numerics);
      CUevent begin, end;
      check(machine().driver->cuEventCreate(&begin, CU_EVENT_DEFAULT), "event");
      check(machine().driver->cuEventCreate(&end, CU_EVENT_DEFAULT), "event");
      std::vector<float> ms;
      for (int round = 0; round < 12; ++round) {
        machine().driver->cuEventRecord(begin, machine().stream);
        ASSERT_EQ(run_step(*m.step, m.buffers), KRN_STATUS_ok);
        machine().driver->cuEventRecord(end, machine().stream);
        machine().driver->cuEventSynchronize(end);
        machine().driver->cuEventElapsedTime(&ms.emplace_back(), begin, end);
      }
      std::sort(ms.begin(), ms.end());
      std::printf("%-9.3f ms, %.2f us a step: %s, %s\n", static_cast<double>(ms[6]),
                  static_cast<double>(ms[6]) * 1e3 / static_cast<double>(c.time), kind.name, m.step->describe().c_str());
    }
  }
}

}  // namespace
}  // namespace keirin::cuda
