// SPDX-License-Identifier: Apache-2.0
//
// Whole models in worker mode: what they answer is what they answer in process, for fixed and free sizes and for a model that updates
// its state, and the report says where the regions run.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "core/api/session.h"
#include "tests/support/temp_folder.h"

namespace keirin {
namespace {

struct Model {
  const char* name;
  std::vector<std::vector<int64_t>> sizes;  // of the free sizes, one row a shape; none: a model of fixed sizes
};

class WorkerMode : public testing::TestWithParam<Model> {};

class Served {
 public:
  // `candidate`: answers, whatever is faster; "": the fastest that is compiled.
  Served(const std::string& name, const std::string& run_in, const std::string& cache, const std::string& candidate = "") {
    options_.run_in = run_in;
    options_.cache_dir = cache;
    if (candidate.empty()) options_.force = "compiled";
    options_.only_candidate = candidate;
    options_.memory_limit = 10;  // weights that a worker has, too, are a lot of a small model's process
    options_.race_seconds = 0.5;
    auto runtime = Runtime::open(options_);
    EXPECT_TRUE(runtime.ok()) << runtime.status().text();
    runtime_ = std::move(*runtime);
    auto session = Session::open(*runtime_, std::string(KEIRIN_SOURCE_DIR) + "/bench/zoo/models/small/" + name + ".pt2", options_);
    EXPECT_TRUE(session.ok()) << session.status().text();
    session_ = std::move(*session);
  }

  double weights_mb() const {
    double bytes = 0;
    for (const auto& [name, tensor] : session_->weights()) bytes += static_cast<double>(tensor->storage_bytes());
    return bytes / (1 << 20);
  }
  // The outputs of two calls, compiled; `chosen` gets the plan's name, or nothing if no plan was verified.
  std::vector<TensorRef> answer(const std::vector<int64_t>& sizes, std::string* chosen, std::string* text) {
    auto inputs = sizes.empty() ? session_->example_inputs(1) : session_->example_inputs(1, sizes);
    EXPECT_TRUE(inputs.ok()) << inputs.status().text();
    const auto report = session_->compile(*inputs);
    EXPECT_TRUE(report.ok()) << report.status().text();
    *chosen = report->chosen;
    *text = explain_text(*report);
    std::vector<TensorRef> all;
    for (int call = 0; call < 2; ++call) {
      auto outputs = session_->call(*inputs);
      EXPECT_TRUE(outputs.ok()) << outputs.status().text();
      for (const TensorRef& output : *outputs)
        if (output->dtype() == DType::k_f32) all.push_back(*runtime_->tensors().clone(output));
    }
    return all;
  }

 private:
  Options options_;
  std::unique_ptr<Runtime> runtime_;
  std::unique_ptr<Session> session_;
};

double largest_difference(const Tensor& a, const Tensor& b) {
  const auto *x = static_cast<const float*>(a.data()), *y = static_cast<const float*>(b.data());
  double worst = a.storage_bytes() == b.storage_bytes() ? 0 : HUGE_VAL;
  for (int64_t i = 0; i < std::min(a.storage_bytes(), b.storage_bytes()) / 4; ++i)
    worst = std::max(worst, std::fabs(static_cast<double>(x[i]) - y[i]));
  return worst;
}

TEST_P(WorkerMode, AnswersWhatTheProcessAnswers) {
  const test::TempFolder cache;
  const Model& model = GetParam();
  Served here(model.name, "process", cache.path()), there(model.name, "worker", cache.path());
  for (const auto& sizes : model.sizes.empty() ? std::vector<std::vector<int64_t>>{{}} : model.sizes) {
    std::string chosen_here, chosen_there, text_here, text_there;
    const std::vector<TensorRef> expected = here.answer(sizes, &chosen_here, &text_here);
    const std::vector<TensorRef> outputs = there.answer(sizes, &chosen_there, &text_there);
    EXPECT_NE(text_there.find("in the worker"), std::string::npos) << text_there;
    EXPECT_EQ(text_here.find("in the worker"), std::string::npos) << text_here;
    EXPECT_EQ(chosen_there.rfind("cpu/", 0), 0u) << text_there;
    ASSERT_EQ(outputs.size(), expected.size());
    ASSERT_FALSE(outputs.empty());
    // The same plan has the same kernels and slices; another one sums in another order.
    const double allowed = chosen_here == chosen_there ? 0 : 1e-4;
    for (size_t i = 0; i < outputs.size(); ++i) EXPECT_LE(largest_difference(*outputs[i], *expected[i]), allowed) << chosen_there;
  }
}

// Of the processes of ours in which regions run.
double workers_resident_mb() {
  double bytes = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream list(task.path() / "children");
    for (int pid; list >> pid;) {
      const std::string folder = "/proc/" + std::to_string(pid);
      std::ifstream words(folder + "/cmdline");
      std::string program, role;
      double pages = 0, resident = 0;
      if (std::getline(std::getline(words, program, '\0'), role, '\0') && role == "run") {
        std::ifstream(folder + "/statm") >> pages >> resident;
        bytes += resident * static_cast<double>(::sysconf(_SC_PAGESIZE));
      }
    }
  }
  return bytes / (1 << 20);
}

// The plans of a model's sizes have the same weights: another size costs the worker its own memory, and not theirs once more. All with the
// same plan: another one may want the weights packed where the first took them as they are, which is theirs once more.
TEST(WorkerModeMemory, HoldsWeightsOnceForAllSizes) {
  const test::TempFolder cache;
  Served there("bert_dynamic", "worker", cache.path(), "cpu/all");
  std::string chosen, text;
  (void)there.answer({2, 8}, &chosen, &text);
  const double one = workers_resident_mb();
  ASSERT_GT(one, there.weights_mb()) << text;
  for (const std::vector<int64_t>& sizes : {std::vector<int64_t>{3, 5}, {4, 6}, {1, 7}}) (void)there.answer(sizes, &chosen, &text);
  EXPECT_LT(workers_resident_mb() - one, there.weights_mb() / 4) << "three more sizes, each with a copy and a packed one";
}

INSTANTIATE_TEST_SUITE_P(All, WorkerMode,
                         testing::Values(Model{"mlp", {}}, Model{"gcn", {}}, Model{"decoder_decode", {}},
                                         Model{"bert_dynamic", {{2, 8}, {3, 5}}}),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace keirin
