// SPDX-License-Identifier: Apache-2.0
//
// Models whose sizes or branches depend on data, end to end: the plans of their segments answer, and what a caller sees
// is eager's.
#include "core/api/chain.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <thread>

#include "core/api/session.h"
#include "tests/support/others.h"
#include "tests/support/shared_runtime.h"

namespace keirin {
namespace {

using Tensors = std::vector<TensorRef>;

using test::shared_runtime;

test::Others nobody;

Options forced() {
  Options options;
  options.force = "compiled";
  options.race_seconds = 0.05;
  options.interference = &nobody;
  return options;
}

std::unique_ptr<Session> open(const std::string& name, const Options& options) {
  auto session =
      Session::open(shared_runtime(), std::string(KEIRIN_SOURCE_DIR) + "/tests/data/segments/" + name + ".pt2", options);
  EXPECT_TRUE(session.ok()) << session.status().text();
  return session.ok() ? std::move(*session) : nullptr;
}

int64_t count_of(const Tensor& t) {
  int64_t n = 1;
  for (int64_t d = 0; d < t.rank(); ++d) n *= t.sizes()[d];
  return n;
}

// A row-major tensor; element i is value(i).
template <class T, class Value>
TensorRef make(DType dtype, std::vector<int64_t> sizes, Value&& value) {
  TensorSpec spec{dtype, std::move(sizes), {}, {}};
  TensorRef t = *shared_runtime().tensors().allocate(spec);
  for (int64_t i = 0; i < count_of(*t); ++i) static_cast<T*>(t->data())[i] = static_cast<T>(value(i));
  return t;
}
TensorRef floats(std::vector<int64_t> sizes, double scale = 1, double shift = 0) {
  return make<float>(DType::k_f32, std::move(sizes),
                     [=](int64_t i) { return shift + scale * std::sin(0.7 * static_cast<double>(i) + 0.1); });
}
TensorRef whole(std::vector<int64_t> values) {
  const auto n = static_cast<int64_t>(values.size());
  return make<int64_t>(DType::k_i64, {n}, [&](int64_t i) { return values[static_cast<size_t>(i)]; });
}

Tensors copies(const Tensors& tensors) {
  Tensors out;
  for (const TensorRef& t : tensors) out.push_back(*shared_runtime().tensors().clone(t));
  return out;
}

// Sizes, dtypes and strides are equal; integers and masks too; floats nearly, or to the bit.
void expect_same(const Tensors& ours, const Tensors& eager, bool bits, const std::string& what) {
  ASSERT_EQ(ours.size(), eager.size()) << what;
  for (size_t k = 0; k < ours.size(); ++k) {
    const Tensor &a = *ours[k], &b = *eager[k];
    const std::string at = what + ", output " + std::to_string(k);
    ASSERT_EQ(spec_text(spec_of(a)), spec_text(spec_of(b))) << at;
    const TensorRef x = *shared_runtime().tensors().cast(ours[k], DType::k_f64),
                    y = *shared_runtime().tensors().cast(eager[k], DType::k_f64);
    double largest = 0, difference = 0;
    const auto dense = [&](const TensorRef& t) {
      TensorRef to = *shared_runtime().tensors().allocate({DType::k_f64, {t->sizes(), t->sizes() + t->rank()}, {}, {}});
      EXPECT_TRUE(shared_runtime().tensors().copy(to, t).ok());
      return to;
    };
    const TensorRef p = dense(x), q = dense(y);
    for (int64_t i = 0; i < count_of(a); ++i) {
      const double u = static_cast<double*>(p->data())[i], v = static_cast<double*>(q->data())[i];
      ASSERT_EQ(std::isnan(u), std::isnan(v)) << at;
      largest = std::max(largest, std::fabs(v));
      difference = std::max(difference, std::fabs(u - v));
    }
    EXPECT_LE(difference, bits || !is_float(a.dtype()) ? 0 : 2e-5 * std::max(1.0, largest)) << at;
  }
}

void expect_as_eager(Session& session, const Tensors& inputs, const std::string& what) {
  auto ours = session.call(inputs), eager = session.call_eager(inputs);
  ASSERT_TRUE(ours.ok()) << what << ": " << ours.status().text();
  ASSERT_TRUE(eager.ok()) << what << ": " << eager.status().text();
  expect_same(*ours, *eager, false, what);
}

const SegmentReport* row(const ModelReport& report, const std::string& name) {
  for (const SegmentReport& segment : report.segments)
    if (segment.name == name) return &segment;
  ADD_FAILURE() << "no segment " << name << "\n" << explain_text(report);
  return nullptr;
}

// What plans answered in the calls that `fn` makes, and what eager had to because of sizes.
struct Counted {
  uint64_t answered = 0, unadmitted = 0;
};
template <class Fn>
Counted counted(Session& session, Fn&& fn) {
  const ModelReport before = session.reports().back();
  fn();
  const ModelReport after = session.reports().back();
  EXPECT_EQ(session.reports().size(), 1u);
  return {after.segments_answered - before.segments_answered, after.segments_unadmitted - before.segments_unadmitted};
}

TEST(Chain, BranchesAreDecidedEachAndTakenByThePredicate) {
  auto session = open("branch", forced());
  const auto inputs = [](double scale, double shift, double limit) {
    return Tensors{floats({16, 64}, scale, shift), floats({1}, 0, limit)};
  };
  auto report = session->compile(inputs(1, 0, 1));
  ASSERT_TRUE(report.ok()) << report.status().text();
  EXPECT_EQ(report->chosen, "segments") << explain_text(*report);
  EXPECT_TRUE(report->verified);
  // Those that this call did not come by too.
  for (const char* name :
       {"cond/cond/linear .. clone", "cond/cond/linear .. add_1", "cond/sigmoid .. sub", "mul .. linear_1"})
    if (const SegmentReport* segment = row(*report, name)) {
      EXPECT_EQ(segment->nodes_compiled, segment->nodes) << explain_text(*report);
    }
  EXPECT_GE(report->nodes_compiled * 3, report->nodes * 2) << explain_text(*report);
  for (const double limit : {1.0, -1.0})
    for (const double shift : {-2.0, 0.0, 2.0}) {
      const Counted count = counted(*session, [&] { expect_as_eager(*session, inputs(1, shift, limit), "a branch"); });
      EXPECT_EQ(count.answered, limit < 0 ? 3u : count.answered);
      EXPECT_GE(count.answered, 3u);
      EXPECT_EQ(count.unadmitted, 0u);
    }
  // Other sizes of the inputs: eager, as for any model.
  expect_as_eager(*session, {floats({3, 64}), floats({1})}, "another batch");
  EXPECT_EQ(session->reports().back().calls_unadmitted, 1u);
}

TEST(Chain, TheBodyOfALoopIsDecidedOnce) {
  auto session = open("loop", forced());
  auto report = session->compile({floats({16, 64}), whole({3})});
  ASSERT_TRUE(report.ok()) << report.status().text();
  EXPECT_EQ(report->chosen, "segments") << explain_text(*report);
  EXPECT_EQ(std::count_if(report->segments.begin(), report->segments.end(),
                          [](const SegmentReport& s) { return s.name == "while_loop/add .. add_1"; }),
            1);
  if (const SegmentReport* body = row(*report, "while_loop/add .. add_1")) {
    EXPECT_EQ(body->runs, 3);
    EXPECT_GT(body->nodes_compiled, 0) << explain_text(*report);
  }
  std::vector<uint64_t> answered;
  for (const int64_t rounds : {0, 1, 2, 7, 40})
    answered.push_back(
        counted(*session, [&] {
          expect_as_eager(*session, {floats({16, 64}), whole({rounds})}, std::to_string(rounds) + " rounds");
        }).answered);
  // Each round adds the same.
  EXPECT_GT(answered[1], answered[0]);
  EXPECT_EQ(answered[2] - answered[1], answered[1] - answered[0]);
  EXPECT_EQ(answered[4] - answered[0], 40 * (answered[1] - answered[0]));
}

TEST(Chain, ACountFromDataIsASizeOfTheNextSegment) {
  auto session = open("select", forced());
  const TensorRef x = floats({256, 64});
  const auto inputs = [&](double limit) { return Tensors{x, floats({1}, 0, limit)}; };
  auto report = session->compile(inputs(0));
  ASSERT_TRUE(report.ok()) << report.status().text();
  EXPECT_EQ(report->chosen, "segments") << explain_text(*report);
  EXPECT_EQ(report->segments.size(), 4u);
  EXPECT_GE(report->nodes_compiled * 2, report->nodes) << explain_text(*report);
  EXPECT_LT(report->eager_share, 0.9) << explain_text(*report);
  const Counted same = counted(*session, [&] { expect_as_eager(*session, inputs(0), "the same"); });
  EXPECT_GE(same.answered, 3u);
  EXPECT_EQ(same.unadmitted, 0u);
  // Other counts: what comes before them has its plan all the same. None of them compiles anything.
  for (const double limit : {-1e9, 1e9, 0.3, -0.2}) {
    const Counted other =
        counted(*session, [&] { expect_as_eager(*session, inputs(limit), "limit " + std::to_string(limit)); });
    EXPECT_GE(other.answered, 1u);
    EXPECT_GE(other.unadmitted, 1u);
  }
  EXPECT_EQ(session->reports().back().kernels_generated, report->kernels_generated);
  // No elements at all, decided for.
  auto empty = session->compile(inputs(1e9));
  ASSERT_TRUE(empty.ok()) << empty.status().text();
  expect_as_eager(*session, inputs(1e9), "empty, after its decision");
  expect_as_eager(*session, inputs(0), "the first one again");
}

TEST(Chain, ANumberFromDataIsPartOfTheKey) {
  auto session = open("sized", forced());
  const TensorRef x = floats({64, 32});
  auto report = session->compile({x, whole({3, 9})});
  ASSERT_TRUE(report.ok()) << report.status().text();
  EXPECT_EQ(report->chosen, "segments") << explain_text(*report);
  if (const SegmentReport* last = row(*report, "narrow .. mul_2")) {
    EXPECT_EQ(last->sizes, "f32[64,32], 9");
    EXPECT_GT(last->nodes_compiled, 0) << explain_text(*report);
  }
  for (const int64_t count : {9, 2, 10, 64}) {
    const Counted plans = counted(*session, [&] {
      expect_as_eager(*session, {x, whole({count, 1})}, "count " + std::to_string(count));
    });
    EXPECT_EQ(plans.answered, count == 9 ? 2u : 1u);
    EXPECT_EQ(plans.unadmitted, count == 9 ? 0u : 1u);
  }
  // What the model asserts is said as eager says it.
  for (const int64_t count : {1, 65, -3}) {
    auto ours = session->call({x, whole({count, -5})}), eager = session->call_eager({x, whole({count, -5})});
    ASSERT_FALSE(ours.ok()) << count;
    ASSERT_FALSE(eager.ok()) << count;
    EXPECT_EQ(ours.status().text(), eager.status().text());
  }
  expect_as_eager(*session, {x, whole({9, 1})}, "after errors");
}

// Views across a border, one of which is written behind it; an input and a buffer are written too.
TEST(Chain, WritesReachWhatTheyReachInEager) {
  auto chained = open("written", forced()), plain = open("written", forced());
  const Tensors inputs = {floats({12, 16})};
  auto report = chained->compile(inputs);
  ASSERT_TRUE(report.ok()) << report.status().text();
  expect_same(inputs, {floats({12, 16})}, true, "compiling leaves the input");
  expect_same({chained->weights()[2].second}, {plain->weights()[2].second}, true, "compiling leaves state");
  Tensors a = copies(inputs), b = copies(inputs);
  for (int call = 0; call < 3; ++call) {
    auto ours = chained->call(a), eager = plain->call_eager(b);
    ASSERT_TRUE(ours.ok()) << ours.status().text();
    ASSERT_TRUE(eager.ok());
    const std::string what = "call " + std::to_string(call);
    expect_same(*ours, *eager, false, what);
    expect_same(a, b, false, what + ", the input");
    for (size_t k = 0; k < plain->weights().size(); ++k)
      expect_same({chained->weights()[k].second}, {plain->weights()[k].second}, false,
                  what + ", " + plain->weights()[k].first);
  }
}

TEST(Chain, AGraphNetworkThatAddsItsOwnLoops) {
  auto session = open("gat", forced());
  const TensorRef x = floats({400, 128});
  const auto edges = [](int64_t n, int64_t step) {
    return make<int64_t>(DType::k_i64, {2, n}, [=](int64_t i) { return (i * i * 31 + i * step) % 400; });
  };
  auto report = session->compile({x, edges(1600, 17)});
  ASSERT_TRUE(report.ok()) << report.status().text();
  EXPECT_EQ(report->chosen, "segments") << explain_text(*report);
  EXPECT_GE(report->nodes_compiled * 2, report->nodes) << explain_text(*report);
  EXPECT_LT(report->eager_share, 0.5) << explain_text(*report);
  expect_as_eager(*session, {x, edges(1600, 17)}, "the same edges");
  expect_as_eager(*session, {x, edges(1600, 5)}, "other edges, other loops");
  expect_as_eager(*session, {x, make<int64_t>(DType::k_i64, {2, 1600}, [](int64_t i) { return i % 400; })},
                  "loops alone");
  expect_as_eager(*session, {x, edges(1200, 17)}, "fewer edges");
  // A node that is not there.
  TensorRef wrong = edges(1600, 17);
  static_cast<int64_t*>(wrong->data())[3] = 4000;
  auto ours = session->call({x, wrong}), eager = session->call_eager({x, wrong});
  ASSERT_FALSE(eager.ok());
  ASSERT_FALSE(ours.ok());
  expect_as_eager(*session, {x, edges(1600, 17)}, "after an error");
}

TEST(Chain, ADetector) {
  auto session = open("detector", forced());
  auto inputs = session->example_inputs(1);
  ASSERT_TRUE(inputs.ok()) << inputs.status().text();
  auto report = session->compile(*inputs);
  ASSERT_TRUE(report.ok()) << report.status().text();
  EXPECT_EQ(report->chosen, "segments") << explain_text(*report);
  // Which of two plans a segment gets, one with its products and one without, is for its race to say.
  EXPECT_GE(report->nodes_compiled * 4, report->nodes) << explain_text(*report);
  EXPECT_LT(report->eager_share, 1) << explain_text(*report);  // how far below hangs on who else has the processor
  for (const double scale : {1.0, 0.3, 3.0}) expect_as_eager(*session, {floats({1, 3, 128, 128}, scale)}, "an image");
  const std::string text = explain_text(*report), json = to_json(*report).dump();
  EXPECT_NE(text.find("segments, between which sizes or branches depend on data"), std::string::npos) << text;
  EXPECT_NE(json.find("\"segments\":[{"), std::string::npos);
}

TEST(Chain, CallsFromManyThreads) {
  auto session = open("select", forced());
  const TensorRef x = floats({256, 64});
  ASSERT_TRUE(session->compile({x, floats({1}, 0, 0)}).ok());
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < 20; ++i) expect_as_eager(*session, {x, floats({1}, 0, (i + t) % 3 * 0.2)}, "a thread");
    });
  ASSERT_TRUE(session->compile({x, floats({1}, 0, 0.2)}).ok());
  for (std::thread& thread : threads) thread.join();
}

TEST(Chain, OfSizesThatOnlyDataKnowsSoManyAreKept) {
  Options options = forced();
  options.max_shapes = 1;
  auto session = open("sized", options);
  const TensorRef x = floats({64, 32});
  for (const int64_t count : {5, 6}) ASSERT_TRUE(session->compile({x, whole({count, 1})}).ok());
  const auto unadmitted = [&] { return session->reports().back().segments_unadmitted; };
  const uint64_t before = unadmitted();
  expect_as_eager(*session, {x, whole({6, 1})}, "the last one");
  EXPECT_EQ(unadmitted(), before);
  expect_as_eager(*session, {x, whole({5, 1})}, "the one before");
  EXPECT_EQ(unadmitted(), before + 1);
}

TEST(Chain, AnswersEagerlyWhereItIsToldToOrTheRaceToldNothing) {
  Options options = forced();
  options.force = "eager";
  auto eager = open("select", options);
  const Tensors inputs = {floats({256, 64}), floats({1}, 0, 0)};
  auto report = eager->compile(inputs);
  ASSERT_TRUE(report.ok()) << report.status().text();
  EXPECT_EQ(report->chosen, "eager");

  test::Others others;
  others.each_time = 1e12;
  options.force = "";
  options.interference = &others;
  auto disturbed = open("select", options);
  report = disturbed->compile(inputs);
  ASSERT_TRUE(report.ok()) << report.status().text();
  EXPECT_EQ(report->chosen, "eager");
  EXPECT_EQ(counted(*disturbed, [&] { expect_as_eager(*disturbed, inputs, "disturbed"); }).answered, 0u);
}

TEST(Chain, ForbidsWhatRunsEagerlyWhereThatIsAskedFor) {
  Options options = forced();
  options.fallback = Fallback::kForbid;
  auto session = open("select", options);
  auto report = session->compile({floats({256, 64}), floats({1}, 0, 0)});
  ASSERT_FALSE(report.ok());
  EXPECT_EQ(report.status().code(), Code::k_unsupported);
  EXPECT_NE(report.status().text().find("fallback is forbidden"), std::string::npos) << report.status().text();
}

}  // namespace
}  // namespace keirin
