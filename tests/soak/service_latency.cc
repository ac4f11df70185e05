// SPDX-License-Identifier: Apache-2.0
//
// What a service's calls notice of a compile in the background: blocks of calls alone and blocks beside Session::compile of other
// models, in turns A B B A, so that whatever else the machine does hits both. Prints one line per round and, for 1 and for 2 calling
// threads, the median over the rounds of the ratio of their p99. `--bar 1.05` fails above it; without one only wrong answers fail, because
// a ratio on a machine with other work says nothing.
#include <sched.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <thread>

#include <CLI/CLI.hpp>

#include "core/api/session.h"
#include "core/host/background.h"

namespace keirin {
namespace {

using Clock = std::chrono::steady_clock;

struct Settings {
  std::string zoo, serve = "gcn";
  std::vector<std::string> compile = {"xlnet", "resnet50"};
  int rounds = 2;
  double seconds = 3;   // of a block at least
  double race_seconds = 1;
  double bar = 0;
  std::string beside = "compile";  // or "spin", "stream": what any other work on the second processor costs here
  std::string priorities = "background";  // or "equal": what giving way is worth; or "realtime": see realtime()
};

struct Model {
  std::unique_ptr<Session> session;
  std::vector<TensorRef> inputs;
};

bool same_bits(const std::vector<TensorRef>& a, const std::vector<TensorRef>& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i)
    if (a[i]->storage_bytes() != b[i]->storage_bytes() || std::memcmp(a[i]->data(), b[i]->data(), static_cast<size_t>(a[i]->storage_bytes())) != 0)
      return false;
  return true;
}

double quantile(std::vector<double> values, double q) {
  if (values.empty()) return 0;
  const size_t k = std::min(values.size() - 1, static_cast<size_t>(q * static_cast<double>(values.size())));
  std::nth_element(values.begin(), values.begin() + static_cast<ptrdiff_t>(k), values.end());
  return values[k];
}

// Of few values: of an even number the mean of the middle two.
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
};

struct Block {
  size_t calls = 0;
  double p50 = 0, p99 = 0;  // microseconds
  std::array<std::vector<double>, kStages.size()> by_stage;
};

// Keeps other processes off both processors: what is left is what calls and compile share, caches, memory and locks. What the
// scheduler does to them is not seen then.
void realtime(const Settings& settings, int priority) {
  sched_param p{};
  p.sched_priority = priority;
  if (settings.priorities == "realtime" && ::sched_setscheduler(0, SCHED_RR, &p) != 0) std::printf("not allowed: real-time priorities\n");
}

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
    std::printf("serving %s (%s, %.3f ms, verified %d), compiling", settings_.serve.c_str(), report.chosen.c_str(), report.chosen_ms, report.verified);
    options.background = settings_.priorities == "background";
    if (settings_.priorities == "realtime") keep_freed_memory();  // what the background does too
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
    std::printf(", priorities: %s\n", settings_.priorities.c_str());
    std::fflush(stdout);
    KRN_TRY_LET(first_, served_.session->call(served_.inputs));
    (void)served_.session->reports();  // waits for the checks of the first calls
    return {};
  }

  // The ratio of p99 beside a compile over p99 alone.
  double compare(int threads) {
    std::vector<double> alone, beside, ratios, ratios50;
    std::array<std::vector<double>, kStages.size()> stages;
    std::printf("%d calling thread(s)\n| round | calls alone | p50 us | p99 us | calls beside | p50 us | p99 us | compiles |\n|---|---|---|---|---|---|---|---|\n", threads);
    for (int round = 0; round < settings_.rounds; ++round) {
      Block a, b;
      const int before = compiles_;
      for (const bool compiling : {round % 2 == 0 ? false : true, round % 2 == 0 ? true : false}) {
        std::atomic<bool> over{false};
        std::thread compiler;
        if (compiling) compiler = std::thread([&] { settings_.beside == "compile" ? compile_for(settings_.seconds, over) : disturb(settings_.seconds, over); });
        else if (settings_.priorities == "realtime" && threads == 1) compiler = std::thread([&] { keep_quiet(over); });
        (compiling ? b : a) = serve(threads, over, !compiling);
        over = true;
        if (compiler.joinable()) compiler.join();
      }
      for (size_t s = 0; s < kStages.size(); ++s) stages[s].insert(stages[s].end(), b.by_stage[s].begin(), b.by_stage[s].end());
      alone.push_back(a.p99), beside.push_back(b.p99), ratios.push_back(b.p99 / a.p99), ratios50.push_back(b.p50 / a.p50);
      std::printf("| %d | %zu | %.1f | %.1f | %zu | %.1f | %.1f | %d |\n", round, a.calls, a.p50, a.p99, b.calls, b.p50, b.p99, compiles_ - before);
      std::fflush(stdout);
    }
    for (size_t s = 0; s < kStages.size(); ++s)
      std::printf("  beside %-8s %zu calls, p50 %.1f us, p99 %.1f us\n", kStages[s], stages[s].size(), quantile(stages[s], 0.5), quantile(stages[s], 0.99));
    std::printf("%d calling thread(s): p50 %.3f, p99 %.3f of without a compile (medians of %zu rounds' ratios; of the blocks: p99 %.3f)\n",
                threads, median(ratios50), median(ratios), ratios.size(), median(beside) / median(alone));
    return median(ratios);
  }
  int64_t wrong() const { return wrong_; }

 private:
  Result<Model> model(Runtime& runtime, const std::string& name, const Options& options) {
    Model m;
    KRN_TRY_LET(m.session, Session::open(runtime, settings_.zoo + "/" + name + ".pt2", options));
    KRN_TRY_LET(m.inputs, m.session->example_inputs(1));
    return m;
  }

  // Holds the other processor without touching memory: what is measured as "alone" is alone.
  void keep_quiet(const std::atomic<bool>& over) {
    realtime(settings_, 11);
    while (!over) {
    }
  }

  // Arithmetic alone: what calls lose to it, they lose to the processors themselves (a core in two halves, its clock). Streaming over
  // more than the caches hold: what is lost to caches and memory on top of that.
  void disturb(double seconds, std::atomic<bool>& over) {
    if (settings_.priorities == "background") give_way(GiveWay::kToAll);
    realtime(settings_, 11);
    const bool stream = settings_.beside == "stream";
    std::vector<uint64_t> from(stream ? size_t{8} << 20 : 512), to(from.size());
    const Clock::time_point end = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
    while (Clock::now() < end) {
      for (size_t i = 0; i < from.size(); ++i) to[i] = to[i] * 6364136223846793005u + from[i] + 1;
      from.swap(to);
    }
    over = true;
  }

  void compile_for(double seconds, std::atomic<bool>& over) {
    realtime(settings_, 11);
    const Clock::time_point end = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
    do {
      stage_ = 0;
      const Model& m = others_[static_cast<size_t>(compiles_++) % others_.size()];
      if (auto report = m.session->compile(m.inputs); !report.ok()) std::printf("compile: %s\n", report.status().text().c_str()), ++wrong_;
    } while (Clock::now() < end);
    over = true;
  }

  Block serve(int threads, std::atomic<bool>& over, bool by_time) {
    const Clock::time_point end = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(settings_.seconds));
    std::vector<std::vector<Call>> times(static_cast<size_t>(threads));
    std::vector<std::thread> callers;
    for (auto& mine : times)
      callers.emplace_back([&] {
        realtime(settings_, 12);
        mine.reserve(1 << 20);
        while (by_time ? Clock::now() < end : !over) {
          const Clock::time_point begin = Clock::now();
          auto outputs = served_.session->call(served_.inputs);
          mine.push_back({std::chrono::duration<double, std::micro>(Clock::now() - begin).count(), stage_});
          wrong_ += !outputs.ok() || !same_bits(*outputs, first_);
        }
      });
    for (std::thread& caller : callers) caller.join();
    Block block;
    std::vector<double> all;
    for (const auto& mine : times)
      for (const Call& call : mine) {
        all.push_back(call.us);
        block.by_stage[call.stage].push_back(call.us);
      }
    block.calls = all.size(), block.p50 = quantile(all, 0.5), block.p99 = quantile(all, 0.99);
    return block;
  }

  const Settings settings_;
  std::unique_ptr<Runtime> runtime_, compiling_;
  Model served_;
  std::vector<Model> others_;
  std::vector<TensorRef> first_;
  std::atomic<int64_t> wrong_{0};
  std::atomic<size_t> stage_{0};
  int compiles_ = 0;
};

int run(int argc, char** argv) {
  Settings settings;
  settings.zoo = std::string(KEIRIN_SOURCE_DIR) + "/bench/zoo/models/small";
  std::vector<int> threads = {1, 2};
  CLI::App app("What calls in service notice of a compile in the background");
  app.add_option("--serve", settings.serve, "zoo model that is called")->capture_default_str();
  app.add_option("--compile", settings.compile, "zoo models that are compiled meanwhile")->capture_default_str();
  app.add_option("--threads", threads, "numbers of calling threads")->capture_default_str();
  app.add_option("--rounds", settings.rounds, "blocks of each kind")->capture_default_str();
  app.add_option("--seconds", settings.seconds, "of a block at least")->capture_default_str();
  app.add_option("--race-limit", settings.race_seconds, "seconds of the race in a compile")->capture_default_str();
  app.add_option("--bar", settings.bar, "highest ratio of p99 with one calling thread; 0: none");
  app.add_option("--beside", settings.beside, "what the second processor does meanwhile: compile; spin (arithmetic); stream (128 MB of memory)")
      ->check(CLI::IsMember({"compile", "spin", "stream"}))->capture_default_str();
  app.add_option("--priorities", settings.priorities, "background: as in service; equal: nothing gives way; realtime: calls and compile "
                 "above everything else on the machine, calls first")->check(CLI::IsMember({"background", "equal", "realtime"}))->capture_default_str();
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
