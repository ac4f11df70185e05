// SPDX-License-Identifier: Apache-2.0
//
// Models that are C++ code or TorchScript: the plan that is made of a recording answers as the function does, the function answers where
// the plan may not, and what cannot be recorded is refused by name.
#include "core/capture/record/open_captured.h"

#include <gtest/gtest.h>
#include <torch/script.h>
#include <torch/torch.h>

#include <nlohmann/json.hpp>

#include "core/api/raise.h"
#include "tests/support/others.h"
#include "tests/support/temp_folder.h"

namespace keirin {
namespace {

using Tensors = std::vector<at::Tensor>;

test::Others nobody;

Options forced() {
  Options options;
  options.force = "compiled";  // whatever is faster: the plan is what is tested
  options.race_seconds = 0.05;
  options.use_cache = false;
  options.interference = &nobody;
  return options;
}

CapturedModel of(CapturedModel::Function forward, std::vector<std::pair<std::string, at::Tensor>> weights = {}) {
  return open_captured({std::move(forward), std::move(weights), {}, "lambda"}, forced());
}

template <class Net>
CapturedModel of_module(Net net) {
  return open_captured(capture_detail::source_of(std::move(net)), forced());
}

nlohmann::json newest(const CapturedModel& model) { return nlohmann::json::parse(model.report_json()).back(); }
bool is_compiled(const CapturedModel& model) {
  const auto report = newest(model);
  return report["nodes_compiled"].get<int>() > 0 && report["chosen"].get<std::string>().starts_with("cpu/");
}
std::string why_not(const CapturedModel& model) {
  const auto report = newest(model);
  return report["chosen"] == "function" ? report["reasons"].at(0).get<std::string>() : std::string();
}
bool near(const at::Tensor& a, const at::Tensor& b) { return a.sizes() == b.sizes() && at::allclose(a, b, 1e-4, 1e-5, true); }

struct NetImpl : torch::nn::Module {
  NetImpl() {
    conv = register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 8, 3).padding(1)));
    norm = register_module("norm", torch::nn::BatchNorm2d(8));
    drop = register_module("drop", torch::nn::Dropout(0.5));
    fc = register_module("fc", torch::nn::Linear(8, 5));
    layer = register_module("layer", torch::nn::LayerNorm(torch::nn::LayerNormOptions({5})));
  }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor y = torch::relu(norm(conv(x))).mean({2, 3});
    return torch::gelu(layer(fc(drop(y)))) * 2 + 1;
  }
  torch::nn::Conv2d conv{nullptr};
  torch::nn::BatchNorm2d norm{nullptr};
  torch::nn::Dropout drop{nullptr};
  torch::nn::Linear fc{nullptr};
  torch::nn::LayerNorm layer{nullptr};
};

class Captured : public testing::Test {
 protected:
  void SetUp() override { torch::manual_seed(6); }  // LibTorch's own seed is another one in every process
};

TEST_F(Captured, AModuleIsCompiledUnmodified) {
  torch::manual_seed(1);
  auto net = std::make_shared<NetImpl>();
  net->eval();
  const at::Tensor x = at::randn({4, 3, 16, 16});
  CapturedModel model = of_module(net);
  EXPECT_TRUE(near(model({x})[0], net->forward(x))) << "the module answers before anything is decided";
  model.compile({x});
  ASSERT_TRUE(is_compiled(model)) << model.explain();
  const torch::NoGradGuard no_grad;
  const at::Tensor other = at::randn({4, 3, 16, 16});
  EXPECT_TRUE(near(model({x})[0], net->forward(x)));
  EXPECT_TRUE(near(model({other})[0], net->forward(other)));
  EXPECT_FALSE(at::equal(model({other})[0], model({x})[0]));
  const at::Tensor smaller = at::randn({2, 3, 16, 16});  // nothing was decided for it
  EXPECT_TRUE(at::equal(model({smaller})[0], net->forward(smaller)));
}

TEST_F(Captured, AnOutputThatNeverVariesProvesNothingAndIsNotCalledWrong) {
  const at::Tensor x = at::randn({8, 16});
  CapturedModel model = of([](const Tensors& in) { return Tensors{at::gelu(in[0]) * 0 + 3}; });
  model.compile({x});
  for (const auto& candidate : newest(model)["candidates"]) {
    EXPECT_NE(candidate["reason"], "wrong_result") << model.explain();
    if (candidate["name"] == "replay") {
      EXPECT_EQ(candidate["reason"], "not_verified") << model.explain();
    }
  }
  EXPECT_TRUE(at::equal(model({x})[0], at::full({8, 16}, 3.f)));
}

// As many heads are initialised: what comes before it is seen with other weights.
TEST_F(Captured, AHeadOfZerosIsCompiled) {
  torch::manual_seed(1);
  auto net = std::make_shared<NetImpl>();
  net->eval();
  torch::nn::Linear head(5, 6);
  const torch::NoGradGuard no_grad;
  head->weight.zero_();
  head->bias.zero_();
  const at::Tensor x = at::randn({4, 3, 16, 16});
  CapturedModel model = of([&](const Tensors& in) { return Tensors{head(net->forward(in[0]))}; });
  model.compile({x});
  EXPECT_TRUE(is_compiled(model)) << model.explain();
  EXPECT_EQ(model({x})[0].count_nonzero().item<int64_t>(), 0);
  head->weight.normal_();
  model.compile({x});
  EXPECT_TRUE(near(model({x})[0], head(net->forward(x)))) << model.explain();
}

TEST_F(Captured, WhatDependsOnNoInputNeedNotVary) {
  const at::Tensor x = at::randn({8, 16});
  CapturedModel model = of([](const Tensors& in) { return Tensors{at::gelu(in[0]) * 2 + 1, at::ones({8, 16}) * 3}; });
  model.compile({x});
  ASSERT_TRUE(is_compiled(model)) << model.explain();
  EXPECT_TRUE(at::equal(model({x})[1], at::full({8, 16}, 3.f)));
  EXPECT_TRUE(near(model({x})[0], at::gelu(x) * 2 + 1));
}

TEST_F(Captured, WhatIsPickedOutOfEqualElementsNeedNotVary) {
  const at::Tensor x = at::randn({8, 16}), order = at::randn({8, 16}).argsort(int64_t{1});
  const auto model_of = [](double step) {
    return of([step](const Tensors& in) {
      const at::Tensor mask = step == 0 ? at::zeros({8, 16}) : at::arange(16, at::kFloat).mul(step).expand({8, 16});
      return Tensors{at::gelu(in[0]) * 2 + 1, at::gather(mask.slice(1, 0, 16), 1, in[1]) * (step == 0 ? 1 : 0)};
    });
  };
  CapturedModel model = model_of(0);
  model.compile({x, order});
  ASSERT_TRUE(is_compiled(model)) << model.explain();
  EXPECT_TRUE(near(model({x, order})[0], at::gelu(x) * 2 + 1));
  EXPECT_EQ(model({x, order})[1].count_nonzero().item<int64_t>(), 0);
  CapturedModel other = model_of(1);
  other.compile({x, order});
  EXPECT_FALSE(is_compiled(other)) << "elements that differ, hidden by a product with zero: " << other.explain();
}

// A mask that no call's first inputs set: other ones do.
TEST_F(Captured, AnOutputThatVariesForOtherInputsIsShown) {
  const at::Tensor x = at::zeros({8, 16}), y = at::randn({8, 16});
  CapturedModel model = of([](const Tensors& in) { return Tensors{at::gelu(in[1]) * 2 + 1, in[0] > 0.5}; });
  model.compile({x, y});
  ASSERT_TRUE(is_compiled(model)) << model.explain();
  EXPECT_TRUE(at::equal(model({x + 1, y})[1], at::ones({8, 16}, at::kBool)));
}

TEST_F(Captured, TheFunctionAnswersOnceAWeightIsAnother) {
  auto net = std::make_shared<NetImpl>();
  net->eval();
  const at::Tensor x = at::randn({2, 3, 8, 8});
  CapturedModel model = of_module(net);
  model.compile({x});
  ASSERT_TRUE(is_compiled(model)) << model.explain();
  const torch::NoGradGuard no_grad;
  const at::Tensor before = model({x})[0];
  net->fc->weight.mul_(-1);  // as an optimiser does
  EXPECT_TRUE(at::equal(model({x})[0], net->forward(x)));
  EXPECT_FALSE(near(model({x})[0], before));
  EXPECT_NE(model.explain().find("a weight was written or moved"), std::string::npos) << model.explain();
  model.compile({x});
  EXPECT_TRUE(near(model({x})[0], net->forward(x)));
  net->conv->weight.set_data(at::randn_like(net->conv->weight));  // other memory
  EXPECT_TRUE(at::equal(model({x})[0], net->forward(x)));
}

TEST_F(Captured, GradientsAreTheFunctions) {
  auto net = std::make_shared<NetImpl>();
  net->eval();
  const at::Tensor x = at::randn({2, 3, 8, 8});
  CapturedModel model = of_module(net);
  model.compile({x});
  ASSERT_TRUE(is_compiled(model)) << model.explain();
  const at::Tensor out = model({x})[0];
  ASSERT_TRUE(out.requires_grad());
  out.sum().backward();
  EXPECT_TRUE(net->fc->weight.grad().defined());
  EXPECT_NE(model.explain().find("NoGradGuard"), std::string::npos) << model.explain();
}

TEST_F(Captured, TrainingAndEvaluationAreDifferentCalls) {
  auto net = std::make_shared<NetImpl>();
  net->drop->options.p(0);  // what it draws is another test's
  const at::Tensor x = at::randn({4, 3, 8, 8});
  CapturedModel model = of_module(net);
  net->eval();
  model.compile({x});
  const torch::NoGradGuard no_grad;
  net->train();
  const at::Tensor mean = net->norm->running_mean.clone();
  (void)model({x});
  EXPECT_FALSE(at::equal(net->norm->running_mean, mean)) << "the module itself ran, in training mode";
  // Now a recording of a step that writes its buffers.
  const at::Tensor kept = net->norm->running_mean.clone();
  model.compile({x});
  ASSERT_TRUE(is_compiled(model)) << model.explain();
  EXPECT_TRUE(at::equal(net->norm->running_mean, kept)) << "a decision leaves the buffers as they were";
  auto twin = std::make_shared<NetImpl>();
  twin->drop->options.p(0);
  for (const auto& each : net->named_parameters()) twin->named_parameters()[each.key()].copy_(each.value());
  for (const auto& each : net->named_buffers()) twin->named_buffers()[each.key()].copy_(each.value());
  for (int call = 0; call < 3; ++call) EXPECT_TRUE(near(model({x})[0], twin->forward(x)));
  EXPECT_TRUE(near(net->norm->running_mean, twin->norm->running_mean));
  EXPECT_TRUE(near(net->norm->running_var, twin->norm->running_var));
}

TEST_F(Captured, ALambdaMayHoldTensorsAndMakeThem) {
  const at::Tensor held = at::randn({8});
  const auto function = [held](const Tensors& in) -> Tensors {
    at::Tensor h = in[0] * held + torch::tensor({1.f, 2.f, 3.f, 4.f, 5.f, 6.f, 7.f, 8.f});  // filled outside of operators
    at::Tensor table = torch::empty({8});
    for (int64_t i = 0; i < 8; ++i) table.data_ptr<float>()[i] = 0.25f * static_cast<float>(i);
    at::Tensor sum = torch::scalar_tensor(0.f);  // written below, anew in each call
    sum.add_(h.sum());
    h.select(0, 1).mul_(3);  // through a view
    std::vector<float> local{2, 2, 2, 2, 1, 1, 1, 1};
    h = h + torch::from_blob(local.data(), {8});  // memory that is gone after the call
    at::Tensor out = torch::empty({8});
    at::sin_out(out, h[0]);
    return {h + table, sum, out, held, in[0]};
  };
  const at::Tensor x = at::randn({4, 8}), y = at::randn({4, 8});
  CapturedModel model = of(function);
  model.compile({x});
  ASSERT_TRUE(is_compiled(model)) << model.explain();
  for (const at::Tensor& input : {x, y, x}) {
    const Tensors got = model({input}), want = function({input});
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(near(got[i], want[i])) << "output " << i;
    EXPECT_EQ(got[3].data_ptr(), held.data_ptr());
    EXPECT_EQ(got[4].data_ptr(), input.data_ptr());
  }
  const at::Tensor first = model({x})[1], second = model({x})[1];
  EXPECT_NE(first.data_ptr(), second.data_ptr());
}

TEST_F(Captured, InputsThatAreWritten) {
  const auto function = [](const Tensors& in) -> Tensors {
    in[0].slice(1, 2, 5).add_(in[1].slice(1, 0, 3));
    return {in[0].relu() + 1};
  };
  const at::Tensor x = at::randn({3, 6}), y = at::randn({3, 6});
  const at::Tensor kept = x.clone();
  CapturedModel model = of(function);
  model.compile({x, y});
  EXPECT_TRUE(at::equal(x, kept)) << "a decision leaves the inputs as they were";
  ASSERT_TRUE(is_compiled(model)) << model.explain();
  at::Tensor a = x.clone(), b = x.clone();
  const uint32_t version = a._version();
  EXPECT_TRUE(near(model({a, y})[0], function({b, y})[0]));
  EXPECT_TRUE(near(a, b));
  EXPECT_GT(a._version(), version) << "autograd and other plans see that it was written";
}

TEST_F(Captured, RandomNumbersAreTheFunctions) {
  const auto function = [](const Tensors& in) -> Tensors {
    return {in[0] + torch::rand_like(in[0]) * 2, torch::dropout(in[0], 0.5, true)};
  };
  const at::Tensor x = at::randn({16, 16});
  CapturedModel model = of(function);
  torch::manual_seed(7);
  const at::Tensor next = torch::rand({4});
  torch::manual_seed(7);
  model.compile({x});
  EXPECT_TRUE(at::equal(torch::rand({4}), next)) << "a decision leaves the generators as they were";
  torch::manual_seed(9);
  const Tensors got = model({x});
  torch::manual_seed(9);
  const Tensors want = function({x});
  for (size_t i = 0; i < want.size(); ++i) EXPECT_TRUE(near(got[i], want[i])) << i;
}

TEST_F(Captured, WhatHangsOnValuesIsRefusedByName) {
  const struct {
    const char* word;
    CapturedModel::Function function;
  } cases[] = {
      {"item", [](const Tensors& in) -> Tensors { return {in[0] * in[0].sum().item<float>()}; }},
      {"is_nonzero", [](const Tensors& in) -> Tensors { return {at::is_nonzero(in[0].sum()) ? in[0] : -in[0]}; }},
      {"nonzero", [](const Tensors& in) -> Tensors { return {in[0].nonzero()}; }},
      {"masked_select", [](const Tensors& in) -> Tensors { return {in[0].masked_select(in[0] > 0)}; }},
      // Not seen while it is recorded, but by the comparison with the function on other values.
      {"does as the function", [](const Tensors& in) -> Tensors { return {in[0] * in[0].contiguous().data_ptr<float>()[0] + 1}; }},
      {"does as the function",
       [calls = std::make_shared<int>(0)](const Tensors& in) -> Tensors { return {in[0] * static_cast<float>(++*calls)}; }},
      {"does as the function", [](const Tensors& in) -> Tensors { return {in[0].sum().data_ptr<float>()[0] > 0 ? in[0] * 2 : in[0] * 3}; }},
  };
  for (const auto& each : cases) {
    const at::Tensor x = at::randn({4, 4}).abs() * torch::tensor({1.f, 1.f, 1.f, -9.f});
    CapturedModel model = of(each.function);
    model.compile({x});
    const std::string why = why_not(model);
    const bool found = std::string(each.word) == "does as the function" ? why.find("as the function does") != std::string::npos
                                                                        : why.find(each.word) != std::string::npos;
    EXPECT_TRUE(found) << each.word << ": " << model.explain();
  }
  const auto function = [](const Tensors& in) -> Tensors { return {in[0] * in[0].sum().item<float>()}; };
  const at::Tensor x = at::randn({4});
  CapturedModel model = of(function);
  model.compile({x});
  EXPECT_TRUE(at::equal(model({x})[0], function({x})[0])) << "the function answers";
}

TEST_F(Captured, AnErrorIsTheFunctionsOwn) {
  const at::Tensor weight = at::randn({5, 5});
  const at::Tensor kept = weight.clone();
  CapturedModel model = of([weight](const Tensors& in) -> Tensors {
    weight.add_(1);
    return {in[0].matmul(weight)};
  });
  EXPECT_THROW(model.compile({at::randn({3, 4})}), c10::Error);
  EXPECT_TRUE(at::equal(weight, kept)) << "what a run that failed wrote is put back";
  EXPECT_THROW(model({at::randn({3, 4})}), c10::Error);
  EXPECT_THROW(model.compile({at::Tensor()}), Error);
}

TEST_F(Captured, ModulesOfManyOutputsAndInputs) {
  torch::manual_seed(2);
  torch::nn::LSTM lstm(torch::nn::LSTMOptions(8, 16).num_layers(2).batch_first(true));
  lstm->eval();
  CapturedModel recurrent = of([lstm](const Tensors& in) mutable -> Tensors {
    auto [out, state] = lstm->forward(in[0]);
    return {out, std::get<0>(state), std::get<1>(state)};
  });
  const at::Tensor x = at::randn({2, 5, 8});
  recurrent.compile({x});
  EXPECT_TRUE(why_not(recurrent).empty()) << recurrent.explain();
  const torch::NoGradGuard no_grad;
  const Tensors got = recurrent({x});
  const auto [out, state] = lstm->forward(x);
  EXPECT_TRUE(near(got[0], out));
  EXPECT_TRUE(near(got[1], std::get<0>(state)));
  torch::nn::MultiheadAttention attention(torch::nn::MultiheadAttentionOptions(16, 4));
  attention->eval();
  CapturedModel attends = of_module(attention);
  const at::Tensor q = at::randn({6, 2, 16}), k = at::randn({7, 2, 16});
  attends.compile({q, k, k});  // it asks whether key and value are equal: their values decide
  EXPECT_NE(why_not(attends).find("aten::equal"), std::string::npos) << attends.explain();
  EXPECT_TRUE(near(attends({q, k, k})[0], std::get<0>(attention->forward(q, k, k))));
  // Where the module itself passes one tensor thrice, the code decides.
  torch::nn::TransformerEncoderLayer layer(torch::nn::TransformerEncoderLayerOptions(16, 4).dim_feedforward(32));
  layer->eval();
  CapturedModel encoder = of_module(layer);
  encoder.compile({q});
  ASSERT_TRUE(is_compiled(encoder)) << encoder.explain();
  const at::Tensor other = at::randn({6, 2, 16});
  EXPECT_TRUE(near(encoder({other})[0], layer->forward(other)));
}

TEST_F(Captured, ATensorGivenTwiceIsTwoInputs) {
  const auto function = [](const Tensors& in) -> Tensors { return {in[0] * 2 - in[1].relu()}; };
  const at::Tensor x = at::randn({32, 32}), y = at::randn({32, 32});
  CapturedModel model = of(function);
  model.compile({x, x});
  EXPECT_TRUE(why_not(model).empty()) << model.explain();
  EXPECT_TRUE(near(model({x, x})[0], function({x, x})[0]));
  EXPECT_TRUE(near(model({x, y})[0], function({x, y})[0]));
}

TEST_F(Captured, OneThatTakesFewValuesIsComparedOnThose) {
  const auto function = [](const Tensors& in) -> Tensors { return {at::linalg_cholesky(in[0]).relu() + 1}; };
  const at::Tensor root = at::randn({8, 8}), x = root.matmul(root.t()) + at::eye(8);
  CapturedModel model = of(function);
  model.compile({x});
  EXPECT_TRUE(why_not(model).empty()) << model.explain();
  EXPECT_TRUE(near(model({x})[0], function({x})[0]));
}

TEST_F(Captured, SeveralThreadsMayCallAndOneRecord) {
  auto net = std::make_shared<NetImpl>();
  net->eval();
  const at::Tensor x = at::randn({2, 3, 8, 8});
  CapturedModel model = of_module(net);
  at::Tensor want;
  {
    const torch::NoGradGuard no_grad;
    want = net->forward(x);
  }
  std::atomic<int> wrong{0}, calls{0};
  std::atomic<bool> done{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t)
    threads.emplace_back([&] {
      const torch::NoGradGuard no_grad;
      while (!done || calls < 30) {
        wrong += !near(model({x})[0], want);
        ++calls;
      }
    });
  model.compile({x});
  done = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_TRUE(is_compiled(model)) << model.explain();
}

TEST(Script, RunsByRecording) {
  torch::manual_seed(3);
  torch::jit::Module script("Net");
  script.register_parameter("w", at::randn({8, 8}), false);
  script.register_buffer("scale", torch::tensor({0.5f}));
  script.define(R"(
    def forward(self, x, flag: Tensor):
        h = x
        for i in range(3):
            h = torch.relu(torch.matmul(h, self.w)) * self.scale
            if i == 1:
                h = h + x
        parts = {'a': h, 'b': h.sum(1)}
        return parts['a'], [parts['b'], flag]
  )");
  const test::TempFolder folder;
  const std::string path = folder.path() + "/net.pt";
  script.save(path);
  LoadOptions options;
  options.cache_dir = folder.path() + "/cache";
  CapturedModel model = CapturedModel::load_script(path, options);
  const at::Tensor x = at::randn({4, 8}), flag = at::ones({1});
  const auto want = [&](const at::Tensor& in) {
    const auto result = script.forward({in, flag});
    return result.toTupleRef().elements()[0].toTensor();
  };
  EXPECT_TRUE(near(model({x, flag})[0], want(x)));
  model.compile({x, flag});
  EXPECT_TRUE(why_not(model).empty()) << model.explain();
  EXPECT_GT(newest(model)["nodes"].get<int>(), 8) << "the loop is gone: its operators are in the graph";
  const at::Tensor other = at::randn({4, 8});
  const Tensors got = model({other, flag});
  ASSERT_EQ(got.size(), 3u);
  EXPECT_TRUE(near(got[0], want(other)));
  EXPECT_THROW(CapturedModel::load_script(folder.path() + "/none.pt", options), std::exception);
}

// The door of the header itself, as a user opens it.
TEST_F(Captured, ByTheHeader) {
  const test::TempFolder folder;
  LoadOptions options;
  options.cache_dir = folder.path() + "/cache";
  auto net = std::make_shared<NetImpl>();
  net->eval();
  CapturedModel model = capture(net, options);
  const at::Tensor x = at::randn({2, 3, 8, 8});
  model.compile({x});
  EXPECT_TRUE(why_not(model).empty()) << model.explain();
  const torch::NoGradGuard no_grad;
  EXPECT_TRUE(near(model({x})[0], net->forward(x)));
  EXPECT_THROW(model({x, x}), Error);
  CapturedModel holder = capture(torch::nn::Linear(4, 4), options);
  EXPECT_EQ(holder({at::randn({2, 4})})[0].sizes(), (std::vector<int64_t>{2, 4}));
}

}  // namespace
}  // namespace keirin
