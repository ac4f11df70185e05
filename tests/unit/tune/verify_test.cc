// SPDX-License-Identifier: Apache-2.0
//
// Planted wrong candidates: each must be refused, and a right one passed, by the error against fp64 compared with eager's.
#include "core/tune/verify.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "core/ir/text.h"
#include "core/tune/elements.h"
#include "core/tune/sensitivity.h"
#include "tests/unit/host/heap_services.h"

namespace keirin {
namespace {

constexpr int64_t kN = 1000;

TensorRef make(DType dtype, const std::vector<double>& values) {
  test::HeapServices services;
  TensorRef t = *services.allocate({dtype, {static_cast<int64_t>(values.size())}, {}, {}});
  each_element(*t, [&](int64_t i, void* at) { store_element(dtype, at, values[static_cast<size_t>(i)]); });
  return t;
}

class Judge : public testing::TestWithParam<DType> {
 protected:
  Judge() {
    std::mt19937_64 random(7);
    std::normal_distribution<double> normal;
    for (int64_t i = 0; i < kN; ++i) truth_.push_back(normal(random));
    // Eager: rounded, with an error of two further units, as after a chain of ops. The right candidate: likewise, another way.
    for (const double x : truth_) eager_.push_back(x + 2 * ulp_at(GetParam(), std::abs(x)) * std::sin(x * 1e3));
    for (const double x : truth_) right_.push_back(x + 2 * ulp_at(GetParam(), std::abs(x)) * std::cos(x * 1e3));
  }
  Judgement judge_values(const std::vector<double>& candidate) {
    const TensorRef r[] = {make(DType::k_f64, truth_)}, e[] = {make(GetParam(), eager_)}, c[] = {make(GetParam(), candidate)};
    return *judge(r, e, c, services_);
  }
  std::vector<double> truth_, eager_, right_;
  test::HeapServices services_;
};

TEST_P(Judge, ARightOneIsVerified) {
  const Judgement j = judge_values(right_);
  EXPECT_TRUE(j.verified) << j.reason;
  EXPECT_GT(j.eager_error, 0);
  EXPECT_LT(j.max_error, 4 * ulp_at(GetParam(), 4));
  EXPECT_TRUE(judge_values(eager_).verified);
  std::vector<double> exact = truth_;
  EXPECT_TRUE(judge_values(exact).verified) << "better than eager is right";
}

TEST_P(Judge, OneWrongElementIsRefused) {
  for (const size_t at : {size_t{0}, size_t{499}, size_t{kN - 1}}) {
    std::vector<double> wrong = right_;
    wrong[at] += 0.5;
    const Judgement j = judge_values(wrong);
    EXPECT_FALSE(j.right);
    EXPECT_EQ(j.outputs[0].worst_index, static_cast<int64_t>(at));
    EXPECT_NE(j.reason.find("output 0: element " + std::to_string(at)), std::string::npos) << j.reason;
  }
}

TEST_P(Judge, AShiftByOneElementIsRefused) {
  std::vector<double> shifted(right_.begin() + 1, right_.end());
  shifted.push_back(right_[0]);
  EXPECT_FALSE(judge_values(shifted).right);
}

TEST_P(Judge, AMissingLastElementIsRefused) {
  std::vector<double> cut = right_;
  cut.back() = 0;
  EXPECT_FALSE(judge_values(cut).right);
}

TEST_P(Judge, ZerosNaNAndInfinityAreRefused) {
  EXPECT_FALSE(judge_values(std::vector<double>(kN, 0)).right);
  for (const double bad : {std::nan(""), std::numeric_limits<double>::infinity()}) {
    std::vector<double> wrong = right_;
    wrong[3] = bad;
    const Judgement j = judge_values(wrong);
    EXPECT_FALSE(j.right);
    EXPECT_NE(j.reason.find("element 3"), std::string::npos) << j.reason;
  }
}

TEST_P(Judge, ALossOfPrecisionIsRefused) {
  std::vector<double> coarse = truth_;
  for (double& x : coarse) x += 16 * ulp_at(GetParam(), std::abs(x)) * std::sin(x * 1e3);
  EXPECT_FALSE(judge_values(coarse).right);
}

TEST_P(Judge, AnotherOrderOfSummationIsNoErrorButFarMoreIs) {
  if (GetParam() == DType::k_f16 || GetParam() == DType::k_bf16) GTEST_SKIP() << "16-bit results are summed in f32";
  double largest = 0;
  for (const double x : truth_) largest = std::max(largest, std::abs(x));
  std::vector<double> summed = right_;
  summed[3] += 12 * ulp_at(GetParam(), largest);
  EXPECT_TRUE(judge_values(summed).verified) << judge_values(summed).reason;
  summed[3] += 40 * ulp_at(GetParam(), largest);
  EXPECT_FALSE(judge_values(summed).right);
}

TEST_P(Judge, NaNWhereEagerHasItIsRightAndAFiniteOneIsNotUnlessFp64IsFinite) {
  truth_[5] = eager_[5] = right_[5] = std::nan("");
  EXPECT_TRUE(judge_values(right_).verified);
  std::vector<double> finite = right_;
  finite[5] = 1;
  EXPECT_FALSE(judge_values(finite).right) << "eager and fp64 have NaN";
  truth_[5] = 1;  // eager overflowed on the way, fp64 did not
  EXPECT_TRUE(judge_values(finite).verified) << "better than eager";
  finite[5] = 3;
  EXPECT_FALSE(judge_values(finite).right) << "but not right";
  EXPECT_TRUE(judge_values(right_).verified) << "as eager";
}

TEST_P(Judge, AnInfinityThatFp64HasTooIsRightWhateverEagerHas) {
  truth_[5] = right_[5] = -std::numeric_limits<double>::infinity();
  eager_[5] = std::nan("");
  EXPECT_TRUE(judge_values(right_).verified);
  right_[5] = -right_[5];
  EXPECT_FALSE(judge_values(right_).right) << "of the other sign";
}

TEST_P(Judge, AConstantRefereeProvesNothing) {
  truth_.assign(kN, 0);
  eager_ = right_ = truth_;
  const Judgement j = judge_values(right_);
  EXPECT_TRUE(j.right);
  EXPECT_FALSE(j.verified);
  EXPECT_TRUE(j.outputs[0].vacuous);
  EXPECT_NE(j.reason.find("constant"), std::string::npos);
  right_[7] = 1;
  EXPECT_FALSE(judge_values(right_).right) << "and a wrong one is still wrong";
}

INSTANTIATE_TEST_SUITE_P(Floats, Judge, testing::Values(DType::k_f16, DType::k_bf16, DType::k_f32, DType::k_f64),
                         [](const auto& info) { return std::string(dtype_name(info.param)); });

// Broadcast operands make one sum of all elements: how eager's turned out says little.
TEST(JudgeForm, EqualElementsAreOne) {
  test::HeapServices services;
  const auto of = [](int64_t n, double step, double error) {
    std::vector<double> out;
    for (int64_t i = 0; i < n; ++i) out.push_back(2 + step * static_cast<double>(i) + error);
    return out;
  };
  for (const double step : {0.0, 1e-3}) {
    const TensorRef r[] = {make(DType::k_f64, of(256, step, 0))}, e[] = {make(DType::k_f32, of(256, step, 0x1p-22))};
    const TensorRef c[] = {make(DType::k_f32, of(256, step, 9 * 0x1p-22))};
    const Judgement j = *judge(r, e, c, services);
    EXPECT_EQ(j.right, step == 0) << j.reason;
  }
}

// Dot products of 2304 terms: eager sums in blocks of 144, the candidate with one accumulator, a third rounds its operands to bf16.
TEST(JudgeForm, OneAccumulatorIsNoErrorWhereTheGraphHasSuchSums) {
  constexpr int kTerms = 2304, kBlock = 144, kSums = 4000;
  std::mt19937 random(11);
  std::normal_distribution<float> normal;
  const auto narrow = [](float x) {
    char bits[2];
    store_element(DType::k_bf16, bits, x);
    return static_cast<float>(load_element(DType::k_bf16, bits));
  };
  std::vector<double> exact, blocks, one, coarse;
  for (int i = 0; i < kSums; ++i) {
    double sum = 0;
    float in_blocks = 0, block = 0, running = 0, rounded = 0;
    for (int k = 1; k <= kTerms; ++k) {
      const float a = normal(random), b = normal(random);
      sum += static_cast<double>(a) * b;
      block = std::fma(a, b, block);
      if (k % kBlock == 0) in_blocks += block, block = 0;
      running = std::fma(a, b, running);
      rounded = std::fma(narrow(a), b, rounded);
    }
    exact.push_back(sum), blocks.push_back(in_blocks), one.push_back(running), coarse.push_back(rounded);
  }
  test::HeapServices services;
  const auto right = [&](const std::vector<double>& candidate, int64_t summands) {
    const TensorRef r[] = {make(DType::k_f64, exact)}, e[] = {make(DType::k_f32, blocks)}, c[] = {make(DType::k_f32, candidate)};
    JudgeOptions options;
    options.summands = summands;
    return judge(r, e, c, services, options)->right;
  };
  EXPECT_TRUE(right(one, kTerms));
  EXPECT_FALSE(right(one, 0)) << "no sum of the graph explains this error";
  EXPECT_FALSE(right(coarse, kTerms));
  std::vector<double> twice = one;
  for (size_t i = 0; i < twice.size(); ++i) twice[i] += 2 * (one[i] - exact[i]);
  EXPECT_FALSE(right(twice, kTerms)) << "three times the error that such sums have";
}

TEST(JudgeForm, TheLongestDotProductOfAGraph) {
  const auto summands = [](const std::string& text) {
    const Result<Graph> graph = parse(text);
    EXPECT_TRUE(graph.ok()) << graph.status().text();
    return graph.ok() ? judge_options(*graph, Numerics::kDefault, 0).summands : -1;
  };
  EXPECT_EQ(summands(R"(graph {
  %x = input 0 : f32[2,3]
  %y = exp(%x) : f32[2,3]
  output %y
})"), 0);
  EXPECT_EQ(summands(R"(graph {
  %x = input 0 : f32[2,48]
  %w = input 1 : f32[5,48]
  %y = linear(%x, %w, _) : f32[2,5]
  output %y
})"), 48);
  for (const bool transposed : {false, true})
    EXPECT_EQ(summands(std::string(R"(graph {
  %x = input 0 : f32[1,8,4,4]
  %w = input 1 : f32[8,4,1,3]
  %y = conv(%x, %w, _) {stride=[1,1], padding=[0,1], dilation=[1,1], groups=2, transposed=)") + (transposed ? "true" : "false") +
                       ", output_padding=[0,0]} : f32[1,8,4,4]\n  output %y\n}"), 4 * 3);
}

TEST(JudgeForm, DtypeSizesAndStridesAreEagers) {
  test::HeapServices services;
  const std::vector<double> values{1, 2, 3, 4, 5, 6};
  const auto tensor = [&](DType dtype, std::vector<int64_t> sizes, std::vector<int64_t> strides) {
    TensorRef t = *services.allocate({dtype, std::move(sizes), std::move(strides), {}});
    each_element(*t, [&](int64_t i, void* at) { store_element(dtype, at, values[static_cast<size_t>(i)]); });
    return t;
  };
  const TensorRef r[] = {tensor(DType::k_f64, {2, 3}, {})}, e[] = {tensor(DType::k_f32, {2, 3}, {})};
  const auto reason = [&](TensorRef candidate) {
    const TensorRef c[] = {std::move(candidate)};
    return judge(r, e, c, services)->reason;
  };
  EXPECT_EQ(reason(tensor(DType::k_f32, {2, 3}, {})), "");
  EXPECT_EQ(reason(tensor(DType::k_f64, {2, 3}, {})), "output 0: the dtype is f64, eager has f32");
  EXPECT_EQ(reason(tensor(DType::k_f32, {3, 2}, {})), "output 0: the sizes are [3,2], eager has [2,3]");
  EXPECT_EQ(reason(tensor(DType::k_f32, {2, 3}, {1, 2})), "output 0: the strides are [1,2], eager has [3,1]");
  // Other layouts of referee and eager themselves are read right.
  const TensorRef rt[] = {tensor(DType::k_f64, {2, 3}, {1, 2})};
  const TensorRef same[] = {tensor(DType::k_f32, {2, 3}, {})};
  EXPECT_TRUE(judge(rt, e, same, services)->verified);
  EXPECT_FALSE(judge({}, e, same, services).ok());
}

TEST(JudgeForm, IntegersAndBoolsAreBitEqual) {
  test::HeapServices services;
  const int64_t big = (int64_t{1} << 53) + 1;  // a double does not hold it
  const auto ints = [&](int64_t last) {
    return test::tensor_of<int64_t>(DType::k_i64, {3}, {1, big, last});
  };
  const TensorRef r[] = {ints(7)}, e[] = {ints(7)};
  {
    const TensorRef c[] = {ints(7)};
    EXPECT_TRUE(judge(r, e, c, services)->verified);
  }
  {
    const TensorRef c[] = {test::tensor_of<int64_t>(DType::k_i64, {3}, {1, big - 1, 7})};
    const Judgement j = *judge(r, e, c, services);
    EXPECT_FALSE(j.right);
    EXPECT_NE(j.reason.find("1 of 3 elements differ from eager, first at 1"), std::string::npos) << j.reason;
  }
}

TEST(JudgeForm, StrictWantsEagersBitsAndFastABudget) {
  test::HeapServices services;
  const TensorRef r[] = {make(DType::k_f64, {1, 2, 3})}, e[] = {make(DType::k_f32, {1, 2, 3})};
  const TensorRef c[] = {make(DType::k_f32, {1, 2, 3.0000002})};
  EXPECT_TRUE(judge(r, e, c, services)->verified);
  JudgeOptions strict;
  strict.strict = true;
  EXPECT_FALSE(judge(r, e, c, services, strict)->right);
  EXPECT_TRUE(judge(r, e, e, services, strict)->right);
  const TensorRef coarse[] = {make(DType::k_f32, {1, 2, 3.01})};
  EXPECT_FALSE(judge(r, e, coarse, services)->right);
  JudgeOptions fast;
  fast.error_budget = 0.01;
  EXPECT_TRUE(judge(r, e, coarse, services, fast)->right);
  fast.error_budget = 0.001;
  EXPECT_FALSE(judge(r, e, coarse, services, fast)->right);
}

TEST(JudgeForm, EmptyAndSingleOutputs) {
  test::HeapServices services;
  const TensorRef none[] = {make(DType::k_f32, {})}, none_r[] = {make(DType::k_f64, {})};
  EXPECT_TRUE(judge(none_r, none, none, services)->verified);
  const TensorRef loss_r[] = {make(DType::k_f64, {2.5})}, loss[] = {make(DType::k_f32, {2.5})};
  EXPECT_TRUE(judge(loss_r, loss, loss, services)->verified);
}

// 16-bit values through the reader and back: every bit pattern.
TEST(Elements, NarrowFloatsRoundTrip) {
  for (const DType dtype : {DType::k_f16, DType::k_bf16})
    for (int bits = 0; bits < 65536; ++bits) {
      const auto raw = static_cast<uint16_t>(bits);
      const double value = load_element(dtype, &raw);
      uint16_t back = 0;
      store_element(dtype, &back, value);
      if (std::isnan(value)) {
        ASSERT_TRUE(std::isnan(load_element(dtype, &back)));
      } else {
        ASSERT_EQ(back, raw) << dtype_name(dtype);
      }
    }
  uint16_t out = 0;
  store_element(DType::k_bf16, &out, 1 + 0x1p-8);  // half way: to even
  EXPECT_EQ(out, 0x3f80);
  store_element(DType::k_bf16, &out, 1 + 3 * 0x1p-8);
  EXPECT_EQ(out, 0x3f82);
  store_element(DType::k_f16, &out, 65520.0);  // half way beyond the largest: infinity
  EXPECT_EQ(out, 0x7c00);
}

// ---- two ways of computing one thing

TEST(Difference, IsFoundInEachElementBeyondTheBoundAndInNoOther) {
  test::HeapServices services;
  std::vector<double> values;
  std::mt19937_64 random(3);
  std::normal_distribution<double> normal;
  for (int i = 0; i < 257; ++i) values.push_back(normal(random));
  double scale = 0;
  for (const double x : values) scale = std::max(scale, std::abs(x));
  const TensorRef referee[] = {make(DType::k_f64, values)};
  for (size_t at = 0; at < values.size(); ++at)
    for (const double bound : {1e-9, 1e-3})
      for (const double part : {0.9, 1.1}) {
        std::vector<double> other = values;
        other[at] += part * bound * scale;
        const TensorRef moved[] = {make(DType::k_f64, other)};
        const std::string found = *find_difference(referee, moved, services, {bound, true}, {"this"});
        EXPECT_EQ(found.empty(), part < 1) << at << " " << bound;
        if (part > 1) {
          EXPECT_EQ(found.rfind("this: element " + std::to_string(at) + " is ", 0), 0u) << found;
        }
      }
}

TEST(Difference, OfIntegersSpecialsSizesAndNumbers) {
  test::HeapServices services;
  const double inf = std::numeric_limits<double>::infinity();
  const auto differs = [&](DType dtype, const std::vector<double>& a, const std::vector<double>& b, bool exact_rest) {
    const TensorRef x[] = {make(dtype, a)}, y[] = {make(dtype, b)};
    return !find_difference(x, y, services, {0.1, exact_rest}, {})->empty();
  };
  EXPECT_TRUE(differs(DType::k_i64, {100, 2}, {100, 3}, true));
  EXPECT_FALSE(differs(DType::k_i64, {100, 2}, {100, 3}, false));
  EXPECT_TRUE(differs(DType::k_f32, {1, 2}, {1, std::nan("")}, true));
  EXPECT_FALSE(differs(DType::k_f32, {1, 2}, {1, std::nan("")}, false));
  EXPECT_FALSE(differs(DType::k_f32, {inf, std::nan("")}, {inf, std::nan("")}, true));
  EXPECT_TRUE(differs(DType::k_f32, {inf, 1}, {-inf, 1}, true));
  EXPECT_TRUE(differs(DType::k_f32, {1, 2, 3}, {1, 2}, false));
  const TensorRef one[] = {make(DType::k_f32, {1})};
  EXPECT_FALSE(find_difference(one, {}, services, {1, true}, {})->empty());
}

TEST(Difference, EagersBoundFollowsTheDtype) {
  const auto bound = [](const char* dtype, bool tf32) {
    const std::string d = dtype;
    auto graph = parse("graph {\n  %x = input 0 : " + d + "[64,64]\n  %y = exp(%x) : " + d + "[64,64]\n  output %y\n}\n");
    EXPECT_TRUE(graph.ok()) << graph.status().text();
    return eager_bound(*graph, tf32);
  };
  EXPECT_LT(bound("f64", false), 1e-13);
  EXPECT_LT(bound("f32", false), 1e-5);
  EXPECT_LT(bound("f32", true), 0.02);
  EXPECT_GT(bound("f32", true), 1e-3);
  EXPECT_LT(bound("bf16", false), 0.15);
  EXPECT_EQ(bound("bf16", true), bound("bf16", false));
}

TEST(Difference, ASumRoundsOnItsWay) {
  const auto times = [](const std::string& d) {
    auto graph =
        parse("graph {\n  %x = input 0 : " + d + "[8,100]\n  %y = sum(%x) {dims=[1], keepdim=false} : " + d + "[8]\n  output %y\n}\n");
    EXPECT_TRUE(graph.ok()) << graph.status().text();
    return roundings_of_sums(*graph);
  };
  EXPECT_DOUBLE_EQ(times("f32"), 4);
  EXPECT_DOUBLE_EQ(times("bf16"), 1) << "summed in f32";
}

// Tensors that say to lie on a device, whose errors are summed up there.
class DeviceServices : public test::HeapServices {
 public:
  Result<TensorRef> to_device(const TensorRef& tensor, Device device) override {
    ++copied;
    return HeapServices::to_device(tensor, device);
  }
  Result<ElementErrors> errors(const TensorRef& r, const TensorRef& a, const TensorRef& b, const Granted& granted) override {
    ElementErrors out;
    const auto at = [](const TensorRef& t, int64_t i) {
      return load_element(t->dtype(), static_cast<char*>(t->data()) + i * dtype_bytes(t->dtype()));
    };
    out.constant = true;
    for (int64_t i = 0; i < num_elements(*r); ++i) {
      const double x = at(r, i), of_a = std::abs(at(a, i) - x), of_b = std::abs(at(b, i) - x);
      out.constant = out.constant && x == at(r, 0);
      if (!std::isfinite(of_a + of_b)) {
        const auto same = [&](double other) { return other == at(b, i) || (std::isnan(other) && std::isnan(at(b, i))); };
        out.explained = out.explained && (same(x) || same(at(a, i)));
        continue;
      }
      ++out.judged;
      out.scale = std::max(out.scale, std::abs(x));
      out.squares += x * x, out.first.squares += of_a * of_a, out.second.squares += of_b * of_b;
      out.first.worst = std::max(out.first.worst, of_a), out.second.worst = std::max(out.second.worst, of_b);
      out.changed += at(b, i) != x;
      const double allowed = std::max(granted.least, granted.at_one * std::exp2(x == 0 ? -2000 : std::ilogb(x)));
      if (of_b - allowed > out.worst_beyond) out.worst_beyond = of_b - allowed, out.worst_index = i;
    }
    return out;
  }
  int copied = 0;
};

class ThereTest : public testing::Test {
 protected:
  TensorRef make_there(DType dtype, const std::vector<double>& values) {
    TensorRef t = *there_.allocate({dtype, {static_cast<int64_t>(values.size())}, {}, {Device::kCuda, 0}});
    each_element(*t, [&](int64_t i, void* at) { store_element(dtype, at, values[static_cast<size_t>(i)]); });
    return t;
  }
  // There and here: the same verdict in the same words.
  Judgement judge_both(DType of_referee, DType dtype, const std::vector<double>& truth, const std::vector<double>& eager,
                       const std::vector<double>& candidate, const JudgeOptions& options = {}) {
    const TensorRef r[] = {make_there(of_referee, truth)}, e[] = {make_there(dtype, eager)}, c[] = {make_there(dtype, candidate)};
    const TensorRef r2[] = {make(of_referee, truth)}, e2[] = {make(dtype, eager)}, c2[] = {make(dtype, candidate)};
    there_.copied = 0;
    const Judgement there = *judge(r, e, c, there_, options), here = *judge(r2, e2, c2, there_, options);
    EXPECT_EQ(there.right, here.right);
    EXPECT_EQ(there.verified, here.verified);
    EXPECT_EQ(there.reason, here.reason);
    EXPECT_DOUBLE_EQ(there.max_error, here.max_error);
    EXPECT_DOUBLE_EQ(there.eager_error, here.eager_error);
    return there;
  }
  DeviceServices there_;
};

std::vector<double> drawn(size_t n, double off = 0) {
  std::mt19937_64 random(11);
  std::normal_distribution<double> normal;
  std::vector<double> out;
  for (size_t i = 0; i < n; ++i) out.push_back(normal(random) * (1 + off * std::sin(static_cast<double>(i))));
  return out;
}

TEST_F(ThereTest, WhatIsRightIsNotCopied) {
  constexpr size_t kMany = 200000;
  const auto truth = drawn(kMany), eager = drawn(kMany, 1e-7), right = drawn(kMany, -1.2e-7);
  EXPECT_TRUE(judge_both(DType::k_f64, DType::k_f32, truth, eager, right).verified);
  EXPECT_EQ(there_.copied, 0);
  std::vector<double> wrong = right;
  wrong[kMany / 2] += 1e-3;
  EXPECT_FALSE(judge_both(DType::k_f64, DType::k_f32, truth, eager, wrong).right);
  EXPECT_EQ(there_.copied, 3);
  wrong[kMany / 2] = std::nan("");
  EXPECT_FALSE(judge_both(DType::k_f64, DType::k_f32, truth, eager, wrong).right);
  std::vector<double> infinite = eager;  // as eager has it, whose dtype ends there
  infinite[kMany / 2] = right[0] > 0 ? HUGE_VAL : -HUGE_VAL;
  wrong[kMany / 2] = infinite[kMany / 2];
  EXPECT_TRUE(judge_both(DType::k_f64, DType::k_f32, truth, infinite, wrong).verified);
  EXPECT_EQ(there_.copied, 0);
}

TEST_F(ThereTest, AConstantProvesNothingThereEither) {
  constexpr size_t kMany = 50000;
  const std::vector<double> same(kMany, 0.25);
  EXPECT_FALSE(judge_both(DType::k_f64, DType::k_f32, same, same, same).verified);
  JudgeOptions options;
  options.must_vary = 0;
  EXPECT_TRUE(judge_both(DType::k_f64, DType::k_f32, same, same, same, options).verified);
  EXPECT_EQ(there_.copied, 0);
}

TEST_F(ThereTest, IntegersAreEqualOrWrong) {
  constexpr size_t kMany = 50000;
  std::vector<double> numbers(kMany);
  for (size_t i = 0; i < kMany; ++i) numbers[i] = static_cast<double>(i % 1000);
  EXPECT_TRUE(judge_both(DType::k_i64, DType::k_i64, numbers, numbers, numbers).verified);
  EXPECT_EQ(there_.copied, 0);
  std::vector<double> wrong = numbers;
  wrong[kMany - 1] += 1;
  EXPECT_FALSE(judge_both(DType::k_i64, DType::k_i64, numbers, numbers, wrong).right);
  // Beyond 2^53 two of them may be one 64-bit float.
  std::vector<double> large = numbers;
  large[0] = 0x1p60;
  EXPECT_TRUE(judge_both(DType::k_i64, DType::k_i64, large, large, large).right);
  EXPECT_GT(there_.copied, 0);
}

TEST_F(ThereTest, DifferencesAreFoundThereAsHere) {
  constexpr size_t kMany = 50000;
  const auto truth = drawn(kMany), near = drawn(kMany, 1e-12);
  std::vector<double> far = near;
  far[7] += 1e-3;
  const auto both = [&](const std::vector<double>& other) {
    const TensorRef r[] = {make_there(DType::k_f64, truth)}, o[] = {make_there(DType::k_f64, other)};
    const TensorRef r2[] = {make(DType::k_f64, truth)}, o2[] = {make(DType::k_f64, other)};
    const std::string here = *find_difference(r2, o2, there_, {1e-9, true});
    there_.copied = 0;
    EXPECT_EQ(*find_difference(r, o, there_, {1e-9, true}), here);
    return here;
  };
  EXPECT_EQ(both(near), "");
  EXPECT_EQ(there_.copied, 0);
  EXPECT_NE(both(far), "");
  for (const double special : {std::nan(""), HUGE_VAL}) {
    far = near;
    far[7] = special;
    EXPECT_NE(both(far), "") << "what is not finite has to be so in both";
  }
}

TEST_F(ThereTest, ANanIsFartherThanRoundingsGo) {
  constexpr size_t kMany = 50000;
  const auto truth = drawn(kMany);
  auto other = drawn(kMany, 1e-7);
  const TensorRef r[] = {make_there(DType::k_f64, truth)};
  const Movement moved[] = {{1, 0}};
  const auto why = [&] {
    const TensorRef o[] = {make_there(DType::k_f32, other)};
    return *unexplained(r, o, moved, there_);
  };
  EXPECT_EQ(why(), "");
  EXPECT_EQ(there_.copied, 0);
  for (const double special : {std::nan(""), -HUGE_VAL}) {
    other[9] = special;
    EXPECT_NE(why(), "");
  }
}

}  // namespace
}  // namespace keirin
