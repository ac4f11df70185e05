// SPDX-License-Identifier: Apache-2.0
//
// The public front door: tensors by address in and out, errors that are thrown.
#include "core/api/keirin.h"

#include <gtest/gtest.h>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>

#include "core/eager/tensor_services.h"
#include "core/eager/weights/safetensors.h"
#include "tests/support/shared_runtime.h"
#include "tests/support/temp_folder.h"

namespace keirin {
namespace {

const std::string kModel = std::string(KEIRIN_SOURCE_DIR) + "/bench/zoo/models/small/mlp.pt2";

TensorView view_of(const TensorRef& tensor) {
  TensorView view;
  view.data = tensor->data();
  view.dtype = dtype_name(tensor->dtype());
  view.sizes.assign(tensor->sizes(), tensor->sizes() + tensor->rank());
  return view;  // row-major, as example inputs are
}

TEST(Model, AnswersInTensorsByAddress) {
  const test::TempFolder folder;
  LoadOptions options;
  options.cache_dir = folder.path() + "/cache";
  const Model model = Model::load(kModel, options);
  auto session = Session::open(test::shared_runtime(), kModel, {});
  ASSERT_TRUE(session.ok()) << session.status().text();
  const auto inputs = (*session)->example_inputs(3);
  ASSERT_TRUE(inputs.ok()) << inputs.status().text();
  const auto want = (*session)->call_eager(*inputs);
  ASSERT_TRUE(want.ok()) << want.status().text();
  std::vector<TensorView> views;
  for (const TensorRef& input : *inputs) views.push_back(view_of(input));
  std::vector<TensorView> got = model.call(views);
  ASSERT_EQ(got.size(), want->size());
  for (size_t i = 0; i < got.size(); ++i) {
    const Tensor& tensor = *want->at(i);
    EXPECT_EQ(got[i].dtype, dtype_name(tensor.dtype()));
    EXPECT_EQ(got[i].device, "cpu");
    EXPECT_EQ(got[i].sizes, std::vector<int64_t>(tensor.sizes(), tensor.sizes() + tensor.rank()));
    EXPECT_EQ(got[i].strides, std::vector<int64_t>(tensor.strides(), tensor.strides() + tensor.rank()));
    ASSERT_NE(got[i].owner, nullptr);
    int64_t bytes = dtype_bytes(tensor.dtype());
    for (int64_t size : got[i].sizes) bytes *= size;
    EXPECT_EQ(std::memcmp(got[i].data, tensor.data(), static_cast<size_t>(bytes)), 0) << "nothing is decided yet: eager answers";
  }
  EXPECT_EQ(model.report_json(), "[]");
}

// Small models of files, with what they are called with.
struct Called {
  explicit Called(const std::string& model = kModel, std::function<void(LoadOptions&)> change = {}) : path(model) {
    options.cache_dir = folder.path() + "/cache";
    if (change) change(options);
    auto session = Session::open(test::shared_runtime(), path, {});
    EXPECT_TRUE(session.ok()) << session.status().text();
    tensors = *(*session)->example_inputs(3);
    wanted = *(*session)->call_eager(tensors);
    for (const TensorRef& input : tensors) inputs.push_back(view_of(input));
  }
  bool right(const std::vector<TensorView>& got) const {
    if (got.size() != wanted.size()) return false;
    for (size_t i = 0; i < got.size(); ++i)
      if ((got[i].data != nullptr) != (wanted[i] != nullptr) ||
          (wanted[i] && std::memcmp(got[i].data, wanted[i]->data(), static_cast<size_t>(wanted[i]->storage_bytes())) != 0))
        return false;
    return true;
  }
  std::string path;
  const test::TempFolder folder;
  LoadOptions options;
  std::vector<TensorRef> tensors, wanted;
  std::vector<TensorView> inputs;
};

template <class Fn>
std::string thrown(Fn&& fn) {
  try {
    fn();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "nothing was refused";
}

TEST(Model, IsReadFromMemoryAndFromADescriptor) {
  Called c;
  const std::string bytes = test::slurp(c.path);
  EXPECT_TRUE(c.right(Model::load_memory(bytes.data(), bytes.size(), "in memory", c.options).call(c.inputs)));
  const int memory = memfd_create("model", 0);
  ASSERT_EQ(write(memory, bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));  // its position is the end now
  const int file = open(c.path.c_str(), O_RDONLY);
  for (const int descriptor : {memory, file}) {
    Model model = Model::load_descriptor(descriptor, "descriptor", c.options);
    EXPECT_TRUE(c.right(model.call(c.inputs)));
    EXPECT_EQ(close(descriptor), 0) << "it stays the caller's";
    EXPECT_TRUE(c.right(model.call(c.inputs)));
  }
  EXPECT_NE(thrown([&] { Model::load_memory(bytes.data(), bytes.size() / 2, "half", c.options); }).find("half"), std::string::npos);
  EXPECT_NE(thrown([&] { Model::load_descriptor(-1, "no file", c.options); }).find("no file"), std::string::npos);
  int pipe_ends[2];
  ASSERT_EQ(pipe(pipe_ends), 0);
  EXPECT_NE(thrown([&] { Model::load_descriptor(pipe_ends[0], "a pipe", c.options); }).find("not a regular file"), std::string::npos);
  close(pipe_ends[0]), close(pipe_ends[1]);
}

TEST(Model, TakesInputsByName) {
  Called c(std::string(KEIRIN_SOURCE_DIR) + "/tests/data/pt2/structured.pt2");  // its last output is None
  const Model model = Model::load(c.path, c.options);
  ASSERT_EQ(c.inputs.size(), 3u);
  std::map<std::string, TensorView> named = {{"scale", c.inputs[2]}, {"d.b.0", c.inputs[1]}, {"d.a", c.inputs[0]}};
  EXPECT_TRUE(c.right(model.call(model.in_order(named))));
  named["0"] = c.inputs[0];
  EXPECT_NE(thrown([&] { model.in_order(named); }).find("d.a"), std::string::npos) << "twice";
  named.erase("0");
  named.erase("scale");
  EXPECT_NE(thrown([&] { model.in_order(named); }).find("input scale is missing"), std::string::npos);
  named["scalar"] = c.inputs[2];
  EXPECT_NE(thrown([&] { model.in_order(named); }).find("d.a, d.b.0, scale"), std::string::npos);
}

// forward(x, k) -> x[:, :k].sum(1), arange(k) * x[0, 0], exported with k = 5; a guard says `size != max(1, k)`.
TEST(Model, TakesADynamicNumber) {
  const test::TempFolder folder;
  LoadOptions options;
  options.cache_dir = folder.path() + "/cache";
  Model model = Model::load(std::string(KEIRIN_SOURCE_DIR) + "/tests/data/pt2/sliced.pt2", options);
  EXPECT_EQ(model.signature().inputs.at(1).name, "k");
  float x[3 * 9];
  for (int i = 0; i < 27; ++i) x[i] = static_cast<float>(i + 1);
  int64_t k = 0;
  const std::vector<TensorView> inputs =
      model.in_order({{"x", {x, "f32", {3, 9}, {}, "cpu", nullptr}}, {"k", {&k, "i64", {}, {}, "cpu", nullptr}}});
  for (const bool compiled : {false, true}) {
    for (k = 2; k < 9; ++k) {
      if (compiled) model.compile(inputs);
      const std::vector<TensorView> got = model.call(inputs);
      ASSERT_EQ(got[1].sizes, std::vector<int64_t>{k});
      for (int64_t row = 0; row < 3; ++row) {
        float sum = 0;
        for (int64_t i = 0; i < k; ++i) sum += x[row * 9 + i];
        EXPECT_EQ(static_cast<const float*>(got[0].data)[row], sum) << k;
      }
    }
    for (const int64_t other : {-1, 1, 9, 10}) {
      k = other;
      EXPECT_NE(thrown([&] { model.call(inputs); }), "nothing was refused") << k;
    }
  }
}

TEST(Model, WritesOutputsIntoTheCallersMemory) {
  Called c;
  const Model model = Model::load(c.path, c.options);
  ASSERT_EQ(c.wanted.size(), 1u);
  const int64_t rows = c.wanted[0]->sizes()[0], columns = c.wanted[0]->sizes()[1];
  const float* want = static_cast<const float*>(c.wanted[0]->data());
  std::vector<float> memory(static_cast<size_t>(2 * rows * columns), -1);
  Destination to;
  to.outputs = {{memory.data(), "f32", {rows, columns}, {}, "cpu", nullptr}};
  EXPECT_EQ(model.call(c.inputs, to)[0].data, memory.data());
  EXPECT_EQ(std::memcmp(memory.data(), want, static_cast<size_t>(rows * columns) * 4), 0);
  EXPECT_EQ(memory[static_cast<size_t>(rows * columns)], -1);
  to.outputs[0].strides = {1, 2 * rows};  // every other element, by column
  model.call(c.inputs, to);
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t k = 0; k < columns; ++k) ASSERT_EQ(memory[static_cast<size_t>(i + k * 2 * rows)], want[i * columns + k]);
  EXPECT_TRUE(c.right(model.call(c.inputs, Destination{{TensorView()}, nullptr}))) << "new memory";
  to.outputs[0] = {memory.data(), "f32", {rows, columns + 1}, {}, "cpu", nullptr};
  EXPECT_NE(thrown([&] { model.call(c.inputs, to); }).find("the memory for it is f32["), std::string::npos);
  to.outputs.push_back(to.outputs[0]);
  EXPECT_NE(thrown([&] { model.call(c.inputs, to); }).find("memory for 2 outputs was given, the model has 1"), std::string::npos);
}

TEST(Model, HasNoStreamsOnTheCpu) {
  Called c;
  const Model model = Model::load(c.path, c.options);
  Destination to;
  to.stream = &to;
  EXPECT_NE(thrown([&] { model.call(c.inputs, to); }).find("a stream was given for cpu"), std::string::npos);
}

// Callers see all old weights or all new ones, and none of them fails.
TEST(Model, ChangesWeightsUnderLoad) {
  Called c;
  Model model = Model::load(c.path, c.options);
  std::map<std::string, TensorView> zeros;
  std::vector<std::vector<char>> memory;
  for (const auto& [name, view] : model.weights()) {
    int64_t bytes = dtype_bytes(*dtype_from_name(view.dtype));
    for (const int64_t size : view.sizes) bytes *= size;
    memory.emplace_back(static_cast<size_t>(bytes), 0);
    zeros[name] = {memory.back().data(), view.dtype, view.sizes, {}, "cpu", nullptr};
  }
  ASSERT_GE(zeros.size(), 4u);
  const auto is_zero = [&](const std::vector<TensorView>& got) {
    const auto* bytes = static_cast<const char*>(got[0].data);
    for (int64_t i = 0; i < c.wanted[0]->storage_bytes(); ++i)
      if (bytes[i] != 0) return false;
    return true;
  };
  std::atomic<bool> stop{false};
  std::atomic<int> old_ones{0}, new_ones{0}, neither{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t)
    threads.emplace_back([&] {
      while (!stop || new_ones == 0) {
        const auto got = model.call(c.inputs);
        (c.right(got) ? old_ones : is_zero(got) ? new_ones : neither) += 1;
      }
    });
  while (old_ones < 20) std::this_thread::yield();
  model.replace_weights(zeros);
  EXPECT_TRUE(is_zero(model.call(c.inputs)));
  for (auto& each : memory) std::memset(each.data(), 1, each.size());  // the caller's again
  stop = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(neither, 0);
  EXPECT_GT(new_ones, 0);
  EXPECT_NE(thrown([&] { model.replace_weights({{"nobody", zeros.begin()->second}}); }).find("no weight \"nobody\""), std::string::npos);
  zeros.begin()->second.sizes = {1};
  EXPECT_NE(thrown([&] { model.replace_weights(zeros); }).find("it cannot become f32[1]"), std::string::npos);
}

TEST(Model, TellsWhatHappens) {
  std::mutex mutex;
  std::vector<Event> events;
  Called c(kModel, [&](LoadOptions& options) {
    options.on_event = [&](const Event& event) {
      const std::lock_guard lock(mutex);
      events.push_back(event);
      throw std::runtime_error("a hook that fails");
    };
  });
  Model model = Model::load(c.path, c.options);
  model.compile(c.inputs);
  const std::lock_guard lock(mutex);
  const auto count = [&](Event::Kind kind) {
    const auto is_it = [&](const Event& e) { return e.kind == kind && e.model == "mlp" && !e.text.empty(); };
    return std::count_if(events.begin(), events.end(), is_it);
  };
  EXPECT_EQ(count(Event::Kind::kDecided), 1);
  EXPECT_GT(count(Event::Kind::kProgress), 1);
  for (const Event& event : events) EXPECT_TRUE(event.done >= 0 && event.done <= 1);
}

TEST(Model, OpensLibrariesOfOperators) {
  Called c(kModel, [](LoadOptions& options) { options.load_libraries = {"/nope/libops.so"}; });
  EXPECT_NE(thrown([&] { Model::load(c.path, c.options); }).find("/nope/libops.so"), std::string::npos);
  c.options.load_libraries = {"libm.so.6"};
  EXPECT_TRUE(c.right(Model::load(c.path, c.options).call(c.inputs)));
}

// An operator that only its author has: refused with the remedy until its library is named, then a step beside what is compiled.
TEST(Model, RunsAnOperatorThatALibraryRegisters) {
  const test::TempFolder folder;
  const std::string path = std::string(KEIRIN_SOURCE_DIR) + "/tests/data/import/own_operator";
  LoadOptions options;
  options.cache_dir = folder.path() + "/cache";
  const std::string without = thrown([&] { Model::load(path + ".pt2", options); });
  EXPECT_NE(without.find("torch.ops.keirin_test.bent.default"), std::string::npos) << without;
  EXPECT_NE(without.find("--load-library"), std::string::npos) << without;
  options.load_libraries = {KEIRIN_OWN_OPERATOR};
  Model model = Model::load(path + ".pt2", options);
  auto read = read_safetensors(path + ".safetensors", test::shared_runtime().tensors());
  ASSERT_TRUE(read.ok()) << read.status().text();
  std::map<std::string, TensorRef> golden(read->begin(), read->end());
  const TensorRef &x = golden.at("in_0"), &want = golden.at("out_0_0");
  const auto is_near = [&](const std::vector<TensorView>& got) {
    const auto *ours = static_cast<const float*>(got[0].data), *theirs = static_cast<const float*>(want->data());
    for (int64_t i = 0; i < 3 * 4; ++i)
      if (!(std::abs(ours[i] - theirs[i]) <= 1e-5f)) return false;
    return true;
  };
  EXPECT_TRUE(is_near(model.call({view_of(x)})));
  model.compile({view_of(x)});
  EXPECT_TRUE(is_near(model.call({view_of(x)})));
  EXPECT_NE(model.explain().find("keirin_test::bent"), std::string::npos) << model.explain();
}

TEST(Model, WhatIsNoTensorIsThrown) {
  const test::TempFolder folder;
  LoadOptions options;
  options.cache_dir = folder.path() + "/cache";
  const Model model = Model::load(kModel, options);
  const auto words = [&](auto change) -> std::string {
    float data[4] = {};
    TensorView view{data, "f32", {2, 2}, {}, "cpu", nullptr};
    change(view);
    try {
      model.call({view});
    } catch (const std::exception& error) {
      return error.what();
    }
    return "nothing was refused";
  };
  EXPECT_NE(words([](TensorView& v) { v.dtype = "f33"; }).find("input 0 has the unknown dtype f33"), std::string::npos);
  EXPECT_NE(words([](TensorView& v) { v.device = "gpu"; }).find("no such device: gpu; available: cpu"), std::string::npos);
  EXPECT_NE(words([](TensorView&) {}), "nothing was refused") << "sizes that the model does not take";
  EXPECT_NE(words([](TensorView& v) { v.strides = {1}; }), "nothing was refused") << "not a stride for each axis";
  EXPECT_NE(words([](TensorView& v) { v.sizes = {-2, 2}; }), "nothing was refused");
}

}  // namespace
}  // namespace keirin
