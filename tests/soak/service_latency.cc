// SPDX-License-Identifier: Apache-2.0
//
// What a service's calls notice of a compile in the background. Other models are compiled by Session::compile while the served one is
// called without end, and every window of time the compile is held between two of its runs and let go again: calls beside it and calls
// without it stand so close together that whatever else the machine does hits both. With one calling thread what is held spins, so that
// "without" is a second processor that is awake and touches no memory. Prints, for 1 and for 2 calling threads, the ratio of the p99 of
// all calls beside the compile to that of all calls while it was held. `--bar 1.05` fails above it; without one only wrong answers
// fail, because a ratio on a machine with other work says nothing.
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <limits>
#include <map>
#include <thread>

#include <CLI/CLI.hpp>

#include "core/api/session.h"
#include "core/base/background.h"

namespace keirin {
namespace {

using Clock = std::chrono::steady_clock;

struct Settings {
  std::string zoo, serve = "gcn";
  std::vector<std::string> compile = {"xlnet", "resnet50"};
  int rounds = 2;
  double seconds = 20;  // of what is not a compile
  double window = 1;
  double race_seconds = 1;
  double bar = 0;
  std::string beside = "compile";  // or "spin", "stream": what any other work on the second processor costs here
};

struct Model {
  std::unique_ptr<Session> session;
  std::vector<TensorRef> inputs;
};

bool same_bits(const std::vector<TensorRef>& a, const std::vector<TensorRef>& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i)
    if (a[i]->storage_bytes() != b[i]->storage_bytes() ||
        std::memcmp(a[i]->data(), b[i]->data(), static_cast<size_t>(a[i]->storage_bytes())) != 0)
      return false;
  return true;
}

double quantile(std::vector<double> values, double q) {
  if (values.empty()) return 0;
  const size_t k = std::min(values.size() - 1, static_cast<size_t>(q * static_cast<double>(values.size())));
  std::nth_element(values.begin(), values.begin() + static_cast<ptrdiff_t>(k), values.end());
  return values[k];
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return (values[(values.size() - 1) / 2] + values[values.size() / 2]) / 2;
}

// What a compile is doing, as it tells its progress; "capture" until it first says something.
constexpr std::array<const char*, 4> kStages = {"capture", "compile", "verify", "race"};

struct Call {
  double us;
  size_t stage;
  int window;  // odd: the compile was held from its begin to its end
};

class Service {
 public:
  explicit Service(const Settings& settings) : settings_(settings) {}

  Status open() {
    Options options;
    options.threads = 1;
    options.use_cache = false;
    options.race_seconds = settings_.race_seconds;
    KRN_TRY_LET(runtime_, Runtime::open(options));
    KRN_TRY_LET(served_, model(*runtime_, settings_.serve, options));
    KRN_TRY_LET(const ModelReport report, served_.session->compile(served_.inputs));
    std::printf("serving %s (%s, %.3f ms, verified %d), compiling", settings_.serve.c_str(), report.chosen.c_str(), report.chosen_ms,
                report.verified);
    options.compile = When::kBackground;
    options.progress = [this](const std::string& stage, double, double) {
      for (size_t s = 0; s < kStages.size(); ++s)
        if (stage.find(std::string(": ") + kStages[s]) != std::string::npos) stage_ = s;
    };
    KRN_TRY_LET(compiling_, Runtime::open(options));
    for (const std::string& name : settings_.compile) {
      KRN_TRY_LET(Model other, model(*compiling_, name, options));
      others_.push_back(std::move(other));
      std::printf(" %s", name.c_str());
    }
    std::printf("\n");
    std::fflush(stdout);
    KRN_TRY_LET(first_, served_.session->call(served_.inputs));
    (void)served_.session->reports();  // waits for the checks of the first calls
    return {};
  }

  // The ratio of p99 beside a compile over p99 without it; infinity if there was no time without.
  double compare(int threads) {
    std::vector<Call> calls;
    for (int round = 0; round < settings_.rounds; ++round) {
      for (size_t i = 0; i < (settings_.beside == "compile" ? others_.size() : 1); ++i) {
        over_ = false;
        std::thread other([&] {
          settings_.beside == "compile" ? compile(*others_[i].session, others_[i].inputs) : disturb();
          over_ = true;
        });
        std::thread conductor([&] { conduct(); });
        const std::vector<Call> some = serve(threads);
        calls.insert(calls.end(), some.begin(), some.end());
        conductor.join();
        other.join();
      }
    }
    std::array<std::vector<double>, 2> us;  // beside, without
    std::array<std::vector<double>, kStages.size()> stages;
    std::map<int, std::vector<double>> windows;
    for (const Call& call : calls) {
      us[static_cast<size_t>(call.window & 1)].push_back(call.us);
      windows[call.window].push_back(call.us);
      if (!(call.window & 1)) stages[call.stage].push_back(call.us);
    }
    std::vector<double> ratios;
    for (const auto& [window, without] : windows)
      if ((window & 1) && windows.count(window - 1)) ratios.push_back(quantile(windows[window - 1], 0.99) / quantile(without, 0.99));
    if (us[1].empty()) {
      std::printf("%d calling thread(s): it was over before it could be held for a window\n", threads);
      return std::numeric_limits<double>::infinity();
    }
    const double ratio = quantile(us[0], 0.99) / quantile(us[1], 0.99);
    std::printf("%d calling thread(s)\n  without   %zu calls, p50 %.1f us, p99 %.1f us\n", threads, us[1].size(), quantile(us[1], 0.5),
                quantile(us[1], 0.99));
    for (size_t s = 0; s < kStages.size(); ++s)
      if (!stages[s].empty())
        std::printf("  beside %s %zu calls, p50 %.1f us, p99 %.1f us\n",
                    settings_.beside == "compile" ? kStages[s] : settings_.beside.c_str(), stages[s].size(), quantile(stages[s], 0.5),
                    quantile(stages[s], 0.99));
    std::printf("%d calling thread(s): p50 %.3f, p99 %.3f of without a compile (median of %zu pairs of windows: p99 %.3f)\n", threads,
                quantile(us[0], 0.5) / quantile(us[1], 0.5), ratio, ratios.size(), median(ratios));
    std::fflush(stdout);
    return ratio;
  }
  int64_t wrong() const { return wrong_; }

 private:
  Result<Model> model(Runtime& runtime, const std::string& name, const Options& options) {
    Model m;
    KRN_TRY_LET(m.session, Session::open(runtime, settings_.zoo + "/" + name + ".pt2", options));
    KRN_TRY_LET(m.inputs, m.session->example_inputs(1));
    return m;
  }

  static std::chrono::duration<double> of_seconds(double seconds) { return std::chrono::duration<double>(seconds); }

  // Arithmetic alone: what calls lose to it, they lose to the processors themselves (a core in two halves, its clock). Streaming over
  // more than the caches hold: what is lost to caches and memory on top of that.
  void disturb() {
    give_way(GiveWay::kButForAShare);  // sleeps while it is held: what is measured is all that it costs
    const bool stream = settings_.beside == "stream";
    std::vector<uint64_t> from(stream ? size_t{8} << 20 : 512), to(from.size());
    const Clock::time_point begin = Clock::now();
    while (Clock::now() - begin < of_seconds(settings_.seconds)) {
      for (int repeat = 0; repeat < (stream ? 1 : 1000); ++repeat) {
        for (size_t i = 0; i < from.size(); ++i) to[i] = to[i] * 6364136223846793005u + from[i] + 1;
        from.swap(to);
      }
      pass_gate();
    }
  }

  void compile(Session& session, const std::vector<TensorRef>& inputs) {
    stage_ = 0;
    if (auto report = session.compile(inputs); !report.ok()) std::printf("compile: %s\n", report.status().text().c_str()), ++wrong_;
  }

  // Until it is over: lets the compile go for a window, waits until it stands, and holds it for a window.
  void conduct() {
    const auto sleep = [&](double seconds) {
      for (const Clock::time_point begin = Clock::now(); !over_ && Clock::now() - begin < of_seconds(seconds);)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    };
    while (!over_) {
      sleep(settings_.window);
      hold_background(true);
      while (!over_ && num_held() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      if (!over_) {
        ++window_;
        sleep(settings_.window);
        ++window_;
      }
      hold_background(false);
    }
  }

  std::vector<Call> serve(int threads) {
    std::vector<std::vector<Call>> calls(static_cast<size_t>(threads));
    std::vector<std::thread> callers;
    for (auto& mine : calls)
      callers.emplace_back([&] {
        mine.reserve(1 << 20);
        while (!over_) {
          const int window = window_;
          const Clock::time_point begin = Clock::now();
          auto outputs = served_.session->call(served_.inputs);
          const double us = std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
          const bool held = (window & 1) && window == window_;
          mine.push_back({us, stage_, held ? window : window & ~1});
          wrong_ += !outputs.ok() || !same_bits(*outputs, first_);
        }
      });
    for (std::thread& caller : callers) caller.join();
    for (size_t i = 1; i < calls.size(); ++i) calls[0].insert(calls[0].end(), calls[i].begin(), calls[i].end());
    return std::move(calls[0]);
  }

  const Settings settings_;
  std::unique_ptr<Runtime> runtime_, compiling_;
  Model served_;
  std::vector<Model> others_;
  std::vector<TensorRef> first_;
  std::atomic<int64_t> wrong_{0};
  std::atomic<size_t> stage_{0};
  std::atomic<int> window_{0};
  std::atomic<bool> over_{false};
};

int run(int argc, char** argv) {
  Settings settings;
  settings.zoo = std::string(KEIRIN_SOURCE_DIR) + "/bench/zoo/models/small";
  std::vector<int> threads = {1, 2};
  CLI::App app("What calls in service notice of a compile in the background");
  app.add_option("--serve", settings.serve, "zoo model that is called")->capture_default_str();
  app.add_option("--compile", settings.compile, "zoo models that are compiled meanwhile")->capture_default_str();
  app.add_option("--threads", threads, "numbers of calling threads")->capture_default_str();
  app.add_option("--rounds", settings.rounds, "how often each is compiled")->capture_default_str();
  app.add_option("--seconds", settings.seconds, "of --beside spin and stream")->capture_default_str();
  app.add_option("--window", settings.window, "seconds for which the compile is held, and let go again")->capture_default_str();
  app.add_option("--race-limit", settings.race_seconds, "seconds of the race in a compile")->capture_default_str();
  app.add_option("--bar", settings.bar, "highest ratio of p99 with one calling thread; 0: none");
  app.add_option("--beside", settings.beside,
                 "what the second processor does meanwhile: compile; spin (arithmetic); stream (128 MB of memory)")
      ->check(CLI::IsMember({"compile", "spin", "stream"}))
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  Service service(settings);
  if (const Status status = service.open(); !status.ok()) {
    std::printf("%s\n", status.text().c_str());
    return 1;
  }
  bool passed = true;
  for (const int n : threads) {
    const double ratio = service.compare(n);
    if (n == 1 && settings.bar > 0 && ratio > settings.bar) passed = false, std::printf("above the bar of %.2f\n", settings.bar);
  }
  std::printf("%lld wrong answers\n", static_cast<long long>(service.wrong()));
  return passed && service.wrong() == 0 ? 0 : 1;
}

}  // namespace
}  // namespace keirin

int main(int argc, char** argv) { return keirin::run(argc, argv); }
