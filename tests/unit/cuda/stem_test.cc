// SPDX-License-Identifier: Apache-2.0
//
// Space to depth without a GPU: what the kernel makes on emulated blocks, convolved by a plain loop, is the convolution that was
// asked for; NVRTC takes the kernel for every architecture; and what is not a stem is left alone.
#include <gtest/gtest.h>

#include <cmath>

#include "cuda/device.h"
#include "cuda/driver.h"
#include "cuda/gpu_driver.h"
#include "cuda/nvrtc.h"
#include "plugins/codegen/text/c_printer.h"
#include "plugins/gpu/backend.h"
#include "plugins/gpu/choose.h"
#include "plugins/gpu/csr.h"
#include "plugins/gpu/stem.h"
#include "plugins/kit/error.h"
#include "plugins/kit/tables.h"
#include "tests/unit/cpu/kernel_maker.h"
#include "tests/unit/cuda/block_emulator.h"

namespace keirin::cuda {
namespace {

using namespace gpu;

using codegen::AnchorDesc;
using codegen::TensorDesc;
using Dims = std::vector<int64_t>;

struct Case {
  std::string name;
  uint8_t dtype;
  Dims x, w;
  int64_t stride_h, stride_w, pad_h, pad_w;
  bool last;  // x is channels-last
};

const Case kCases[] = {{"7x7 / 2", kit::kDType_bf16, {2, 3, 13, 17}, {4, 3, 7, 7}, 2, 2, 3, 3, false},
                       {"3x3 / 2, channels-last", kit::kDType_f32, {1, 4, 9, 8}, {8, 4, 3, 3}, 2, 2, 1, 1, true},
                       {"patches", kit::kDType_f16, {2, 3, 8, 12}, {8, 3, 4, 4}, 4, 4, 0, 0, false},
                       {"1x5 / 1x3", kit::kDType_f32, {1, 1, 3, 20}, {3, 1, 1, 5}, 1, 3, 0, 2, false}};

Dims dense(const Dims& s, bool last) {
  return last ? Dims{s[1] * s[2] * s[3], 1, s[3] * s[1], s[1]} : Dims{s[1] * s[2] * s[3], s[2] * s[3], s[3], 1};
}

AnchorDesc anchor_of(const Case& c) {
  const auto tensor = [&](uint32_t buffer, const Dims& sizes, bool last) {
    TensorDesc t;
    t.buffer = buffer, t.dtype = c.dtype, t.sizes = sizes, t.strides = dense(sizes, last);
    return t;
  };
  AnchorDesc a;
  a.op = kit::kOp_conv;
  a.operands = {tensor(0, c.x, c.last), tensor(1, c.w, false), TensorDesc{}};
  const Dims y{c.x[0], c.w[0], (c.x[2] + 2 * c.pad_h - c.w[2]) / c.stride_h + 1, (c.x[3] + 2 * c.pad_w - c.w[3]) / c.stride_w + 1};
  a.results = {tensor(2, y, true)};
  a.stride = {c.stride_h, c.stride_w}, a.padding = {c.pad_h, c.pad_w}, a.dilation = {1, 1};
  return a;
}

void check(const Case& c) {
  const AnchorDesc a = anchor_of(c);
  const auto stem = stem_of(a, KRN_NUMERICS_DEFAULT);
  ASSERT_TRUE(stem) << c.name;
  std::string error;
  test::HostModule module(codegen::print_prelude(codegen::kHostDialect) + text_of(stem->regroup), error);
  ASSERT_EQ(error, "");
  std::mt19937 random(3);
  const auto drawn = [&](const Dims& sizes) {
    test::Storage s(c.dtype, sizes[0] * sizes[1] * sizes[2] * sizes[3]);
    for (int64_t e = 0; e < s.elements(); ++e) test::write_element(s.data(), e, c.dtype, std::normal_distribution<double>(0, 1)(random), 0);
    return s;
  };
  test::Storage x = drawn(c.x), w = drawn(c.w);
  const auto bytes = static_cast<size_t>(stem->regroup.workspace_bytes);
  std::vector<char> made(bytes + 16, char(0xa5));
  void* pointers[] = {x.data(), w.data(), made.data()};
  const TextKernel::Launch& launch = stem->regroup.launches.at(0);
  ASSERT_EQ(module.launch(launch.symbol, launch.blocks, launch.threads, stem->regroup.sizes.data(), pointers), "");
  for (size_t i = bytes; i < made.size(); ++i) ASSERT_EQ(made[i], char(0xa5)) << "wrote behind the workspace";

  const auto at = [&](const void* data, const Dims& strides, const Dims& place) {
    int64_t e = 0;
    for (size_t d = 0; d < place.size(); ++d) e += place[d] * strides[d];
    return test::read_element(data, e, c.dtype).real;
  };
  const ConvTensor &mx = stem->conv.x, &mw = stem->conv.w;
  ASSERT_EQ(mx.sizes[2] - mw.sizes[2] + 1, a.results[0].sizes[2]);
  ASSERT_EQ(mx.sizes[3] - mw.sizes[3] + 1, a.results[0].sizes[3]);
  const Dims& ys = a.results[0].sizes;
  for (int64_t n = 0; n < ys[0]; ++n)
    for (int64_t o = 0; o < ys[1]; ++o)
      for (int64_t i = 0; i < ys[2]; ++i)
        for (int64_t j = 0; j < ys[3]; ++j) {
          double want = 0, got = 0;
          for (int64_t ch = 0; ch < c.x[1]; ++ch)
            for (int64_t r = 0; r < c.w[2]; ++r)
              for (int64_t s = 0; s < c.w[3]; ++s) {
                const int64_t row = i * c.stride_h - c.pad_h + r, col = j * c.stride_w - c.pad_w + s;
                if (row < 0 || col < 0 || row >= c.x[2] || col >= c.x[3]) continue;
                want += at(x.data(), a.operands[0].strides, {n, ch, row, col}) * at(w.data(), a.operands[1].strides, {o, ch, r, s});
              }
          for (int64_t g = 0; g < mx.sizes[1]; ++g)
            for (int64_t r = 0; r < mw.sizes[2]; ++r)
              for (int64_t s = 0; s < mw.sizes[3]; ++s)
                got += at(made.data(), mx.strides, {n, g, i + r, j + s}) * at(made.data() + stem->filter_at, mw.strides, {o, g, r, s});
          ASSERT_NEAR(got, want, 1e-9 * (1 + std::fabs(want))) << c.name << " at " << n << " " << o << " " << i << " " << j;
        }
}

TEST(Stem, IsTheSameConvolution) {
  for (const Case& c : kCases) check(c);
}

TEST(Stem, CompilesForEveryArchitecture) {
  std::string why_not;
  if (!Nvrtc::get(why_not)) GTEST_SKIP() << "no NVRTC: " << why_not;
  for (const char* arch : {"sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120"}) {
    if (!compiles_for(arch)) continue;
    for (const Case& c : kCases)
      EXPECT_NO_THROW(compile_cubin(whole_text(stem_of(anchor_of(c), KRN_NUMERICS_DEFAULT)->regroup, gpu_driver()), target_of(arch)))
          << arch << ", " << c.name;
  }
}

TEST(Stem, WhatIsNone) {
  const AnchorDesc a = anchor_of(kCases[0]);
  EXPECT_FALSE(stem_of(a, KRN_NUMERICS_STRICT)) << "a zero times infinity";
  AnchorDesc no_stride = a, dilated = a, plain = a,
             many = anchor_of({"", kit::kDType_bf16, {2, 8, 13, 17}, {4, 8, 7, 7}, 2, 2, 3, 3, false});
  no_stride.stride = {1, 1}, no_stride.results[0].sizes = {2, 4, 13, 17},
  no_stride.results[0].strides = dense(no_stride.results[0].sizes, true);
  dilated.dilation = {2, 2};
  plain.results[0].strides = dense(plain.results[0].sizes, false);
  for (const AnchorDesc* each : {&no_stride, &dilated, &plain, &many}) EXPECT_FALSE(stem_of(*each, KRN_NUMERICS_DEFAULT));
  AnchorDesc grouped = anchor_of({"", kit::kDType_bf16, {2, 4, 13, 17}, {4, 2, 7, 7}, 2, 2, 3, 3, false});
  grouped.groups = 2;
  EXPECT_FALSE(stem_of(grouped, KRN_NUMERICS_DEFAULT));
}

// A thread counts words in 32 bits, and a block begins behind the last one: 64 x 4095 x 4097 points of two words are 128 words too many.
TEST(Stem, CountsItsWordsIn32Bits) {
  const auto of_height = [](int64_t rows) {
    return stem_of(anchor_of({"", kit::kDType_bf16, {64, 3, 2 * rows, 8188}, {4, 3, 7, 7}, 2, 2, 3, 3, true}), KRN_NUMERICS_DEFAULT)
        .has_value();
  };
  EXPECT_TRUE(of_height(4091));
  EXPECT_FALSE(of_height(4092));
}

}  // namespace
}  // namespace keirin::cuda
