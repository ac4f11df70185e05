// SPDX-License-Identifier: Apache-2.0
//
// The parts of `keirin serve` and `keirin load` without a client: requests and answers as the protocol has them,
// batches, queues and deadlines, the times of a load. What needs sockets is serve_client.py.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <future>
#include <limits>
#include <random>
#include <thread>

#include "core/api/session.h"
#include "core/eager/teams.h"
#include "tests/support/others.h"
#include "tests/support/shared_runtime.h"
#include "tests/support/temp_folder.h"
#include "tests/support/threads.h"
#include "tools/serve/histogram.h"
#include "tools/serve/load_run.h"
#include "tools/serve/model_table.h"
#include "tools/serve/protocol.h"
#include "tools/serve/repository.h"
#include "tools/serve/served_model.h"
#include "tools/serve/warm.h"

namespace keirin::tools {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;
using Tensors = ServedModel::Tensors;
using test::shared_runtime;

std::string data(const std::string& name) {
  return std::string(KEIRIN_SOURCE_DIR) + "/tests/data/import/" + name + ".pt2";
}

std::unique_ptr<Session> open(const std::string& name) {
  auto session = Session::open(shared_runtime(), data(name), Options());
  EXPECT_TRUE(session.ok()) << session.status().text();
  return std::move(*session);
}

Port port(const std::string& name, const std::string& dtype, const std::vector<int64_t>& sizes) {
  Port p{name, dtype, {}};
  for (const int64_t size : sizes)
    p.sizes.push_back(size < 0 ? Dimension{2, true, 1, 8, "s0"} : Dimension{size, false, 0, 0, ""});
  return p;
}

Signature two_inputs() {
  return {{port("x", "f32", {-1, 3}), port("flag", "bool", {2})},
          {port("y", "f32", {-1, 3}), Port{"none", "", {}}, port("n", "i64", {})}};
}

TensorServices& services() { return shared_runtime().tensors(); }

Result<InferRequest> parse(const std::string& body, std::optional<size_t> json_bytes = std::nullopt) {
  return parse_infer(body, json_bytes, two_inputs(), services());
}

const std::string kGood =
    R"({"id":"a7","parameters":{"timeout":1500},"inputs":[{"name":"flag","datatype":"BOOL","shape":[2],"data":[true,false]},)"
    R"({"name":"x","datatype":"FP32","shape":[2,3],"data":[[1,2,3],[4,5,6.5]]}],"outputs":[{"name":"n"}]})";

TEST(Protocol, JsonBecomesTensorsInTheSignaturesOrder) {
  const auto request = parse(kGood);
  ASSERT_TRUE(request.ok()) << request.status().text();
  EXPECT_EQ(request->id, "a7");
  EXPECT_EQ(request->timeout_us, 1500);
  ASSERT_EQ(request->inputs.size(), 2u);
  const auto* x = static_cast<const float*>(request->inputs[0]->data());
  EXPECT_EQ(x[0], 1);
  EXPECT_EQ(x[5], 6.5f);
  EXPECT_TRUE(static_cast<const bool*>(request->inputs[1]->data())[0]);
  ASSERT_EQ(request->outputs.size(), 1u);
  EXPECT_EQ(request->outputs[0].output, 2u);
}

TEST(Protocol, BytesBehindTheJsonAreTensors) {
  const float values[] = {1, -2, std::numeric_limits<float>::infinity()};
  const std::string head =
      R"({"parameters":{"binary_data_output":true},"inputs":[{"name":"x","datatype":"FP32","shape":[1,3],)"
      R"("parameters":{"binary_data_size":12}},)"
      R"({"name":"flag","datatype":"BOOL","shape":[2],"parameters":{"binary_data_size":2}}]})";
  std::string body = head + std::string(reinterpret_cast<const char*>(values), sizeof(values)) + std::string("\1\0", 2);
  const auto request = parse(body, head.size());
  ASSERT_TRUE(request.ok()) << request.status().text();
  EXPECT_EQ(std::memcmp(request->inputs[0]->data(), values, sizeof(values)), 0);
  ASSERT_EQ(request->outputs.size(), 2u) << "what is not a tensor is not answered";
  EXPECT_TRUE(request->outputs[0].binary && request->outputs[1].binary);
  const auto answer =
      write_infer(*request, "m", two_inputs(),
                  {request->inputs[0], nullptr, *services().allocate({DType::k_i64, {}, {}, {}})}, services());
  ASSERT_TRUE(answer.ok()) << answer.status().text();
  ASSERT_GT(answer->json_bytes, 0u);
  const json j = json::parse(answer->body.substr(0, answer->json_bytes));
  EXPECT_EQ(j.at("outputs").at(0).at("parameters").at("binary_data_size"), 12);
  EXPECT_EQ(answer->body.size(), answer->json_bytes + 12 + 8);
  EXPECT_EQ(std::memcmp(answer->body.data() + answer->json_bytes, values, sizeof(values)), 0);
  EXPECT_FALSE(parse(body + "x", head.size()).ok()) << "a byte that belongs to nothing";
  EXPECT_FALSE(parse(body.substr(0, body.size() - 1), head.size()).ok()) << "a byte too few";
  EXPECT_FALSE(parse(body, body.size() + 1).ok());
}

TEST(Protocol, WhatIsWrongIsSaidInWords) {
  const auto says = [](const std::string& from, const std::string& to, const std::string& words) {
    std::string body = kGood;
    const size_t at = body.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    body.replace(at, from.size(), to);
    const auto request = parse(body);
    ASSERT_FALSE(request.ok()) << body;
    EXPECT_EQ(request.status().code(), Code::k_invalid_input);
    EXPECT_NE(request.status().text().find(words), std::string::npos) << request.status().text();
  };
  says("\"id\":\"a7\"", "\"id\":7", "id is not text");
  says("1500", "-1", "timeout");
  says("\"name\":\"x\"", "\"name\":\"z\"", "no input \"z\"");
  says("\"name\":\"x\"", "\"name\":\"flag\"", "given twice");
  says("{\"name\":\"flag\",\"datatype\":\"BOOL\",\"shape\":[2],\"data\":[true,false]},", "", "\"flag\" is missing");
  says("FP32", "FP31", "not known");
  says("FP32", "FP64", "the model takes FP32");
  says("[2,3]", "[2,4]", "the model takes [any,3]");
  says("[2,3]", "[9,3]", "the model takes [any,3]");
  says("[2,3]", "[2,-3]", "not made of sizes");
  says("[2,3]", "[4611686018427387904,3]", "no memory");
  says("[2,3]", "[3,3]", "2 items of data for a shape of 9");
  says("6.5", "\"6\"", "no FP32");
  says("[4,5,6.5]", "[4,5]", "5 numbers for a shape of 6");
  says("[1,2,3]", "[[1],2,3]", "numbers for a shape of 6");
  says("true,false", "true,2", "no BOOL");
  says("\"data\":[true,false]", "\"data\":7", "no data");
  says("\"name\":\"n\"", "\"name\":\"none\"", "not a tensor");
  says("\"name\":\"n\"", "\"name\":\"q\"", "no output \"q\"");
  says("\"inputs\"", "\"imputs\"", "no inputs");
  for (const std::string& body :
       {std::string(), std::string("[]"), std::string("{"), std::string(100000, '['), std::string("\xff\xfe{}")})
    EXPECT_FALSE(parse(body).ok());
}

// No cut and no flipped byte of a good request does more than be refused or be another good one.
TEST(Protocol, DamagedRequestsAreRefusedOrMeanSomethingElse) {
  for (size_t n = 0; n < kGood.size(); ++n) EXPECT_FALSE(parse(kGood.substr(0, n)).ok()) << n;
  std::mt19937 random(7);
  int refused = 0;
  for (int i = 0; i < 3000; ++i) {
    std::string body = kGood;
    for (int k = 0; k < 3; ++k) body[random() % body.size()] = static_cast<char>(random());
    const auto request =
        parse(body, random() % 4 == 0 ? std::optional<size_t>(random() % (body.size() + 9)) : std::nullopt);
    refused += !request.ok();
    if (request.ok()) {
      EXPECT_EQ(request->inputs.size(), 2u);
    }
  }
  EXPECT_GT(refused, 2000);
}

TEST(Protocol, NumbersOfEachDtypeGoThere) {
  for (const DType dtype : {DType::k_u8, DType::k_i8, DType::k_i16, DType::k_i32, DType::k_i64, DType::k_f16,
                            DType::k_bf16, DType::k_f32, DType::k_f64}) {
    const Signature signature{{port("x", std::string(dtype_name(dtype)), {2})},
                              {port("y", std::string(dtype_name(dtype)), {2})}};
    const std::string body = R"({"inputs":[{"name":"x","datatype":")" + std::string(datatype_of(dtype)) +
                             R"(","shape":[2],"data":[3,100]}]})";
    const auto request = parse_infer(body, std::nullopt, signature, services());
    ASSERT_TRUE(request.ok()) << request.status().text();
    EXPECT_EQ(request->inputs[0]->dtype(), dtype);
    const auto answer = write_infer(*request, "m", signature, {request->inputs[0]}, services());
    ASSERT_TRUE(answer.ok()) << answer.status().text();
    const json j = json::parse(answer->body);
    EXPECT_EQ(j.at("outputs").at(0).at("data"), (json{3, 100})) << dtype_name(dtype);
    EXPECT_EQ(j.at("outputs").at(0).at("datatype"), datatype_of(dtype));
    EXPECT_EQ(dtype_of(datatype_of(dtype)), dtype);
  }
  const Signature small{{port("x", "i8", {1})}, {}};
  EXPECT_FALSE(parse_infer(R"({"inputs":[{"name":"x","datatype":"INT8","shape":[1],"data":[128]}]})", std::nullopt,
                           small, services())
                   .ok());
  EXPECT_FALSE(parse_infer(R"({"inputs":[{"name":"x","datatype":"INT8","shape":[1],"data":[1.5]}]})", std::nullopt,
                           small, services())
                   .ok());
}

TEST(Protocol, NamesAndSizesOfAModel) {
  const json j = model_metadata("m", two_inputs());
  EXPECT_EQ(j.at("name"), "m");
  EXPECT_EQ(j.at("inputs").at(0), (json{{"name", "x"}, {"datatype", "FP32"}, {"shape", {-1, 3}}}));
  EXPECT_EQ(j.at("outputs").size(), 2u);
  EXPECT_EQ(server_metadata(false).at("extensions"), (json{"binary_tensor_data", "plans"}));
  EXPECT_EQ(server_metadata(true).at("extensions"), (json{"binary_tensor_data", "plans", "model_repository"}));
}

TEST(WarmShapes, AreListsByModel) {
  const auto shapes = parse_warm_shapes(R"({"bert":[[1,128],[8,128]],"mlp":[[]]})");
  ASSERT_TRUE(shapes.ok()) << shapes.status().text();
  EXPECT_EQ(shapes->at("bert"), (std::vector<std::vector<int64_t>>{{1, 128}, {8, 128}}));
  EXPECT_EQ(shapes->at("mlp").size(), 1u);
  for (const char* bad : {"", "[]", R"({"a":1})", R"({"a":[1]})", R"({"a":[[-1]]})", R"({"a":[["x"]]})"})
    EXPECT_EQ(parse_warm_shapes(bad).status().code(), Code::k_invalid_input) << bad;
}

TEST(Histogram, QuantilesAreNearTheTruth) {
  Histogram histogram;
  EXPECT_EQ(histogram.quantile(0.5), 0);
  for (int i = 1; i <= 1000; ++i) histogram.add(i * 1e-4);
  EXPECT_EQ(histogram.count(), 1000u);
  EXPECT_NEAR(histogram.sum(), 50.05, 1e-3);
  for (const double q : {0.1, 0.5, 0.9, 0.99, 0.999}) {
    EXPECT_GE(histogram.quantile(q), q * 0.1 * 0.999);
    EXPECT_LE(histogram.quantile(q), q * 0.1 * 1.08);
  }
  EXPECT_EQ(histogram.at_most(13), 81u) << "less than 8.192 ms";
  histogram.add(1e9);
  histogram.add(-1);
  histogram.add(std::nan(""));
  EXPECT_EQ(histogram.count(), 1003u);
}

std::future<Result<Tensors>> ask(ServedModel& model, const Tensors& inputs, std::chrono::milliseconds allowed = 60s) {
  auto promise = std::make_shared<std::promise<Result<Tensors>>>();
  ServedModel::Request request;
  request.inputs = inputs;
  request.deadline = ServedModel::Clock::now() + allowed;
  request.done = [promise](Result<Tensors> outputs) { promise->set_value(std::move(outputs)); };
  auto future = promise->get_future();
  model.submit(std::move(request));
  return future;
}

Tensors rows(Session& session, int64_t n, uint64_t seed) {
  auto inputs = session.example_inputs(seed, {n});
  EXPECT_TRUE(inputs.ok()) << inputs.status().text();
  return *inputs;
}

std::vector<float> floats(const TensorRef& tensor) {
  TensorSpec spec = spec_of(*tensor);
  spec.strides.clear();
  const TensorRef dense = *services().allocate(spec);
  EXPECT_TRUE(services().copy(dense, tensor).ok());
  int64_t n = 1;
  for (const int64_t d : spec.sizes) n *= d;
  const auto* at = static_cast<const float*>(dense->data());
  return {at, at + n};
}

// Each gets its own rows back, whoever shared the call with it.
TEST(ServedModel, RequestsShareCalls) {
  ServingOptions options;
  options.max_batch = 16;
  options.batch_delay = 200ms;
  ServedModel model("m", shared_runtime(), open("both_free"), options);
  ASSERT_TRUE(model.batches()) << model.why_no_batches();
  std::vector<Tensors> inputs;
  std::vector<std::future<Result<Tensors>>> answers;
  for (const int64_t n : {1, 3, 2, 1, 4})
    inputs.push_back({(*model.session().example_inputs(static_cast<uint64_t>(inputs.size() + 1), {n, 5}))[0]});
  for (const Tensors& each : inputs) answers.push_back(ask(model, each));
  for (size_t i = 0; i < inputs.size(); ++i) {
    const auto outputs = answers[i].get();
    ASSERT_TRUE(outputs.ok()) << outputs.status().text();
    const auto eager = model.session().call_eager(inputs[i]);
    ASSERT_EQ((*outputs)[0]->sizes()[0], inputs[i][0]->sizes()[0]);
    EXPECT_EQ(floats((*outputs)[0]), floats((*eager)[0])) << i;
  }
  const ServedModel::Counts counts = model.counts();
  EXPECT_EQ(counts.answered, 5u);
  EXPECT_LT(counts.calls, 5u) << "some shared a call";
  EXPECT_EQ(counts.rows, 11 + counts.padded_rows);
}

// A team of OpenMP's that nobody uses is in the way of the others (core/eager/teams.h).
TEST(ServedModel, KeepsNoTeamWhileNothingIsAsked) {
  auto session = open("both_free");
  const auto inputs = session->example_inputs(1, {1024, 1024});
  ASSERT_TRUE(inputs.ok());
  ASSERT_TRUE(session->call(*inputs).ok());
  let_go_of_team();
  const int before = test::num_unnamed_threads();
  ASSERT_TRUE(session->call(*inputs).ok());
  ServingOptions options;
  options.max_batch = 8;
  ServedModel model("m", shared_runtime(), std::move(session), options);
  ASSERT_TRUE(ask(model, *inputs).get().ok());
  for (int tries = 0; tries < 100 && test::num_unnamed_threads() > before + 1; ++tries) std::this_thread::sleep_for(50ms);
  EXPECT_LE(test::num_unnamed_threads(), before + 1) << "the model's thread";
  ASSERT_TRUE(ask(model, *inputs).get().ok()) << "by a new team";
}

// Other sizes than the batch's are other calls.
TEST(ServedModel, RequestsOfOtherSizesDoNotShareACall) {
  ServingOptions options;
  options.max_batch = 16;
  options.batch_delay = 100ms;
  ServedModel model("m", shared_runtime(), open("both_free"), options);
  auto a = ask(model, *model.session().example_inputs(1, {2, 5})),
       b = ask(model, *model.session().example_inputs(1, {2, 6}));
  EXPECT_EQ((*a.get())[0]->sizes()[1], 5);
  EXPECT_EQ((*b.get())[0]->sizes()[1], 6);
  EXPECT_EQ(model.counts().calls, 2u);
}

TEST(ServedModel, SaysWhyRequestsShareNoCall) {
  ServingOptions options;
  options.max_batch = 8;
  const std::pair<const char*, const char*> cases[] = {{"in_place", "is fixed"},
                                                       {"counter", "may write"},
                                                       {"draws", "may draw"},
                                                       {"mixes_rows", "rows hear of each other"}};
  for (const auto& [name, why] : cases) {
    ServedModel model("m", shared_runtime(), open(name), options);
    EXPECT_FALSE(model.batches()) << name;
    EXPECT_NE(model.why_no_batches().find(why), std::string::npos) << name << ": " << model.why_no_batches();
    EXPECT_TRUE(ask(model, *model.session().example_inputs(1)).get().ok() || std::string(name) == "counter");
  }
}

TEST(ServedModel, AFullQueueRefusesAndADeadlinePasses) {
  ServingOptions options;
  options.queue = 2;
  ServedModel model("m", shared_runtime(), open("mlp"), options);
  const Tensors inputs = rows(model.session(), 3, 1);
  std::promise<void> blocked, go;
  ServedModel::Request first;
  first.inputs = inputs;
  first.done = [&](Result<Tensors>) {
    blocked.set_value();
    go.get_future().wait();
  };
  model.submit(std::move(first));
  blocked.get_future().wait();  // the only worker is busy
  auto late = ask(model, inputs, 1ms), waits = ask(model, inputs), refused = ask(model, inputs);
  EXPECT_EQ(refused.get().status().code(), Code::k_exhausted);
  std::this_thread::sleep_for(20ms);
  go.set_value();
  EXPECT_EQ(late.get().status().code(), Code::k_timeout);
  EXPECT_TRUE(waits.get().ok());
  const ServedModel::Counts counts = model.counts();
  EXPECT_EQ(counts.refused, 1u);
  EXPECT_EQ(counts.expired, 1u);
}

TEST(ServedModel, AnswersWhatWaitsBeforeItEnds) {
  std::vector<std::future<Result<Tensors>>> answers;
  {
    ServedModel model("m", shared_runtime(), open("mlp"), {});
    const Tensors inputs = rows(model.session(), 3, 1);
    for (int i = 0; i < 50; ++i) answers.push_back(ask(model, inputs));
    model.close();
    EXPECT_EQ(ask(model, inputs).get().status().code(), Code::k_exhausted);
  }
  for (auto& answer : answers) EXPECT_TRUE(answer.get().ok());
}

// One request's bad values are its own affair, also in a batch.
TEST(ServedModel, ABadRequestCostsNobodyElse) {
  ServingOptions options;
  options.max_batch = 8;
  options.batch_delay = 200ms;
  ServedModel model("m", shared_runtime(), open("picks_rows"), options);
  ASSERT_TRUE(model.batches()) << model.why_no_batches();
  const Tensors good = rows(model.session(), 2, 1);
  const TensorRef bad = *services().clone(good[0]);
  static_cast<int64_t*>(bad->data())[0] = 1 << 20;
  auto a = ask(model, good), b = ask(model, {bad}), c = ask(model, good);
  EXPECT_TRUE(a.get().ok());
  EXPECT_FALSE(b.get().ok());
  EXPECT_TRUE(c.get().ok());
}

TEST(ServedModel, IsWarmedForTheSizesThatWereDeclared) {
  test::Others nobody;
  Options options;
  options.interference = &nobody;
  options.race_seconds = 0.1;
  auto session = Session::open(shared_runtime(), data("mlp"), options);
  ServedModel model("m", shared_runtime(), std::move(*session), {});
  ASSERT_TRUE(model.warm({{2}, {5}}).ok());
  EXPECT_TRUE(model.session().is_decided(rows(model.session(), 2, 1)));
  EXPECT_TRUE(model.session().is_decided(rows(model.session(), 5, 1)));
  EXPECT_FALSE(model.session().is_decided(rows(model.session(), 3, 1)));
  EXPECT_EQ(model.warm({{5, 9}}).code(), Code::k_invalid_input);
}

std::shared_ptr<ServedModel> served(const std::string& name, const std::string& file) {
  return std::make_shared<ServedModel>(name, shared_runtime(), open(file), ServingOptions());
}

// Whoever asks while the name changes its model is answered by one of the two, and the replaced one is gone when that returns.
TEST(ModelTable, AReplacedModelLosesNoRequest) {
  ModelTable table;
  table.put(served("m", "mlp"));
  const Tensors inputs = rows(table.find("m")->session(), 2, 1);
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> asked{0}, failed{0};
  std::vector<std::thread> clients;
  for (int i = 0; i < 4; ++i)
    clients.emplace_back([&] {
      while (!stop) {
        const auto model = table.find("m");
        failed += !ask(*model, inputs).get().ok();
        ++asked;
      }
    });
  for (int i = 0; i < 30; ++i) {
    const std::weak_ptr<ServedModel> old = table.find("m");
    for (const uint64_t before = asked; asked < before + 4;) std::this_thread::yield();
    table.put(served("m", "mlp"));
    EXPECT_TRUE(old.expired());
  }
  stop = true;
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(failed, 0u);
  EXPECT_EQ(table.counts().answered, asked) << "of all that there were";
  EXPECT_TRUE(table.remove("m"));
  EXPECT_FALSE(table.remove("m"));
  EXPECT_EQ(table.find("m"), nullptr);
  EXPECT_EQ(table.counts().answered, asked);
}

// A client that holds a model for ever does not hold up whoever replaces it for ever.
TEST(ModelTable, WaitsForAHeldModelNoLongerThanAllowed) {
  ModelTable table;
  table.put(served("m", "mlp"));
  auto held = table.find("m");
  table.put(served("m", "mlp"), 10ms);
  EXPECT_NE(table.find("m"), held);
  const std::weak_ptr<ServedModel> old = held;
  EXPECT_TRUE(ask(*held, rows(held->session(), 2, 1)).get().ok()) << "it answers whoever holds it";
  held.reset();
  EXPECT_FALSE(old.expired()) << "its threads are joined by whoever changes the table next";
  table.put(served("other", "mlp"));
  table.put(served("other", "mlp"));
  EXPECT_TRUE(old.expired());
}

TEST(Repository, LoadsWhatItsFolderHoldsAndNothingElse) {
  const test::TempFolder folder;
  std::filesystem::copy_file(data("mlp"), folder.path() + "/m.pt2");
  std::ofstream(folder.path() + "/broken.pt2") << "nothing";
  std::ofstream(folder.path() + "/notes.txt") << "nothing";
  ModelTable table;
  const WarmShapes shapes = {{"m", {{2}}}};
  test::Others nobody;
  Options options;
  options.interference = &nobody;
  options.race_seconds = 0.1;
  Repository repository(folder.path(), table, shared_runtime(), options, {}, shapes);
  const auto load = [&](const std::string& name) {
    std::promise<Status> promise;
    repository.load(name, [&](const Status& status) { promise.set_value(status); });
    return promise.get_future().get();
  };
  EXPECT_EQ(repository.names(), (std::vector<std::string>{"broken", "m"}));
  ASSERT_TRUE(load("m").ok());
  const auto first = table.find("m");
  ASSERT_TRUE(first);
  EXPECT_TRUE(first->session().is_decided(rows(first->session(), 2, 1))) << "for the declared sizes";
  for (const std::string& name : {std::string("broken"), std::string("notes"), std::string("../m"), std::string(), std::string(".")}) {
    EXPECT_FALSE(load(name).ok()) << name;
    EXPECT_EQ(table.all().size(), 1u);
  }
  const std::string fixed = std::string(KEIRIN_SOURCE_DIR) + "/bench/zoo/models/small/mlp.pt2";
  std::filesystem::copy_file(fixed, folder.path() + "/m.pt2", std::filesystem::copy_options::overwrite_existing);
  EXPECT_FALSE(load("m").ok()) << "it has no free size, and one is declared";
  EXPECT_EQ(table.find("m"), first) << "what is served stays";
  repository.end();
  EXPECT_EQ(load("m").code(), Code::k_exhausted);
}

TEST(Load, ArrivalsArePoisson) {
  LoadPlan plan;
  plan.rate = 1000;
  plan.seconds = 20;
  plan.kinds = 4;
  const std::vector<Arrival> arrivals = draw_arrivals(plan);
  EXPECT_NEAR(static_cast<double>(arrivals.size()), 20000, 600) << "four deviations";
  double sum = 0, squares = 0;
  std::vector<int> kinds(4);
  for (size_t i = 1; i < arrivals.size(); ++i) {
    const double gap = arrivals[i].at - arrivals[i - 1].at;
    sum += gap, squares += gap * gap;
    ++kinds[arrivals[i].kind];
  }
  const double n = static_cast<double>(arrivals.size() - 1), mean = sum / n;
  EXPECT_NEAR((squares / n - mean * mean) / (mean * mean), 1, 0.1) << "gaps of a Poisson process deviate by their mean";
  for (const int count : kinds) EXPECT_NEAR(count, 5000, 350);
  EXPECT_EQ(draw_arrivals(plan)[77].at, arrivals[77].at) << "the same seed, the same times";
}

TEST(Load, EndsEarlyAndTellsOfWhatItAsked) {
  LoadPlan plan;
  plan.rate = 200;
  plan.seconds = 3600;
  plan.callers = 2;
  std::atomic<bool> stop{false};
  plan.stop = &stop;
  std::atomic<size_t> calls{0};
  const LoadResult result = run_load(plan, [&] {
    return [&](size_t) {
      if (++calls == 20) stop = true;
      return std::string();
    };
  });
  EXPECT_GE(calls, 20u);
  EXPECT_LE(calls, 22u);
  EXPECT_EQ(result.requests.size(), calls);
  EXPECT_EQ(result.seconds.size(), calls);
  EXPECT_LT(result.lasted, 60);
}

// A stall is charged to all requests that would have come meanwhile, not to one.
TEST(Load, CountsFromTheIntendedBegin) {
  LoadPlan plan;
  plan.rate = 1000;
  plan.seconds = 0.5;
  plan.callers = 1;
  std::atomic<int> calls{0};
  const LoadResult result = run_load(plan, [&] {
    return [&](size_t) {
      if (++calls == 50) std::this_thread::sleep_for(200ms);
      return calls % 100 == 99 ? std::string("no") : std::string();
    };
  });
  EXPECT_GT(result.quantile(0.99), 0.15);
  EXPECT_GT(result.quantile(0.75), 0.02) << "a closed loop would show one slow call";
  EXPECT_GT(result.failures.at("no"), 2u);
  EXPECT_EQ(result.seconds.size() + result.failures.at("no"), draw_arrivals(plan).size());
  ASSERT_EQ(result.requests.size(), draw_arrivals(plan).size());
  uint64_t failed = 0;
  for (size_t i = 0; i < result.requests.size(); ++i) {
    EXPECT_EQ(result.requests[i].at, draw_arrivals(plan)[i].at);
    failed += result.requests[i].failed;
  }
  EXPECT_EQ(failed, result.failures.at("no"));
  EXPECT_GT(result.requests[60].seconds, 0.1) << "it was meant to begin while the 50th stalled";
  EXPECT_EQ(LoadResult().quantile(0.5), 0);
  LoadResult three;
  three.seconds = {1, 2, 3};
  EXPECT_EQ(three.quantile(0.5), 2);
  EXPECT_EQ(three.quantile(0.999), 3);
}

}  // namespace
}  // namespace keirin::tools
