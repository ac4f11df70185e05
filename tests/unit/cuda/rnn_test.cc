// SPDX-License-Identifier: Apache-2.0
//
// Recurrent layers without a GPU: a block that has all units makes the states on emulated threads, layouts cover all units and rows
// and fit the device, NVRTC takes their kernels for every architecture that they are for, and what they do not take is refused.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "cuda/device.h"
#include "cuda/driver.h"
#include "cuda/gpu_driver.h"
#include "cuda/nvrtc.h"
#include "plugins/codegen/text/c_printer.h"
#include "plugins/gpu/backend.h"
#include "plugins/gpu/choose.h"
#include "plugins/gpu/csr.h"
#include "plugins/gpu/rnn.h"
#include "plugins/kit/error.h"
#include "plugins/kit/tables.h"
#include "tests/unit/cpu/kernel_maker.h"
#include "tests/unit/cuda/block_emulator.h"

namespace keirin::cuda {
namespace {

using namespace gpu;

using codegen::AnchorDesc;
using codegen::TensorDesc;

// Time-first, one layer.
AnchorDesc anchor_of(uint32_t op, uint8_t dtype, int64_t time, int64_t batch, int64_t input, int64_t hidden) {
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

// f32 may be rounded as eager's library does.
const Numerics kRounded(KRN_NUMERICS_DEFAULT, KRN_POLICY_TF32_RECURRENT);

// NaNs of all bits, which is what a word looks like that has not come; an infinity, beside numbers whose low bits are zero.
enum class FirstState { kNumbers, kStartsWithNan, kStartsWithInfinity };

// One block has all units of up to 16 rows at a time, so that it waits for nobody.
void check_steps(uint32_t op, uint8_t dtype, int64_t time, int64_t batch, int64_t hidden, int64_t direction,
                 FirstState first_state = FirstState::kNumbers, const Numerics& numerics = {}) {
  Gpu gpu = imagine_gpu("sm_90");
  gpu.facts.num_units = 1;
  AnchorDesc a = anchor_of(op, dtype, time, batch, 8, hidden);
  const int64_t gates = op == kit::kOp_lstm ? 4 : 3, first = gates - 1, cells = batch * hidden, bytes = float_bytes(dtype);
  // Both directions have the same weights; y has the other one's columns beside these.
  a.bidirectional = true;
  for (int i = 0; i < 4; ++i) a.operands.push_back(a.operands[static_cast<size_t>(first + i)]);
  a.results[0].sizes[2] = 2 * hidden, a.results[0].strides = {batch * 2 * hidden, 2 * hidden, 1};
  const TextKernel k = rnn_kernel(a, 0, direction, gpu, numerics);
  ASSERT_EQ(k.launches[1].blocks, 1);
  std::string error;
  test::HostModule module(codegen::print_prelude(codegen::kHostDialect) + text_of(k), error);
  ASSERT_EQ(error, "");
  std::mt19937 random(7);
  const auto drawn = [&](int64_t n, double scale, uint8_t type) {
    test::Storage s(type, n);
    for (int64_t e = 0; e < n; ++e) test::write_element(s.data(), e, type, std::normal_distribution<double>(0, scale)(random), 0);
    return s;
  };
  test::Storage inputs = drawn(time * cells * gates, 1, kit::kDType_f32),
                w = drawn(gates * hidden * hidden, 1.5 / std::sqrt(hidden), dtype), b_ih = drawn(gates * hidden, 0.3, dtype),
                b_hh = drawn(gates * hidden, 0.3, dtype), h0 = drawn(2 * cells, 0.5, dtype), c0 = drawn(2 * cells, 0.5, dtype),
                y = drawn(2 * time * cells, 1, dtype), h_n = drawn(2 * cells, 1, dtype), c_n = drawn(2 * cells, 1, dtype);
  if (first_state == FirstState::kStartsWithNan) std::memset(static_cast<char*>(h0.data()) + direction * cells * bytes, 0xff, 4);
  if (first_state == FirstState::kStartsWithInfinity) {
    test::write_element(h0.data(), direction * cells, dtype, HUGE_VAL, 0);
    for (int64_t e = 0; e < gates * hidden * hidden; ++e)
      test::write_element(w.data(), e, dtype, (std::floor(64 * test::read_element(w.data(), e, dtype).real) + 0.5) / 64, 0);
  }
  std::vector<char> states(static_cast<size_t>(k.workspace_bytes));
  const int64_t part = direction * cells * bytes;
  const auto from = [](test::Storage& s, int64_t skipped_bytes) {
    return static_cast<void*>(static_cast<char*>(s.data()) + skipped_bytes);
  };
  void* pointers[] = {
      inputs.data(),   w.data(),        b_ih.data(),  b_hh.data(), from(h0, part), from(c0, part), from(y, direction * hidden * bytes),
      from(h_n, part), from(c_n, part), states.data()};
  for (const TextKernel::Launch& launch : k.launches)
    ASSERT_EQ(module.launch(launch.symbol, launch.blocks, launch.threads, k.sizes.data(), pointers), "");

  const auto at = [](const test::Storage& s, int64_t i) {
    return test::read_element(const_cast<test::Storage&>(s).data(), i, s.dtype()).real;
  };
  const auto sigmoid = [](double x) { return 1 / (1 + std::exp(-x)); };
  const auto alike = [](double got, double want, double room) { return std::isnan(want) ? std::isnan(got) : std::fabs(got - want) < room; };
  // A few roundings of a state.
  const double room = dtype == kit::kDType_bf16 ? 0.02 : dtype == kit::kDType_f16 || numerics.tf32_recurrent ? 0.0025 : 4e-6;
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
        next[static_cast<size_t>(row * hidden + unit)] = gates == 4 ? sigmoid(x[3] + r[3]) * std::tanh(c) : c;
        ASSERT_PRED3(alike, at(y, (t * batch + row) * 2 * hidden + direction * hidden + unit),
                     next[static_cast<size_t>(row * hidden + unit)], room)
            << "step " << step << " row " << row << " unit " << unit;
      }
    h = next;
  }
  for (int64_t i = 0; i < cells; ++i) {
    ASSERT_PRED3(alike, at(h_n, direction * cells + i), h[static_cast<size_t>(i)], room);
    if (gates == 4) {
      ASSERT_PRED3(alike, at(c_n, direction * cells + i), kept[static_cast<size_t>(i)], room);
    }
  }
}

TEST(Rnn, StepsOfOneBlock) {
  check_steps(kit::kOp_lstm, kit::kDType_bf16, 3, 20, 16, 0);
  check_steps(kit::kOp_lstm, kit::kDType_f16, 2, 3, 24, 1);
  check_steps(kit::kOp_gru, kit::kDType_f16, 3, 17, 16, 1);
  check_steps(kit::kOp_gru, kit::kDType_bf16, 2, 1, 32, 0);
  check_steps(kit::kOp_lstm, kit::kDType_bf16, 2, 2, 16, 0, FirstState::kStartsWithNan);
}

TEST(Rnn, StepsOfOneBlockInFull) {
  for (const Numerics& numerics : {Numerics(), kRounded}) {
    check_steps(kit::kOp_lstm, kit::kDType_f32, 3, 20, 16, 0, FirstState::kNumbers, numerics);
    check_steps(kit::kOp_gru, kit::kDType_f32, 3, 3, 24, 1, FirstState::kNumbers, numerics);
    check_steps(kit::kOp_gru, kit::kDType_f32, 2, 1, 32, 0, FirstState::kNumbers, numerics);
    check_steps(kit::kOp_lstm, kit::kDType_f32, 2, 2, 16, 1, FirstState::kStartsWithNan, numerics);
    check_steps(kit::kOp_lstm, kit::kDType_f32, 2, 2, 16, 0, FirstState::kStartsWithInfinity, numerics);
  }
}

TEST(Rnn, StepsOfWidthsThatEndWithinAWord) {
  check_steps(kit::kOp_gru, kit::kDType_bf16, 3, 2, 13, 0);
  check_steps(kit::kOp_lstm, kit::kDType_f16, 2, 17, 11, 1);
  check_steps(kit::kOp_lstm, kit::kDType_bf16, 2, 2, 9, 0, FirstState::kStartsWithInfinity);
  check_steps(kit::kOp_lstm, kit::kDType_f32, 3, 2, 18, 1);
  check_steps(kit::kOp_gru, kit::kDType_f32, 2, 3, 1, 0, FirstState::kNumbers, kRounded);
}

TEST(Rnn, LayoutsCoverEverythingAndFit) {
  for (const char* arch : {"sm_80", "sm_86", "sm_90", "sm_100"}) {
    const Gpu gpu = imagine_gpu(arch);
    int taken = 0;
    for (int64_t gates : {3, 4})
      for (const RnnPrecision& precision : {RnnPrecision{2, 1, false}, {4, 1, true}, {4, 3, false}})
        for (int64_t hidden = 1; hidden <= 2048; hidden += hidden % 8 ? 7 : 8)
          for (int64_t batch : {1, 16, 17, 64, 100, 256}) {
            const auto l = rnn_layout(gates, hidden, batch, precision, gpu);
            if (!l) continue;
            ++taken;
            EXPECT_GE(l->blocks * l->units, hidden);
            EXPECT_LT((l->blocks - 1) * l->units, hidden) << "a block without units";
            EXPECT_GE(l->groups * l->sets * 16, batch);
            EXPECT_LE(l->blocks * l->groups, gpu.facts.num_units) << "blocks that could not all run at once would wait for ever";
            EXPECT_LE(l->shared_bytes, gpu.block_shared_bytes);
            EXPECT_GE(l->kept, 1);
          }
    EXPECT_GT(taken, 1000) << arch;
  }
}

TEST(Rnn, CompilesForEveryArchitecture) {
  std::string why_not;
  if (!Nvrtc::get(why_not)) GTEST_SKIP() << "no NVRTC: " << why_not;
  for (const char* arch : {"sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120"}) {
    if (!compiles_for(arch)) continue;
    const Gpu gpu = imagine_gpu(arch);
    for (uint32_t op : {kit::kOp_lstm, kit::kOp_gru})
      for (const auto& [batch, hidden] : {std::pair<int64_t, int64_t>{64, 1024}, {3, 8}, {16, 264}, {64, 512}}) {
        const AnchorDesc a = anchor_of(op, batch == 3 ? kit::kDType_f16 : kit::kDType_bf16, 5, batch, 24, hidden);
        if (!rnn_taken(a, gpu, KRN_NUMERICS_DEFAULT, why_not)) continue;
        EXPECT_NO_THROW(compile_cubin(whole_text(rnn_kernel(a, 0, 0, gpu, {}), gpu_driver()), target_of(arch))) << arch << " of " << hidden;
      }
    for (const Numerics& numerics : {Numerics(), kRounded})
      for (const int64_t hidden : {50, 256})
        EXPECT_NO_THROW(compile_cubin(
            whole_text(rnn_kernel(anchor_of(kit::kOp_gru, kit::kDType_f32, 5, 20, 24, hidden), 0, 0, gpu, numerics), gpu_driver()),
            target_of(arch)))
            << arch << " of " << hidden;
  }
}

TEST(Rnn, IsCompiledWithoutADevice) {
  std::string why_not;
  if (!Nvrtc::get(why_not)) GTEST_SKIP() << "no NVRTC: " << why_not;
  const Gpu gpu = imagine_gpu("sm_90");
  const AnchorDesc a = anchor_of(kit::kOp_lstm, kit::kDType_bf16, 5, 20, 24, 64);
  const auto step = make_rnn(a, gpu, target_of("sm_90"), {}, false);
  EXPECT_EQ(step->describe(), "lstm 1 layers x 1 [5x20, 64] 8 units, 8x2 blocks, 1 sets");
  EXPECT_GE(step->workspace_bytes(), 5 * 20 * 4 * 64 * 4);
  EXPECT_EQ(step->run(codegen::RunContext{}), KRN_STATUS_internal) << "a run needs a device";
}

TEST(Rnn, IsRoundedWhereEagerRounds) {
  AnchorDesc a = anchor_of(kit::kOp_gru, kit::kDType_f32, 5, 4, 24, 64);
  const Gpu gpu = imagine_gpu("sm_90");
  EXPECT_TRUE(rnn_precision(a, gpu, kRounded).tf32);
  EXPECT_TRUE(rnn_precision(a, gpu, KRN_NUMERICS_FAST).tf32);
  EXPECT_FALSE(rnn_precision(a, gpu, Numerics(KRN_NUMERICS_DEFAULT, KRN_POLICY_TF32_PRODUCTS | KRN_POLICY_TF32_CONVOLUTIONS)).tf32);
  a.ieee = true;
  EXPECT_FALSE(rnn_precision(a, gpu, kRounded).tf32);
  EXPECT_FALSE(rnn_precision(anchor_of(kit::kOp_gru, kit::kDType_f16, 5, 4, 24, 64), gpu, kRounded).tf32);
}

TEST(Rnn, WhatIsTaken) {
  const Gpu gpu = imagine_gpu("sm_90");
  std::string why_not;
  for (uint32_t op : {kit::kOp_lstm, kit::kOp_gru}) {
    const AnchorDesc a = anchor_of(op, kit::kDType_bf16, 5, 4, 24, 64);
    EXPECT_TRUE(rnn_taken(a, gpu, KRN_NUMERICS_DEFAULT, why_not)) << why_not;
    EXPECT_FALSE(rnn_taken(a, gpu, KRN_NUMERICS_STRICT, why_not));
    EXPECT_FALSE(rnn_taken(a, imagine_gpu("sm_75"), KRN_NUMERICS_DEFAULT, why_not));
    EXPECT_TRUE(rnn_taken(anchor_of(op, kit::kDType_f32, 5, 4, 24, 1024), gpu, KRN_NUMERICS_DEFAULT, why_not)) << why_not;
    EXPECT_FALSE(rnn_taken(anchor_of(op, kit::kDType_f32, 5, 4, 24, 1100), gpu, KRN_NUMERICS_DEFAULT, why_not)) << "too wide a state";
    EXPECT_FALSE(rnn_taken(anchor_of(op, kit::kDType_f64, 5, 4, 24, 64), gpu, KRN_NUMERICS_DEFAULT, why_not));
    EXPECT_TRUE(rnn_taken(anchor_of(op, kit::kDType_f16, 5, 4, 3, 8), gpu, KRN_NUMERICS_DEFAULT, why_not)) << why_not;
    EXPECT_TRUE(rnn_taken(anchor_of(op, kit::kDType_bf16, 5, 4, 24, 61), gpu, KRN_NUMERICS_DEFAULT, why_not)) << why_not;
    EXPECT_FALSE(rnn_taken(anchor_of(op, kit::kDType_bf16, 5, 4, 24, 4096), gpu, KRN_NUMERICS_DEFAULT, why_not)) << "a matrix of 128 MiB";
    EXPECT_FALSE(rnn_taken(anchor_of(op, kit::kDType_bf16, 0, 4, 24, 64), gpu, KRN_NUMERICS_DEFAULT, why_not)) << "no steps";
    AnchorDesc apart = a;
    apart.operands.back().strides[0] = 2;
    EXPECT_FALSE(rnn_taken(apart, gpu, KRN_NUMERICS_DEFAULT, why_not));
  }
}

}  // namespace
}  // namespace keirin::cuda
