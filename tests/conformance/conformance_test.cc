// SPDX-License-Identifier: Apache-2.0
//
// The suite: every row of the operator table as one test, over every case generated from it, for one plugin. A failing case
// prints the command that repeats it. What may fail is in skips.txt and nowhere else; what is skipped and passes fails. What the
// plugin does not claim is counted by itself and never as passed.
//
// With --suite=bytes it damages regions and artifacts instead (bytes.h). With --suite=speed it times the rows (speed.h) and judges
// nothing else: --json, --beside=<folder of another plugin>, once for each, --seconds, --case=<pattern of row/dtype>.
//
//   conformance --name=cpu --plugin=<folder> [--case=<pattern>] [--every=<n> [--first=<i>]] [--failures=<file>] [--json=<file>]
//               [--skips=<file>] [--worker=<program>] [--run-in=worker] [--suite=bytes] [--bad-index=answered]
//               [--log=<file> [--after=<case>]]
//
// --log is for who goes on where this ends: before a case a line "try CASE", after it, of each of its sets of values, "passed", "failed",
// "unclaimed" or "skipped" with operator and dtype. --after leaves out all cases up to that one. A plugin that a crash in a run takes this
// process with is the one on a GPU; where a run of it costs the process the device, it ends with code 17 after that case.
#include <fnmatch.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <utility>

#include "core/base/day.h"
#include "core/eager/tensor_services.h"
#include "core/host/find/discovery.h"
#include "core/ir/rows.h"
#include "tests/conformance/bytes.h"
#include "tests/conformance/speed.h"
#include "tests/conformance/trial.h"
#include "tests/support/trust_count.h"

namespace keirin::conformance {
namespace {

struct Options {
  std::string name = "plugin", plugin, pattern, failures, json, suite = "operators";
  std::string every = "1", first = "0";  // of each row's cases, one in so many, from this one on
  std::string skips = std::filesystem::read_symlink("/proc/self/exe").replace_filename("skips.txt");
  std::string worker = find_worker(), run_in = "process";
  std::string beside, seconds = "240";
  std::vector<std::string> others;    // all that `beside` was
  std::string log, after;
  std::string bad_index = "refused";  // "answered": ended by a GPU's kernel, as any error (emulated ones; on a GPU none is tried)
};

// A line: plugin or *, pattern of case names with the set of values, dtype or *, reason.
struct Skip {
  std::string plugin, pattern, dtype, reason;
  std::string until;  // the last day, YYYY-MM-DD, of what one plugin fails; empty: what nobody can be asked
  int line = 0;
  bool used = false;
};

struct Counts {
  int64_t cases = 0, passed = 0, failed = 0, unclaimed = 0, skipped = 0;
  std::vector<std::pair<std::string, std::string>> failures;  // the first ones: case, reason
  std::map<std::string, Counts> by_dtype;                     // of a row
};

class Suite {
 public:
  static Suite& get() {
    static Suite suite;
    return suite;
  }

  Options options;

  std::string open() {
    services_ = make_tensor_services();
    if (std::string why = open_subject(); !why.empty()) return why;
    std::ifstream file(options.skips);
    std::string text;
    for (int number = 1; std::getline(file, text); ++number) {
      if (text.empty() || text[0] == '#') continue;
      std::istringstream words(text);
      Skip skip;
      words >> skip.plugin >> skip.pattern >> skip.dtype;
      if (skip.plugin != "*") words >> skip.until;
      std::getline(words >> std::ws, skip.reason);
      skip.line = number;
      const std::string at = options.skips + ":" + std::to_string(number) + ": ";
      constexpr const char* kDay = "[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]";
      if (skip.reason.empty() || (skip.plugin != "*" && ::fnmatch(kDay, skip.until.c_str(), 0) != 0))
        return at + "a skip needs plugin, pattern, dtype, the last day (YYYY-MM-DD) if it is of one plugin, and the reason";
      if (skip.plugin != options.name && skip.plugin != "*") continue;
      if (!skip.until.empty() && skip.until < today()) return at + skip.pattern + " was excused until " + skip.until;
      skips_.push_back(skip);
    }
    return file.eof() ? "" : options.skips + " cannot be read";
  }

  void run_row(OpCode row) {
    const std::vector<Case> cases = cases_of(row);
    EXPECT_FALSE(cases.empty()) << "the row " << op_name(row) << " has no cases: add a generator";
    int shown = 0, deaths = 0;
    const size_t step = std::max<size_t>(1, std::strtoul(options.every.c_str(), nullptr, 10));
    for (size_t i = std::strtoul(options.first.c_str(), nullptr, 10); i < cases.size(); i += step) {
      const Case& c = cases[i];
      if (!options.pattern.empty() && fnmatch(options.pattern.c_str(), c.name.c_str(), 0) != 0) continue;
      if (!options.after.empty()) {
        if (options.after == c.name) options.after.clear();
        continue;
      }
      log("try " + c.name);
      bool died = false;
      for (const Outcome& outcome : options.suite == "bytes" ? damage_case(c, *subject_) : try_case(c, *subject_, *services_)) {
        take(c, outcome, shown);
        died = died || outcome.died;
        if (outcome.verdict == Outcome::kFailed && subject_->on_gpu() && !services_->synchronize(subject_->device().torch_device()).ok()) {
          std::printf("%s: the device is lost to this process\n", c.name.c_str());
          std::fflush(nullptr);
          std::_Exit(kDeviceLost);
        }
      }
      if (!died) continue;
      // What the host holds against the plugin is not to decide about other cases.
      if (std::string why = open_subject(); !why.empty()) {
        ADD_FAILURE() << "after a death the plugin cannot be opened again: " << why;
        break;
      }
      if (++deaths < kMostDeaths) continue;
      std::printf("%s: the plugin died %d times, so that the rest of its cases is left out\n", op_name(row).data(), deaths);
      break;
    }
    if (shown > kShown) ADD_FAILURE() << shown - kShown << " more cases of " << op_name(row) << " failed";
  }

  void finish() {
    for (const Skip& skip : skips_)
      if (!skip.used && options.pattern.empty() && full_run_)
        ADD_FAILURE() << options.skips << ":" << skip.line << ": no case matches; remove the line";
    for (const auto& [why, rows] : unclaimed_) {
      std::string names;
      for (const std::string& row : rows) names += " " + row;
      std::printf("unclaimed: %s:%s\n", why.c_str(), names.c_str());
    }
    std::string names;
    for (const auto& [row, n] : eager_differs_) names += " " + row + "(" + std::to_string(n) + ")";
    if (!names.empty()) std::printf("eager itself is outside the table's tolerance in:%s\n", names.c_str());
    if (subject_) std::printf("on %s, fingerprint %s\n", subject_->device().arch().c_str(), subject_->device().fingerprint().c_str());
    std::printf("CONFORMANCE plugin=%s cases=%lld passed=%lld failed=%lld unclaimed=%lld skipped=%lld\n", options.name.c_str(),
                static_cast<long long>(counts_.cases), static_cast<long long>(counts_.passed), static_cast<long long>(counts_.failed),
                static_cast<long long>(counts_.unclaimed), static_cast<long long>(counts_.skipped));
    if (!options.json.empty()) write_json();
    test::trust_count("conformance", counts_.passed + counts_.failed, counts_.failed);  // what is unclaimed or skipped proves nothing
  }

  void log(const std::string& line) const {
    if (!options.log.empty()) std::ofstream(options.log, std::ios::app) << line << "\n";
  }
  void set_full_run(bool full) { full_run_ = full; }
  void close() { subject_.reset(); }
  const Counts& counts() const { return counts_; }

 private:
  static constexpr int kShown = 3, kMostDeaths = 3, kDeviceLost = 17;

  std::string open_subject() {
    subject_.reset();  // of one library a process has one host at a time
    Result<std::unique_ptr<Subject>> subject =
        Subject::open(options.plugin, options.worker, *services_, options.run_in == "worker" ? RunIn::kWorker : RunIn::kProcess);
    if (!subject.ok()) return subject.status().text();
    subject_ = std::move(subject).value();
    if (options.bad_index == "answered") subject_->let_answer_bad_index();
    return {};
  }

  // By row, for `keirin certify`.
  void write_json() const {
    nlohmann::json rows = nlohmann::json::array();
    for (const auto& [name, n] : by_row_) {
      nlohmann::json failures = nlohmann::json::array();
      for (const auto& [which, reason] : n.failures) failures.push_back({{"case", which}, {"reason", reason}});
      nlohmann::json dtypes = nlohmann::json::object();
      for (const auto& [dtype, d] : n.by_dtype)
        dtypes[dtype] = {{"passed", d.passed}, {"failed", d.failed}, {"unclaimed", d.unclaimed}, {"skipped", d.skipped}};
      rows.push_back({{"name", name}, {"passed", n.passed}, {"failed", n.failed}, {"unclaimed", n.unclaimed}, {"skipped", n.skipped},
                      {"failures", failures}, {"dtypes", dtypes}});
    }
    std::ofstream(options.json) << nlohmann::json{{"operators", rows}}.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  }

  void take(const Case& c, const Outcome& outcome, int& shown) {
    Counts& row = by_row_[std::string(op_name(c.row))];
    const auto count = [&](int64_t Counts::* what, const char* name) {
      for (Counts* n : {&counts_, &row, &row.by_dtype[std::string(dtype_name(c.dtype))]}) ++(n->*what);
      if (name) log(std::string(name) + " " + std::string(op_name(c.row)) + " " + std::string(dtype_name(c.dtype)));
    };
    count(&Counts::cases, nullptr);
    if (outcome.eager_differs) ++eager_differs_[std::string(op_name(c.row))];
    if (outcome.verdict == Outcome::kUnclaimed) {
      count(&Counts::unclaimed, "unclaimed");
      unclaimed_[outcome.reason].insert(std::string(op_name(c.row)));
      return;
    }
    const bool passed = outcome.verdict == Outcome::kPassed;
    if (const Skip* skip = skip_of(c, outcome)) {
      count(&Counts::skipped, "skipped");
      if (passed && !skip->reason.starts_with("either way:"))
        show(outcome, "passes, but " + options.skips + ":" + std::to_string(skip->line) + " skips it: narrow or remove the line", shown);
      return;
    }
    if (passed) {
      count(&Counts::passed, "passed");
      return;
    }
    count(&Counts::failed, "failed");
    if (row.failures.size() < kShown) row.failures.emplace_back(outcome.name, outcome.reason);
    show(outcome, outcome.reason, shown);
  }

  void show(const Outcome& outcome, const std::string& reason, int& shown) {
    if (!options.failures.empty()) std::ofstream(options.failures, std::ios::app) << outcome.name << "\t" << reason << "\n";
    if (++shown > kShown) return;
    const std::string pattern = outcome.name.substr(0, outcome.name.rfind('/'));
    ADD_FAILURE() << outcome.name << ": " << reason << "\n  conformance --name=" << options.name << " --plugin=" << options.plugin
                  << " --case='" << pattern << "'";
  }

  Skip* skip_of(const Case& c, const Outcome& outcome) {
    for (Skip& skip : skips_) {
      if (skip.dtype != "*" && skip.dtype != dtype_name(c.dtype)) continue;
      if (fnmatch(skip.pattern.c_str(), outcome.name.c_str(), 0) != 0) continue;
      skip.used = true;
      return &skip;
    }
    return nullptr;
  }

  std::unique_ptr<TensorServices> services_;
  std::unique_ptr<Subject> subject_;
  std::vector<Skip> skips_;
  Counts counts_;
  std::map<std::string, Counts> by_row_;
  std::map<std::string, std::set<std::string>> unclaimed_;
  std::map<std::string, int64_t> eager_differs_;
  bool full_run_ = true;
};

class Fixture : public testing::Test {};  // one for all tests of the suite, as GoogleTest asks

class RowTest : public Fixture {
 public:
  explicit RowTest(OpCode row) : row_(row) {}
  void TestBody() override { Suite::get().run_row(row_); }

 private:
  OpCode row_;
};

class ZEnd : public Fixture {
 public:
  void TestBody() override {
    Suite::get().finish();
    EXPECT_GT(Suite::get().counts().passed, 0);
  }
};

void register_rows() {
#define KRN_CONFORM(id, name)                                                       \
  testing::RegisterTest("Conformance", #name, nullptr, nullptr, __FILE__, __LINE__, \
                        []() -> Fixture* { return new RowTest(OpCode::k_##name); });
#define KRN_SCALAR(id, name, ...) KRN_CONFORM(id, name)
#define KRN_REDUCE(id, name, ...) KRN_CONFORM(id, name)
#define KRN_MOVE(id, name, ...) KRN_CONFORM(id, name)
#define KRN_FACTORY(id, name, ...) KRN_CONFORM(id, name)
#define KRN_COMPOSITE(id, name, ...) KRN_CONFORM(id, name)
#include "abi/ops.def"
#undef KRN_SCALAR
#undef KRN_REDUCE
#undef KRN_MOVE
#undef KRN_FACTORY
#undef KRN_COMPOSITE
#undef KRN_CONFORM
  testing::RegisterTest("Conformance", "Total", nullptr, nullptr, __FILE__, __LINE__, []() -> Fixture* { return new ZEnd; });
}

int run_speed(const Options& o) {
  const std::unique_ptr<TensorServices> services = make_tensor_services();
  const Result<nlohmann::json> timed =
      time_operators({o.name, o.plugin, o.others, o.worker, o.pattern, std::strtod(o.seconds.c_str(), nullptr)}, *services);
  if (!timed.ok()) {
    std::fprintf(stderr, "conformance: the plugin in '%s' cannot be timed: %s\n", o.plugin.c_str(), timed.status().text().c_str());
    return 2;
  }
  const std::string text = timed->dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  if (o.json.empty()) std::fputs(text.c_str(), stdout);
  else std::ofstream(o.json) << text;
  return 0;
}

bool read_option(const std::string& arg, const std::string& key, std::string& to) {
  if (arg.rfind("--" + key + "=", 0) != 0) return false;
  to = arg.substr(key.size() + 3);
  return true;
}

int run(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  Suite& suite = Suite::get();
  Options& o = suite.options;
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    if (!read_option(arg, "name", o.name) && !read_option(arg, "plugin", o.plugin) && !read_option(arg, "case", o.pattern) &&
             !read_option(arg, "failures", o.failures) && !read_option(arg, "every", o.every) && !read_option(arg, "first", o.first) &&
             !read_option(arg, "skips", o.skips) && !read_option(arg, "worker", o.worker) && !read_option(arg, "run-in", o.run_in) &&
             !read_option(arg, "json", o.json) && !read_option(arg, "log", o.log) && !read_option(arg, "after", o.after) &&
             !read_option(arg, "seconds", o.seconds) && !read_option(arg, "beside", o.beside) &&
              !read_option(arg, "bad-index", o.bad_index) && !read_option(arg, "suite", o.suite)) {
      std::fprintf(stderr, "unknown argument %s\n", arg.c_str());
      return 2;
    }
    if (!o.beside.empty()) o.others.push_back(std::exchange(o.beside, {}));
  }
  if (o.suite == "speed") return run_speed(o);
  if (std::string why = suite.open(); !why.empty()) {
    std::fprintf(stderr, "conformance: the plugin in '%s' cannot be tested: %s\n", o.plugin.c_str(), why.c_str());
    return 2;
  }
  suite.set_full_run(testing::GTEST_FLAG(filter) == "*" && o.every == "1" && o.suite == "operators" && o.after.empty());
  register_rows();
  const int code = RUN_ALL_TESTS();
  suite.log("end");
  suite.close();
  return code;
}

}  // namespace
}  // namespace keirin::conformance

int main(int argc, char** argv) { return keirin::conformance::run(argc, argv); }
