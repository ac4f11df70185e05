// SPDX-License-Identifier: Apache-2.0
//
// keirin bench: measures models side by side with eager and prints one table over all of them.
#include <fmt/format.h>
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <mutex>
#include <thread>

#include "core/api/devices.h"
#include "core/eager/tensor_services.h"
#include "core/host/plugins.h"
#include "tools/files.h"
#include "tools/options.h"
#include "tools/page/page.h"
#include "tools/program.h"
#include "tools/tensors.h"

namespace keirin::tools {
namespace {
namespace fs = std::filesystem;

struct Bench {
  CommonOptions common;
  std::vector<std::string> models;
  std::vector<std::string> sizes;  // "8,128": one run of every model with these free sizes each
  bool costs = false;
  std::string cache;               // of this run alone, where cold starts are measured
  std::string html;
};

// What a process finds that starts after this one: its own, because code compiled in this one is still in memory. 0: nothing to load.
double warm_start_seconds(const Bench& bench, const std::string& model) {
  const fs::path out = fs::path(bench.cache) / "warm.json";
  // All of its options: under any other ones it would not find the decision.
  std::vector<std::string> words = {"keirin", "run", model, "--size", bench.common.size, "--json", out.string(), "--quiet"};
  for (std::string& word : command_words(bench.common.runtime)) words.push_back(std::move(word));
  if (run_program({.program = "/proc/self/exe", .words = std::move(words)}).code != 0) return 0;
  std::ifstream file(out);
  nlohmann::json report = nlohmann::json::parse(file, nullptr, false);
  return report.is_object() ? report.value("warm_start_s", 0.0) : 0;
}

// Calls one by one, as they come from a caller that waits for each: for half a second, at least 10 and at most 1,000.
Result<LatencyReport> time_calls(Runtime& runtime, Session& session, const std::vector<TensorRef>& inputs) {
  using Clock = std::chrono::steady_clock;
  const Device device = inputs.empty() ? Device{} : inputs[0]->device();
  const auto call = [&]() -> Result<double> {
    const auto begin = Clock::now();
    KRN_TRY(session.call(inputs).status());
    KRN_TRY(runtime.tensors().synchronize(device));
    return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
  };
  for (int i = 0; i < 5; ++i) KRN_TRY(call().status());
  (void)session.reports();  // waits until the first calls have been compared with eager
  std::vector<double> ms;
  const auto end = Clock::now() + std::chrono::milliseconds(500);
  while (ms.size() < 10 || (ms.size() < 1000 && Clock::now() < end)) {
    KRN_TRY_LET(const double took, call());
    ms.push_back(took);
  }
  double sum = 0;
  for (const double each : ms) sum += each;
  std::sort(ms.begin(), ms.end());
  const auto at = [&](size_t percent) { return ms[std::min(ms.size() - 1, ms.size() * percent / 100)]; };
  LatencyReport out{static_cast<int>(ms.size()), at(50), at(90), at(99), static_cast<double>(ms.size()) / sum * 1e3, 0};
  out.samples_per_s = out.calls_per_s * static_cast<double>(!inputs.empty() && inputs[0]->rank() > 0 ? inputs[0]->sizes()[0] : 1);
  return out;
}

Result<ModelReport> bench_one(Runtime& runtime, Session& session, const Bench& bench, const std::string& path,
                              const std::string& sizes) {
  KRN_TRY_LET(const std::vector<int64_t> values, parse_sizes(sizes));
  KRN_TRY_LET(const std::vector<TensorRef> inputs, inputs_for(session, runtime, path, bench.common, values));
  KRN_TRY_LET(ModelReport report, session.compile(inputs));
  if (report.fitness == "time" && report.disturbed.empty()) {
    KRN_TRY_LET(report.latency, time_calls(runtime, session, inputs));
  }
  return report;
}

class Table {
 public:
  explicit Table(const Bench& bench) : bench_(bench) {}

  // What is known is on disk after every model: a run that is cut short loses nothing.
  Status add(ModelReport report) {
    const std::lock_guard lock(mutex_);
    if (!bench_.common.quiet)
      fmt::print(stderr, "  {}: {} {}, {}\n", model_at_sizes(report), report.chosen,
                 report.disturbed.empty() ? fmt::format("{:.2f}x", report.speedup) : "disturbed: " + report.disturbed,
                 report.verified ? "verified" : "NOT VERIFIED");
    print_warnings(report);
    reports_.push_back(std::move(report));
    if (!bench_.html.empty())
      KRN_TRY(write_text(bench_.html, page_html("Keirin: models beside eager", View::kModels, bench_json(reports_))));
    if (bench_.common.json.empty() || bench_.common.json == "-") return {};
    return write_text(bench_.common.json, bench_json(reports_).dump(2) + "\n");
  }
  Status print() const {
    const std::lock_guard lock(mutex_);
    if (reports_.empty()) return {};
    std::FILE* out = text_out(bench_.common.json);
    const size_t width = table_width(bench_.common.wide);
    fmt::print(out, "{}", bench_table(reports_, width));
    if (bench_.costs) fmt::print(out, "\n{}", costs_table(reports_, width));
    return bench_.common.json == "-" ? write_text("-", bench_json(reports_).dump(2) + "\n") : Status();
  }

 private:
  const Bench& bench_;
  mutable std::mutex mutex_;
  std::vector<ModelReport> reports_;
};

// Ctrl-C: what is finished is printed, at once, by a thread that waits for it; a second one ends the process as ever.
class Interruption {
 public:
  explicit Interruption(const Table& table) {
    if (pipe2(ends_, O_CLOEXEC) != 0) return;
    write_end_ = ends_[1];
    struct sigaction action {};
    action.sa_handler = [](int) { (void)!write(write_end_, "", 1); };
    action.sa_flags = SA_RESETHAND | SA_RESTART;
    struct sigaction before {};
    sigaction(SIGINT, &action, &before);
    if (before.sa_handler == SIG_IGN) sigaction(SIGINT, &before, nullptr);  // a job in the background stays one
    watcher_ = std::thread([this, &table] {
      char byte = 0;
      if (read(ends_[0], &byte, 1) != 1) return;  // the end of the bench closed it
      end_progress_line();
      fmt::print(stderr, "interrupted; what is finished:\n");
      (void)table.print();
      std::fflush(nullptr);
      _exit(kInterrupted);
    });
  }
  ~Interruption() {
    signal(SIGINT, SIG_DFL);
    close(ends_[1]);
    if (watcher_.joinable()) watcher_.join();
    close(ends_[0]);
  }

 private:
  static inline int write_end_ = -1;
  int ends_[2] = {-1, -1};
  std::thread watcher_;
};

// What LibTorch would drive and cannot: a GPU is in the machine, so that a table without it has to say why.
void tell_missing(Runtime& runtime, const std::vector<Device>& here) {
  for (const HardwareItem& item : runtime.plugins().hardware()) {
    if (!item.torch_device || std::find(here.begin(), here.end(), *item.torch_device) != here.end()) continue;
    const Message missing = find_device(device_name(*item.torch_device), runtime.plugins()).status().message();
    fmt::print(stderr, "keirin: {} is in this machine and not measured: {}\n  fix: {}\n", item.description, missing.what, missing.advice);
  }
}

std::vector<std::string> device_names(const std::string& word, Runtime& runtime) {
  if (word != "all") return {word};
  const std::vector<Device> here = devices_here();
  tell_missing(runtime, here);
  std::vector<std::string> out;
  for (const Device& device : here) out.push_back(device_name(device));
  return out;
}

int bench_model(Runtime& runtime, const Bench& bench, const std::string& model, Table& table) {
  const Result<std::string> path = find_model(model, bench.common.size);
  auto session = path.ok() ? Session::open(runtime, *path, bench.common.runtime) : path.status();
  if (!session.ok()) return fail(session.status());
  int exit_code = kOk;
  for (const std::string& at : bench.sizes.empty() ? std::vector<std::string>{""} : bench.sizes) {
    auto report = bench_one(runtime, **session, bench, *path, at);
    end_progress_line();
    if (!report.ok()) {
      exit_code = fail(report.status());
      continue;
    }
    if (bench.costs && at.empty()) report->warm_start_seconds = warm_start_seconds(bench, model);
    if (!report->verified) exit_code = kFailed;
    if (const Status written = table.add(std::move(*report)); !written.ok()) return fail(written);
  }
  return exit_code;
}

int run_all(const Bench& bench) {
  auto runtime = Runtime::open(bench.common.runtime);
  if (!runtime.ok()) return fail(runtime.status());
  Table table(bench);
  const Interruption interruption(table);
  std::vector<Bench> devices;  // what is asked for on each
  for (const std::string& name : device_names(bench.common.runtime.device, **runtime))
    devices.emplace_back(bench).common.runtime.device = name;
  int exit_code = kOk;
  for (const std::string& model : bench.models) {
    if (!bench.common.quiet && bench.models.size() > 1)
      fmt::print(stderr, "{}/{} {}\n", &model - bench.models.data() + 1, bench.models.size(), model);
    for (const Bench& device : devices)
      if (const int code = bench_model(**runtime, device, model, table); code != kOk) exit_code = code;  // the others are still run
  }
  if (Status printed = table.print(); !printed.ok()) return fail(printed);
  return exit_code;
}

int run(Bench& bench) {
  bench.common.finish();
  bench.common.runtime.measure_again = true;
  bench.common.runtime.limits = true;
  if (!bench.costs) return run_all(bench);
  // Cold means cold: nothing that an earlier run left.
  const Result<ScratchFolder> folder = ScratchFolder::make("bench");
  if (!folder.ok()) return fail(folder.status());
  bench.cache = bench.common.runtime.cache_dir = folder->path();
  return run_all(bench);
}

}  // namespace

void add_bench(CLI::App& app, int& exit_code) {
  auto bench = std::make_shared<Bench>();
  CLI::App* word = app.add_subcommand("bench", "measure models against eager and print one table");
  word->add_option("models", bench->models, ".pt2 files or names of the zoo; none: the whole zoo");
  word->add_option("--at", bench->sizes, "sizes for the free dimensions of a dynamic model, as 8,128; repeat it for more rows");
  word->add_flag("--costs", bench->costs, "also what starting costs: with an empty cache, and again in a process that finds it filled");
  word->add_option("--html", bench->html, "write a page with plots: the models, and the steps of each with their times");
  bench->common.add_to(*word);
  word->callback([bench, &exit_code] {
    if (bench->models.empty()) bench->models = zoo_names(bench->common.size);
    exit_code = run(*bench);
  });
}

}  // namespace keirin::tools
