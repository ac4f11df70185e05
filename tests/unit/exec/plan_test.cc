// SPDX-License-Identifier: Apache-2.0
//
// What a failed step means: before anything was updated in place the call may be answered by eager; afterwards nobody may repeat it.
// And whose an output is.
#include "core/exec/plan.h"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <set>

#include "core/exec/arenas.h"
#include "tests/unit/host/heap_services.h"

namespace keirin {
namespace {

class FakeExecutable final : public Executable {
 public:
  FakeExecutable(const bool* fails, bool inputs_intact) : fails_(fails) { info_.inputs_intact = inputs_intact; }
  const ExecutableInfo& info() const override { return info_; }
  uint64_t workspace_bytes() const override { return 0; }
  uint64_t workspace_align() const override { return 64; }
  Status run(const krn_tensor* inputs, uint32_t, const krn_tensor* outputs, uint32_t, void*, uint64_t, bool) override {
    if (*fails_) return Status(code, "told to fail");
    *static_cast<float*>(outputs[0].data) = *static_cast<const float*>(inputs[0].data) + 1;
    return {};
  }
  PluginDevice& device() const override { std::abort(); }

  Code code = Code::k_internal;

 private:
  const bool* fails_;
  ExecutableInfo info_;
};

// state = neg(x) by the first region, in place or not; the user's output is relu of x by the second one.
struct TwoRegions {
  explicit TwoRegions(bool in_place, bool intact = false) {
    const Type type{DType::k_f32, {1}, {1}};
    Graph g;
    const ValueId x = g.add_input(type, 0), state = g.add_constant(type, 0, ValueKind::kState);
    const ValueId updated = g.ops[g.add_op(OpCode::k_neg, {x}, {}, {type})].results[0];
    const ValueId out = g.ops[g.add_op(OpCode::k_relu, {x}, {}, {type})].results[0];
    g.outputs.push_back({out, kNone, kNone});
    g.outputs.push_back({updated, state, kNone});
    std::vector<PlanStep> steps(2);
    steps[0].name = "r0";
    steps[0].executable = first = std::make_shared<FakeExecutable>(&first_fails, intact);
    steps[0].operands = {x};
    steps[0].results = {updated};
    steps[0].targets = {in_place ? state : kNone};
    steps[1].name = "r1";
    steps[1].executable = std::make_shared<FakeExecutable>(&second_fails, intact);
    steps[1].operands = {x};
    steps[1].results = {out};
    auto made = Plan::make(g, std::move(steps), {state_tensor}, services, {});
    EXPECT_TRUE(made.ok()) << made.status().text();
    plan = std::move(*made);
  }
  float state() const { return *static_cast<const float*>(state_tensor->data()); }

  // Copies what lies elsewhere, and counts.
  struct Services : test::HeapServices {
    int brought = 0;
    Result<TensorRef> to_device(const TensorRef& tensor, Device device) override {
      ++brought;
      TensorSpec spec = static_cast<const test::HeapTensor&>(*tensor).spec();
      spec.device = device;
      KRN_TRY_LET(TensorRef made, allocate(spec));
      ::memcpy(made->data(), tensor->data(), static_cast<size_t>(tensor->storage_bytes()));
      return made;
    }
  } services;
  std::shared_ptr<FakeExecutable> first;
  bool first_fails = false, second_fails = false;
  TensorRef state_tensor = test::tensor_of<float>(DType::k_f32, {1}, {7}), x = test::tensor_of<float>(DType::k_f32, {1}, {1});
  std::unique_ptr<Plan> plan;
};

TEST(Plan, AFailureBeforeTheUpdateLeavesTheState) {
  TwoRegions copied(false);
  copied.second_fails = true;
  EXPECT_EQ(copied.plan->run({copied.x}).status().code(), Code::k_internal);
  EXPECT_EQ(copied.state(), 7);
  copied.second_fails = false;
  EXPECT_TRUE(copied.plan->run({copied.x}).ok());
  EXPECT_EQ(copied.state(), 2);
}

// What is returned is the caller's tensor itself, its memory is not used for other calls, and what does not fit is left alone.
TEST(Plan, OutputsGoToMemoryOfTheCallers) {
  TwoRegions regions(false);
  alignas(64) float memory[32] = {};
  const auto at = [&](float* place, std::vector<int64_t> sizes) {
    return *regions.services.wrap({DType::k_f32, std::move(sizes), {}, {}}, place, nullptr);
  };
  TensorRef given = at(memory, {1});
  const auto into = regions.plan->run_into({regions.x}, {given});
  ASSERT_TRUE(into.ok()) << into.status().text();
  EXPECT_EQ(into->at(0), given);
  EXPECT_EQ(memory[0], 2);
  given = nullptr;
  memory[0] = 5;
  const auto other = regions.plan->run({regions.x});
  ASSERT_TRUE(other.ok());
  EXPECT_EQ(memory[0], 5) << "the plan kept the caller's memory";
  for (const TensorRef& unfit : {at(memory + 1, {1}), at(memory + 16, {2}), TensorRef()}) {
    const auto made = regions.plan->run_into({regions.x}, {unfit});
    ASSERT_TRUE(made.ok());
    EXPECT_NE(made->at(0), unfit);
    EXPECT_EQ(*static_cast<const float*>(made->at(0)->data()), 2);
  }
  EXPECT_EQ(memory[1] + memory[16], 0);
}

// A single number may lie anywhere for LibTorch's operators; a region is given memory of its own device.
TEST(Plan, WhatARegionReadsIsBroughtToItsDevice) {
  TwoRegions regions(false);
  ASSERT_TRUE(regions.plan->run({regions.x}).ok());
  EXPECT_EQ(regions.services.brought, 0);
  float number = 4;
  const TensorRef elsewhere = *regions.services.wrap({DType::k_f32, {1}, {}, {Device::kCuda, 0}}, &number, nullptr);
  const auto out = regions.plan->run({elsewhere});
  ASSERT_TRUE(out.ok()) << out.status().text();
  EXPECT_EQ(*static_cast<const float*>(out->at(0)->data()), 5);
  EXPECT_EQ(regions.services.brought, 1);
}

// A constant once, when the plan is made. A state is written where it lies.
TEST(Plan, AConstantIsBroughtOnceAndAStateNever) {
  for (const ValueKind kind : {ValueKind::kConstant, ValueKind::kState}) {
    const Type type{DType::k_f32, {1}, {1}};
    Graph g;
    const ValueId fixed = g.add_constant(type, 0, kind);
    g.outputs.push_back({g.ops[g.add_op(OpCode::k_relu, {fixed}, {}, {type})].results[0], kNone, kNone});
    const bool fails = false;
    std::vector<PlanStep> steps(1);
    steps[0].name = "r0";
    steps[0].executable = std::make_shared<FakeExecutable>(&fails, true);
    steps[0].operands = {fixed};
    steps[0].results = {g.outputs[0].value};
    TwoRegions::Services services;
    float number = 4;
    const TensorRef elsewhere = *services.wrap({DType::k_f32, {1}, {}, {Device::kCuda, 0}}, &number, nullptr);
    const auto plan = Plan::make(g, std::move(steps), {elsewhere}, services, {});
    if (kind == ValueKind::kState) {
      EXPECT_EQ(plan.status().code(), Code::k_unsupported);
      continue;
    }
    ASSERT_TRUE(plan.ok()) << plan.status().text();
    for (int call = 0; call < 2; ++call) {
      const auto out = (*plan)->run({});
      ASSERT_TRUE(out.ok()) << out.status().text();
      EXPECT_EQ(*static_cast<const float*>(out->at(0)->data()), 5);
    }
    EXPECT_EQ(services.brought, 1);
  }
}

TEST(Plan, AFailureAfterAnUpdateInPlaceIsNotToBeRepeated) {
  TwoRegions in_place(true);
  in_place.second_fails = true;
  const Status late = in_place.plan->run({in_place.x}).status();
  EXPECT_EQ(late.code(), Code::k_half_done) << late.text();
  EXPECT_NE(late.text().find("told to fail"), std::string::npos) << "the cause is not lost";
  in_place.first_fails = true;
  EXPECT_EQ(in_place.plan->run({in_place.x}).status().code(), Code::k_half_done) << "it may have written before it failed";
}

// In a worker the caller's memory is written when the run is over.
TEST(Plan, ARegionThatUpdatesOnlyWhenItIsDoneMayFail) {
  TwoRegions in_place(true, true);
  in_place.first_fails = true;
  EXPECT_EQ(in_place.plan->run({in_place.x}).status().code(), Code::k_internal) << "eager may answer";
  EXPECT_EQ(in_place.state(), 7);
  in_place.first_fails = false, in_place.second_fails = true;
  EXPECT_EQ(in_place.plan->run({in_place.x}).status().code(), Code::k_half_done) << "the first region is done";
}

// An index that leads nowhere is found before anything is written, or is told as another error.
TEST(Plan, ARegionThatRefusesItsInputHasNotBegun) {
  TwoRegions in_place(true);
  in_place.first->code = Code::k_invalid_input;
  in_place.first_fails = true;
  EXPECT_EQ(in_place.plan->run({in_place.x}).status().code(), Code::k_invalid_input) << "eager may answer";
  EXPECT_EQ(in_place.state(), 7);
}

struct Counting : test::HeapServices {
  Result<TensorRef> allocate(const TensorSpec& spec) override {
    arenas += spec.dtype == DType::k_u8;
    return HeapServices::allocate(spec);
  }
  int arenas = 0;
};

// Calls inside each other, as threads would hold them: each has memory of its own, what was given back serves again, and after a trim
// there is new memory. Of an arena of the plan's own, and of one that plans lend each other.
class ContextsTest : public testing::TestWithParam<uint64_t> {};
INSTANTIATE_TEST_SUITE_P(Plan, ContextsTest, testing::Values(64, 2 * Arenas::kLeastBytes));

TEST_P(ContextsTest, EachCallInFlightHasAContextAndContextsServeAgain) {
  struct Nested final : Executable {
    const ExecutableInfo& info() const override { return info_; }
    uint64_t workspace_bytes() const override { return GetParam(); }
    uint64_t workspace_align() const override { return 64; }
    Status run(const krn_tensor* inputs, uint32_t, const krn_tensor* outputs, uint32_t, void* workspace, uint64_t, bool) override {
      workspaces.insert(workspace);
      *static_cast<float*>(outputs[0].data) = *static_cast<const float*>(inputs[0].data);
      if (--depth > 0) return call();
      return {};
    }
    PluginDevice& device() const override { std::abort(); }
    std::function<Status()> call;
    std::set<void*> workspaces;
    int depth = 0;
    ExecutableInfo info_;
  };
  const Type type{DType::k_f32, {1}, {1}};
  Graph g;
  const ValueId x = g.add_input(type, 0);
  g.outputs.push_back({g.ops[g.add_op(OpCode::k_neg, {x}, {}, {type})].results[0], kNone, kNone});
  const auto nested = std::make_shared<Nested>();
  std::vector<PlanStep> steps(1);
  steps[0].name = "r0";
  steps[0].executable = nested;
  steps[0].operands = {x};
  steps[0].results = {g.outputs[0].value};
  Counting services;
  auto made = Plan::make(g, std::move(steps), {}, services, {});
  ASSERT_TRUE(made.ok()) << made.status().text();
  const TensorRef input = test::tensor_of<float>(DType::k_f32, {1}, {1});
  nested->call = [&] { return (*made)->run({input}).status(); };
  EXPECT_EQ(services.arenas, 1) << "made with the plan";
  for (int depth : {1, 1, 3, 3, 2, 5, 5, 1}) {
    nested->depth = depth;
    nested->workspaces.clear();
    ASSERT_TRUE(nested->call().ok());
    EXPECT_EQ(nested->workspaces.size(), static_cast<size_t>(depth)) << "of a call of its own each";
  }
  EXPECT_EQ(services.arenas, 5) << "as many as were ever in flight together";
  (*made)->trim();
  for (int depth : {1, 2}) {
    nested->depth = depth;
    ASSERT_TRUE(nested->call().ok());
  }
  EXPECT_EQ(services.arenas, 7);
}

// x -> region -> y -> region -> the output, y of so many floats; each region has a workspace of as many bytes, and dirties it.
std::unique_ptr<Plan> plan_with_arena(int64_t floats, uint64_t workspace, TensorServices& services, Device device = {}) {
  struct Filling final : Executable {
    const ExecutableInfo& info() const override { return info_; }
    uint64_t workspace_bytes() const override { return bytes; }
    uint64_t workspace_align() const override { return 64; }
    Status run(const krn_tensor* inputs, uint32_t, const krn_tensor* outputs, uint32_t, void* workspace, uint64_t, bool) override {
      if (bytes > 0) std::memset(workspace, 0x7f, bytes);
      const float from = inputs[0].data ? *static_cast<const float*>(inputs[0].data) : 0;
      auto* to = static_cast<float*>(outputs[0].data);
      for (int64_t i = 0; i < outputs[0].shape[0]; ++i) to[i] = from + 1;
      return {};
    }
    PluginDevice& device() const override { std::abort(); }
    uint64_t bytes = 0;
    ExecutableInfo info_;
  };
  const Type one{DType::k_f32, {1}, {1}}, many{DType::k_f32, {floats}, {1}};
  Graph g;
  const ValueId x = g.add_input(one, 0);
  const ValueId y = g.ops[g.add_op(OpCode::k_neg, {x}, {}, {many})].results[0];
  g.outputs.push_back({g.ops[g.add_op(OpCode::k_neg, {y}, {}, {one})].results[0], kNone, kNone});
  std::vector<PlanStep> steps(2);
  for (PlanStep& step : steps) {
    const auto filling = std::make_shared<Filling>();
    filling->bytes = workspace;
    step.name = "r";
    step.executable = filling;
  }
  steps[0].operands = {x}, steps[0].results = {y};
  steps[1].operands = {y}, steps[1].results = {g.outputs[0].value};
  auto made = Plan::make(g, std::move(steps), {}, services, device);
  EXPECT_TRUE(made.ok()) << made.status().text();
  return std::move(*made);
}

// Forward and backward of a step: what both hold between calls is the larger one's, wherever the smaller one began, and they stay right.
TEST(Plan, PlansThatAnswerInTurnsTakeTheLargerArena) {
  constexpr int64_t kFloats = Arenas::kLeastBytes;  // 4 of that in bytes
  Counting services;
  const TensorRef x = test::tensor_of<float>(DType::k_f32, {1}, {1});
  {
    const auto small = plan_with_arena(kFloats, 100, services), large = plan_with_arena(3 * kFloats, 100, services);
    const int made = services.arenas;
    for (int step = 0; step < 3; ++step)
      for (const auto* plan : {&small, &large}) {
        const auto answer = (*plan)->run({x});
        ASSERT_TRUE(answer.ok()) << answer.status().text();
        EXPECT_EQ(*static_cast<const float*>(answer->at(0)->data()), 3);
      }
    EXPECT_EQ(services.arenas, made) << "nothing is allocated between calls";
    EXPECT_EQ(Arenas::shared().idle_bytes(), large->arena_bytes());
  }
  EXPECT_EQ(Arenas::shared().idle_bytes(), 0) << "what no plan asks for is freed";
}

// On a GPU a plan keeps its arena, or asks for one in each call: then nothing of it stands beside those of other sizes.
TEST(Plan, AnArenaOnAGpuIsLentWhereItIsAskedFor) {
  struct OnGpu : Counting {
    Result<TensorRef> allocate(const TensorSpec& spec) override {
      KRN_TRY_LET(TensorRef out, Counting::allocate(spec));
      if (spec.dtype == DType::k_u8) arena = out;
      return out;
    }
    std::weak_ptr<Tensor> arena;
  } services;
  const Device gpu{Device::kCuda, 0};
  const TensorRef own = test::tensor_of<float>(DType::k_f32, {1}, {1});
  const TensorRef x = *services.wrap({DType::k_f32, {1}, {1}, gpu}, own->data(), own);
  const auto plan = plan_with_arena(Arenas::kLeastBytes, 100, services, gpu);
  const auto answers = [&] {
    const auto answer = plan->run({x});
    return answer.ok() && *static_cast<const float*>(answer->at(0)->data()) == 3;
  };
  ASSERT_TRUE(answers() && answers());
  EXPECT_EQ(services.arenas, 1);
  EXPECT_TRUE(!services.arena.expired() && plan->held_bytes() == plan->arena_bytes());
  plan->lend_arena();
  for (const int arenas : {3, 4, 5}) {  // two with the context, then one a call
    ASSERT_TRUE(answers());
    EXPECT_EQ(services.arenas, arenas);
    EXPECT_TRUE(services.arena.expired() && plan->held_bytes() == 0);
  }
  EXPECT_EQ(Arenas::shared().idle_bytes(), 0) << "which is host memory";
}

TEST(Plan, AnEmptyIntermediateNeedsNoArena) {
  Counting services;
  const auto plan = plan_with_arena(0, 0, services);
  EXPECT_EQ(plan->arena_bytes(), 0);
  EXPECT_TRUE(plan->run({test::tensor_of<float>(DType::k_f32, {1}, {1})}).ok());
}

// Whatever a region asks for, from one byte on: it gets that much, at a boundary, and it is nobody else's.
TEST(Plan, AWorkspaceOfAnySizeIsThereAndApart) {
  struct Asking final : Executable {
    const ExecutableInfo& info() const override { return info_; }
    uint64_t workspace_bytes() const override { return bytes; }
    uint64_t workspace_align() const override { return 64; }
    Status run(const krn_tensor* inputs, uint32_t, const krn_tensor* outputs, uint32_t, void* workspace, uint64_t, bool) override {
      EXPECT_TRUE(bytes == 0 || workspace != nullptr) << bytes;
      EXPECT_EQ(reinterpret_cast<uintptr_t>(workspace) % 64, 0u);
      if (workspace) std::memset(workspace, 0x7f, bytes);
      *static_cast<float*>(outputs[0].data) = *static_cast<const float*>(inputs[0].data) + 1;
      if (workspace) std::memset(workspace, 0x7f, bytes);
      return {};
    }
    PluginDevice& device() const override { std::abort(); }
    uint64_t bytes = 0;
    ExecutableInfo info_;
  };
  for (uint64_t first : {0, 1, 2, 63, 64, 65, 1000})
    for (uint64_t second : {0, 1, 64, 3000, 99}) {
      const int count = second == 99 ? 1 : 2;  // without a value between them there is no other memory to lie beside
      const Type type{DType::k_f32, {1}, {1}};
      Graph g;
      const ValueId x = g.add_input(type, 0);
      const ValueId between = g.ops[g.add_op(OpCode::k_neg, {x}, {}, {type})].results[0];
      const ValueId out = count == 1 ? between : g.ops[g.add_op(OpCode::k_neg, {between}, {}, {type})].results[0];
      g.outputs.push_back({out, kNone, kNone});
      std::vector<PlanStep> steps(static_cast<size_t>(count));
      for (int s = 0; s < count; ++s) {
        const auto asking = std::make_shared<Asking>();
        asking->bytes = s == 0 ? first : second;
        steps[s].name = "r";
        steps[s].executable = asking;
        steps[s].operands = {s == 0 ? x : between};
        steps[s].results = {s == 0 ? between : out};
      }
      test::HeapServices services;
      auto made = Plan::make(g, std::move(steps), {}, services, {});
      ASSERT_TRUE(made.ok()) << made.status().text();
      for (int call = 0; call < 2; ++call) {
        const auto outputs = (*made)->run({test::tensor_of<float>(DType::k_f32, {1}, {5})});
        ASSERT_TRUE(outputs.ok()) << outputs.status().text();
        EXPECT_EQ(*static_cast<const float*>(outputs->at(0)->data()), 5 + count) << first << ", " << second;
      }
    }
}

// What eager steps answer is memory of LibTorch's, and an input is the caller's: nobody holds them once their last reader has run.
TEST(Plan, WhatAnEagerStepAnswersGoesAfterItsLastReader) {
  const Type type{DType::k_f32, {1}, {1}};
  Graph g;
  const ValueId x = g.add_input(type, 0);
  const ValueId first = g.ops[g.add_op(OpCode::k_neg, {x}, {}, {type})].results[0];
  const ValueId second = g.ops[g.add_op(OpCode::k_exp, {first}, {}, {type})].results[0];
  const ValueId third = g.ops[g.add_op(OpCode::k_relu, {second}, {}, {type})].results[0];
  g.outputs.push_back({third, kNone, kNone});
  std::vector<std::weak_ptr<const Tensor>> made;
  std::vector<bool> first_is_there;
  std::vector<PlanStep> steps(3);
  for (size_t s = 0; s < 3; ++s) {
    steps[s].name = "eager";
    steps[s].may_alias = false;  // else what it answers could be a view of what it read
    steps[s].eager = [&](std::span<const TensorRef>, std::vector<TensorRef>& results) {
      if (!made.empty()) first_is_there.push_back(!made[0].expired());
      results.push_back(test::tensor_of<float>(DType::k_f32, {1}, {2}));
      made.emplace_back(results.back());
      return Status();
    };
    steps[s].operands = {s == 0 ? x : s == 1 ? first : second};
    steps[s].results = {s == 0 ? first : s == 1 ? second : third};
  }
  steps[2].operands.push_back(x);
  test::HeapServices services;
  auto plan = Plan::make(g, std::move(steps), {}, services, {});
  ASSERT_TRUE(plan.ok()) << plan.status().text();
  const TensorRef input = test::tensor_of<float>(DType::k_f32, {1}, {1});
  const auto outputs = (*plan)->run({input});
  ASSERT_TRUE(outputs.ok()) << outputs.status().text();
  EXPECT_EQ(first_is_there, (std::vector<bool>{true, false}));
  EXPECT_TRUE(made[1].expired());
  EXPECT_EQ(input.use_count(), 1);
}

TEST(Plan, AnOutputServesAgainOnceItsOwnerLetGo) {
  TwoRegions regions(false);
  Result<std::vector<TensorRef>> first = regions.plan->run({regions.x});
  ASSERT_TRUE(first.ok());
  const TensorRef held = first->at(0);
  const void* const memory = held->data();
  Result<std::vector<TensorRef>> second = regions.plan->run({regions.x});
  ASSERT_TRUE(second.ok());
  EXPECT_NE(second->at(0)->data(), memory) << "somebody holds it";
  const void* const dropped = second->at(0)->data();
  second->clear();
  EXPECT_EQ(regions.plan->run({regions.x})->at(0)->data(), dropped);
  EXPECT_EQ(*static_cast<const float*>(memory), 2);
}

}  // namespace
}  // namespace keirin
