// SPDX-License-Identifier: Apache-2.0
//
// A service that is not left in peace: two models with free sizes, in one process and behind the queues of `keirin serve`, are asked at
// times that do not wait for answers, in sizes drawn anew for each request. Meanwhile each of them is replaced by a new version again and
// again, by one of other weights and by one opened from its file in turns, and the processes that compile and that run regions are killed
// at random.
//
//   service_soak [--minutes 30] [--swap-every 20] [--kill-every 7] [--load 0.4] [--compare-every 5] [--most 2,32] [MODEL.pt2 MODEL.pt2]
//
// It fails where an answer is not that of eager of the version that was asked, where a request gets none, where a request compiled, where
// nothing was killed or replaced, where plans have stopped answering, where the last third of the time has more threads or descriptors
// than the one before, and where memory grows: what is held at the best moment of each version's life is compared with what it was in
// the same phase of earlier cycles, at the same number of plans (growth.h): what the allocator has handed out, and what lies in memory
// otherwise. What it keeps of what was freed is printed, and is no leak. Where what it holds goes up and down by so much that growth would
// hide in it, that is a failure too: give it more time. `--leak` plants a leak. `--brief`: small models for a third of a minute, for a
// test; that finds what grows fast, and says where it was too short to tell the rest.
#include <dirent.h>
#include <malloc.h>
#include <signal.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <future>
#include <map>
#include <mutex>
#include <numeric>
#include <random>
#include <thread>
#include <tuple>

#include "core/api/session.h"
#include "core/base/request.h"
#include "tests/soak/growth.h"
#include "tests/support/others.h"
#include "tests/support/temp_folder.h"
#include "tools/serve/load_run.h"
#include "tools/serve/model_table.h"

namespace keirin {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using Tensors = std::vector<TensorRef>;
using tools::LoadPlan;
using tools::LoadResult;
using tools::ModelTable;
using tools::ServedModel;

constexpr double kFarOff = 1e-3;         // of an output's largest element: more is another answer
constexpr double kMoreMemory = 0.05;     // that memory may grow by from the second cycle to the last, of what was held,
constexpr double kMoreBytes = 16 << 20;  // and what allocators may settle by
constexpr size_t kPhases = 4;            // of a cycle: two models, each by other weights and by its file
constexpr int kMoreThings = 4;           // threads, descriptors: a process that is being started has some of its own
constexpr auto kSample = std::chrono::milliseconds(200);

struct Settings {
  double minutes = 30, swap_seconds = 20, kill_seconds = 7, load = 0.4, race_seconds = 0.5, tell_seconds = 0, leak_mb = 0;
  int compare_every = 5, kinds = 12, callers = 8;
  uint64_t seed = 1;
  bool brief = false;
  std::string most, folder;
  std::vector<std::string> models;
};

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// The largest difference as a share of the largest element; infinite where something else differs. Outputs are dense, on the CPU, in f32.
double difference(const Tensors& ours, const Tensors& expected) {
  if (ours.size() != expected.size()) return INFINITY;
  double off = 0, largest = 1e-30;
  for (size_t k = 0; k < ours.size(); ++k) {
    if (spec_text(spec_of(*ours[k])) != spec_text(spec_of(*expected[k])) || ours[k]->dtype() != DType::k_f32) return INFINITY;
    const auto *x = static_cast<const float*>(ours[k]->data()), *y = static_cast<const float*>(expected[k]->data());
    int64_t n = 1;
    for (int64_t d = 0; d < ours[k]->rank(); ++d) n *= ours[k]->sizes()[d];
    for (int64_t i = 0; i < n; ++i) {
      if (!std::isfinite(x[i])) return INFINITY;
      off = std::max(off, std::fabs(static_cast<double>(x[i]) - static_cast<double>(y[i])));
      largest = std::max(largest, std::fabs(static_cast<double>(y[i])));
    }
  }
  return off / largest;
}

// The processes that this one has started and that are at work.
struct Child {
  pid_t pid;
  std::string role;
};

std::vector<Child> children() {
  std::vector<Child> out;
  for (const auto& entry : fs::directory_iterator("/proc")) {
    const std::string pid = entry.path().filename().string();
    if (pid.find_first_not_of("0123456789") != std::string::npos) continue;
    std::string stat, words;
    std::getline(std::ifstream(entry.path() / "stat"), stat);
    const size_t end = stat.rfind(')');
    if (end == std::string::npos || end + 4 > stat.size() || stat[end + 2] == 'Z' || std::atoi(stat.c_str() + end + 4) != ::getpid())
      continue;
    std::getline(std::ifstream(entry.path() / "cmdline"), words);
    const size_t role = words.find('\0');
    if (role != std::string::npos) out.push_back({std::atoi(pid.c_str()), words.c_str() + role + 1});
  }
  return out;
}

double resident_bytes(const std::string& pid) {
  double pages = 0, resident = 0;
  std::ifstream("/proc/" + pid + "/statm") >> pages >> resident;
  return resident * static_cast<double>(::sysconf(_SC_PAGESIZE));
}

int entries_of(const char* folder) { return static_cast<int>(std::distance(fs::directory_iterator(folder), fs::directory_iterator())); }

// What the allocator has handed out and not got back; what it keeps besides, or gives back late, is no leak. Without glibc: all there is.
double allocated_bytes() {
#if defined(__GLIBC__)
  const struct mallinfo2 heap = ::mallinfo2();
  return static_cast<double>(heap.uordblks + heap.hblkhd);
#else
  return resident_bytes("self");
#endif
}

// What lies in memory, by who has it there: the allocator (its heap, and those of threads, which begin at multiples of 64 MB), or somebody
// else: files, memory that is shared with workers, stacks, what was mapped by itself.
struct Resident {
  double allocator = 0, others = 0;
};

Resident resident_now() {
  constexpr uint64_t kHeap = 64 << 20;
  Resident out;
  std::ifstream file("/proc/self/smaps");
  bool of_allocator = false;
  for (std::string line; std::getline(file, line);) {
    unsigned long long begin = 0, end = 0, kilobytes = 0;
    char rights[5] = {};
    if (std::sscanf(line.c_str(), "%llx-%llx %4s", &begin, &end, rights) == 3) {
      const bool named = line.find('/') != std::string::npos || line.find('[') != std::string::npos;
      of_allocator = line.ends_with("[heap]") || (!named && begin % kHeap == 0);
    } else if (std::sscanf(line.c_str(), "Rss: %llu kB", &kilobytes) == 1) {
      (of_allocator ? out.allocator : out.others) += 1024 * static_cast<double>(kilobytes);
    }
  }
  return out;
}

struct Usage {
  double bytes = 0, workers_bytes = 0, largest_worker = 0;
  int threads = 0, descriptors = 0;
  uint64_t by_plan = 0;
  int version = 0;  // how many replacements were before
  double plans = 0, allocated = 0;
  Resident resident;
};

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::nth_element(values.begin(), values.begin() + static_cast<ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

// One of the two models: what stays while its versions change.
struct Kind {
  std::vector<int64_t> sizes;
  Tensors inputs;
};

struct Place {
  std::string name, path;
  std::vector<Kind> kinds;
};

class Soak {
 public:
  Soak(const Settings& settings, const Options& options) : settings_(settings), options_(options), random_(settings.seed) {}

  Status open() {
    KRN_TRY_LET(runtime_, Runtime::open(options_));
    double eager_seconds = 0;
    size_t count = 0;
    for (const std::string& path : settings_.models) {
      Place place{fs::path(path).stem().string(), path, {}};
      KRN_TRY_LET(auto session, Session::open(*runtime_, path, options_));
      std::vector<Dimension> free;
      for (const Port& port : session->signature().inputs)
        for (const Dimension& size : port.sizes)
          if (size.free && std::none_of(free.begin(), free.end(), [&](const Dimension& d) { return d.symbol == size.symbol; }))
            free.push_back(size);
      for (int k = 0; k < settings_.kinds; ++k) {
        Kind kind;
        for (size_t d = 0; d < free.size(); ++d) {
          const auto least = static_cast<double>(free[d].min), most = static_cast<double>(std::max(free[d].min, most_of(d, free[d])));
          const double at = std::uniform_real_distribution<double>(std::log(least), std::log(most + 1))(random_);
          kind.sizes.push_back(std::clamp(static_cast<int64_t>(std::exp(at)), free[d].min, static_cast<int64_t>(most)));
        }
        KRN_TRY_LET(kind.inputs, session->example_inputs(settings_.seed + static_cast<uint64_t>(k), kind.sizes));
        KRN_TRY(session->call_eager(kind.inputs).status());
        const auto start = Clock::now();
        KRN_TRY(session->call_eager(kind.inputs).status());
        eager_seconds += seconds_since(start), ++count;
        place.kinds.push_back(std::move(kind));
      }
      places_.push_back(std::move(place));
      KRN_TRY(put(places_.back(), std::move(session)));
    }
    plan_.rate = settings_.load * static_cast<double>(count) / eager_seconds;
    plan_.seconds = settings_.minutes * 60;
    plan_.callers = settings_.callers;
    plan_.seed = settings_.seed;
    plan_.kinds = places_.size() * static_cast<size_t>(settings_.kinds);
    std::printf("%zu models in %zu sizes each; eager takes %.2f ms on average; %.1f requests a second\n", places_.size(),
                static_cast<size_t>(settings_.kinds), 1e3 * eager_seconds / static_cast<double>(count), plan_.rate);
    std::fflush(stdout);
    return {};
  }

  // 0 if all went well, else 1; the last line is the summary.
  int run() {
    std::thread watching([this] { watch(); }), replacing([this] { replace(); }), killing([this] { kill_some(); });
    const LoadResult result = tools::run_load(plan_, [this] { return [this](size_t kind) { return ask(kind); }; });
    over_ = true;
    for (std::thread* thread : {&watching, &replacing, &killing}) thread->join();
    tell_kept();
    if (!trouble_.empty()) std::printf("%s\n", trouble_.c_str());
    uint64_t lost = 0;
    for (const auto& [what, times] : result.failures) {
      lost += times;
      std::printf("  %llu x %s\n", static_cast<unsigned long long>(times), what.c_str());
    }
    return judge(result, lost);
  }

 private:
  int64_t most_of(size_t at, const Dimension& size) const {
    std::istringstream list(settings_.most);
    std::string each;
    for (size_t i = 0; std::getline(list, each, ','); ++i)
      if (i == at) return size.max > 0 ? std::min<int64_t>(size.max, std::atoll(each.c_str())) : std::atoll(each.c_str());
    return size.max > 0 ? size.max : size.min + 64;
  }

  // In place of the version that is there. What eager says of this one is known before anybody can ask it.
  Status put(const Place& place, std::unique_ptr<Session> session) {
    auto expected = std::make_shared<std::vector<Tensors>>();
    for (const Kind& kind : place.kinds) {
      KRN_TRY_LET(Tensors outputs, session->call_eager(kind.inputs));
      expected->push_back(std::move(outputs));
    }
    auto model = std::make_shared<ServedModel>(place.name, *runtime_, std::move(session), tools::ServingOptions());
    const ServedModel* old = nullptr;
    uint64_t by_plan = 0;  // of the old one, until nearly its end
    {
      const std::lock_guard lock(mutex_);
      if (const auto there = table_.find(place.name)) old = there.get(), by_plan = there->session().activity().by_plan;
      expected_[model.get()] = expected;
    }
    table_.put(std::move(model));
    const std::lock_guard lock(mutex_);
    by_plan_before_ += by_plan;
    if (old) expected_.erase(old);
    return {};
  }

  std::string ask(size_t number) {
    const size_t which = number / static_cast<size_t>(settings_.kinds), kind = number % static_cast<size_t>(settings_.kinds);
    const std::shared_ptr<ServedModel> model = table_.find(places_[which].name);
    std::promise<Result<Tensors>> promise;
    ServedModel::Request request;
    request.inputs = places_[which].kinds[kind].inputs;
    request.done = [&promise](Result<Tensors> outputs) { promise.set_value(std::move(outputs)); };
    model->submit(std::move(request));
    const Result<Tensors> outputs = promise.get_future().get();
    if (!outputs.ok()) return outputs.status().text();
    if (calls_++ % static_cast<uint64_t>(settings_.compare_every) != 0) return {};
    std::shared_ptr<std::vector<Tensors>> expected;
    {
      const std::lock_guard lock(mutex_);
      expected = expected_.at(model.get());
    }
    const double off = difference(*outputs, (*expected)[kind]);
    ++compared_;
    if (off <= kFarOff) return {};
    ++wrong_;
    std::printf("wrong by %.3g of the largest element: %s\n", off, places_[which].name.c_str());
    return {};
  }

  // Memory that nobody gives back.
  void leak() {
    const auto bytes = static_cast<size_t>(settings_.leak_mb * (1 << 20));
    if (bytes == 0) return;
    leaked_.emplace_back(bytes, 'x');
  }

  // Each of the two in turn: now by other weights, now by its file.
  void replace() {
    for (int i = 0; sleep(settings_.swap_seconds); ++i) {
      const Place& place = places_[static_cast<size_t>(i) % places_.size()];
      leak();
      const Status status = i / static_cast<int>(places_.size()) % 2 == 0 ? with_other_weights(place, i) : from_file(place);
      if (status.ok())
        ++swaps_;
      else
        note("a new version of " + place.name + " could not be made: " + status.text());
    }
  }

  Status with_other_weights(const Place& place, int version) {
    KRN_TRY_LET(auto session, other_version(*table_.find(place.name), version));
    return put(place, std::move(session));
  }
  Result<std::unique_ptr<Session>> other_version(ServedModel& model, int version) {
    for (const auto& [name, tensor] : model.session().weights()) {
      if (tensor->dtype() != DType::k_f32 || tensor->rank() != 1) continue;
      KRN_TRY_LET(const TensorRef other, runtime_->tensors().clone(tensor));
      auto* values = static_cast<float*>(other->data());
      for (int64_t i = 0; i < other->sizes()[0]; ++i) values[i] *= 1 + 0.01f * static_cast<float>(version + 1);
      return model.session().with_weights({{name, other}});
    }
    return Status(Code::k_unsupported, "it has no vector of weights");
  }
  Status from_file(const Place& place) {
    KRN_TRY_LET(auto session, Session::open(*runtime_, place.path, options_));
    return put(place, std::move(session));
  }

  void kill_some() {
    std::mt19937_64 random(settings_.seed + 1);
    std::exponential_distribution<double> pause(1 / settings_.kill_seconds);
    while (sleep(pause(random))) {
      std::vector<Child> there = children();
      std::erase_if(there, [](const Child& child) { return child.role != "compile" && child.role != "run"; });
      if (there.empty()) continue;
      const Child& child = there[std::uniform_int_distribution<size_t>(0, there.size() - 1)(random)];
      if (::kill(child.pid, SIGKILL) == 0) ++kills_[child.role == "compile" ? 0 : 1];
    }
  }

  void watch() {
    auto told = Clock::now();
    while (sleep(std::chrono::duration<double>(kSample).count())) {
      Usage usage{.bytes = resident_bytes("self"), .threads = entries_of("/proc/self/task"), .descriptors = entries_of("/proc/self/fd"),
                  .version = swaps_, .allocated = allocated_bytes(), .resident = resident_now()};
      for (const Child& child : children()) {
        const double bytes = resident_bytes(std::to_string(child.pid));
        usage.workers_bytes += bytes;
        usage.largest_worker = std::max(usage.largest_worker, bytes);
      }
      const std::lock_guard lock(mutex_);
      usage.by_plan = by_plan_before_;
      for (const auto& model : table_.all()) {
        const Session::Activity activity = model->session().activity();
        usage.by_plan += activity.by_plan;
        usage.plans += static_cast<double>(activity.plans);
      }
      if (!usage_.empty()) usage.by_plan = std::max(usage.by_plan, usage_.back().by_plan);  // while one is being replaced
      usage_.push_back(usage);
      if (settings_.tell_seconds > 0 && seconds_since(told) > settings_.tell_seconds) told = Clock::now(), tell(usage);
    }
  }

  // How it stands, for whoever looks for what grows.
  void tell(const Usage& usage) const {
    constexpr double kMb = 1 << 20;
    std::printf("%d versions: rss %.0f MB, workers %.0f MB, %d threads, %d descriptors", swaps_.load(), usage.bytes / kMb,
                usage.workers_bytes / kMb, usage.threads, usage.descriptors);
    std::printf("; allocated %.0f MB, kept by the allocator %.0f MB, elsewhere %.0f MB", usage.allocated / kMb,
                kept(usage) / kMb, usage.resident.others / kMb);
    std::printf("\n");
    std::fflush(stdout);
  }

  static void tell_kept() {
#if defined(__GLIBC__)
    constexpr double kMb = 1 << 20;
    const double before = resident_now().allocator, allocated = allocated_bytes();
    ::malloc_trim(0);
    std::printf("the allocator has %.0f MB in memory, of which %.0f are handed out; once it gave back what it can, %.0f\n", before / kMb,
                allocated / kMb, resident_now().allocator / kMb);
#endif
  }

  // Of what was freed, what has not gone back to the system.
  static double kept(const Usage& usage) { return std::max(0.0, usage.resident.allocator - usage.allocated); }

  // False once it is over.
  bool sleep(double seconds) const {
    const auto start = Clock::now();
    while (!over_ && seconds_since(start) < seconds) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    return !over_;
  }

  void note(const std::string& what) {
    const std::lock_guard lock(mutex_);
    trouble_ += (trouble_.empty() ? "" : "\n") + what;
  }

  // One reading of each version's life, those of the first cycle left out: the least that was held in it, as decisions come and go; of
  // a worker, which is killed and begins anew, the most.
  template <class Value>
  std::vector<test::Reading> readings(Value&& value, bool least) const {
    std::vector<test::Reading> out;
    for (size_t i = 0, end = 0; i < usage_.size(); i = end) {
      std::vector<double> values, plans;
      for (; end < usage_.size() && usage_[end].version == usage_[i].version; ++end)
        values.push_back(value(usage_[end])), plans.push_back(usage_[end].plans);
      const auto version = static_cast<size_t>(usage_[i].version);
      if (version < kPhases || end == usage_.size()) continue;  // the last one may have just begun
      out.push_back({version % kPhases, median(plans), least ? *std::ranges::min_element(values) : *std::ranges::max_element(values)});
    }
    return out;
  }

  int judge(const LoadResult& result, uint64_t lost) {
    const size_t third = usage_.size() / 3;
    const auto of = [&](size_t part, auto&& value) {
      std::vector<double> values;
      for (size_t i = part * third; i < (part + 1) * third; ++i) values.push_back(static_cast<double>(value(usage_[i])));
      return values;
    };
    const auto most = [](const std::vector<double>& values) {
      return values.empty() ? 0 : *std::max_element(values.begin(), values.end());
    };
    const auto bytes = [](const Usage& u) { return u.bytes; };
    const auto workers = [](const Usage& u) { return u.workers_bytes; };
    const auto largest = [](const Usage& u) { return u.largest_worker; };
    const auto threads = [](const Usage& u) { return u.threads; };
    const auto descriptors = [](const Usage& u) { return u.descriptors; };
    const double middle = median(of(1, bytes)), last = median(of(2, bytes));
    const test::Growth own = test::growth_of(readings([](const Usage& u) { return u.allocated; }, true)),
                       elsewhere = test::growth_of(readings([](const Usage& u) { return u.resident.others; }, true)),
                       theirs = test::growth_of(readings(largest, false));
    std::vector<std::string> bad;
    const auto expect = [&](bool truth, const char* what) {
      if (!truth) bad.emplace_back(what);
    };
    expect(wrong_ == 0, "answers were wrong");
    expect(lost == 0, "requests were lost");
    expect(calls_ == tools::draw_arrivals(plan_).size(), "requests were not asked");
    expect(trouble_.empty(), "a version could not be made");
    expect(compiles_on_requests() == 0, "a request compiled");
    expect(swaps_ > 0, "nothing was replaced");
    expect(kills_[0] + kills_[1] > 0, "nothing was killed");
    expect(third > 0, "it was over before it could be looked at");
    std::string untold;  // of what it holds, what nothing is known about
    const auto expect_flat = [&](const test::Growth& growth, double held, const std::string& what) {
      const test::Growth::Verdict verdict = growth.verdict(held * kMoreMemory + kMoreBytes);
      if (verdict == test::Growth::Verdict::kGrows) bad.push_back(what + " grows");
      if (verdict != test::Growth::Verdict::kTellsNothing) return;
      untold += (untold.empty() ? "" : ", ") + what;
      if (!settings_.brief) bad.push_back("it cannot be told whether " + what + " grows: give it more time");
    };
    expect_flat(own, middle, "memory");
    expect_flat(elsewhere, middle, "memory that is not the allocator's");
    expect_flat(theirs, most(of(1, largest)), "the memory of a worker");
    expect(most(of(2, threads)) <= most(of(1, threads)) + kMoreThings, "threads grow in number");
    expect(most(of(2, descriptors)) <= most(of(1, descriptors)) + kMoreThings, "descriptors grow in number");
    std::vector<uint64_t> by_plan;
    for (size_t part = 0; part < 3 && third > 0; ++part)
      by_plan.push_back(usage_[(part + 1) * third - 1].by_plan - usage_[part * third].by_plan);
    expect(third > 0 && by_plan[2] > 0, "no plan answers in the last third");
    for (const auto& place : places_) std::printf("%s: %s\n", place.name.c_str(), last_reasons(place.name).c_str());
    for (const std::string& each : bad) std::printf("FAILED: %s\n", each.c_str());
    constexpr double kMb = 1 << 20;
    if (settings_.brief && !untold.empty()) std::printf("TOO SHORT TO TELL whether it grows: %s\n", untold.c_str());
    for (const auto& [growth, held, what] :
         {std::tuple(own, middle, "memory"), std::tuple(elsewhere, middle, "what is not the allocator's"),
          std::tuple(theirs, most(of(1, largest)), "a worker's memory")})
      std::printf("%s grows by %.1f MB, give or take %.1f, of which %.1f are allowed; by %.2f a version, give or take %.2f\n", what,
                  growth.in_all / kMb, growth.in_all_uncertainty / kMb, (held * kMoreMemory + kMoreBytes) / kMb, growth.a_reading / kMb,
                  growth.uncertainty / kMb);
    std::printf(
        "SOAK calls=%llu compared=%llu wrong=%llu lost=%llu swaps=%d kills=%d(compile %d, run %d) by_plan=%llu,%llu,%llu "
        "request_compiles=%llu rss=%.0f->%.0fMB workers_rss=%.0f->%.0fMB threads=%.0f->%.0f fds=%.0f->%.0f p50=%.1fms p99=%.1fms "
        "seconds=%.0f\n",
        static_cast<unsigned long long>(calls_), static_cast<unsigned long long>(compared_), static_cast<unsigned long long>(wrong_),
        static_cast<unsigned long long>(lost), swaps_.load(), kills_[0] + kills_[1], kills_[0], kills_[1],
        static_cast<unsigned long long>(third > 0 ? by_plan[0] : 0), static_cast<unsigned long long>(third > 0 ? by_plan[1] : 0),
        static_cast<unsigned long long>(third > 0 ? by_plan[2] : 0), static_cast<unsigned long long>(compiles_on_requests()), middle / kMb,
        last / kMb, median(of(1, workers)) / kMb, median(of(2, workers)) / kMb, most(of(1, threads)), most(of(2, threads)),
        most(of(1, descriptors)), most(of(2, descriptors)), 1e3 * result.quantile(0.5), 1e3 * result.quantile(0.99), result.lasted);
    return bad.empty() ? 0 : 1;
  }

  // Of the decisions of the version that is there, what speaks against plans.
  std::string last_reasons(const std::string& name) const {
    std::map<std::string, int> counts;
    for (const ModelReport& report : table_.find(name)->session().reports()) {
      ++counts["chosen " + report.chosen];
      for (const std::string& reason : report.reasons) ++counts[reason];
    }
    std::string out;
    for (const auto& [what, times] : counts) out += "\n  " + std::to_string(times) + " x " + what;
    return out.empty() ? "nothing was decided" : out;
  }

  const Settings settings_;
  const Options options_;
  std::mt19937_64 random_;
  std::unique_ptr<Runtime> runtime_;
  std::vector<Place> places_;
  ModelTable table_;
  LoadPlan plan_;
  std::atomic<bool> over_{false};
  std::atomic<uint64_t> calls_{0}, compared_{0}, wrong_{0};
  std::atomic<int> swaps_{0};
  int kills_[2] = {0, 0};              // written by one thread, and read when it ended
  std::mutex mutex_;                   // guards what follows
  std::map<const ServedModel*, std::shared_ptr<std::vector<Tensors>>> expected_;
  uint64_t by_plan_before_ = 0;
  std::vector<Usage> usage_;
  std::string trouble_;
  std::vector<std::vector<char>> leaked_;  // by one thread
};

int run(int argc, char** argv) {
  Settings settings;
  CLI::App app("A service under load whose models are replaced and whose workers are killed");
  app.add_option("models", settings.models, "two .pt2 files with free sizes; else BERT and ResNet-50 of the zoo");
  app.add_option("--minutes", settings.minutes, "how long")->capture_default_str();
  app.add_option("--swap-every", settings.swap_seconds, "seconds between two replacements")->capture_default_str();
  app.add_option("--kill-every", settings.kill_seconds, "seconds between two kills, on average")->capture_default_str();
  app.add_option("--load", settings.load, "requests, as a share of what one thread of eager could answer")->capture_default_str();
  app.add_option("--compare-every", settings.compare_every, "one in so many answers is compared with eager's")->capture_default_str();
  app.add_option("--kinds", settings.kinds, "sizes of each model, drawn so that one of size n is as likely as 1 / n")
      ->capture_default_str();
  app.add_option("--most", settings.most, "the largest of each free size (2,32); else what the export allows");
  app.add_option("--race-limit", settings.race_seconds, "seconds of a race")->capture_default_str();
  app.add_option("--tell-every", settings.tell_seconds, "seconds between two lines of what it holds; 0: none")->capture_default_str();
  app.add_option("--leak", settings.leak_mb, "MB to lose with each replacement, to see whether that is found out")->capture_default_str();
  app.add_option("--seed", settings.seed, "of sizes, times and kills")->capture_default_str();
  app.add_flag("--brief", settings.brief, "20 seconds with small models");
  CLI11_PARSE(app, argc, argv);
  const std::string source = KEIRIN_SOURCE_DIR;
  if (settings.brief) {
    if (settings.models.empty())
      settings.models = {source + "/tests/data/import/ranges_encoder.pt2", source + "/tests/data/import/mlp.pt2"};
    settings.minutes = 1.0 / 3, settings.swap_seconds = 1, settings.kill_seconds = 0.5, settings.load = 0.02,
    settings.race_seconds = 0.05;
  }
  if (settings.models.empty()) {
    for (const char* name : {"bert_dynamic", "resnet50_dynamic"})
      settings.models.push_back(source + "/bench/zoo/models/small/" + name + ".pt2");
    if (settings.most.empty()) settings.most = "2,32";
  }
  test::Others nobody;  // what is asked is who answers, and how, not how fast
  const test::TempFolder folder;
  Options options;
  options.threads = 1;
  options.cache_dir = folder.path() + "/cache";
  options.compile = When::kBackground;
  options.run_in = "worker";
  options.race_seconds = settings.race_seconds;
  options.sample_rate = 100;
  options.interference = &nobody;
  Soak soak(settings, options);
  if (const Status status = soak.open(); !status.ok()) {
    std::printf("%s\n", status.text().c_str());
    return 1;
  }
  return soak.run();
}

}  // namespace
}  // namespace keirin

int main(int argc, char** argv) { return keirin::run(argc, argv); }
