// SPDX-License-Identifier: Apache-2.0
//
// Reports of wrong answers of other compilers for PyTorch, each as a model (tests/data/miscompiles) through import, passes and the
// real plugins, in three cuts: against Python's own outputs, and against eager with fp64 as the referee. The table of reports is
// data; a report without a model, or a model without a report, fails.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "core/api/session.h"
#include "core/capture/import/importer.h"
#include "core/tune/verify.h"
#include "tests/graphs/trial.h"
#include "tests/support/trust_count.h"
#include "tests/unit/eager/loaded_model.h"

namespace keirin::graphs {
namespace {

using testing::LoadedModel;
using Tensors = std::vector<TensorRef>;

const std::string kFolder = std::string(KEIRIN_SOURCE_DIR) + "/tests/data/miscompiles/";

// A line of reports.txt.
struct Report {
  std::string model, source, wrong;
};

std::vector<Report> read_reports() {
  std::ifstream file(kFolder + "reports.txt");
  std::vector<Report> reports;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#') continue;
    std::istringstream words(line);
    Report report;
    words >> report.model >> report.source;
    std::getline(words >> std::ws, report.wrong);
    reports.push_back(std::move(report));
  }
  return reports;
}

TensorServices& services() {
  static const std::unique_ptr<TensorServices> all = make_tensor_services();
  return *all;
}

Plugins& plugins() {
  static const std::unique_ptr<Plugins> all = [] {
    auto opened = Plugins::open({{Cut::kCpu, KEIRIN_CPU_FOLDER}, {Cut::kReference, KEIRIN_REFERENCE_FOLDER}}, KEIRIN_WORKER, services());
    EXPECT_TRUE(opened.ok()) << opened.status().text();
    return std::move(opened).value();
  }();
  return *all;
}

// golden[prefix0], golden[prefix1], ...: own copies, because a model may write its inputs.
Tensors list(const LoadedModel& loaded, const std::string& prefix) {
  Tensors out;
  for (size_t i = 0; loaded.golden.contains(prefix + std::to_string(i)); ++i)
    out.push_back(*services().clone(loaded.golden.at(prefix + std::to_string(i))));
  return out;
}

class Reported : public ::testing::TestWithParam<Report> {
 protected:
  void try_sizes(const LoadedModel& loaded, const std::string& in, const std::string& out) {
    const Tensors inputs = list(loaded, in), wanted = list(loaded, out);
    ASSERT_FALSE(inputs.empty() || wanted.empty());
    std::vector<TensorSpec> specs;
    for (const TensorRef& t : inputs) specs.push_back({t->dtype(), testing::sizes_of(*t), {}, t->device()});
    const Result<Captured> captured = import_graph(loaded.model->program, loaded.weights, specs);
    ASSERT_TRUE(captured.ok()) << captured.status().text();
    Tensors constants;
    for (size_t i = 0; i < loaded.weights.size(); ++i) constants.push_back(loaded.weights[i].tensor);
    compare(*captured, constants, inputs, wanted);
    for (const Cut cut : {Cut::kCpu, Cut::kMixed, Cut::kReference}) {
      const Verdict verdict =
          plugins().try_program({captured->graph, captured->calls, constants}, {list(loaded, in), list(loaded, in)}, {cut, false, 11});
      EXPECT_TRUE(verdict.right) << cut_name(cut) << ": " << verdict.reason;
      compiled_ += verdict.compiled;
    }
  }

  // The imported graph, eagerly, against Python.
  void compare(const Captured& captured, const Tensors& constants, const Tensors& inputs, const Tensors& wanted) {
    const Result<Tensors> got = evaluate(captured.graph, captured.calls, inputs, constants);
    ASSERT_TRUE(got.ok()) << got.status().text();
    ASSERT_GE(got->size(), wanted.size());
    for (size_t i = 0; i < wanted.size(); ++i) {
      const TensorRef dense = *services().allocate({(*got)[i]->dtype(), testing::sizes_of(*(*got)[i]), {}, {}});
      ASSERT_TRUE(services().copy(dense, (*got)[i]).ok());
      const Result<Judgement> judgement = judge({&wanted[i], 1}, {&wanted[i], 1}, {&dense, 1}, services());
      ASSERT_TRUE(judgement.ok()) << judgement.status().text();
      EXPECT_TRUE(judgement->right) << "output " << i << " against Python: " << judgement->reason;
    }
  }

  int compiled_ = 0;
};

TEST_P(Reported, IsAnsweredRight) {
  const Report& report = GetParam();
  SCOPED_TRACE(report.source + ": " + report.wrong);
  const LoadedModel loaded("../miscompiles/" + report.model);
  ASSERT_NE(loaded.model, nullptr);
  try_sizes(loaded, "in_", "out_0_");
  if (loaded.golden.contains("in2_0")) try_sizes(loaded, "in2_", "out2_");
  EXPECT_GT(compiled_, 0) << "no plugin computed anything";
  test::trust_count("miscompiles", 1, HasFailure() ? 1 : 0);
}

INSTANTIATE_TEST_SUITE_P(Public, Reported, ::testing::ValuesIn(read_reports()), [](const auto& info) { return info.param.model; });

// The front room, too: a plan is for its sizes, and eager answers for others.
TEST(Sizes, OfAnotherCallAreNotAnsweredByTheFirstPlan) {
  Options options;
  options.use_cache = false;
  options.force = "compiled";
  options.race_seconds = 0.05;
  Result<std::unique_ptr<Runtime>> runtime = Runtime::open(options);
  ASSERT_TRUE(runtime.ok()) << runtime.status().text();
  const LoadedModel loaded("../miscompiles/size_times_tensor");
  Result<std::unique_ptr<Session>> session = Session::open(**runtime, kFolder + "size_times_tensor.pt2", options);
  ASSERT_TRUE(session.ok()) << session.status().text();
  const Result<ModelReport> report = (*session)->compile(list(loaded, "in_"));
  ASSERT_TRUE(report.ok()) << report.status().text();
  for (const auto& [in, out] : {std::pair("in_", "out_0_"), std::pair("in2_", "out2_")}) {
    const Result<Tensors> got = (*session)->call(list(loaded, in));
    ASSERT_TRUE(got.ok()) << got.status().text();
    const Tensors wanted = list(loaded, out);
    for (size_t i = 0; i < wanted.size(); ++i) {
      const Result<Judgement> judgement = judge({&wanted[i], 1}, {&wanted[i], 1}, {&(*got)[i], 1}, services());
      EXPECT_TRUE(judgement.ok() && judgement->right) << in << ": " << (judgement.ok() ? judgement->reason : judgement.status().text());
    }
  }
}

TEST(Reports, AreThoseOfTheModels) {
  std::set<std::string> reported, there;
  for (const Report& report : read_reports()) {
    EXPECT_TRUE(reported.insert(report.model).second) << report.model << " stands twice";
    EXPECT_NE(report.source.find('#'), std::string::npos) << report.model;
    EXPECT_FALSE(report.wrong.empty()) << report.model;
  }
  for (const auto& file : std::filesystem::directory_iterator(kFolder))
    if (file.path().extension() == ".pt2") there.insert(file.path().stem().string());
  EXPECT_EQ(reported, there);
  EXPECT_GE(reported.size(), 30u);
}

}  // namespace
}  // namespace keirin::graphs
