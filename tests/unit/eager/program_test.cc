// SPDX-License-Identifier: Apache-2.0
//
// The file's op list verbatim against what Python's eager returned for the same inputs, bit for bit, state and written
// inputs included; and the words of refused calls.
#include <algorithm>

#include "tests/unit/eager/loaded_model.h"

namespace keirin {
namespace {

using testing::LoadedModel;
using testing::sizes_of;

class Verbatim : public ::testing::TestWithParam<const char*> {};

TEST_P(Verbatim, EqualsPython) {
  LoadedModel loaded(GetParam());
  ASSERT_NE(loaded.model, nullptr);
  auto program = EagerProgram::make(loaded.model->program, loaded.weights, {});
  ASSERT_TRUE(program.ok()) << program.status().text();
  const std::vector<TensorRef> inputs = loaded.inputs();
  int call = 0;
  for (; loaded.expected(call, 0) != nullptr; ++call) {
    auto outputs = (*program)->run(inputs);
    ASSERT_TRUE(outputs.ok()) << outputs.status().text();
    ASSERT_EQ(outputs->size(), (*program)->num_outputs());
    for (size_t i = 0; i < outputs->size(); ++i) {
      EXPECT_TRUE(loaded.same_bits((*outputs)[i], loaded.expected(call, i))) << "call " << call << " output " << i;
    }
    EXPECT_EQ(loaded.expected(call, outputs->size()), nullptr) << "Python returned more outputs";
  }
  EXPECT_GT(call, 0);
  for (size_t i = 0; i < inputs.size(); ++i) {
    EXPECT_TRUE(loaded.same_bits(inputs[i], loaded.golden.at("after_" + std::to_string(i))))
        << "input " << i << " after the calls";
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Verbatim,
                         ::testing::Values("mlp", "in_place", "counter", "counter_functional", "exchange_functional", "kept",
                                           "computed_sizes", "writes_input", "opaque", "control", "scope", "dynamic", "conv", "train_norm",
                                           "tied", "opaque_in_place", "unknown_view", "swap", "views", "written_view", "written_base",
                                           "moved", "parts", "counted_sizes", "windows"),
                         [](const auto& info) { return std::string(info.param); });

// The strides of a transposed tensor, which no view of the file was written for.
TensorRef transposed(LoadedModel& loaded, const TensorRef& from) {
  std::vector<int64_t> strides{1, from->sizes()[0]};
  TensorRef to = *loaded.services->allocate({from->dtype(), sizes_of(*from), strides, {}});
  EXPECT_TRUE(loaded.services->copy(to, from).ok());
  return to;
}

TEST(ViewsOfOtherStrides, AreCopiesWithTheSameValues) {
  LoadedModel loaded("views");
  auto program = EagerProgram::make(loaded.model->program, loaded.weights, {});
  ASSERT_TRUE(program.ok()) << program.status().text();
  const std::vector<TensorRef> inputs{transposed(loaded, loaded.inputs()[0])};
  auto outputs = (*program)->run(inputs);
  ASSERT_TRUE(outputs.ok()) << outputs.status().text();
  ObservedRun seen;
  auto observed = (*program)->observe(inputs, seen);
  ASSERT_TRUE(observed.ok()) << observed.status().text();
  EXPECT_EQ(seen.values.at("view_1").view_of, "") << "what was copied shares nothing";
  auto referee = (*program)->referee(inputs, {}, 1);
  ASSERT_TRUE(referee.ok()) << referee.status().text();
  ASSERT_EQ(outputs->size(), 7u);
  for (size_t i = 0; i < outputs->size(); ++i) {
    EXPECT_TRUE(loaded.same_bits(outputs->at(i), loaded.expected(0, i))) << "output " << i;
    EXPECT_TRUE(loaded.same_bits(observed->at(i), loaded.expected(0, i)))
        << "output " << i << " of the run that is observed";
    if (i >= 5) continue;  // no numbers that fp64 is nearer to
    EXPECT_LT(loaded.largest_difference(referee->outputs[0][i], loaded.expected(0, i)), 1e-5)
        << "output " << i << " in fp64";
  }
}

// Errors on purpose are those of rounding: small, another seed's are others, and what is exact has none.
TEST(Roundings, MoveWhatEagerRounds) {
  LoadedModel loaded("mlp");
  auto program = EagerProgram::make(loaded.model->program, loaded.weights, {});
  ASSERT_TRUE(program.ok()) << program.status().text();
  const auto run = [&](uint32_t seed) {
    auto made = (*program)->referee(loaded.inputs(), {}, 1, {seed, false});
    EXPECT_TRUE(made.ok()) << made.status().text();
    return made->outputs[0][0];
  };
  const TensorRef exact = run(0), first = run(1), second = run(2);
  EXPECT_EQ(loaded.largest_difference(exact, run(0)), 0);
  EXPECT_EQ(loaded.largest_difference(first, run(1)), 0);
  EXPECT_GT(loaded.largest_difference(exact, first), 1e-9);
  EXPECT_LT(loaded.largest_difference(exact, first), 1e-4);
  EXPECT_GT(loaded.largest_difference(first, second), 1e-9);
}

TEST(Roundings, LeaveWhatIsExact) {
  LoadedModel loaded("views");
  auto program = EagerProgram::make(loaded.model->program, loaded.weights, {});
  ASSERT_TRUE(program.ok()) << program.status().text();
  std::vector<TensorRef> inputs = loaded.inputs();
  const TensorRef whole = *loaded.services->allocate(spec_of(*inputs[0]));
  auto* at = static_cast<float*>(whole->data());
  for (int64_t i = 0; i < whole->storage_bytes() / 4; ++i) at[i] = static_cast<float>(i % 16 - 8);
  inputs[0] = whole;
  auto exact = (*program)->referee(inputs, {}, 1), moved = (*program)->referee(inputs, {}, 1, {3, false});
  ASSERT_TRUE(exact.ok() && moved.ok());
  for (size_t i = 0; i < 5; ++i)
    EXPECT_EQ(loaded.largest_difference(exact->outputs[0][i], moved->outputs[0][i]), 0) << "output " << i;
}

// Where somebody writes what the view shares, a copy would be another program: the error is eager's.
TEST(ViewsOfOtherStrides, AreRefusedWhereTheyAreWritten) {
  for (const char* name : {"written_view", "written_base"}) {
    LoadedModel loaded(name);
    auto program = EagerProgram::make(loaded.model->program, loaded.weights, {});
    ASSERT_TRUE(program.ok()) << program.status().text();
    auto outputs = (*program)->run({transposed(loaded, loaded.inputs()[0])});
    ASSERT_FALSE(outputs.ok()) << name;
    EXPECT_NE(outputs.status().text().find("view size is not compatible"), std::string::npos)
        << outputs.status().text();
    EXPECT_NE(outputs.status().cause(), nullptr);
  }
}

std::string refusal(const std::string& model, const std::vector<std::vector<int64_t>>& sizes,
                    DType dtype = DType::k_f32) {
  LoadedModel loaded(model);
  auto program = EagerProgram::make(loaded.model->program, loaded.weights, {});
  EXPECT_TRUE(program.ok()) << program.status().text();
  std::vector<TensorRef> inputs;
  for (const auto& each : sizes) inputs.push_back(*loaded.services->allocate({dtype, each, {}, {}}));
  auto outputs = (*program)->run(inputs);
  return outputs.ok() ? "ran" : outputs.status().text();
}

TEST(Refusals, BelowTheRange) {
  EXPECT_EQ(refusal("mlp", {{1, 8}}),
            "invalid_input: input \"x\" dim 0 is 1, the model was exported for [2, 64]\n"
            "  model \"model\", symbol s77\n"
            "  nothing was run\n"
            "  re-export with min=1, or pad");
}

TEST(Refusals, AboveTheRange) {
  EXPECT_EQ(refusal("mlp", {{100, 8}}),
            "invalid_input: input \"x\" dim 0 is 100, the model was exported for [2, 64]\n"
            "  model \"model\", symbol s77\n"
            "  nothing was run\n"
            "  re-export with max=100, or split the input");
}

TEST(Refusals, FixedSize) {
  EXPECT_EQ(refusal("mlp", {{3, 9}}),
            "invalid_input: input \"x\" dim 1 is 9, the model was exported for 8\n"
            "  model \"model\"\n"
            "  nothing was run\n"
            "  re-export with this dimension dynamic, or resize the input");
}

TEST(Refusals, RankDtypeAndCount) {
  EXPECT_NE(refusal("mlp", {{8}}).find("input \"x\" has rank 1, the model was exported for rank 2"), std::string::npos);
  EXPECT_NE(refusal("mlp", {{3, 8}}, DType::k_f64).find("input \"x\" has dtype f64, the model was exported for f32"),
            std::string::npos);
  EXPECT_NE(refusal("mlp", {}).find("0 inputs were given, the model takes 1"), std::string::npos);
}

TEST(Refusals, SizesThatDisagree) {
  EXPECT_NE(refusal("dynamic", {{6, 5}, {7, 5}}).find("input \"y\" dim 0 is 7"), std::string::npos);
}

TEST(Shapes, BothEndsOfTheRange) {
  for (const int64_t batch : {2, 64}) {
    LoadedModel loaded("mlp");
    auto program = EagerProgram::make(loaded.model->program, loaded.weights, {});
    ASSERT_TRUE(program.ok());
    auto outputs = (*program)->run({*loaded.services->allocate({DType::k_f32, {batch, 8}, {}, {}})});
    ASSERT_TRUE(outputs.ok()) << outputs.status().text();
    EXPECT_EQ(sizes_of(*outputs->at(0)), (std::vector<int64_t>{batch, 4}));
  }
}

TEST(Errors, AreEagersOwn) {
  LoadedModel loaded("tied");
  auto program = EagerProgram::make(loaded.model->program, loaded.weights, {});
  ASSERT_TRUE(program.ok());
  const std::vector<TensorRef> inputs = loaded.inputs();
  static_cast<int64_t*>(inputs[0]->data())[0] = 10;  // the table has 10 rows
  auto outputs = (*program)->run(inputs);
  ASSERT_FALSE(outputs.ok());
  EXPECT_NE(outputs.status().cause(), nullptr);
  EXPECT_NE(outputs.status().text().find("index out of range in self"), std::string::npos) << outputs.status().text();
  EXPECT_NE(outputs.status().text().find("node embedding"), std::string::npos) << outputs.status().text();
}

// Two views of one storage of 35 numbers, which neither reaches wholly.
TEST(Weights, AreViewsOfTheWholeStorage) {
  LoadedModel loaded("inside");
  auto copy = loaded.weights.clone(*loaded.services);
  ASSERT_TRUE(copy.ok()) << copy.status().text();
  for (const WeightTable* table : {&loaded.weights, &*copy}) {
    const Weight &low = (*table)[*table->find("low")], &high = (*table)[*table->find("high")];
    EXPECT_EQ(low.storage, high.storage);
    EXPECT_EQ(static_cast<char*>(high.tensor->data()) - static_cast<char*>(low.tensor->data()),
              high.byte_offset - low.byte_offset);
    EXPECT_EQ(low.byte_offset + low.tensor->storage_bytes(), 35 * 4);
    EXPECT_EQ(high.byte_offset + high.tensor->storage_bytes(), 35 * 4);
    EXPECT_EQ(table->storage_bytes(), 35 * 4);
    // From one weight over to what only the other one holds.
    const TensorRef all = *loaded.services->view(low.tensor, {DType::k_f32, {7, 5}, {}, {}}, -low.byte_offset);
    const TensorRef part =
        *loaded.services->view(all, {DType::k_f32, sizes_of(*high.tensor), {1, 5}, {}}, high.byte_offset);
    EXPECT_TRUE(*same_bits(part, high.tensor));
    EXPECT_FALSE(loaded.services->view(low.tensor, {DType::k_f32, {8, 5}, {}, {}}, -low.byte_offset).ok())
        << "beyond the storage";
  }
  EXPECT_NE((*copy)[0].tensor->data(), loaded.weights[0].tensor->data());
}

// What is counted is the test's own: each operator of the file has a row, and a count that stands still is 0 everywhere.
TEST(Counts, AreOfEveryNode) {
  LoadedModel loaded("mlp");
  auto program = EagerProgram::make(loaded.model->program, loaded.weights, {});
  ASSERT_TRUE(program.ok()) << program.status().text();
  const uint64_t stands_still = 7;
  const auto counted = (*program)->count_nodes(loaded.inputs(), &stands_still);
  ASSERT_TRUE(counted.ok()) << counted.status().text();
  const std::vector<pt2::Node>& nodes = loaded.model->program.graph.nodes;
  EXPECT_EQ(counted->size(), nodes.size());
  for (const pt2::Node& node : nodes) EXPECT_EQ(counted->count(node.name), 1u) << node.name;
  for (const auto& [node, taken] : *counted) EXPECT_EQ(taken, 0u) << node;
}

TEST(State, CandidatesOnClonedWeightsDoNotMeet) {
  LoadedModel loaded("counter");
  auto copy = loaded.weights.clone(*loaded.services);
  ASSERT_TRUE(copy.ok()) << copy.status().text();
  auto first = EagerProgram::make(loaded.model->program, loaded.weights, {});
  auto second = EagerProgram::make(loaded.model->program, *copy, {});
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_TRUE((*first)->writes());
  for (int i = 0; i < 2; ++i) ASSERT_TRUE((*first)->run(loaded.inputs()).ok());
  auto outputs = (*second)->run(loaded.inputs());
  ASSERT_TRUE(outputs.ok());
  EXPECT_TRUE(loaded.same_bits((*outputs)[0], loaded.expected(0, 0)));
}

TEST(Weights, StayTiedWhenCloned) {
  LoadedModel loaded("tied");
  auto copy = loaded.weights.clone(*loaded.services);
  ASSERT_TRUE(copy.ok());
  const auto embed = copy->find("embed.weight"), head = copy->find("head.weight");
  ASSERT_TRUE(embed && head);
  EXPECT_EQ((*copy)[*embed].tensor->data(), (*copy)[*head].tensor->data());
  EXPECT_NE((*copy)[*embed].tensor->data(), loaded.weights[*embed].tensor->data());
}

// ---- the referee and the observed run, on every model whose outputs Python recorded

class Refereed : public ::testing::TestWithParam<const char*> {};

std::vector<std::vector<uint8_t>> bytes_of(const std::vector<TensorRef>& tensors, const WeightTable& weights) {
  std::vector<std::vector<uint8_t>> out;
  const auto add = [&](const TensorRef& t) {
    const auto* data = static_cast<const uint8_t*>(t->data());
    out.emplace_back(data, data + testing::num_elements(*t) * dtype_bytes(t->dtype()));
  };
  for (const TensorRef& t : tensors) add(t);
  for (size_t i = 0; i < weights.size(); ++i) add(weights[i].tensor);
  return out;
}

TEST_P(Refereed, InFp64IsPythonsAnswerCallAfterCallAndLeavesNoMark) {
  LoadedModel loaded(GetParam());
  auto program = EagerProgram::make(loaded.model->program, loaded.weights, {});
  ASSERT_TRUE(program.ok()) << program.status().text();
  const std::vector<TensorRef> inputs = loaded.inputs();
  const auto before = bytes_of(inputs, loaded.weights);
  ObservedRun seen;
  const auto observed = (*program)->observe(inputs, seen);
  ASSERT_TRUE(observed.ok()) << observed.status().text();
  EXPECT_EQ(bytes_of(inputs, loaded.weights), before) << "the observed run left a mark";
  EXPECT_FALSE(seen.values.empty());
  EXPECT_FALSE(seen.draws_random);
  const auto run = (*program)->referee(inputs, seen.written_weights, 2);
  ASSERT_TRUE(run.ok()) << run.status().text();
  EXPECT_EQ(bytes_of(inputs, loaded.weights), before) << "the referee left a mark";
  EXPECT_TRUE(run->own_dtype.empty()) << run->own_dtype.front();
  for (int call = 0; call < 2 && loaded.expected(call, 0) != nullptr; ++call)
    for (size_t i = 0; i < run->outputs[static_cast<size_t>(call)].size(); ++i) {
      const TensorRef got = run->outputs[static_cast<size_t>(call)][i], wanted = loaded.expected(call, i);
      EXPECT_EQ(got->dtype(), is_float(wanted->dtype()) ? DType::k_f64 : wanted->dtype());
      ASSERT_EQ(testing::sizes_of(*got), testing::sizes_of(*wanted));
      EXPECT_LT(loaded.largest_difference(got, wanted), wanted->dtype() == DType::k_bf16 ? 0.3 : 1e-4)
          << "call " << call << " output " << i;
    }
  // What is written is what differs after a call of eager's own, no more and no less.
  const std::vector<TensorRef> own = loaded.inputs();
  const auto fresh = bytes_of(own, loaded.weights);
  ASSERT_TRUE((*program)->run(own).ok());
  const auto after = bytes_of(own, loaded.weights);
  for (size_t i = 0; i < after.size(); ++i) {
    const bool is_input = i < own.size();
    const auto& list = is_input ? seen.written_inputs : seen.written_weights;
    const bool written = std::find(list.begin(), list.end(), is_input ? i : i - own.size()) != list.end();
    if (after[i] != fresh[i]) {
      EXPECT_TRUE(written) << (is_input ? "input " : "weight ") << i;
    }
  }
}

// After each call the referee hands over what eager would leave: inputs and weights that the program writes.
TEST_P(Refereed, WritesWhatEagerWrites) {
  LoadedModel loaded(GetParam());
  auto program = EagerProgram::make(loaded.model->program, loaded.weights, {});
  ASSERT_TRUE(program.ok()) << program.status().text();
  ObservedRun seen;
  ASSERT_TRUE((*program)->observe(loaded.inputs(), seen).ok());
  const auto run = (*program)->referee(loaded.inputs(), seen.written_weights, 2);
  ASSERT_TRUE(run.ok()) << run.status().text();
  const std::vector<TensorRef> own = loaded.inputs();
  for (size_t call = 0; call < 2; ++call) {
    ASSERT_TRUE((*program)->run(own).ok());
    ASSERT_EQ(run->inputs[call].size(), own.size());
    ASSERT_EQ(run->weights[call].size(), seen.written_weights.size());
    const auto expect_near = [&](const TensorRef& got, const TensorRef& wanted, const std::string& what) {
      ASSERT_NE(got, nullptr) << what;
      ASSERT_EQ(testing::sizes_of(*got), testing::sizes_of(*wanted)) << what;
      EXPECT_LT(loaded.largest_difference(got, wanted), wanted->dtype() == DType::k_bf16 ? 0.3 : 1e-4) << what << " after call " << call;
    };
    for (size_t i = 0; i < own.size(); ++i) expect_near(run->inputs[call][i], own[i], "input " + std::to_string(i));
    for (size_t i = 0; i < seen.written_weights.size(); ++i)
      expect_near(run->weights[call][i], loaded.weights[seen.written_weights[i]].tensor,
                  "weight " + std::to_string(seen.written_weights[i]));
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Refereed,
                         ::testing::Values("mlp", "in_place", "counter", "counter_functional", "exchange_functional", "kept",
                                           "computed_sizes", "writes_input", "opaque", "scope", "dynamic", "conv", "train_norm", "tied",
                                           "opaque_in_place", "swap", "inside"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace keirin
