// SPDX-License-Identifier: Apache-2.0
//
// Typical regions: fused execution equals node-by-node evaluation, and fusion leaves the number of kernels it should.
#include <gtest/gtest.h>

#include <random>
#include <string_view>

#include "plugins/kit/error.h"
#include "tests/unit/codegen/check.h"

namespace keirin::codegen::test {
namespace {

constexpr uint8_t kF32 = kDType_f32;

constexpr bool is_float_row(int arity, std::string_view dtypes, std::string_view result) {
  return arity == 2 && (dtypes == "num" || dtypes == "flt") && result == "same";
}

TEST(Fusion, Mlp) {
  RegionBuilder g;
  int x = g.input(kF32, {5, 8}), w1 = g.input(kF32, {16, 8}, {}, true), b1 = g.input(kF32, {16}, {}, true);
  int w2 = g.input(kF32, {4, 16}, {}, true), b2 = g.input(kF32, {4}, {}, true);
  g.output(g.unary(kOp_tanh, g.linear(g.unary(kOp_relu, g.linear(x, w1, b1)), w2, b2)));
  Checked c = check(g);
  EXPECT_EQ(c.executable->num_anchors(), 2u);
  EXPECT_EQ(c.kernels(), 1u) << c.executable->describe();
}

// An output that permutes a product is not the product's memory where the library could not write it there.
TEST(Fusion, APermutedProductIsStoredWhereTheLibraryWrites) {
  for (bool activated : {false, true}) {
    RegionBuilder g;
    int product = g.linear(g.input(kF32, {3, 8, 4}), g.input(kF32, {3, 4}), g.input(kF32, {3}));
    g.output(g.permute(activated ? g.unary(kOp_relu, product) : product, {1, 2, 0}));
    InterpBackend backend;
    backend.only_dense_rows = true;
    EXPECT_EQ(check(g, backend).executable->num_anchors(), 1u);
  }
}

// A gradient of weights under autocast: the product of narrow operands is stored wide, permuted where the output wants it so.
TEST(Fusion, AProductThatIsCastToF32IsStoredWide) {
  constexpr uint8_t kBf16 = kDType_bf16;
  for (bool permuted : {false, true}) {
    // Alone; with a bias; the narrow result is an output too; something else reads it as well; its rounding is seen.
    for (int what = 0; what < 5; ++what) {
      RegionBuilder g;
      const int bias = what == 1 ? g.input(kBf16, {4}) : -1;
      const int x = g.input(kBf16, {6, 8}), w = g.input(kBf16, {4, 8}), narrow = what == 1 ? g.linear(x, w, bias) : g.linear(x, w, -1);
      const int turned = permuted ? g.permute(narrow, {1, 0}) : narrow;
      g.output(g.cast(turned, kF32));
      if (what == 4) g.observe(narrow);
      if (what == 2) g.output(narrow);
      if (what == 3) g.output(g.unary(kOp_tanh, narrow));
      for (bool wide : {true, false}) {
        InterpBackend backend;
        backend.info.wide_products = wide;
        const Checked c = check(g, backend, {}, 2e-2);
        EXPECT_EQ(c.executable->num_anchors(), 1u);
        EXPECT_EQ(c.kernels() == 0, wide && what == 0) << permuted << what;
      }
    }
  }
}

TEST(Fusion, PointwiseChainIsOneKernel) {
  RegionBuilder g;
  int x = g.input(kF32, {7, 33}), y = g.input(kF32, {33}), z = g.input(kF32, {7, 1});
  int s = g.binary(kOp_mul, g.binary(kOp_add, x, y), g.unary(kOp_sigmoid, z));
  g.output(g.unary(kOp_gelu, s));
  g.output(g.binary(kOp_sub, s, x));
  EXPECT_EQ(check(g).kernels(), 1u);
}

TEST(Fusion, SoftmaxIsOneKernel) {
  RegionBuilder g;
  g.output(g.softmax(g.input(kF32, {6, 40}), 1));
  Checked c = check(g);
  EXPECT_EQ(c.kernels(), 1u) << c.executable->describe();
}

TEST(Fusion, SoftmaxOverAnOuterAxis) {
  RegionBuilder g;
  g.output(g.softmax(g.input(kF32, {3, 5, 17}), 1));
  check(g);
}

TEST(Fusion, ResidualLayerNormIsOneKernel) {
  RegionBuilder g;
  int x = g.input(kF32, {4, 6, 24}), r = g.input(kF32, {4, 6, 24}), w = g.input(kF32, {24}), b = g.input(kF32, {24});
  int h = g.binary(kOp_add, x, r);
  g.output(h);
  g.output(g.layer_norm(h, w, b, 1e-5));
  Checked c = check(g);
  EXPECT_EQ(c.kernels(), 1u) << c.executable->describe();
}

TEST(Fusion, RmsNormIsOneKernel) {
  RegionBuilder g;
  int x = g.input(kF32, {9, 20}), w = g.input(kF32, {20});
  g.output(g.rms_norm(x, w, 1e-6));
  EXPECT_EQ(check(g).kernels(), 1u);
}

TEST(Fusion, GroupNormSiluIsOneKernel) {
  RegionBuilder g;
  int x = g.input(kF32, {2, 8, 3, 5}), w = g.input(kF32, {8}), b = g.input(kF32, {8});
  g.output(g.unary(kOp_silu, g.group_norm(x, w, b, 4, 1e-5)));
  Checked c = check(g);
  EXPECT_EQ(c.kernels(), 1u) << c.executable->describe();
}

// What batch norm asks of its columns: their sum and the squares of what is away from the mean are found in one pass over them.
TEST(Fusion, StatisticsOfColumnsAreOnePass) {
  for (int64_t rows : {5, 40}) {  // fewer than 64 are read again
    RegionBuilder g;
    const int x = g.input(kF32, {2, rows, 8}), mean = g.mean(x, {0, 1}), away = g.binary(kOp_sub, x, mean);
    g.output(mean);
    g.output(g.mean(g.binary(kOp_mul, away, away), {0, 1}));
    InterpBackend backend;
    const Checked c = check(g, backend);
    EXPECT_EQ(c.kernels(), 1u) << c.executable->describe();
    EXPECT_EQ(backend.deviations > 0, rows == 40);
    InterpBackend reads_twice;
    reads_twice.info.joins_deviations = false;
    check(g, reads_twice);
    EXPECT_EQ(reads_twice.deviations, 0);
  }
}

TEST(Fusion, GroupNormOfChannelsLast) {
  RegionBuilder g;
  int x = g.input(kF32, {2, 8, 3, 5}, {120, 1, 40, 8}), w = g.input(kF32, {8}), b = g.input(kF32, {8});
  int y = g.unary(kOp_silu, g.group_norm(x, w, b, 4, 1e-5));
  g.set_strides(y, {120, 1, 40, 8});
  g.output(y);
  check(g);
}

// Two channels fill no vector: where what is left of vectors goes element by element, the pixels are the vector axis.
TEST(Fusion, AShortAxisIsVectorisedUnderMasksAlone) {
  struct Watching : InterpBackend {
    std::vector<int64_t> inner;
    std::vector<std::unique_ptr<Step>> lower_kernels(std::span<const Together> steps, const CompileContext& context,
                                                     uint32_t& generated) override {
      for (const Kernel* kernel : all_of(steps)) inner.push_back(kernel->axes.back().size);
      return InterpBackend::lower_kernels(steps, context, generated);
    }
  };
  for (const int short_inner : {0, 4}) {
    RegionBuilder g;
    int x = g.input(kF32, {2, 8, 3, 5}, {120, 1, 40, 8}), w = g.input(kF32, {8}), b = g.input(kF32, {8});
    int y = g.group_norm(x, w, b, 4, 1e-5);
    g.set_strides(y, {120, 1, 40, 8});
    g.output(y);
    Watching backend;
    backend.info.short_inner = short_inner;
    check(g, backend);
    ASSERT_FALSE(backend.inner.empty());
    EXPECT_EQ(backend.inner.back(), short_inner == 0 ? 2 : 15);
  }
}

TEST(Fusion, AttentionScoresWithMask) {
  RegionBuilder g;
  int q = g.input(kF32, {2, 3, 6, 8}), k = g.input(kF32, {2, 3, 6, 8}), v = g.input(kF32, {2, 3, 6, 8});
  int mask = g.input(kDType_bool, {2, 1, 1, 6});
  int s = g.matmul(q, g.permute(k, {0, 1, 3, 2}));
  s = g.binary(kOp_mul, s, g.scalar(0.35355339, s));
  s = g.where(g.expand(mask, {2, 3, 6, 6}), s, g.scalar(-1e30, s));
  int o = g.matmul(g.softmax(s, 3), v);
  g.output(g.reshape(g.permute(o, {0, 2, 1, 3}), {2, 6, 24}));
  Checked c = check(g);
  EXPECT_LE(c.kernels(), 2u) << c.executable->describe();
}

TEST(Fusion, ConvBatchNormReluAddPool) {
  RegionBuilder g;
  int x = g.input(kF32, {2, 3, 8, 8}), w = g.input(kF32, {4, 3, 3, 3}), b = g.input(kF32, {4}), skip = g.input(kF32, {2, 4, 8, 8});
  int scale = g.input(kF32, {4, 1, 1}), shift = g.input(kF32, {4, 1, 1});
  int y = g.conv(x, w, b, 1, 1);
  y = g.binary(kOp_add, g.binary(kOp_mul, y, scale), shift);
  y = g.unary(kOp_relu, g.binary(kOp_add, y, skip));
  y = g.op(kOp_max_pool, {y}, kF32, {2, 4, 4, 4},
           {{kAttr_kernel, Dims{3, 3}},
            {kAttr_stride, Dims{2, 2}},
            {kAttr_padding, Dims{1, 1}},
            {kAttr_dilation, Dims{1, 1}},
            {kAttr_ceil_mode, false}});
  g.output(y);
  g.output(g.op(kOp_adaptive_avg_pool, {y}, kF32, {2, 4, 1, 1}, {{kAttr_sizes, Dims{1, 1}}}));
  check(g);
}

TEST(Fusion, AveragePoolsCountAsTheyShould) {
  for (bool include_pad : {false, true}) {
    for (bool ceil_mode : {false, true}) {
      RegionBuilder g;
      int64_t out = ceil_mode ? 4 : 3;
      g.output(g.op(kOp_avg_pool, {g.input(kF32, {1, 2, 6, 6})}, kF32, {1, 2, out, out},
                    {{kAttr_kernel, Dims{3, 3}}, {kAttr_stride, Dims{2, 2}}, {kAttr_padding, Dims{1, 1}}, {kAttr_ceil_mode, ceil_mode},
                     {kAttr_count_include_pad, include_pad}, {kAttr_divisor, int64_t{0}}}));
      check(g);
    }
  }
}

TEST(Fusion, UpsampleNearest) {
  for (int64_t size : {8, 6, 3}) {
    RegionBuilder g;
    int x = g.unary(kOp_relu, g.input(kF32, {1, 2, 4, 4}));
    g.output(g.op(kOp_upsample_nearest, {x}, kF32, {1, 2, size, size}, {{kAttr_sizes, Dims{size, size}}, {kAttr_scales, Dims{}}}));
    check(g);
  }
}

// Edges [2, 9]: row 0 sources, row 1 destinations, read as slices of one input.
struct Edges {
  explicit Edges(RegionBuilder& g, int64_t n = 9) : all(g.input(kDType_i64, {2, n})) {
    source = g.reshape(g.slice(all, 0, 0, 1), {n});
    target = g.reshape(g.slice(all, 0, 1, 2), {n});
  }
  int all, source, target;
};

int zeros(RegionBuilder& g, Dims sizes) {
  return g.op(kOp_full, {}, kF32, sizes,
              {{kAttr_sizes, sizes}, {kAttr_dtype, int64_t{kF32}}, {kAttr_value_d, 0.0}, {kAttr_value_i, int64_t{0}}});
}
int index_reduce(RegionBuilder& g, int self, int index, int src, const char* kind, bool include_self = true) {
  return g.op(kOp_index_reduce, {self, index, src}, g.dtype(self), g.sizes(self),
              {{kAttr_dim, int64_t{0}}, {kAttr_reduce, std::string(kind)}, {kAttr_include_self, include_self}});
}

TEST(Fusion, GcnLayer) {
  RegionBuilder g;
  Edges e(g);
  int x = g.input(kF32, {4, 6}), norm = g.input(kF32, {9, 1}), bias = g.input(kF32, {6});
  int message = g.binary(kOp_mul, g.take(x, e.source, 0), norm);
  int sum = index_reduce(g, zeros(g, {4, 6}), e.target, message, "sum");
  g.output(g.unary(kOp_relu, g.binary(kOp_add, sum, bias)));
  Checked c = check(g);
  EXPECT_EQ(c.kernels(), 1u) << c.executable->describe();
}

TEST(Fusion, GatEdgeSoftmax) {
  RegionBuilder g;
  Edges e(g);
  int h = g.input(kF32, {4, 2, 5}), as = g.input(kF32, {4, 2}), ad = g.input(kF32, {4, 2});
  int score = g.binary(kOp_add, g.take(as, e.source, 0), g.take(ad, e.target, 0));
  score = g.binary(kOp_leaky_relu, score, g.scalar(0.2, score));
  int top = index_reduce(g, zeros(g, {4, 2}), e.target, score, "amax", false);
  int ex = g.unary(kOp_exp, g.binary(kOp_sub, score, g.take(top, e.target, 0)));
  int total = index_reduce(g, zeros(g, {4, 2}), e.target, ex, "sum");
  int alpha = g.binary(kOp_div, ex, g.take(total, e.target, 0));
  int message = g.binary(kOp_mul, g.take(h, e.source, 0), g.reshape(alpha, {9, 2, 1}));
  g.output(index_reduce(g, zeros(g, {4, 2, 5}), e.target, message, "sum"));
  Checked c = check(g);
  EXPECT_LE(c.kernels(), 4u) << c.executable->describe();
}

TEST(Fusion, ScatterReductions) {
  for (const char* kind : {"sum", "mean", "amax", "amin"}) {
    for (bool include_self : {false, true}) {
      RegionBuilder g;
      Edges e(g);
      int self = g.input(kF32, {5, 3}), src = g.input(kF32, {9, 3});
      g.output(index_reduce(g, self, e.target, src, kind, include_self));
      int index = g.expand(g.reshape(e.target, {9, 1}), {9, 3});
      g.output(g.op(kOp_scatter, {self, index, src}, kF32, {5, 3},
                    {{kAttr_dim, int64_t{0}}, {kAttr_reduce, std::string(kind)}, {kAttr_include_self, include_self}}));
      check(g);
    }
  }
}

TEST(Fusion, IndexOutOfRangeIsInvalidInput) {
  RegionBuilder g;
  int x = g.input(kF32, {4, 3}), i = g.input(kDType_i64, {2});
  g.output(g.take(x, i, 0));
  InterpBackend backend;
  EXPECT_EQ(run_region(g, backend, {Values(12, 1), {0, 3}}).code, KRN_STATUS_ok);
  EXPECT_EQ(run_region(g, backend, {Values(12, 1), {0, 4}}).code, KRN_STATUS_invalid_input);
  RegionBuilder s;
  int index = s.input(kDType_i64, {2}), src = s.input(kF32, {2, 3});
  s.output(index_reduce(s, zeros(s, {4, 3}), index, src, "sum"));
  EXPECT_EQ(run_region(s, backend, {{0, -1}, Values(6, 1)}).code, KRN_STATUS_invalid_input);
}

TEST(Fusion, EmbeddingPlusPosition) {
  RegionBuilder g;
  int table = g.input(kF32, {11, 6}), ids = g.input(kDType_i64, {2, 5}), position = g.input(kF32, {8, 6});
  int w = g.input(kF32, {6}), b = g.input(kF32, {6});
  int h = g.binary(kOp_add, g.take(table, ids, 0), g.slice(position, 0, 0, 5));
  g.output(g.layer_norm(h, w, b, 1e-5));
  Checked c = check(g);
  EXPECT_EQ(c.kernels(), 1u) << c.executable->describe();
}

TEST(Fusion, RotaryEmbedding) {
  RegionBuilder g;
  int q = g.input(kF32, {2, 3, 4, 8}), cos = g.input(kF32, {4, 8}), sin = g.input(kF32, {4, 8});
  int half = g.cat({g.unary(kOp_neg, g.slice(q, 3, 4, 8)), g.slice(q, 3, 0, 4)}, 3);
  g.output(g.binary(kOp_add, g.binary(kOp_mul, q, cos), g.binary(kOp_mul, half, sin)));
  Checked c = check(g);
  EXPECT_EQ(c.kernels(), 1u) << c.executable->describe();
}

TEST(Fusion, ConcatenationIsWrittenInPlace) {
  RegionBuilder g;
  int a = g.input(kF32, {3, 4}), b = g.input(kF32, {3, 5});
  g.output(g.cat({g.unary(kOp_relu, a), g.softmax(b, 1), a}, 1));
  Checked c = check(g);
  EXPECT_EQ(c.kernels(), 2u) << c.executable->describe();  // both pieces that read `a` are one kernel
  EXPECT_EQ(c.executable->workspace_bytes(), 0);
}

// As positions are counted over a mask: the scan, what it reads and what is made of it are one kernel.
TEST(Fusion, AShortScanIsAReductionOfWhatLiesBefore) {
  for (const int64_t dim : {0, 1, 2}) {
    RegionBuilder g;
    int x = g.input(kF32, {3, 5, 7});
    int scan = g.op(kOp_cumsum, {g.unary(kOp_relu, x)}, kF32, {3, 5, 7}, {{kAttr_dim, dim}});
    g.output(g.binary(kOp_mul, scan, x));
    const Checked c = check(g);
    EXPECT_EQ(c.kernels(), 1u) << c.executable->describe();
  }
}

// Eight readers of parts of it: each computes its part, and what was read is stored nowhere. With nine it is stored.
TEST(Fusion, WhatFewReadersShareIsComputedByEach) {
  for (const int64_t readers : {8, 9}) {
    RegionBuilder g;
    int x = g.unary(kOp_relu, g.input(kF32, {100, 64}));
    for (int64_t i = 0; i < readers; ++i) g.output(g.reduce(kOp_sum, g.slice(x, 0, 10 * i, 10 * i + 3 + i, 1), {1}, false));
    const Checked c = check(g);
    EXPECT_EQ(c.kernels(), static_cast<uint32_t>(readers == 8 ? 8 : 10)) << c.executable->describe();
  }
}

// More inputs than kernels are merged for: it is one kernel all the same, also when it is loaded.
TEST(Fusion, AConcatenationOfVeryManyIsOneKernel) {
  RegionBuilder g;
  std::vector<int> pieces;
  for (int i = 0; i < 40; ++i) pieces.push_back(g.input(kF32, {2, 3}));
  g.output(g.binary(kOp_add, g.cat(pieces, 1), g.input(kF32, {2, 120})));
  const Checked c = check(g);
  EXPECT_EQ(c.kernels(), 1u) << c.executable->describe();
}

TEST(Fusion, Views) {
  RegionBuilder g;
  int x = g.input(kF32, {4, 6, 5});
  g.output(g.reshape(g.permute(x, {1, 0, 2}), {6, 20}));
  g.output(g.flip(g.slice(x, 1, 1, 6, 2), {0, 2}));
  g.output(g.pad(x, {0, 1, -1}, {2, 0, 1}, 7));
  g.output(g.reshape(g.unary(kOp_exp, g.permute(x, {2, 1, 0})), {10, 12}));
  g.output(g.reduce(kOp_sum, g.reshape(x, {4, 3, 2, 5}), {1, 3}, false));
  check(g);
}

TEST(Fusion, StridedInputsAndOutputs) {
  RegionBuilder g;
  int x = g.input(kF32, {4, 6}, {1, 4}), y = g.input(kF32, {4, 6}, {12, 2});
  int z = g.binary(kOp_add, x, y);
  g.set_strides(z, {1, 4});
  g.output(z);
  g.output(g.softmax(z, 1));
  int p = g.permute(g.softmax(y, 1), {1, 0});
  g.set_strides(p, {1, 6});
  g.output(p);
  check(g);
}

TEST(Fusion, Bf16RoundsWhereObserved) {
  RegionBuilder g;
  int x = g.input(kDType_bf16, {3, 16}), y = g.input(kDType_bf16, {3, 16});
  int s = g.binary(kOp_add, x, y);
  g.observe(s);
  int d = g.binary(kOp_sub, s, x);  // shows whether s was rounded
  g.output(d);
  InterpBackend backend;
  check(g, backend, {}, 0);
}

TEST(Fusion, IntegersAndBools) {
  RegionBuilder g;
  int i = g.input(kDType_i64, {4, 5}), j = g.input(kDType_i64, {4, 5});
  int c = g.compare(kOp_lt, i, j);
  g.output(g.where(c, g.binary(kOp_mul, i, j), g.binary(kOp_sub, i, j)));
  g.output(g.reduce(kOp_any, c, {1}, false));
  g.output(g.reduce(kOp_sum, g.cast(c, kDType_i64), {0, 1}, false));
  g.output(g.reduce(kOp_argmax, i, {1}, false));
  g.output(g.reduce(kOp_argmin, g.cast(j, kF32), {0}, true));
  int narrow = g.cast(g.binary(kOp_mul, i, g.scalar(100, i)), kDType_i8);
  g.output(g.binary(kOp_add, narrow, narrow));
  int u = g.input(kDType_u8, {4, 5});
  g.output(g.binary(kOp_minimum, u, g.scalar(-3, u)));  // 253
  check(g);
}

// Registers are wider than the tensors: what a reader in the same kernel sees is what memory would hold.
TEST(Fusion, NarrowIntegersWrapBetweenOperators) {
  struct Case {
    uint8_t dtype;
    double x, y, sum;
  };
  for (const Case& c : {Case{kDType_i8, 100, 100, -56}, Case{kDType_i8, -128, -1, 127}, Case{kDType_u8, 200, 100, 44},
                        Case{kDType_i16, 32767, 1, -32768}, Case{kDType_i32, 2147483647, 1, -2147483648.0}}) {
    RegionBuilder g;
    const int x = g.input(c.dtype, {5}), y = g.input(c.dtype, {5});
    const int sum = g.binary(kOp_add, x, y);
    g.output(g.cast(sum, kDType_i64));
    g.output(g.compare(kOp_lt, sum, x));
    g.output(g.binary(kOp_maximum, sum, x));
    const Checked checked = check(g, {Values(5, c.x), Values(5, c.y)});
    EXPECT_EQ(checked.kernels(), 1u);
    EXPECT_EQ(checked.outputs[0], Values(5, c.sum));
    EXPECT_EQ(checked.outputs[1], Values(5, c.sum < c.x));
    EXPECT_EQ(checked.outputs[2], Values(5, std::max(c.sum, c.x)));
  }
}

// A number is true where it is not zero: less than one, and with nothing but zeros in its last byte, too.
TEST(Fusion, WhatIsNotZeroIsTrue) {
  struct Case {
    uint8_t dtype;
    Values x;
  };
  for (const Case& c : {Case{kF32, {0.5, -0.25, 0, -0.0, 1, 256}}, Case{kDType_bf16, {0.5, -0.25, 0, -0.0, 1, 256}},
                        Case{kDType_i64, {256, -256, 0, 0, 1, 4294967296.0}}, Case{kDType_i32, {256, -256, 0, 0, 1, 65536}},
                        Case{kDType_u8, {128, 255, 0, 0, 1, 2}}}) {
    RegionBuilder g;
    const int x = g.input(c.dtype, {6}), truth = g.cast(x, kDType_bool);
    g.output(truth);
    g.output(g.cast(truth, kDType_i64));
    g.output(g.where(truth, x, g.scalar(7, x)));
    const Checked checked = check(g, {c.x});
    EXPECT_EQ(checked.outputs[0], (Values{1, 1, 0, 0, 1, 1}));
    EXPECT_EQ(checked.outputs[1], (Values{1, 1, 0, 0, 1, 1}));
    EXPECT_EQ(checked.outputs[2], (Values{c.x[0], c.x[1], 7, 7, c.x[4], c.x[5]}));
  }
}

TEST(Fusion, WhatSurroundsNothingIsTheFill) {
  for (uint8_t dtype : {kF32, uint8_t{kDType_i64}, uint8_t{kDType_bool}}) {
    RegionBuilder g;
    const int e = g.input(dtype, {2, 0}), x = g.input(dtype, {2, 3});
    g.output(g.pad(e, {0, 2}, {0, 1}, 1));
    g.output(g.cat({e, x, e}, 1));
    g.output(g.pad(g.cat({e, e}, 1), {0, 0}, {1, 3}, 0));
    check(g);
  }
}

// A flipped view that a product, a reshape or an output reads in place.
TEST(Fusion, FlippedViewsAreReadFromTheirEnd) {
  RegionBuilder g;
  const int x = g.input(kF32, {5, 6}), w = g.input(kF32, {6, 4});
  const int turned = g.flip(x, {0});
  g.output(g.matmul(turned, w));
  g.output(g.matmul(g.flip(x, {1}), w));
  g.output(g.matmul(g.flip(x, {0, 1}), g.flip(w, {0})));
  g.output(g.matmul(g.slice(turned, 0, 1, 5, 2), w));
  g.output(g.reshape(turned, {30}));
  check(g);
}

TEST(Fusion, EmptyAndScalarTensors) {
  RegionBuilder g;
  int e = g.input(kF32, {0, 4}), s = g.input(kF32, {}), x = g.input(kF32, {3, 0});
  g.output(g.unary(kOp_relu, e));
  g.output(g.unary(kOp_exp, s));
  g.output(g.reduce(kOp_sum, x, {1}, false));
  g.output(g.reduce(kOp_amax, g.reshape(s, {1, 1}), {1}, true));
  g.output(g.binary(kOp_add, g.reduce(kOp_sum, e, {0, 1}, false), s));
  check(g);
}

TEST(Fusion, IotaAndCausalMask) {
  RegionBuilder g;
  auto iota = [&](int64_t n) {
    return g.op(kOp_iota, {}, kDType_i64, {n},
                {{kAttr_sizes, Dims{n}}, {kAttr_dtype, int64_t{kDType_i64}}, {kAttr_start, int64_t{0}}, {kAttr_step, int64_t{1}}});
  };
  int x = g.input(kF32, {2, 6, 6});
  int keep = g.compare(kOp_le, g.expand(g.reshape(iota(6), {1, 6}), {6, 6}), g.expand(g.reshape(iota(6), {6, 1}), {6, 6}));
  g.output(g.softmax(g.where(g.expand(keep, {2, 6, 6}), x, g.scalar(-1e30, x)), 2));
  EXPECT_EQ(check(g).kernels(), 1u);
}

TEST(Fusion, UpdateOfAnInputComesAfterItsReaders) {
  RegionBuilder g;
  int cache = g.input(kF32, {4, 6}), fresh = g.input(kF32, {2, 6});
  int next = g.op(kOp_slice_scatter, {cache, fresh}, kF32, {4, 6},
                  {{kAttr_dim, int64_t{0}}, {kAttr_start, int64_t{1}}, {kAttr_end, int64_t{3}}, {kAttr_step, int64_t{1}}});
  g.output(next, 0);
  g.output(g.reduce(kOp_sum, cache, {1}, false));
  g.output(g.softmax(next, 1));
  check(g);
}

// A sum over edges written over all of a softmax: whose parts are stored must not decide whether the sum's kernel can be built.
TEST(Fusion, UpdateOfEverythingNeedsNothingOfWhatItCovers) {
  RegionBuilder g;
  int x = g.input(kF32, {5, 5, 1, 2}), index = g.input(kDType_i64, {1}), src = g.input(kF32, {5, 1, 1, 2});
  int sums = g.op(kOp_scatter, {x, g.expand(g.reshape(index, {1, 1, 1, 1}), {5, 1, 1, 2}), src}, kF32, {5, 5, 1, 2},
                  {{kAttr_dim, int64_t{1}}, {kAttr_reduce, std::string("sum")}, {kAttr_include_self, true}});
  g.output(g.op(kOp_slice_scatter, {g.softmax(x, 1), sums}, kF32, {5, 5, 1, 2},
                {{kAttr_dim, int64_t{2}}, {kAttr_start, int64_t{0}}, {kAttr_end, int64_t{1}}, {kAttr_step, int64_t{1}}}));
  InterpBackend backend;
  backend.info.launch_ns = 1e5, backend.info.bytes_per_s = 1e12;  // the sum is taken in before the softmax's parts are
  check(g, backend, {Values(50, 1), Values{3}, Values(10, 2)});
}

// A cache whose row is replaced in place, and read whole by what follows.
void row_update(bool in_place, bool also_output) {
  RegionBuilder g;
  int cache = g.input(kF32, {2, 5, 3}), at = g.input(kDType_i64, {1}), row = g.input(kF32, {2, 1, 3});
  int next = g.op(kOp_index_reduce, {cache, at, g.unary(kOp_neg, row)}, kF32, {2, 5, 3},
                  {{kAttr_dim, int64_t{1}}, {kAttr_reduce, std::string("none")}, {kAttr_include_self, true}});
  if (also_output) g.output(next);
  g.output(next, in_place ? 0 : -1);
  g.output(g.reduce(kOp_sum, next, {1}, false));
  InterpBackend backend;
  backend.info.updates_rows = true;
  Checked c = check(g, backend,
                    {Values{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29},
                     Values{3}, Values{-100, -101, -102, -103, -104, -105}});
  bool rows_only = false;  // a kernel that stores six elements where an index says
  for (const Kernel* k : all_of(c.executable->kernels()))
    for (const Stage& s : k->stages)
      for (const auto& st : s.stores) rows_only |= !k->accesses[st.access].indirects.empty();
  EXPECT_EQ(rows_only, in_place && !also_output);
}

TEST(Fusion, RowOfAnInputIsWrittenInPlace) { row_update(true, false); }
TEST(Fusion, RowOfACopyIsChosen) { row_update(false, false); }
TEST(Fusion, RowOfAnInputThatIsAnOutputTooIsChosen) { row_update(true, true); }

// Nobody reads the whole afterwards, and the index is made in the region: both are still needed.
TEST(Fusion, RowsThatNobodyReadsAreWrittenWhereAComputedIndexSays) {
  for (bool computed : {false, true}) {
    RegionBuilder g;
    int cache = g.input(kF32, {5, 3}), at = g.input(kDType_i64, {2}), row = g.input(kF32, {2, 3});
    if (computed) at = g.binary(kOp_add, at, at);
    g.output(g.op(kOp_index_reduce, {cache, at, row}, kF32, {5, 3},
                  {{kAttr_dim, int64_t{0}}, {kAttr_reduce, std::string("none")}, {kAttr_include_self, true}}), 0);
    g.output(g.unary(kOp_neg, row));
    InterpBackend backend;
    backend.info.updates_rows = true;
    check(g, backend, {Values{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14}, Values{2, 1}, Values{-1, -2, -3, -4, -5, -6}});
  }
}

TEST(Fusion, UpdateThatPermutesItsInput) {
  RegionBuilder g;
  int x = g.input(kF32, {5, 5});
  g.output(g.unary(kOp_neg, g.permute(x, {1, 0})), 0);
  check(g);
}

// A view alone is computed by nobody: its elements must lie elsewhere before the first is overwritten.
TEST(Fusion, UpdateWithAViewOfItself) {
  for (bool permuted : {true, false}) {
    RegionBuilder g;
    int x = g.input(kF32, {5, 5});
    g.output(permuted ? g.permute(x, {1, 0}) : g.flip(g.flip(x, {0}), {1}), 0);
    g.output(g.reduce(kOp_sum, x, {1}, false));
    check(g);
  }
}

TEST(Fusion, UpdatesThatReadEachOthersTargets) {
  RegionBuilder g;
  int x = g.input(kF32, {5, 11}), y = g.input(kF32, {5, 11}), s = g.input(kF32, {5, 11});
  int moved = g.flip(s, {0});
  g.output(g.reshape(g.where(g.compare(kOp_ne, x, y), x, s), {55}));
  g.output(moved, 2);
  g.output(g.binary(kOp_add, x, moved), 0);
  check(g);
}

// An input that is overwritten with what is read from other places of itself: shifted either way by any distance, in steps, turned,
// rolled, one update after another, beside readers of the old content and products of it. What is read must be the old content, in
// whatever order a kernel walks. No shape of update is refused, but for those in steps that are not in place.
TEST(Fusion, UpdatesFromOtherPlacesOfTheSameMemory) {
  int refused = 0, in_place = 0;
  for (uint32_t seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    const auto below = [&](int64_t n) { return static_cast<int64_t>(random() % static_cast<uint64_t>(n)); };
    RegionBuilder g;
    const uint8_t dtype = seed % 4 == 3 ? uint8_t{kDType_i64} : kF32;
    Dims sizes;
    for (int64_t d = 1 + below(3); d > 0; --d) sizes.push_back(2 + below(5));
    Dims strides(sizes.size());
    int64_t stride = 1;
    for (size_t n = 0, d = sizes.size(); d-- > 0; ++n) strides[seed % 5 == 4 ? n : d] = stride, stride *= sizes[seed % 5 == 4 ? n : d];
    const int h = g.input(dtype, sizes, strides), other = g.input(dtype, sizes);
    int x = h;
    for (int64_t updates = 1 + below(2); updates > 0; --updates) {
      const int64_t dim = below(static_cast<int64_t>(sizes.size())), size = sizes[static_cast<size_t>(dim)];
      const auto changed = [&](int y) {
        switch (below(4)) {
          case 0: return y;
          case 1: return g.unary(kOp_neg, y);
          case 2: return g.binary(kOp_add, y, g.sizes(y) == sizes ? other : g.slice(other, dim, 0, g.sizes(y)[static_cast<size_t>(dim)]));
          default: return g.binary(kOp_sub, y, y == x ? other : g.flip(y, {dim}));
        }
      };
      switch (below(5)) {
        case 0: case 1: {  // x[to : to + n * step : step] = f(x[from : ...])
          const int64_t step = 1 + below(2), n = 1 + below((size + step - 1) / step), reach = (n - 1) * step + 1;
          const int64_t to = below(size - reach + 1), from = below(size - reach + 1);
          const int moved = changed(g.slice(x, dim, from, from + reach, step));
          x = g.op(kOp_slice_scatter, {x, moved}, dtype, sizes,
                   {{kAttr_dim, dim}, {kAttr_start, to}, {kAttr_end, to + reach}, {kAttr_step, step}});
          break;
        }
        case 2: {  // rolled
          const int64_t k = 1 + below(size - 1);
          x = changed(g.cat({g.slice(x, dim, k, size), g.slice(x, dim, 0, k)}, dim));
          break;
        }
        case 3: x = changed(g.flip(x, {dim})); break;
        default: {  // shifted by padding, negative to the left
          const int64_t k = below(2 * size - 1) - size + 1;
          Dims low(sizes.size(), 0), high(sizes.size(), 0);
          low[static_cast<size_t>(dim)] = k, high[static_cast<size_t>(dim)] = -k;
          x = g.op(kOp_pad, {x}, dtype, sizes, {{kAttr_low, low}, {kAttr_high, high}, {kAttr_value_i, int64_t{3}}, {kAttr_value_d, 3.0}});
        }
      }
    }
    g.output(x, 0);
    if (below(2)) g.output(g.reduce(kOp_sum, h, {0}, false));
    if (below(3) == 0) g.output(g.unary(kOp_neg, x));
    if (below(3) == 0 && dtype == kF32 && sizes.size() == 2) g.output(g.matmul(h, g.permute(other, {1, 0})));
    try {
      InterpBackend backend;
      const Checked c = check(g, backend);
      in_place += c.executable->workspace_bytes() == 0;
    } catch (const kit::Error& e) {
      EXPECT_NE(std::string(e.what()).find("with a step"), std::string::npos) << "seed " << seed << ": " << e.what();
      ++refused;
    }
    ASSERT_FALSE(HasFailure()) << "seed " << seed;
  }
  EXPECT_LT(refused, 100);
  EXPECT_GT(in_place, 30) << "else nothing was updated in place";
}

// Every scalar row of two operands beside every kind of product, the product left, right and on both sides, behind a library that
// applies whatever it is offered: what it computes has the product first.
TEST(Fusion, AFunctionBehindAProductKeepsTheOrderOfItsOperands) {
  const uint32_t two_operands[] = {
#define KRN_SCALAR(id, name, arity, dtypes, result, ...) is_float_row(arity, #dtypes, #result) ? uint32_t{id} : 0,
#define KRN_REDUCE(...)
#define KRN_MOVE(...)
#define KRN_FACTORY(...)
#define KRN_COMPOSITE(...)
#include "abi/ops.def"
#undef KRN_SCALAR
#undef KRN_REDUCE
#undef KRN_MOVE
#undef KRN_FACTORY
#undef KRN_COMPOSITE
  };
  int tried = 0, behind = 0;
  for (const uint32_t op : two_operands)
    for (int product = 0; op != 0 && product < 3; ++product)
      for (int place = 0; place < 4; ++place) {
        RegionBuilder g;
        int y = -1;
        if (product == 0) y = g.matmul(g.input(kF32, {3, 4}), g.input(kF32, {4, 5}));
        if (product == 1) y = g.linear(g.input(kF32, {3, 4}), g.input(kF32, {5, 4}), g.input(kF32, {5}));
        if (product == 2) y = g.conv(g.input(kF32, {1, 2, 4, 4}), g.input(kF32, {3, 2, 3, 3}), g.input(kF32, {3}), 1, 1);
        const Dims sizes = g.sizes(y);
        const int x = place == 3 ? g.expand(g.input(kF32, Dims(sizes.size(), 1)), sizes) : g.input(kF32, sizes);
        g.output(g.op(op, {place == 0 ? x : y, place == 0 ? y : place == 2 ? y : x}, kF32, sizes));
        InterpBackend backend;
        backend.take_every_post_op = true;
        const Checked c = check(g, backend);
        ASSERT_FALSE(HasFailure()) << op_name(op) << ", product " << product << ", place " << place;
        behind += c.kernels() == 0;
        ++tried;
      }
  EXPECT_GE(tried, 3 * 4 * 7);
  EXPECT_GE(behind, 3 * 2 * 2) << "sums and products at least";
}

// Numbers of queries and keys that differ either way, with and without a mask, heads of keys shared or not.
TEST(Fusion, AttentionOfAnyLengthsSeesWhatItsDefinitionSays) {
  for (int64_t queries : {1, 2, 3, 5})
    for (int64_t keys : {1, 2, 3, 4, 7})
      for (bool causal : {false, true})
        for (int mask : {0, 1, 2})
          for (int64_t heads : {1, 2}) {
            RegionBuilder g;
            std::vector<int> operands{g.input(kF32, {2, 2, queries, 4}), g.input(kF32, {2, heads, keys, 4}),
                                      g.input(kF32, {2, heads, keys, 3})};
            if (mask) operands.push_back(g.input(mask == 1 ? uint8_t{kDType_bool} : kF32, {2, 2, queries, keys}));
            g.output(g.op(kOp_attention, operands, kF32, {2, 2, queries, 3},
                          {{kAttr_causal, causal}, {kAttr_scale, 0.5}, {kAttr_gqa, heads == 1}}));
            InterpBackend backend;
            backend.info.max_score_bytes = 1e9;
            check(g, backend);
            ASSERT_FALSE(HasFailure()) << queries << " queries, " << keys << " keys, causal " << causal << ", mask " << mask;
          }
}

// Groups without rows, rows of no group; ends that go back or lie behind the rows end the run.
TEST(Fusion, ProductsOfGroupsAreThoseOfAllRowsWhereFew) {
  for (int64_t groups : {1, 2, 3, 5})
    for (int64_t rows : {1, 4, 7})
      for (uint8_t dtype : {uint8_t{kDType_i32}, uint8_t{kDType_i64}}) {
        RegionBuilder g;
        const int x = g.input(kF32, {rows, 6}), w = g.input(kF32, {groups, 6, 3}), ends = g.input(dtype, {groups});
        g.output(g.op(kOp_grouped_matmul, {x, w, ends}, kF32, {rows, 3}));
        std::vector<Values> inputs = random_inputs(read_region(g.bytes()), 5);
        for (int kind = 0; kind < 4; ++kind) {  // all rows in groups, some behind, one end too many, one that goes back
          SCOPED_TRACE(std::to_string(groups) + " groups of " + std::to_string(rows) + " rows, kind " + std::to_string(kind));
          for (int64_t group = 0; group < groups; ++group)
            inputs[2][static_cast<size_t>(group)] = std::floor(static_cast<double>((group + 1) * rows) / static_cast<double>(groups));
          if (kind == 1) inputs[2].back() = std::max(groups > 1 ? inputs[2][static_cast<size_t>(groups) - 2] : 0, 0.0);
          if (kind == 2) inputs[2].back() = static_cast<double>(rows + 1);
          if (kind == 3) inputs[2].back() = -1;
          for (bool library : {false, true}) {
            InterpBackend backend;
            backend.take_anchors = library;
            const Checked c = kind < 2 ? check(g, backend, inputs) : run_region(g, backend, inputs);
            EXPECT_EQ(c.code, kind < 2 ? KRN_STATUS_ok : KRN_STATUS_invalid_input);
            EXPECT_EQ(c.executable->num_anchors(), library ? 1u : 0u);
          }
        }
      }
  RegionBuilder g;
  const int x = g.input(kF32, {512, 64}), w = g.input(kF32, {8, 64, 64}), ends = g.input(kDType_i64, {8});
  g.output(g.op(kOp_grouped_matmul, {x, w, ends}, kF32, {512, 64}));
  InterpBackend backend;
  EXPECT_THROW(run_region(g, backend, random_inputs(read_region(g.bytes()), 5)), kit::Error) << "many are left to eager";
  backend.info.max_grouped_products = 1e9;
  EXPECT_EQ(run_region(g, backend, random_inputs(read_region(g.bytes()), 5)).executable->num_anchors(), 1u);
}

// A library packs constants. Models write experts' weights transposed: it is told of the constant, and how it is read.
TEST(Fusion, WeightsOfGroupsAreConstantsThroughTheirTranspose) {
  struct Library : InterpBackend {
    bool takes_anchor(const AnchorDesc&, std::string&) const override { return true; }
    std::unique_ptr<Step> lower_anchor(const ChosenAnchor& chosen, const CompileContext&) override {
      weights = chosen.desc->operands[1];
      throw kit::Error(KRN_STATUS_unsupported, "seen");
    }
    TensorDesc weights;
  };
  for (bool constant : {false, true}) {
    RegionBuilder g;
    const int x = g.input(kF32, {9, 4}), w = g.input(kF32, {3, 5, 4}, {}, constant), ends = g.input(kDType_i32, {3});
    g.output(g.op(kOp_grouped_matmul, {x, g.permute(w, {0, 2, 1}), ends}, kF32, {9, 5}));
    Library library;
    EXPECT_THROW(run_region(g, library, random_inputs(read_region(g.bytes()), 5)), kit::Error);
    EXPECT_EQ(library.weights.weight != TensorDesc().weight, constant);
    EXPECT_EQ(library.weights.sizes, (Dims{3, 4, 5}));
    EXPECT_EQ(library.weights.strides, (Dims{20, 1, 4}));
    EXPECT_EQ(library.weights.offset, 0);
  }
}

TEST(Fusion, TinyMatmulIsGeneratedWhereRefused) {
  RegionBuilder g;
  int a = g.input(kF32, {2, 3, 4}), b = g.input(kF32, {2, 4, 5}), w = g.input(kF32, {6, 5}), bias = g.input(kF32, {6});
  g.output(g.unary(kOp_relu, g.linear(g.matmul(a, b), w, bias)));
  InterpBackend backend;
  backend.take_anchors = false;
  EXPECT_EQ(check(g, backend).executable->num_anchors(), 0u);
}

// One pixel of each image, as squeeze and excitation have it: rows of its weights, with what stands around it in the same kernels.
TEST(Fusion, AConvolutionOfOnePixelIsASumForEachChannel) {
  for (const int64_t images : {1, 3})
    for (const bool with_bias : {false, true})
      for (const int64_t padding : {0, 1}) {
        RegionBuilder g;
        const int x = g.input(kF32, {images, 24, 1, 1}), w = g.input(kF32, {10, 24, 1, 1}, {}, true);
        g.output(g.unary(kOp_silu, g.conv(g.unary(kOp_tanh, x), w, with_bias ? g.input(kF32, {10}, {}, true) : -1, 3, padding)));
        InterpBackend backend;
        backend.take_anchors = false;
        if (padding == 0) EXPECT_EQ(check(g, backend).executable->num_anchors(), 0u);
        else EXPECT_THROW(run_region(g, backend, random_inputs(read_region(g.bytes()), 5)), kit::Error) << "it sees the padding alone";
      }
}

// Attention over windows: queries and keys lie in a way that no library reads. They are copied, in one kernel with what makes them.
TEST(Fusion, AProductOfOperandsThatLieApartRunsOnCopies) {
  RegionBuilder g;
  int a = g.input(kF32, {2, 64, 48}, {64 * 96, 96, 2}), b = g.input(kF32, {2, 48, 64}, {48 * 192, 192, 3});
  g.output(g.matmul(g.unary(kOp_tanh, a), b));
  InterpBackend backend;
  backend.only_dense_lines = true;
  const Checked c = check(g, backend);
  EXPECT_EQ(c.executable->num_anchors(), 1u) << c.executable->describe();
}

// A library that reads an operand as a view of another, but not with an epilogue behind it, or not where the result is an output that lies
// otherwise: what it would refuse when the step is made is laid out as the region states it.
TEST(Fusion, AnOperandIsReadAsAViewOnlyWhereTheWholeAnchorIsTaken) {
  struct Library : InterpBackend {
    bool with_epilogue = true, with_output = true;
    bool takes(const AnchorDesc& a, bool has_epilogue) const {
      const bool view = a.operands[0].strides.back() != 1, elsewhere = a.results[0].strides.back() != 1;
      return !view || ((with_epilogue || !has_epilogue) && (with_output || !elsewhere));
    }
    bool takes_anchor(const AnchorDesc& a, std::string&) const override { return a.op == kOp_matmul && takes(a, !a.post_ops.empty()); }
    bool takes_post_op(const AnchorDesc& a, const PostOp&) const override { return takes(a, true); }
    std::shared_ptr<const AnchorChoice> choose_anchor(const AnchorDesc& a) const override {
      std::string why;
      if (!takes_anchor(a, why)) throw kit::Error(KRN_STATUS_unsupported, "never asked about");
      seen = a;
      return nullptr;
    }
    mutable AnchorDesc seen;
  };
  for (const bool with_epilogue : {true, false})
    for (const bool with_output : {true, false}) {
      RegionBuilder g;
      const int x = g.unary(kOp_tanh, g.input(kF32, {40, 24})), w = g.input(kF32, {40, 32});
      const int product = g.matmul(g.permute(x, {1, 0}), w);
      g.output(with_output ? g.unary(kOp_relu, product) : g.permute(product, {1, 0}));
      Library library;
      library.with_epilogue = with_epilogue, library.with_output = with_output;
      const Checked c = check(g, library);
      EXPECT_EQ(c.executable->num_anchors(), 1u);
      EXPECT_EQ(library.seen.operands[0].strides == (Dims{1, 24}), with_epilogue && with_output) << with_epilogue << with_output;
      EXPECT_EQ(library.seen.post_ops.size(), with_output ? 1u : 0u);
    }
}

TEST(Fusion, CompositesAreInlinedFromTheirBodies) {
  RegionBuilder body;
  body.output(body.softmax(body.input(kF32, {3, 10}), 1));
  RegionBuilder norm;
  int in = norm.input(kF32, {3, 10}), w = norm.input(kF32, {10});
  norm.output(norm.rms_norm(in, w, 1e-6));
  RegionBuilder g;
  int x = g.input(kF32, {3, 10}), weight = g.input(kF32, {10});
  int y = g.op(kOp_softmax, {g.unary(kOp_neg, x)}, kF32, {3, 10}, {{kAttr_dim, int64_t{1}}});
  g.set_body(y, body);
  int z = g.op(kOp_rms_norm, {y, weight}, kF32, {3, 10}, {{kAttr_rank, int64_t{1}}, {kAttr_eps, 1e-6}});
  g.set_body(z, norm);
  g.output(z);
  Checked c = check(g);
  EXPECT_EQ(c.kernels(), 1u) << c.executable->describe();
}

TEST(Fusion, EqualLayersShareCode) {
  RegionBuilder g;
  int x = g.input(kF32, {4, 8}), w = g.input(kF32, {8, 8}), b = g.input(kF32, {8});
  for (int layer = 0; layer < 6; ++layer) x = g.layer_norm(g.unary(kOp_tanh, g.linear(x, w, b)), b, b, 1e-5);
  g.output(x);
  Checked c = check(g);
  EXPECT_EQ(c.kernels(), 6u);
  EXPECT_EQ(c.executable->num_codegen(), 1u);
}

}  // namespace
}  // namespace keirin::codegen::test
