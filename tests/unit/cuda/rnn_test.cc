// SPDX-License-Identifier: Apache-2.0
//
// Recurrent layers without a GPU: a block that has all units makes the states on emulated threads, layouts cover all units and rows
// and fit the device, NVRTC takes their kernels for every architecture that they are for, and what they do not take is refused.
#include <gtest/gtest.h>

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
#include "tests/unit/cuda/block_emulator.h"
#include "tests/unit/cuda/rnn_case.h"

namespace keirin::cuda {
namespace {

using namespace gpu;

using codegen::AnchorDesc;
using codegen::TensorDesc;
using test::FirstState;
using test::rnn_anchor;

// f32 may be rounded as eager's library does.
const Numerics kRounded(KRN_NUMERICS_DEFAULT, KRN_POLICY_TF32_RECURRENT);

// One block has all units of up to 16 rows at a time, so that it waits for nobody.
void check_steps(uint32_t op, uint8_t dtype, int64_t time, int64_t batch, int64_t hidden, int64_t direction,
                 FirstState first_state = FirstState::kNumbers, const Numerics& numerics = {}) {
  Gpu gpu = imagine_gpu("sm_90");
  gpu.facts.num_units = 1;
  test::RnnCase c(op, dtype, time, batch, hidden, direction, first_state, numerics.tf32_recurrent);
  const TextKernel k = rnn_kernel(c.anchor, 0, direction, gpu, numerics);
  ASSERT_EQ(k.launches[1].blocks, 1);
  std::string error;
  test::HostModule module(codegen::print_prelude(codegen::kHostDialect) + text_of(k), error);
  ASSERT_EQ(error, "");
  std::vector<char> states(static_cast<size_t>(k.workspace_bytes));
  std::vector<void*> pointers = c.pointers(c.buffers);
  pointers.push_back(states.data());
  for (const TextKernel::Launch& launch : k.launches)
    ASSERT_EQ(module.launch(launch.symbol, launch.blocks, launch.threads, k.sizes.data(), pointers.data()), "");
  EXPECT_EQ(c.difference(c.buffers), "") << c.name;
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
        const AnchorDesc a = rnn_anchor(op, batch == 3 ? kit::kDType_f16 : kit::kDType_bf16, 5, batch, 24, hidden);
        if (!rnn_taken(a, gpu, KRN_NUMERICS_DEFAULT, why_not)) continue;
        EXPECT_NO_THROW(compile_cubin(whole_text(rnn_kernel(a, 0, 0, gpu, {}), gpu_driver()), target_of(arch))) << arch << " of " << hidden;
      }
    for (const Numerics& numerics : {Numerics(), kRounded})
      for (const int64_t hidden : {50, 256})
        EXPECT_NO_THROW(compile_cubin(
            whole_text(rnn_kernel(rnn_anchor(kit::kOp_gru, kit::kDType_f32, 5, 20, 24, hidden), 0, 0, gpu, numerics), gpu_driver()),
            target_of(arch)))
            << arch << " of " << hidden;
  }
}

TEST(Rnn, IsCompiledWithoutADevice) {
  std::string why_not;
  if (!Nvrtc::get(why_not)) GTEST_SKIP() << "no NVRTC: " << why_not;
  const Gpu gpu = imagine_gpu("sm_90");
  const AnchorDesc a = rnn_anchor(kit::kOp_lstm, kit::kDType_bf16, 5, 20, 24, 64);
  const auto step = make_rnn(a, gpu, target_of("sm_90"), {}, false);
  EXPECT_EQ(step->describe(), "lstm 1 layers x 1 [5x20, 64] 8 units, 8x2 blocks, 1 sets");
  EXPECT_GE(step->workspace_bytes(), 5 * 20 * 4 * 64 * 4);
  EXPECT_EQ(step->run(codegen::RunContext{}), KRN_STATUS_internal) << "a run needs a device";
}

TEST(Rnn, IsRoundedWhereEagerRounds) {
  AnchorDesc a = rnn_anchor(kit::kOp_gru, kit::kDType_f32, 5, 4, 24, 64);
  const Gpu gpu = imagine_gpu("sm_90");
  EXPECT_TRUE(rnn_precision(a, gpu, kRounded).tf32);
  EXPECT_TRUE(rnn_precision(a, gpu, KRN_NUMERICS_FAST).tf32);
  EXPECT_FALSE(rnn_precision(a, gpu, Numerics(KRN_NUMERICS_DEFAULT, KRN_POLICY_TF32_PRODUCTS | KRN_POLICY_TF32_CONVOLUTIONS)).tf32);
  a.ieee = true;
  EXPECT_FALSE(rnn_precision(a, gpu, kRounded).tf32);
  EXPECT_FALSE(rnn_precision(rnn_anchor(kit::kOp_gru, kit::kDType_f16, 5, 4, 24, 64), gpu, kRounded).tf32);
}

TEST(Rnn, WhatIsTaken) {
  const Gpu gpu = imagine_gpu("sm_90");
  std::string why_not;
  for (uint32_t op : {kit::kOp_lstm, kit::kOp_gru}) {
    const AnchorDesc a = rnn_anchor(op, kit::kDType_bf16, 5, 4, 24, 64);
    EXPECT_TRUE(rnn_taken(a, gpu, KRN_NUMERICS_DEFAULT, why_not)) << why_not;
    EXPECT_FALSE(rnn_taken(a, gpu, KRN_NUMERICS_STRICT, why_not));
    EXPECT_FALSE(rnn_taken(a, imagine_gpu("sm_75"), KRN_NUMERICS_DEFAULT, why_not));
    EXPECT_TRUE(rnn_taken(rnn_anchor(op, kit::kDType_f32, 5, 4, 24, 1024), gpu, KRN_NUMERICS_DEFAULT, why_not)) << why_not;
    EXPECT_FALSE(rnn_taken(rnn_anchor(op, kit::kDType_f32, 5, 4, 24, 1100), gpu, KRN_NUMERICS_DEFAULT, why_not)) << "too wide a state";
    EXPECT_FALSE(rnn_taken(rnn_anchor(op, kit::kDType_f64, 5, 4, 24, 64), gpu, KRN_NUMERICS_DEFAULT, why_not));
    EXPECT_TRUE(rnn_taken(rnn_anchor(op, kit::kDType_f16, 5, 4, 3, 8), gpu, KRN_NUMERICS_DEFAULT, why_not)) << why_not;
    EXPECT_TRUE(rnn_taken(rnn_anchor(op, kit::kDType_bf16, 5, 4, 24, 61), gpu, KRN_NUMERICS_DEFAULT, why_not)) << why_not;
    EXPECT_FALSE(rnn_taken(rnn_anchor(op, kit::kDType_bf16, 5, 4, 24, 4096), gpu, KRN_NUMERICS_DEFAULT, why_not)) << "a matrix of 128 MiB";
    EXPECT_FALSE(rnn_taken(rnn_anchor(op, kit::kDType_bf16, 0, 4, 24, 64), gpu, KRN_NUMERICS_DEFAULT, why_not)) << "no steps";
    AnchorDesc apart = a;
    apart.operands.back().strides[0] = 2;
    EXPECT_FALSE(rnn_taken(apart, gpu, KRN_NUMERICS_DEFAULT, why_not));
  }
}

}  // namespace
}  // namespace keirin::cuda
