// SPDX-License-Identifier: Apache-2.0
//
// Calls between two buckets are answered by the plan of the larger one as eager answers them, whatever stands in the padding; sizes that
// may not be padded are refused with what forbids it.
#include "core/api/buckets.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <mutex>
#include <random>

#include "core/api/keirin.h"
#include "core/api/session.h"
#include "core/base/request.h"
#include "tests/support/others.h"
#include "tests/support/shared_runtime.h"

namespace keirin {
namespace {

using namespace std::chrono_literals;
using Tensors = std::vector<TensorRef>;

test::Others nobody;

Runtime& runtime() { return test::shared_runtime(1); }

Options options_of(std::vector<std::string> buckets, std::vector<std::string> pads = {}) {
  Options options;
  options.interference = &nobody;
  options.only_candidate = "cpu/all";
  options.threads = 1;
  options.buckets = std::move(buckets);
  options.pads = std::move(pads);
  return options;
}

Result<std::unique_ptr<Session>> open(const std::string& name, const Options& options) {
  const bool of_zoo = name.ends_with("_dynamic");
  const std::string folder = std::string(KEIRIN_SOURCE_DIR) + (of_zoo ? "/bench/zoo/models/small/" : "/tests/data/import/");
  return Session::open(runtime(), folder + name + ".pt2", options);
}

std::unique_ptr<Session> opened(const std::string& name, const Options& options) {
  auto session = open(name, options);
  EXPECT_TRUE(session.ok()) << session.status().text();
  return session.ok() ? std::move(*session) : nullptr;
}

void expect_equal(const Tensors& a, const Tensors& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t k = 0; k < a.size(); ++k) {
    ASSERT_EQ(spec_text(spec_of(*a[k])), spec_text(spec_of(*b[k])));
    ASSERT_TRUE(std::equal(a[k]->strides(), a[k]->strides() + a[k]->rank(), b[k]->strides()));
    const auto *x = static_cast<const float*>(a[k]->data()), *y = static_cast<const float*>(b[k]->data());
    int64_t n = 1;
    for (int64_t d = 0; d < a[k]->rank(); ++d) n *= a[k]->sizes()[d];
    float largest = 0;
    for (int64_t i = 0; i < n; ++i) largest = std::max(largest, std::fabs(y[i]));
    for (int64_t i = 0; i < n; ++i) ASSERT_NEAR(x[i], y[i], 1e-5 * largest) << "output " << k << ", element " << i;
  }
}

// One call answered by eager while the plan of its bucket is looked at, then by the plan.
void expect_padded_call(Session& session, const Tensors& inputs) {
  const auto eager = session.call_eager(inputs);
  for (int i = 0; i < 3; ++i) {
    const auto got = session.call(inputs);
    ASSERT_TRUE(got.ok()) << got.status().text();
    expect_equal(*got, *eager);
    (void)session.reports();  // waits for what is checked beside calls
  }
}
void expect_padded(Session& session, const Sizes& sizes) {
  SCOPED_TRACE(::testing::PrintToString(sizes));
  const auto inputs = session.example_inputs(3, sizes);
  ASSERT_TRUE(inputs.ok()) << inputs.status().text();
  expect_padded_call(session, *inputs);
}

TEST(BucketPolicy, SaysTheNextSizeUpToWhatTheExportAllows) {
  const auto next = [](const char* word, int64_t size, int64_t most = 0) { return BucketPolicy::parse(word)->next(size, most); };
  EXPECT_EQ(next("exact", 5), 5);
  EXPECT_EQ(next("multiple:8", 5), 8);
  EXPECT_EQ(next("multiple:8", 16), 16);
  EXPECT_EQ(next("multiple:8", 17, 20), 20) << "the last bucket ends where the export does";
  EXPECT_EQ(next("pow2", 5), 8);
  EXPECT_EQ(next("pow2", 8), 8);
  EXPECT_EQ(next("pow2", 33, 48), 48);
  EXPECT_EQ(next("list:12,4,8", 5), 8);
  EXPECT_EQ(next("list:12,4,8", 13), 13) << "beyond the last one calls are answered as they come";
  for (const char* word : {"", "pow", "pow2:3", "multiple", "multiple:0", "multiple:x", "list:", "list:4,,8", "list:0", "exact:1"})
    EXPECT_FALSE(BucketPolicy::parse(word).ok()) << word;
}

TEST(Buckets, ABatchIsPaddedAndCutBack) {
  const uint64_t compiled = compiles_on_requests();
  auto session = opened("ranges_convnet", options_of({"x[0]=multiple:8"}));
  ASSERT_TRUE(session->compile(*session->example_inputs(1, {5})).ok());
  ASSERT_TRUE(session->compile(*session->example_inputs(1, {9})).ok());
  for (int64_t n : {5, 3, 1, 8, 7, 12, 16}) expect_padded(*session, {n});
  const BucketsReport buckets = session->reports().back().buckets;
  ASSERT_EQ(buckets.sizes.size(), 1u);
  EXPECT_EQ(buckets.sizes[0].name, "x[0]");
  EXPECT_EQ(buckets.closed, "");
  // 5 and 12 were looked at first: 2, 3, 3, 3 and 2 calls of 5, 3, 1, 7 and 12.
  EXPECT_EQ(buckets.calls, 13u);
  EXPECT_EQ(buckets.sizes[0].asked, 2 * 5 + 3 * (3 + 1 + 7) + 2 * 12);
  EXPECT_EQ(buckets.sizes[0].ran, 11 * 8 + 2 * 16);
  EXPECT_NE(explain_text(session->reports().back()).find("x[0] to multiple:8: 44.2 % of what ran was padding"), std::string::npos)
      << explain_text(session->reports().back());
  EXPECT_EQ(session->reports().size(), 2u);
  EXPECT_EQ(compiles_on_requests(), compiled);
}

// Nodes and edges of any number: padded edges go from and to a padded node.
TEST(Buckets, ARaggedGraphRunsThroughThem) {
  auto session = opened("ranges_graph", options_of({"x[0]=multiple:32", "edges[1]=pow2"}, {"edges=x[0]"}));
  for (const Sizes& sizes : {Sizes{20, 60}, Sizes{60, 100}, Sizes{40, 256}})
    ASSERT_TRUE(session->compile(*session->example_inputs(1, sizes)).ok());
  // The last: as many nodes as a bucket has, so that a padded one is in the next bucket.
  for (const Sizes& sizes : {Sizes{20, 60}, Sizes{25, 33}, Sizes{60, 100}, Sizes{31, 64}, Sizes{32, 128}, Sizes{32, 100}})
    expect_padded(*session, sizes);
  const auto before = session->activity();
  std::mt19937 random(5);
  for (int i = 0; i < 200; ++i) {
    const Sizes sizes{20 + static_cast<int64_t>(random() % 12), 33 + static_cast<int64_t>(random() % 32)};
    const auto inputs = session->example_inputs(random(), sizes);
    const auto got = session->call(*inputs), eager = session->call_eager(*inputs);
    ASSERT_TRUE(got.ok() && eager.ok());
    expect_equal(*got, *eager);
  }
  EXPECT_EQ(session->activity().by_plan, before.by_plan + 200);
}

// Tokens other than 0, of which the first row counts whole and each other one less.
Tensors masked_inputs(Session& session, const Sizes& sizes) {
  Tensors inputs = *session.example_inputs(3, sizes);
  auto *tokens = static_cast<int64_t*>(inputs[0]->data()), *mask = static_cast<int64_t*>(inputs[1]->data());
  for (int64_t i = 0; i < sizes[0]; ++i)
    for (int64_t j = 0; j < sizes[1]; ++j) {
      tokens[i * sizes[1] + j] = 1 + (7 * i + 3 * j) % 39;
      mask[i * sizes[1] + j] = j < std::max<int64_t>(1, sizes[1] - 2 * i);
    }
  return inputs;
}

// The length of a model that attends to what its mask says: the mask is padded with 0.
TEST(Buckets, ALengthIsPaddedWhereAMaskHidesTheRest) {
  const uint64_t compiled = compiles_on_requests();
  auto session = opened("ranges_masked", options_of({"tokens[0]=pow2", "tokens[1]=multiple:8"}));
  for (const Sizes& sizes : {Sizes{4, 8}, Sizes{4, 16}, Sizes{2, 48}})
    ASSERT_TRUE(session->compile(masked_inputs(*session, sizes)).ok());
  for (const Sizes& sizes : {Sizes{4, 5}, Sizes{3, 8}, Sizes{3, 2}, Sizes{4, 15}, Sizes{3, 9}, Sizes{2, 41}, Sizes{4, 8}}) {
    SCOPED_TRACE(::testing::PrintToString(sizes));
    expect_padded_call(*session, masked_inputs(*session, sizes));
  }
  EXPECT_EQ(session->activity().by_plan, 18u) << "of 21, three were looked at";
  EXPECT_EQ(session->activity().eager_instead, 0u);
  EXPECT_EQ(session->reports().back().buckets.closed, "");
  EXPECT_EQ(compiles_on_requests(), compiled);
}

// A padded key has no share, but 0 times NaN is NaN: what comes of that is seen, and eager answers.
TEST(Buckets, NaNThatPaddingMakesIsNotHandedOut) {
  auto session = opened("ranges_masked", options_of({"tokens[1]=multiple:8"}));
  const Tensors inputs = masked_inputs(*session, {2, 6}), others = masked_inputs(*session, {2, 12});
  ASSERT_TRUE(session->compile(masked_inputs(*session, {2, 8})).ok());
  ASSERT_TRUE(session->compile(masked_inputs(*session, {2, 16})).ok());
  expect_padded_call(*session, inputs);
  EXPECT_EQ(session->activity().by_plan, 2u);
  for (const auto& [name, weight] : session->weights())  // of token 0, which stands in the padding alone
    if (name == "token.weight")
      for (int64_t i = 0; i < 32; ++i) static_cast<float*>(weight->data())[i] = std::numeric_limits<float>::quiet_NaN();
  expect_padded_call(*session, inputs);
  EXPECT_EQ(session->activity().by_plan, 2u);
  EXPECT_EQ(session->activity().eager_instead, 3u);
  expect_padded_call(*session, others);  // a bucket that nothing is known of, and cannot be told
  EXPECT_EQ(session->activity().by_plan, 2u);
  EXPECT_EQ(session->activity().eager_undecided, 1u + 3u);
  EXPECT_EQ(session->reports().back().buckets.closed, "") << "nothing is wrong";
}

// Of a size that the export states as 4 * s, s is padded.
TEST(Buckets, WhatASizeIsAMultipleOfIsPadded) {
  auto session = opened("ranges_clips", options_of({"x[0]/4=pow2"}));
  ASSERT_TRUE(session->compile(*session->example_inputs(1, {4})).ok());
  ASSERT_TRUE(session->compile(*session->example_inputs(1, {16})).ok());
  for (int64_t n : {3, 4, 9, 16}) expect_padded(*session, {n});
  EXPECT_EQ(session->activity().by_plan, 3u * 4 - 2);
  const BucketsReport buckets = session->reports().back().buckets;
  ASSERT_EQ(buckets.sizes.size(), 1u);
  EXPECT_EQ(buckets.sizes[0].name, "x[0]/4");
  EXPECT_EQ(buckets.sizes[0].asked, 2 * (3 + 9));
  EXPECT_EQ(buckets.sizes[0].ran, 2 * (4 + 16));
  const auto odd = session->call({runtime().tensors().allocate({DType::k_f32, {10, 8}, {}, {}}).value()});
  EXPECT_FALSE(odd.ok()) << "which is not a multiple of 4";
}

// An index below 0 counts from the end, and of one beyond it eager says so: in padding both would find something else.
TEST(Buckets, IndicesThatPaddingWouldAnswerOtherwiseAreEagers) {
  auto session = opened("ranges_graph", options_of({"x[0]=multiple:32", "edges[1]=pow2"}, {"edges=x[0]"}));
  ASSERT_TRUE(session->compile(*session->example_inputs(1, {20, 60})).ok());
  expect_padded(*session, {20, 60});
  const auto inputs = session->example_inputs(1, {20, 60});
  auto* edges = static_cast<int64_t*>((*inputs)[1]->data());
  edges[3] = -2;
  const auto got = session->call(*inputs), eager = session->call_eager(*inputs);
  ASSERT_TRUE(got.ok() && eager.ok());
  expect_equal(*got, *eager);
  edges[3] = 21;  // there is such a row in the padded call
  EXPECT_FALSE(session->call_eager(*inputs).ok());
  EXPECT_FALSE(session->call(*inputs).ok());
}

TEST(Buckets, WhatForbidsPaddingIsNamed) {
  struct Case {
    const char* model;
    Options options;
    std::vector<std::string> words;
  };
  const Case cases[] = {
      {"ranges_encoder", options_of({"tokens[1]=pow2"}), {"tokens[1] cannot be padded", "output 0", "attention", "padded keys"}},
      {"mixes_rows", options_of({"x[0]=pow2"}), {"x[0] cannot be padded", "output 0"}},
      {"ranges_graph", options_of({"edges[1]=pow2"}), {"edges[1] cannot be padded", "output 0", "index_reduce"}},
      {"ranges_graph", options_of({"edges[1]=pow2"}, {"edges=7"}), {"edges[1] cannot be padded"}},
      {"ranges_graph", options_of({"x[0]=pow2", "edges[1]=pow2"}, {"edges=edges[1]"}), {"cannot be padded"}},
      {"ranges_masked", options_of({"tokens[1]=pow2"}, {"mask=1"}), {"tokens[1] cannot be padded", "attention", "padded keys"}},
      {"ranges_clips", options_of({"x[0]=pow2"}), {"\"x[0]\" is not a free size", "x[0]/4"}},
      {"unet_dynamic", options_of({"x[2]/4=pow2"}), {"x[2]/4 cannot be padded", "conv", "neighbours"}},
      {"ranges_convnet", options_of({"y[0]=pow2"}), {"no input \"y\"", "x"}},
      {"ranges_convnet", options_of({"x[1]=pow2"}), {"\"x[1]\" is not a free size", "x[0]"}},
      {"ranges_convnet", options_of({"x[0]=squares"}), {"squares", "multiple:K"}},
      {"ranges_convnet", options_of({"x=pow2"}), {"not a size of an input"}},
      {"ranges_convnet", options_of({"x[0]=pow2", "x[0]=exact"}), {"two buckets"}},
      {"ranges_convnet", options_of({}, {"x=1"}), {"nothing is padded"}},
      {"ranges_graph", options_of({"x[0]=pow2"}, {"edges=0.5"}), {"0.5", "edges"}},
      {"counter", options_of({"x[0]=pow2"}), {"cannot be padded"}},
  };
  for (const Case& each : cases) {
    SCOPED_TRACE(std::string(each.model) + " " + ::testing::PrintToString(each.options.buckets));
    const auto session = open(each.model, each.options);
    ASSERT_FALSE(session.ok());
    for (const std::string& word : each.words) EXPECT_NE(session.status().text().find(word), std::string::npos) << session.status().text();
    EXPECT_NE(session.status().text().find("nothing was loaded"), std::string::npos) << session.status().text();
  }
}

// The model that services ask most: batch and length, by its attention_mask.
TEST(Buckets, BertsLengthIsPadded) {
  auto session = opened("bert_dynamic", options_of({"input_ids[0]=pow2", "input_ids[1]=multiple:16"}));
  const auto inputs_at = [&](const Sizes& sizes) {
    Tensors inputs = *session->example_inputs(3, sizes);
    auto* mask = static_cast<int64_t*>(inputs[1]->data());
    for (int64_t i = 0; i < sizes[0]; ++i)
      for (int64_t j = 0; j < sizes[1]; ++j) mask[i * sizes[1] + j] = j < sizes[1] - i;
    return inputs;
  };
  ASSERT_TRUE(session->compile(inputs_at({2, 16})).ok());
  for (const Sizes& sizes : {Sizes{2, 11}, Sizes{2, 15}, Sizes{2, 16}}) {
    SCOPED_TRACE(::testing::PrintToString(sizes));
    expect_padded_call(*session, inputs_at(sizes));
  }
  EXPECT_EQ(session->activity().by_plan, 8u);
  EXPECT_EQ(session->activity().eager_instead, 0u);
}

// The batch of the same encoder may be padded, and so may both where the size that may not is exact.
TEST(Buckets, ASizeThatMayBePaddedBesideOneThatMayNot) {
  auto session = opened("ranges_encoder", options_of({"tokens[0]=pow2", "tokens[1]=exact"}));
  ASSERT_TRUE(session->compile(*session->example_inputs(1, {3, 6})).ok());
  expect_padded(*session, {3, 6});
  EXPECT_GT(session->reports().back().buckets.calls, 0u);
}

TEST(Buckets, AreMetAndDecidedBesideCalls) {
  Options options = options_of({"x[0]=list:4,16"});
  options.compile = When::kBackground;
  auto session = opened("ranges_convnet", options);
  const auto call = [&](int64_t n) {
    const auto inputs = session->example_inputs(1, {n});
    ASSERT_TRUE(session->call(*inputs).ok());
    ASSERT_TRUE(session->settle(300s));
    (void)session->reports();
  };
  call(3), call(3), call(2);
  const auto before = session->activity().by_plan;
  EXPECT_EQ(before, 1u) << "the first was met, the second looked at, the third is the plan's";
  EXPECT_EQ(session->activity().kinds, 1u);
  expect_padded(*session, {2});
  EXPECT_EQ(session->activity().by_plan, before + 3);
}

// The proof is not trusted alone: a plan that answers otherwise closes them all.
TEST(Buckets, ADifferenceClosesThemAndIsTold) {
  Options options = options_of({"x[0]=multiple:8"});
  std::mutex mutex;
  std::string told;
  options.on_event = [&](const Event& event) {
    const std::lock_guard lock(mutex);
    if (event.kind == Event::Kind::kChanged) told += event.text + "\n";
  };
  auto session = opened("ranges_convnet", options);
  const auto inputs = session->example_inputs(1, {5});
  ASSERT_TRUE(session->compile(*inputs).ok());
  // What the plan has folded away changes under it.
  for (const auto& [name, weight] : session->weights())
    if (name == "norm_a.weight")
      for (int64_t i = 0; i < weight->sizes()[0]; ++i) static_cast<float*>(weight->data())[i] += 1;
  const auto eager = session->call_eager(*inputs);
  for (int i = 0; i < 3; ++i) {
    const auto got = session->call(*inputs);
    ASSERT_TRUE(got.ok());
    expect_equal(*got, *eager);
    (void)session->reports();
  }
  EXPECT_EQ(session->activity().by_plan, 0u);
  EXPECT_EQ(session->activity().eager_instead, 2u);
  const ModelReport report = session->reports().back();
  EXPECT_NE(report.buckets.closed, "");
  EXPECT_NE(explain_text(report).find("sizes are not padded any more"), std::string::npos) << explain_text(report);
  const std::lock_guard lock(mutex);
  EXPECT_NE(told.find("sizes are not padded any more"), std::string::npos) << told;
}

// Raced: what the gain is hangs on the machine, who answers hangs on the gain.
TEST(Buckets, ACallThatIsMostlyPaddingIsEagers) {
  EXPECT_TRUE(padding_pays(0, 0.1)) << "a gain that nobody measured";
  EXPECT_TRUE(padding_pays(2, 0.5));
  EXPECT_FALSE(padding_pays(2, 0.4));
  Options options = options_of({"x[0]=multiple:16"});
  options.only_candidate.clear();
  options.race_seconds = 0.5;
  auto session = opened("ranges_convnet", options);
  const auto report = session->compile(*session->example_inputs(1, {16}));
  ASSERT_TRUE(report.ok()) << report.status().text();
  uint64_t left = 0;
  for (int64_t n = 1; n < 16; ++n) {
    expect_padded(*session, {n});
    const bool by_plan = report->chosen != "eager" && padding_pays(report->speedup, static_cast<double>(n) / 16);
    left += report->chosen != "eager" && !by_plan ? 3 : 0;
    EXPECT_EQ(session->reports().back().buckets.left, left) << explain_text(session->reports().back());
  }
  if (report->chosen != "eager") {
    EXPECT_GT(left, 0u) << "a sixteenth is too little";
  }
}

TEST(Buckets, EagerAnswersWhereNothingIsDecided) {
  auto session = opened("ranges_convnet", options_of({"x[0]=multiple:8"}));
  expect_padded(*session, {5});
  EXPECT_EQ(session->activity().by_plan, 0u);
  EXPECT_EQ(session->activity().eager_undecided, 3u);
}

}  // namespace
}  // namespace keirin
