// SPDX-License-Identifier: Apache-2.0
//
// A model with its plans in one file: the first call of a declared kind is answered by what was decided where it was made, from a path and
// from memory, with a cache of one's own or none; elsewhere and damaged it is the .pt2 that it was, or an error.
#include "core/api/bundle.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <random>

#include "core/api/keirin.h"
#include "core/cache/cache.h"
#include "core/capture/pt2/add_records.h"
#include "tests/support/others.h"
#include "tests/support/temp_folder.h"

namespace keirin {
namespace {

using Tensors = std::vector<TensorRef>;
using keirin::test::slurp;
using keirin::test::spill;

test::Others nobody;

const std::string kModel = std::string(KEIRIN_SOURCE_DIR) + "/tests/data/import/ranges_encoder.pt2";
const std::vector<std::vector<int64_t>> kKinds = {{2, 6}, {3, 9}};

struct Process {
  std::unique_ptr<Runtime> runtime;
  std::unique_ptr<Session> session;
};

class BundleTest : public testing::Test {
 protected:
  static Options plain(const std::string& cache) {
    Options options;
    options.cache_dir = cache;
    options.race_seconds = 0.2;
    options.memory_limit = 10;
    options.threads = 1;
    options.interference = &nobody;
    return options;
  }

  // Built once: that takes seconds.
  static void SetUpTestSuite() {
    folder_ = new test::TempFolder;
    file_ = folder_->path() + "/m.krn";
    auto runtime = Runtime::open(plain(folder_->path() + "/maker"));
    ASSERT_TRUE(runtime.ok()) << runtime.status().text();
    auto built = build_bundle(**runtime, kModel, kKinds, {"cpu"}, plain(folder_->path() + "/maker"), file_);
    ASSERT_TRUE(built.ok()) << built.status().text();
    list_ = new BundleList(built->list);
    ASSERT_EQ(list_->kinds.size(), 2u);
    ASSERT_GT(list_->num_entries, 3u);
  }
  static void TearDownTestSuite() {
    delete list_;
    delete folder_;
  }

  // A machine of somebody else's, who knows who made the bundle.
  Options elsewhere() {
    Options options = plain(folder_->path() + "/user" + std::to_string(++users_));
    options.trust = Trust::kNative;
    options.on_event = [this](const Event& event) {
      decisions_ += event.kind == Event::Kind::kProgress;
      warnings_ += event.kind == Event::Kind::kLog && event.level == 1 ? event.text + "\n" : "";
    };
    return options;
  }

  static Process open(const Options& options, const std::string& path = file_) {
    Process out;
    auto runtime = Runtime::open(options);
    EXPECT_TRUE(runtime.ok()) << runtime.status().text();
    out.runtime = std::move(*runtime);
    auto session = Session::open(*out.runtime, path, options);
    EXPECT_TRUE(session.ok()) << session.status().text();
    if (session.ok()) out.session = std::move(*session);
    return out;
  }

  // Every declared kind's first call, and that nothing was decided for it.
  void expect_answers(Session& session) {
    uint64_t by_plan = 0;
    for (size_t i = 0; i < kKinds.size(); ++i) {
      const Tensors inputs = *session.example_inputs(7, kKinds[i]);
      ASSERT_TRUE(session.is_decided(inputs)) << session.bundle()->why_not;
      const auto answer = session.call(inputs), eager = session.call_eager(inputs);
      ASSERT_TRUE(answer.ok() && eager.ok());
      expect_near(*answer, *eager);
      by_plan += list_->kinds[i].chosen != "eager";
    }
    EXPECT_EQ(session.activity().by_plan, by_plan);
    EXPECT_EQ(decisions_, 0u);
    for (size_t i = 0; i < kKinds.size(); ++i) EXPECT_EQ(session.reports_so_far().at(i).chosen, list_->kinds[i].chosen);
  }

  static void expect_near(const Tensors& a, const Tensors& b) {
    ASSERT_EQ(a.size(), b.size());
    ASSERT_EQ(spec_text(spec_of(*a[0])), spec_text(spec_of(*b[0])));
    for (int64_t i = 0; i < a[0]->storage_bytes() / 4; ++i)
      ASSERT_NEAR(static_cast<const float*>(a[0]->data())[i], static_cast<const float*>(b[0]->data())[i], 1e-4);
  }

  // It is the .pt2, and says why in a line.
  void expect_plain(const Process& process, const std::string& why) {
    ASSERT_NE(process.session, nullptr);
    ASSERT_NE(process.session->bundle(), nullptr);
    EXPECT_NE(process.session->bundle()->why_not.find(why), std::string::npos) << process.session->bundle()->why_not;
    EXPECT_EQ(process.session->bundle()->taken, 0u);
    EXPECT_EQ(process.session->activity().kinds, 0u);
    const Tensors inputs = *process.session->example_inputs(7, kKinds[0]);
    const auto answer = process.session->call(inputs), eager = process.session->call_eager(inputs);
    ASSERT_TRUE(answer.ok() && eager.ok());
    expect_near(*answer, *eager);
    EXPECT_EQ(process.session->activity().by_plan, 0u);
  }

  static inline test::TempFolder* folder_ = nullptr;
  static inline std::string file_;
  static inline BundleList* list_ = nullptr;
  static inline int users_ = 0;
  std::atomic<uint64_t> decisions_{0};
  std::string warnings_;
};

TEST_F(BundleTest, AnswersTheFirstCallOfADeclaredKindByWhatWasDecided) {
  const Process process = open(elsewhere());
  ASSERT_NE(process.session, nullptr);
  EXPECT_EQ(process.session->bundle()->taken, 2u) << process.session->bundle()->why_not;
  EXPECT_EQ(warnings_, "");
  expect_answers(*process.session);
}

TEST_F(BundleTest, IsReadFromMemoryAndWithoutAUsableCache) {
  Options options = elsewhere();
  options.cache_dir = "/proc/nowhere";
  auto runtime = Runtime::open(options);
  ASSERT_TRUE(runtime.ok());
  const std::string bytes = slurp(file_);
  auto session = Session::open(**runtime, std::as_bytes(std::span(bytes)), "m", {}, options);
  ASSERT_TRUE(session.ok()) << session.status().text();
  expect_answers(**session);
}

TEST_F(BundleTest, OfThisUsersOwnCacheNeedsNoWordOfTrust) {
  Options options = elsewhere();
  options.cache_dir = folder_->path() + "/maker";
  options.trust = Trust::kOwn;
  const Process process = open(options);
  ASSERT_NE(process.session, nullptr);
  EXPECT_EQ(process.session->bundle()->taken, 2u) << process.session->bundle()->why_not;
  expect_answers(*process.session);
}

TEST_F(BundleTest, OfSomebodyElseIsNotRunUnasked) {
  Options options = elsewhere();
  options.trust = Trust::kOwn;
  expect_plain(open(options), "another user");
  EXPECT_NE(warnings_.find("trust"), std::string::npos) << warnings_;
}

TEST_F(BundleTest, IsThePt2UnderOtherOptionsAndSaysWhichDiffers) {
  Options options = elsewhere();
  options.numerics = Numerics::kStrict;
  expect_plain(open(options), "option numerics is \"strict\" here and was \"default\" where it was made");
  const Process process = open(options);
  const auto report = process.session->compile(*process.session->example_inputs(1, kKinds[0]));
  ASSERT_TRUE(report.ok());
  EXPECT_NE(explain_text(*report).find("warning: the bundle's decisions are not used"), std::string::npos) << explain_text(*report);
}

TEST_F(BundleTest, IsThePt2WithoutACache) {
  Options options = elsewhere();
  options.use_cache = false;
  expect_plain(open(options), "the cache is switched off");
}

TEST_F(BundleTest, IsThePt2ForAnotherMachineWhichItNames) {
  ::setenv("KEIRIN_CPU_LEVEL", "x86-64-v2", 1);
  const Process process = open(elsewhere());
  ::unsetenv("KEIRIN_CPU_LEVEL");
  expect_plain(process, "where it was made");
}

TEST_F(BundleTest, LoadsByThePublicApi) {
  Options maker = plain(folder_->path() + "/maker");
  const Options standard;
  maker.race_seconds = standard.race_seconds;
  maker.memory_limit = standard.memory_limit;
  auto runtime = Runtime::open(maker);
  ASSERT_TRUE(runtime.ok());
  const std::string file = folder_->path() + "/standard.krn";
  auto built = build_bundle(**runtime, kModel, {kKinds[0]}, {"cpu"}, maker, file);
  ASSERT_TRUE(built.ok()) << built.status().text();
  std::string warnings;
  LoadOptions options;
  options.cache_dir = folder_->path() + "/api";
  options.threads = 1;
  options.trust = "native";
  options.on_event = [&](const Event& event) {
    if (event.kind == Event::Kind::kLog && event.level <= 1) warnings += event.text + "\n";
  };
  {
    const Model model = Model::load(file, options);
    EXPECT_EQ(warnings, "");
    EXPECT_NE(model.explain().find("decided by an earlier process"), std::string::npos) << model.explain();
  }
  const std::string bytes = slurp(file);
  EXPECT_NE(Model::load_memory(bytes.data(), bytes.size(), "m", options).explain().find("decided by an earlier process"),
            std::string::npos);
  options.mode = "max-autotune";
  EXPECT_EQ(Model::load(file, options).explain(), "");
  EXPECT_NE(warnings.find("option mode is \"max-autotune\" here and was \"default\" where it was made"), std::string::npos) << warnings;
  options.trust = "nativ";
  EXPECT_THROW(Model::load(file, options), Error);
}

TEST_F(BundleTest, IsBuiltAgainFromItself) {
  const Options options = plain(folder_->path() + "/maker");
  auto runtime = Runtime::open(options);
  ASSERT_TRUE(runtime.ok());
  const std::string again = folder_->path() + "/again.krn";
  auto built = build_bundle(**runtime, file_, {kKinds[0]}, {"cpu"}, options, again);
  ASSERT_TRUE(built.ok()) << built.status().text();
  EXPECT_EQ(built->list.kinds[0].chosen, list_->kinds[0].chosen) << "what was decided is not decided again";
  const Process process = open(elsewhere(), again);
  ASSERT_NE(process.session, nullptr);
  EXPECT_EQ(process.session->bundle()->taken, 1u) << process.session->bundle()->why_not;
}

TEST_F(BundleTest, IsNotBuiltWithoutACacheOrForWrongSizes) {
  Options options = plain(folder_->path() + "/maker");
  auto runtime = Runtime::open(options);
  const std::string to = folder_->path() + "/none.krn";
  EXPECT_EQ(build_bundle(**runtime, kModel, {{0, 0}}, {"cpu"}, options, to).status().code(), Code::k_invalid_input);
  options.use_cache = false;
  auto without = Runtime::open(options);
  const auto refused = build_bundle(**without, kModel, kKinds, {"cpu"}, options, to);
  EXPECT_EQ(refused.status().code(), Code::k_invalid_input);
  EXPECT_NE(refused.status().text().find("--no-cache"), std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(to));
}

// Records that a good zip file holds and no bundle would.
TEST_F(BundleTest, AListOrEntryThatNobodyWroteIsRefusedOrLeftAlone) {
  const std::string bad = folder_->path() + "/bad.krn";
  auto runtime = Runtime::open(elsewhere());
  const auto opened = [&](const std::vector<std::pair<std::string, std::string>>& records) {
    EXPECT_TRUE(pt2::add_records(kModel, bad, "keirin_bundle", records).ok());
    return Session::open(**runtime, bad, elsewhere());
  };
  const std::string good = bundle_text(*list_);
  for (const std::string& list : {std::string("{"), std::string("[]"), std::string("{}"), good.substr(0, good.size() / 2)})
    EXPECT_FALSE(opened({{"keirin_bundle.json", list}}).ok()) << list;
  EXPECT_EQ(opened({{"keirin_bundle.json", R"({"schema":"keirin/bundle/9"})"}}).status().code(), Code::k_version);
  EXPECT_NE(opened({{"keirin_bundle.json", good}}).status().text().find("entry 0 of the bundle is missing"), std::string::npos);
  const auto real = pt2::read_pt2(file_);
  ASSERT_TRUE(real.ok());
  std::vector<std::pair<std::string, std::string>> records{{"keirin_bundle.json", good}};
  for (size_t i = 0; i < list_->num_entries; ++i)
    records.emplace_back("keirin_bundle/" + std::to_string(i), real->extra.find("keirin_bundle/" + std::to_string(i))->second);
  std::mt19937 random(1);
  for (int round = 0; round < 40; ++round) {
    auto flipped = records;
    std::string& body = flipped[1 + random() % (flipped.size() - 1)].second;
    body[random() % body.size()] ^= static_cast<char>(1 << random() % 8);
    const auto session = opened(flipped);
    ASSERT_TRUE(session.ok()) << session.status().text();
    const Tensors inputs = *(*session)->example_inputs(7, kKinds[0]);
    const auto answer = (*session)->call(inputs), eager = (*session)->call_eager(inputs);
    ASSERT_TRUE(answer.ok() && eager.ok());
    expect_near(*answer, *eager);
  }
}

// Whatever byte of the file changes, and wherever it ends: an error that says so, or the right answers.
TEST_F(BundleTest, FlippedAndCutFilesAreErrorsOrAnswerRight) {
  const std::string whole = slurp(file_);
  const Options options = elsewhere();
  auto runtime = Runtime::open(options);
  ASSERT_TRUE(runtime.ok());
  std::mt19937 random(2);
  size_t refused = 0, right = 0;
  for (int round = 0; round < 300; ++round) {
    std::string bytes = whole;
    // Half of them in the last tenth, where the records of the bundle and the directory lie.
    const size_t from = round % 2 == 0 ? 0 : whole.size() - whole.size() / 10;
    bytes[from + random() % (whole.size() - from)] ^= static_cast<char>(1 << random() % 8);
    const auto session = Session::open(**runtime, std::as_bytes(std::span(bytes)), "m.krn", {}, options);
    if (!session.ok()) {
      EXPECT_FALSE(session.status().message().what.empty());
      ++refused;
      continue;
    }
    const Tensors inputs = *(*session)->example_inputs(7, kKinds[0]);
    const auto answer = (*session)->call(inputs), eager = (*session)->call_eager(inputs);
    ASSERT_TRUE(answer.ok() && eager.ok());
    expect_near(*answer, *eager);
    ++right;
  }
  EXPECT_GT(refused, 200u) << right << " were not noticed";
  for (int round = 0; round < 100; ++round) {
    const std::string bytes = whole.substr(0, random() % whole.size());
    EXPECT_FALSE(Session::open(**runtime, std::as_bytes(std::span(bytes)), "m.krn", {}, options).ok());
  }
}

}  // namespace
}  // namespace keirin
