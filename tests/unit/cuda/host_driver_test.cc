// SPDX-License-Identifier: Apache-2.0
//
// plugins/gpu over a driver that is the host: regions and hand-written kernels run as steps on emulated blocks, from
// compiled and from saved code; contexts, timers and rows of a scatter give back what they take.
#include "tests/unit/cuda/host_driver.h"

#include <gtest/gtest.h>

#include <array>
#include <map>

#include "plugins/codegen/plan/artifact.h"
#include "plugins/gpu/aligned_copies.h"
#include "plugins/gpu/backend.h"
#include "plugins/gpu/choose.h"
#include "plugins/gpu/csr.h"
#include "plugins/gpu/plan_cache.h"
#include "plugins/gpu/raced_plan.h"
#include "plugins/gpu/rnn.h"
#include "plugins/gpu/text_step.h"
#include "plugins/gpu/timer.h"
#include "plugins/kit/error.h"
#include "plugins/kit/tables.h"
#include "tests/unit/codegen/check.h"
#include "tests/unit/cuda/anchor_cases.h"
#include "tests/unit/cuda/case_runner.h"
#include "tests/unit/cuda/host_products.h"

namespace keirin::gpu {
namespace {

using codegen::kDType_f32;
using codegen::test::RegionBuilder;
using test::HostDriver;

RegionBuilder norms_of(int64_t rows, int64_t width, bool sums_columns = false) {
  RegionBuilder g;
  const int x = g.input(kDType_f32, {rows, width}), r = g.input(kDType_f32, {rows, width}), w = g.input(kDType_f32, {width}),
            b = g.input(kDType_f32, {width});
  g.output(g.layer_norm(g.binary(codegen::kOp_add, g.unary(codegen::kOp_gelu, x), r), w, b, 1e-5));
  if (sums_columns) g.output(g.reduce(codegen::kOp_sum, x, {0}, false));
  return g;
}
RegionBuilder norm_region() { return norms_of(6, 40, true); }

TEST(HostDriver, RegionsRunAsTheirNodesSay) {
  const HostDriver driver;
  const Gpu gpu = test::host_gpu(driver);
  const Context context(gpu);
  GpuBackend backend(gpu, &context, nullptr);
  codegen::test::check(norm_region(), backend);
  EXPECT_FALSE(driver.launches.empty());
  EXPECT_EQ(driver.now, nullptr) << "the context that was current before is again";
}

// An update of many parameters, as launches that have room for a few: their own sizes and pointers, whatever block asks, and what is left
// over in a smaller one. The code travels as that of any kernel does.
TEST(HostDriver, KernelsThatAreAlikeShareALaunch) {
  const HostDriver driver;
  Gpu gpu = test::host_gpu(driver);
  gpu.facts.parameter_bytes = 1400;
  const Context context(gpu);
  RegionBuilder g;
  for (const int64_t n : {700, 5, 64, 3000, 1, 129, 4, 2048, 77, 6, 1000}) g.momentum_step(n);
  GpuBackend backend(gpu, &context, nullptr);
  const auto checked = codegen::test::check(g, backend);
  const std::string text = checked.executable->describe();
  EXPECT_NE(text.find(" like it in "), std::string::npos) << text;
  EXPECT_LT(driver.launches.size(), 11u) << text;
  EXPECT_GT(driver.launches.size(), 2u) << text;
  const std::vector<uint8_t> bytes = g.bytes();
  const std::array<uint8_t, 32> hash{1};
  const auto body = codegen::save_artifact(*checked.executable, backend, hash);
  EXPECT_EQ(codegen::load_artifact(body, bytes, hash, backend, {})->num_codegen(), 0u);
  gpu.facts.parameter_bytes = 0;
  GpuBackend apart(gpu, &context, nullptr);
  driver.launches.clear();
  EXPECT_EQ(codegen::test::check(g, apart).executable->describe().find(" like it in "), std::string::npos);
  EXPECT_GE(driver.launches.size(), 11u);
}

// Each kind of flat kernel, several of it where the code is the same, in one launch and in several.
TEST(HostDriver, EveryFlatKernelFindsItsOwnSizes) {
  const HostDriver driver;
  Gpu gpu = test::host_gpu(driver);
  const Context context(gpu);
  GpuBackend backend(gpu, &context, nullptr);
  std::map<std::string, std::vector<test::KernelCase>> alike;
  gpu.facts.parameter_bytes = 32764;
  for (const int64_t length : {515, 70, 515, 70, 515})
    for (const test::KernelCase& c : test::kernel_cases(length))
      if (const std::string key = backend.together_key(c.kernel); !key.empty()) alike[key].push_back(c);
  size_t launches = 0, in_several = 0;
  for (auto& [key, cases] : alike) {
    if (cases.size() < 3) continue;
    std::vector<test::CaseBuffers> data;
    std::vector<void*> buffers;
    codegen::Together kernels;
    for (test::KernelCase& c : cases) {
      data.emplace_back(c);
      for (codegen::Buffer& b : c.kernel.buffers) {
        b.id = static_cast<uint32_t>(buffers.size());
        buffers.push_back(data.back().got[static_cast<size_t>(&b - c.kernel.buffers.data())].data());
      }
      kernels.push_back(&c.kernel);
    }
    if (launches++ % 2 == 1) gpu.facts.parameter_bytes = 900;
    if (backend.together_key(*kernels[0]).empty()) gpu.facts.parameter_bytes = 32764;
    const size_t rooms = rooms_of(kernels, gpu.facts).size();
    in_several += rooms > 1;
    uint32_t generated = 0;
    const auto steps = backend.lower_kernels({&kernels, 1}, {}, generated);
    gpu.facts.parameter_bytes = 32764;
    const krn_run run{};
    codegen::RunContext running;
    running.buffers = buffers.data();
    running.run = &run;
    ASSERT_EQ(steps[0]->run(running), KRN_STATUS_ok) << cases[0].name;
    for (size_t i = 0; i < cases.size(); ++i)
      EXPECT_EQ(data[i].difference(cases[i]), "") << cases[i].name << ", one of " << cases.size() << " in " << rooms;
  }
  EXPECT_GE(launches, 8u);
  EXPECT_GE(in_several, 2u);
}

TEST(HostDriver, SavedCodeIsNotCompiledAgain) {
  const HostDriver driver;
  const Gpu gpu = test::host_gpu(driver);
  const Context context(gpu);
  GpuBackend backend(gpu, &context, nullptr);
  const std::vector<uint8_t> bytes = norm_region().bytes();
  const std::array<uint8_t, 32> hash{1};
  const auto made = codegen::CompiledRegion::compile(bytes, backend, {});
  const auto body = codegen::save_artifact(*made, backend, hash);
  EXPECT_EQ(codegen::load_artifact(body, bytes, hash, backend, {})->num_codegen(), 0u);
  krn_policy strict{};
  strict.numerics = KRN_NUMERICS_STRICT;
  EXPECT_EQ(backend.token(), "host 2 host host");
  EXPECT_NE(GpuBackend(gpu, nullptr, &strict).token(), backend.token());
  for (const uint32_t flag :
       {KRN_POLICY_DETERMINISTIC, KRN_POLICY_TF32_CONVOLUTIONS, KRN_POLICY_TF32_PRODUCTS, KRN_POLICY_TF32_RECURRENT}) {
    krn_policy policy{};
    policy.flags = flag;
    EXPECT_NE(GpuBackend(gpu, nullptr, &policy).token(), backend.token()) << "libraries choose otherwise under flag " << flag;
  }
  krn_policy recorded{};
  recorded.flags = KRN_POLICY_REPLAY;
  EXPECT_EQ(GpuBackend(gpu, nullptr, &recorded).token(), backend.token());
}

// While a call waits nothing is generated: other sizes run by what there is, with another schedule where there is one, or are refused.
TEST(HostDriver, OtherSizesRunByCodeThatIsThere) {
  const HostDriver driver;
  const Gpu gpu = test::host_gpu(driver);
  const Context context(gpu);
  GpuBackend first(gpu, &context, nullptr), later(gpu, &context, nullptr);
  later.take_what_is_there();
  RegionBuilder other;
  const int product = other.binary(codegen::kOp_mul, other.input(kDType_f32, {6, 40}), other.input(kDType_f32, {40}));
  other.output(other.unary(codegen::kOp_erf, product));
  EXPECT_THROW((void)codegen::CompiledRegion::compile(other.bytes(), later, {}), kit::Error) << "code that nobody compiled";
  std::vector<codegen::Grouping> known;
  for (const auto& [rows, width] : {std::pair<int64_t, int64_t>{6, 40}, {600, 40}, {5, 1000}})
    known.push_back(codegen::test::check(norms_of(rows, width), first).executable->grouping());
  int served = 0, refused = 0;
  for (const int64_t rows : {1, 2, 7, 64, 333})
    for (const int64_t width : {40, 1000, 48}) {  // the last is nobody's: a norm's width is an argument of its code
      SCOPED_TRACE(std::to_string(rows) + " x " + std::to_string(width));
      bool is_served = false;
      for (const codegen::Grouping& grouping : known) {
        try {
          const auto made = codegen::test::check(norms_of(rows, width), later, {}, 1e-4, &grouping);
          EXPECT_EQ(made.executable->num_codegen(), 0u);
          is_served = true;
        } catch (const kit::Error& error) {
          const bool fuses_otherwise = error.code() == KRN_STATUS_corrupt;  // shell::Device::resize
          EXPECT_TRUE(fuses_otherwise || error.code() == KRN_STATUS_unsupported) << error.what();
        }
      }
      ++(is_served ? served : refused);
      EXPECT_EQ(is_served, rows > 1) << "one row is fused otherwise";
    }
  std::printf("%d sizes served, %d refused\n", served, refused);
  EXPECT_EQ(served, 12);
}

// Their texts are run elsewhere; here it is the step that packs arguments, splits the workspace and launches in order.
TEST(HostDriver, HandWrittenKernelsRunAsSteps) {
  const HostDriver driver;
  const Gpu gpu = test::host_gpu(driver);
  int count = 0;
  for (test::AnchorCase c : test::anchor_cases()) {
    std::string why_not;
    const auto kernel = own_kernel(c.anchor, gpu, KRN_NUMERICS_DEFAULT, why_not);
    EXPECT_EQ(kernel.has_value(), !c.matrix_units) << c.name << ": " << why_not;
    if (!kernel) continue;
    const auto step = make_text_step(*kernel, code_target(gpu, nullptr), true);
    std::vector<void*> buffers;
    for (test::Storage& s : c.buffers) buffers.push_back(s.data());
    std::vector<char> workspace(static_cast<size_t>(step->workspace_bytes()) + 16);
    step->set_workspace(static_cast<uint32_t>(buffers.size()));
    buffers.push_back(workspace.data());
    const krn_run run{};
    codegen::RunContext context;
    context.buffers = buffers.data();
    context.run = &run;
    ASSERT_EQ(step->run(context), KRN_STATUS_ok) << c.name;
    EXPECT_EQ(c.difference(c.buffers[c.result]), "") << c.name;
    ++count;
  }
  EXPECT_GE(count, 9);
}

// A bag's kernel writes whole 16-byte words: where its place in a concatenation does not lie so, it is copied there.
TEST(HostDriver, ABagIsWrittenIntoAConcatenationWhereItsRowsLieAtWholeWords) {
  const HostDriver driver;
  const Gpu gpu = test::host_gpu(driver);
  const Context context(gpu);
  GpuBackend backend(gpu, &context, nullptr);
  struct Case {
    int64_t before, after;
    bool in_place;
  };
  for (const Case c : {Case{4, 4, true}, Case{1, 3, false}, Case{4, 3, false}}) {
    SCOPED_TRACE("columns before and after the bag: " + std::to_string(c.before) + ", " + std::to_string(c.after));
    RegionBuilder g;
    const int table = g.input(codegen::kDType_f32, {20, 16}), index = g.input(codegen::kDType_i64, {30}),
              offsets = g.input(codegen::kDType_i64, {7}), before = g.input(codegen::kDType_f32, {7, c.before}),
              after = g.input(codegen::kDType_f32, {7, c.after});
    const int bags = g.op(codegen::kOp_embedding_bag, {table, index, offsets}, codegen::kDType_f32, {7, 16},
                          {{codegen::kAttr_mode, std::string("sum")}, {codegen::kAttr_include_last_offset, false}});
    g.output(g.cat({before, bags, after}, 1));
    std::vector<codegen::test::Values> inputs = codegen::test::random_inputs(codegen::read_region(g.bytes()), 3, 20);
    inputs[2] = {0, 3, 3, 9, 14, 20, 29};
    const auto checked = codegen::test::check(g, backend, inputs);
    const int64_t copied = 7 * 16 * static_cast<int64_t>(sizeof(float));
    if (c.in_place) EXPECT_LT(checked.executable->workspace_bytes(), copied) << checked.executable->describe();
    else EXPECT_GE(checked.executable->workspace_bytes(), copied) << checked.executable->describe();
  }
}

// Sizes, leading dimensions, batches and epilogues as a library gets them, computed by one that takes them at their word.
TEST(HostDriver, AProductIsDescribedAsItIs) {
  using codegen::kOp_add;
  const auto plain = [](std::initializer_list<int64_t> sizes) { return codegen::Dims(sizes); };
  std::vector<std::pair<const char*, RegionBuilder>> cases;
  const auto add = [&](const char* name, auto&& fill) {
    RegionBuilder g;
    g.output(fill(g));
    cases.emplace_back(name, std::move(g));
  };
  const auto f32 = [&](RegionBuilder& g, std::initializer_list<int64_t> sizes, std::initializer_list<int64_t> strides = {}) {
    return g.input(kDType_f32, plain(sizes), plain(strides));
  };
  add("linear with bias and ReLU, two axes of rows", [&](RegionBuilder& g) {
    return g.unary(codegen::kOp_relu, g.linear(f32(g, {3, 5, 8}), f32(g, {7, 8}), f32(g, {7})));
  });
  add("linear, residual, tanh-GELU", [&](RegionBuilder& g) {
    const int y = g.linear(f32(g, {9, 6}), f32(g, {5, 6}), f32(g, {5}));
    return g.unary(codegen::kOp_gelu_tanh, g.binary(kOp_add, y, f32(g, {9, 5})));
  });
  add("linear of rows that are no single axis", [&](RegionBuilder& g) {
    return g.linear(g.permute(f32(g, {4, 6, 7}), {0, 2, 1}), f32(g, {5, 6}), f32(g, {5}));
  });
  add("matmul over two axes of batch", [&](RegionBuilder& g) { return g.matmul(f32(g, {2, 3, 4, 5}), f32(g, {2, 3, 5, 6})); });
  add("matmul of transposed operands", [&](RegionBuilder& g) {
    return g.matmul(g.permute(f32(g, {3, 5, 4}), {0, 2, 1}), g.permute(f32(g, {3, 6, 5}), {0, 2, 1}));
  });
  add("matmul of one matrix for all of a batch", [&](RegionBuilder& g) {
    return g.matmul(f32(g, {3, 4, 5}), g.expand(f32(g, {5, 6}), plain({3, 5, 6})));
  });
  add("matmul of a slice, to a result of one column", [&](RegionBuilder& g) {
    return g.matmul(g.slice(f32(g, {4, 9, 5}), 1, 2, 6), f32(g, {4, 5, 1}));
  });
  for (auto& [name, region] : cases) {
    SCOPED_TRACE(name);
    const HostDriver driver;
    const test::HostProducts products;
    Gpu gpu = test::host_gpu(driver);
    gpu.products = &products;
    const Context context(gpu);
    GpuBackend backend(gpu, &context, nullptr);
    const auto checked = codegen::test::check(region, backend);
    EXPECT_GT(products.made, 0) << checked.executable->describe();
  }
}

// All rows meet all groups' weights in one product, of which each row keeps its own; groups of none, of all and rows behind them.
TEST(HostDriver, ProductsOfGroupsAreOneProductOfAllRows) {
  const HostDriver driver;
  const test::HostProducts products;
  Gpu gpu = test::host_gpu(driver);
  gpu.products = &products;
  gpu.info.max_grouped_products = 1 << 30;
  const Context context(gpu);
  GpuBackend backend(gpu, &context, nullptr);
  for (const std::vector<double>& ends : {std::vector<double>{0, 5, 40}, {40, 40, 40}, {1, 2, 30}, {0, 0, 0}}) {
    RegionBuilder g;
    const int x = g.input(kDType_f32, {40, 64}), w = g.input(kDType_f32, {3, 48, 64}), groups = g.input(codegen::kDType_i32, {3});
    g.output(g.op(codegen::kOp_grouped_matmul, {x, g.permute(w, {0, 2, 1}), groups}, kDType_f32, {40, 48}));
    std::vector<codegen::test::Values> inputs = codegen::test::random_inputs(codegen::read_region(g.bytes()), 3);
    inputs[2] = ends;
    const auto checked = codegen::test::check(g, backend, inputs);
    EXPECT_EQ(checked.executable->num_anchors(), 1u) << checked.executable->describe();
  }
  EXPECT_GT(products.made, 0);
}

// Products of a few rows are a matter of the wave; recurrent layers are not.
TEST(HostDriver, WavesOf64HaveProductsOfFewRowsAndNoRecurrentLayers) {
  const HostDriver driver;
  Gpu gpu = test::host_gpu(driver);
  gpu.wave = 64;
  std::string why_not;
  int products = 0;
  for (const test::AnchorCase& c : test::anchor_cases())
    if (c.anchor.op == kit::kOp_linear) {
      EXPECT_TRUE(own_kernel(c.anchor, gpu, KRN_NUMERICS_DEFAULT, why_not)) << c.name << ": " << why_not;
      ++products;
    }
  EXPECT_GT(products, 0);
  codegen::AnchorDesc layer;
  layer.op = kit::kOp_lstm;
  layer.operands.resize(1), layer.results.resize(1);
  layer.operands[0].dtype = kit::kDType_bf16;
  EXPECT_FALSE(rnn_taken(layer, gpu, Numerics(KRN_NUMERICS_DEFAULT), why_not));
  EXPECT_NE(why_not.find("matrix units"), std::string::npos) << why_not;
}

TEST(HostDriver, RowsOfAScatterHaveMemoryForEachStreamAndRecording) {
  HostDriver driver;
  driver.runs = false;
  const Gpu gpu = test::host_gpu(driver);
  codegen::Csr csr;
  csr.num_rows = 10, csr.num_edges = 3000, csr.index_dtype = kit::kDType_i64;
  csr.index_buffer = 0, csr.row_ptr_buffer = 1, csr.perm_buffer = 2;
  auto step = make_csr_step(csr, gpu, code_target(gpu, nullptr), true);
  std::vector<int64_t> index(3000);
  void* buffers[] = {index.data(), nullptr, nullptr};
  krn_run run{};
  codegen::RunContext context;
  context.buffers = buffers, context.run = &run;
  const auto rows_after = [&](uint64_t stream) {
    run.stream.native = stream;
    EXPECT_EQ(step->run(context), KRN_STATUS_ok);
    return buffers[1];
  };
  void* const first = rows_after(1);
  EXPECT_GE(static_cast<char*>(first) - static_cast<char*>(*driver.memory.begin()), 16 + 3000 * 8) << "behind the state and the kept index";
  EXPECT_GE(static_cast<char*>(buffers[2]) - static_cast<char*>(first), 4 * (10 + 1)) << "behind the rows' ends";
  EXPECT_EQ(rows_after(1), first);
  EXPECT_NE(rows_after(2), first);
  EXPECT_EQ(driver.memory.size(), 2u);
  driver.recording = true;
  EXPECT_NE(rows_after(1), first) << "nobody knows where a recording is replayed";
  EXPECT_EQ(driver.memory.size(), 3u);
  ASSERT_EQ(driver.launches.size(), 4u);
  EXPECT_TRUE(driver.launches[0].launch.together);
  EXPECT_EQ(driver.launches[0].launch.blocks, 3);
  driver.recording = false, driver.refuses = 2;
  run.stream.native = 3;
  EXPECT_EQ(step->run(context), KRN_STATUS_exhausted);
  step.reset();
  EXPECT_TRUE(driver.memory.empty());
  EXPECT_EQ(driver.streams, 0);
  EXPECT_EQ(driver.permissions, 0);
}

TEST(HostDriver, ATimerGivesBackWhatItTakes) {
  HostDriver driver;
  {
    Timer timer(driver);
    EXPECT_EQ(driver.permissions, 1);
    EXPECT_NE(timer.memory(100), nullptr);
    EXPECT_EQ(timer.milliseconds_of([] { return true; }), 0.25f);
    EXPECT_LT(timer.milliseconds_of([] { return false; }), 0);
    EXPECT_TRUE(timer.ok());
    driver.refuses = 2;
    EXPECT_EQ(timer.memory(100), nullptr);
    EXPECT_FALSE(timer.ok());
  }
  EXPECT_TRUE(driver.memory.empty());
  EXPECT_EQ(driver.streams + driver.events + driver.permissions, 0);
}

TEST(HostDriver, AContextIsRetainedWhileItLives) {
  HostDriver driver;
  const Gpu gpu = test::host_gpu(driver);
  {
    const Context context(gpu);
    EXPECT_EQ(driver.retained, 1);
    const Current current(&context);
    EXPECT_EQ(driver.now, context.handle());
    EXPECT_EQ(context.health(), KRN_STATUS_ok);
    driver.lost = true;
    EXPECT_EQ(context.health(), KRN_STATUS_device_lost);
  }
  EXPECT_EQ(driver.now, nullptr);
  EXPECT_EQ(driver.retained + driver.events, 0);
}

TEST(HostDriver, WhatStartsBetweenWordsIsCopiedAndTheResultGivenBack) {
  const HostDriver driver;
  alignas(16) float x[8] = {1, 2, 3, 4, 5, 6, 7, 8}, y[8] = {};
  const ConvTensor four{kit::kDType_f32, {1, 4, 1, 1}, {4, 1, 1, 1}};
  {
    void* const addresses[] = {x + 1, y + 1, x};
    AlignedCopies copies(driver, addresses, nullptr);
    ASSERT_TRUE(copies.make({&four, &four, &four}));
    EXPECT_EQ(driver.memory.size(), 2u);
    EXPECT_EQ(copies.addresses()[2], x);
    std::memcpy(copies.addresses()[1], copies.addresses()[0], 16);
    ASSERT_TRUE(copies.give_back(1));
  }
  EXPECT_EQ(y[1], 2);
  EXPECT_EQ(y[4], 5);
  EXPECT_EQ(y[5], 0);
  EXPECT_TRUE(driver.memory.empty());
}

class Plan final : public TimedPlan {
 public:
  explicit Plan(int& settled) : settled_(settled) {}
  void settle() override { ++settled_; }
  int32_t run(Stream, std::span<void* const>, void*, std::string&) const override { return KRN_STATUS_ok; }
  int64_t workspace_bytes() const override { return 0; }
  double seconds() const override { return 0; }
  std::string name() const override { return "plan"; }

 private:
  int& settled_;
};

TEST(HostDriver, PlansAreMadeOnceAndFailuresAskedForAgain) {
  const HostDriver driver;
  PlanCache cache;
  int settled = 0, made = 0;
  const PlanCache::Make make = [&] { return ++made, std::make_shared<Plan>(settled); };
  const PlanCache::Make fail = []() -> std::shared_ptr<TimedPlan> { throw kit::Error(KRN_STATUS_unsupported, "none"); };
  const auto a = PlanCache::key_here(driver, "a"), b = PlanCache::key_here(driver, "b");
  cache.prepare(driver, {{a, {true, make}}, {b, {true, fail}}});
  EXPECT_TRUE(cache.knows(a));
  EXPECT_FALSE(cache.knows(b));
  EXPECT_EQ(settled, 0);
  EXPECT_EQ(cache.get(a, make), cache.get(a, make));
  EXPECT_EQ(made, 1);
  EXPECT_THROW(cache.get(b, fail), kit::Error);
  EXPECT_NE(cache.get(b, make), nullptr);
  EXPECT_EQ(made, 2);
}

// One whose engines are names: "even" takes batches of even size, "odd" is compiled, and residuals are refused. It counts what it is asked.
class NamedEngines final : public RacedLibrary {
 public:
  explicit NamedEngines(const HostDriver& driver) : driver_(driver) {}
  const char* name() const override { return "engines"; }
  mutable int refusals = 0, raced = 0, named = 0;

 private:
  class Engine final : public RacedPlan {
   public:
    Engine(const HostDriver& driver, const ConvProblem& problem, const std::string& name)
        : RacedPlan(driver, "engines", problem, "engine " + problem.key(), false), compiled_(name == "odd") {
      take({1e-6, 0, name});
    }
    bool is_compiled() const override { return compiled_; }

   private:
    std::vector<int64_t> candidates() const override { return {0}; }
    int64_t workspace_of(int64_t) const override { return 0; }
    std::string name_of(int64_t) const override { return "none"; }
    int32_t execute(int64_t, Stream, std::span<void* const>, void*, std::string&) const override { return KRN_STATUS_ok; }
    const bool compiled_;
  };

  const Driver& driver() const override { return driver_; }
  std::string missing() const override { return ""; }
  std::string kind() const override { return "of the test"; }
  std::string refusal(const ConvProblem& problem) const override { return ++refusals, problem.stages.empty() ? "" : "no epilogues"; }
  std::shared_ptr<RacedPlan> make(const ConvProblem& problem) const override {
    const int64_t batch = problem.x.sizes[0];
    return ++raced, std::make_shared<Engine>(driver_, problem, batch % 2 ? "odd" : batch > 32 ? "large" : "even");
  }
  std::shared_ptr<RacedPlan> make_named(const ConvProblem& problem, const std::string& name) const override {
    if (name == "large" && problem.x.sizes[0] < 30) throw kit::Error(KRN_STATUS_unsupported, "too small");
    return ++named, std::make_shared<Engine>(driver_, problem, name);
  }

  const HostDriver& driver_;
};

ConvProblem image(int64_t batch, int64_t side, bool last = true) {
  ConvProblem p;
  for (ConvTensor* t : {&p.x, &p.y}) *t = {kit::kDType_bf16, {batch, 8, side, side}, packed_strides({batch, 8, side, side}, last)};
  p.w = {kit::kDType_bf16, {8, 8, 3, 3}, packed_strides({8, 8, 3, 3}, last)};
  p.stride = p.padding = p.dilation = {1, 1};
  return p;
}

TEST(HostDriver, AConvolutionIsPlannedAtOnceAsAtOtherSizes) {
  const HostDriver driver;
  const NamedEngines library(driver);
  const PlanLibrary& at_once = library.at_once();
  std::string why;
  EXPECT_FALSE(at_once.supports(image(6, 14), why)) << "nobody asked about one yet";
  EXPECT_THROW(at_once.plan(image(6, 14)), kit::Error);
  EXPECT_TRUE(library.supports(image(4, 14), why));
  EXPECT_EQ(library.plan(image(4, 14))->name(), "even");
  EXPECT_EQ(library.plan(image(64, 14))->name(), "large");
  const int refusals = library.refusals, raced = library.raced;
  EXPECT_TRUE(at_once.supports(image(6, 14), why)) << why;
  EXPECT_TRUE(at_once.supports(image(6, 28), why)) << "other images are like it, too: " << why;
  EXPECT_FALSE(at_once.supports(image(6, 14, false), why)) << "channels lie elsewhere";
  ConvProblem wider = image(6, 14);
  wider.padding = {2, 2};
  EXPECT_FALSE(at_once.supports(wider, why));
  const auto plan = at_once.plan(image(6, 14));
  EXPECT_EQ(plan->name(), "even");
  EXPECT_EQ(at_once.plan(image(6, 14)), plan) << "while somebody has it";
  EXPECT_EQ(at_once.plan(image(40, 14))->name(), "large");
  EXPECT_EQ(at_once.plan(image(20, 14))->name(), "even") << "large is nearer, and has none so small";
  EXPECT_EQ(library.named, 3);
  EXPECT_EQ(library.plan(image(7, 14))->name(), "odd");
  EXPECT_THROW(at_once.plan(image(8, 14)), kit::Error) << "the nearest was compiled for its sizes";
  EXPECT_EQ(library.refusals, refusals) << "the library was not asked";
  EXPECT_EQ(library.raced, raced + 1);
  ConvProblem residual = image(4, 14);
  residual.stages.push_back({ConvStage::kAdd, residual.y});
  EXPECT_FALSE(library.supports(residual, why));
  residual = image(6, 14);
  residual.stages.push_back({ConvStage::kAdd, residual.y});
  EXPECT_FALSE(at_once.supports(residual, why)) << "nor at other sizes";
}

}  // namespace
}  // namespace keirin::gpu
