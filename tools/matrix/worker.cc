// SPDX-License-Identifier: Apache-2.0
#include "tools/matrix/worker.h"

#include <link.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <fstream>
#include <iterator>
#include <numeric>
#include <thread>

#include "core/api/devices.h"
#include "core/base/sha256.h"
#include "core/host/plugins.h"
#include "core/host/worker/channel.h"
#include "core/tune/instructions.h"
#include "core/tune/interference.h"
#include "core/tune/stats.h"
#include "tools/matrix/cases.h"
#include "tools/matrix/imagined.h"
#include "tools/options.h"

namespace keirin::tools::matrix {
namespace {

using nlohmann::json;
using Clock = std::chrono::steady_clock;

constexpr uint64_t kLeastValueNs = 200'000;      // shorter calls are timed in batches
constexpr uint64_t kLeastCallersNs = 2'000'000;  // of several callers, whose threads are started for each value
constexpr uint64_t kWakeNs = 1'000'000;          // untimed calls before a slot: this process has slept
constexpr uint64_t kWakeDeviceNs = 10'000'000;   // a GPU has worked for another process meanwhile
constexpr int kInputSets = 3;                    // in rotation
constexpr size_t kWindow = 5, kLeastWindow = 2;  // calls: two windows that agree are steady
constexpr uint64_t kWindowNs = 500'000'000;      // long calls: as many as fill this
constexpr uint64_t kLongCallNs = 50'000'000;     // waking up is nothing to such calls
constexpr size_t kMaxFallbacks = 20;             // reasons that a record holds

uint64_t since(Clock::time_point begin) {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - begin).count());
}

std::string file_hash(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  return hex(sha256(bytes.data(), bytes.size())).substr(0, 16);
}

// Libraries that this process has loaded and that decide how fast it is, by what their file is called and how large it
// is.
void add_libraries(json* parts) {
  const auto add = [](dl_phdr_info* info, size_t, void* out) {
    const std::string path = info->dlpi_name ? info->dlpi_name : "";
    const std::string name = path.substr(path.find_last_of('/') + 1);
    for (const char* each :
         {"libtorch_cpu", "libtorch_cuda", "libgomp", "libmkl_core", "libcudnn", "libcublas.", "libcuda.", "libc.so"})
      if (name.rfind(each, 0) == 0) {
        std::ifstream file(path, std::ios::ate | std::ios::binary);
        (*static_cast<json*>(out))["library " + name] = std::to_string(file.tellg()) + " bytes";
      }
    return 0;
  };
  dl_iterate_phdr(add, parts);
}

uint64_t waited_ns_of_first_thread() {
  uint64_t ran = 0, waited = 0;
  std::ifstream("/proc/self/schedstat") >> ran >> waited;
  return waited;
}

class Worker {
 public:
  Result<json> answer(const json& question) {
    const std::string word = question.value("ask", "");
    if (word == "hello") return hello(question.value("device", "cpu"));
    if (word == "open") return open(question);
    if (!session_) return Status(Code::k_invalid_input, "nothing is open");
    if (word == "warm") return warm(question);
    if (word == "slot") return slot(question);
    if (word == "device") return json{{"disturbed", what_disturbed(condition(), condition())}};
    return Status(Code::k_unsupported, "no question is called \"" + word + "\"");
  }

 private:
  Result<json> hello(const std::string& device) {
    json parts = {{"keirin", KEIRIN_VERSION}, {"keirin build", file_hash("/proc/self/exe")}};
    Options options;
    options.use_cache = false;
    KRN_TRY_LET(const auto runtime, Runtime::open(options));
    for (const PluginReport& plugin : runtime->plugins().reports())
      if (plugin.used) parts["plugin " + plugin.name] = plugin.version + " " + file_hash(plugin.library);
    KRN_TRY_LET(const NamedDevice named, find_device(device, runtime->plugins()));  // loads LibTorch's GPU library
    for (const PluginDevice* each : runtime->plugins().devices())
      if (named.device.kind != Device::kCpu && each->torch_device() == named.device)
        parts["device by " + each->plugin_name()] = each->name() + ", " + each->fingerprint();
    add_libraries(&parts);
    return json{{"protocol", kProtocol}, {"parts", parts}};
  }

  Result<json> open(const json& question) {
    KRN_TRY_LET(const Case item, parse_case(question.value("case", "")));
    const std::string imagined = question.value("imagine", "");
    if (!imagined.empty()) return compile_only(item, question.value("variant", ""), imagined);
    if (item.trains()) return Status(Code::k_unsupported, "this worker trains nothing: bench/peers/worker does");
    const std::string variant = question.value("variant", ""), candidate = question.value("candidate", "");
    Options options;
    options.device = question.value("device", "cpu");
    options.mode = item.mode;
    options.threads = question.value("threads", 0);
    options.cache_dir = question.value("cache", "");
    options.use_cache = !options.cache_dir.empty();
    options.verify = question.value("verify", true);
    options.sample_rate = 0;
    options.only_candidate = candidate;
    if (variant.starts_with(kCompiled)) {
      options.plugins = {variant.substr(kCompiled.size())};
      if (candidate.empty()) options.force = "compiled";
    } else if (variant != "auto" && variant != "eager" && variant != "replay") {
      return Status(Code::k_invalid_input, "no variant is called \"" + variant + "\"");
    }
    const Clock::time_point begin = Clock::now();
    Options all_plugins = options;
    all_plugins.plugins.clear();
    KRN_TRY_LET(runtime_, Runtime::open(all_plugins));
    for (const std::string& plugin : options.plugins) {
      const std::vector<PluginReport> found = runtime_->plugins().reports();
      if (std::none_of(found.begin(), found.end(),
                       [&](const PluginReport& report) { return report.used && report.name == plugin; }))
        return Status(Code::k_unsupported, "the plugin " + plugin + " is not here, or not usable");
    }
    if (variant == "replay") {  // what the race's own baseline is: on a GPU eager, its launches recorded
      KRN_TRY_LET(const NamedDevice named, find_device(options.device, runtime_->plugins()));
      options.only_candidate = named.device.kind == Device::kCpu ? "replay" : "eager+launch_replay";
    }
    KRN_TRY_LET(const std::string path, find_model(item.model, item.zoo()));
    KRN_TRY_LET(session_, Session::open(*runtime_, path, options));
    for (uint64_t set = 0; set < kInputSets; ++set) {
      KRN_TRY_LET(inputs_[set], item.free_sizes().empty() ? session_->example_inputs(1 + set)
                                                          : session_->example_inputs(1 + set, item.free_sizes()));
    }
    device_ = inputs_[0].empty() ? Device() : inputs_[0][0]->device();
    for (PluginDevice* each : runtime_->plugins().devices())
      if (device_.kind != Device::kCpu && each->torch_device() == device_ && each->condition().clock_mhz > 0)
        asked_ = each;
    callers_ = item.callers();
    eager_ = variant == "eager";
    json out = {{"chosen", "eager"}, {"disturbed", ""}, {"counts", json::object()}, {"fallbacks", json::array()}};
    if (!eager_) {
      KRN_TRY_LET(const ModelReport report, session_->compile(inputs_[0]));
      for (const CandidateReport& each : report.candidates)
        if (each.reason == "wrong_result" && (variant != "auto" || each.name == report.chosen))
          return Status(Code::k_wrong_result, Message{each.name + " answers wrong", each.note, {}, {}});
      if (options.verify && !report.verified)
        return Status(Code::k_wrong_result, Message{"the answer of " + report.chosen + " could not be verified",
                                                    report.reasons.empty() ? "" : report.reasons[0],
                                                    {},
                                                    {}});
      if (!options.plugins.empty() && report.chosen == "eager")
        return Status(Code::k_unsupported, Message{"plugin " + options.plugins[0] + " made nothing of it",
                                                   report.reasons.empty() ? "" : report.reasons[0],
                                                   {},
                                                   {}});
      out["chosen"] = report.chosen;
      out["disturbed"] = report.disturbed;
      out["fallbacks"] = fallbacks_of(report);
      out["errors"] = {{"answer", report.max_error},
                       {"eager", report.eager_error}};  // before 64 bits, by the largest element
      out["counts"] = counts_of(report);
    }
    KRN_TRY(count_instructions(&out["counts"]));
    out["threads"] = runtime_->tensors().num_threads();
    out["build_ns"] = since(begin);
    interference_.emplace();
    return out;
  }

  // Of the call that takes the least, among as many as there are sets of inputs, after as many that warm up: under an emulator that counts.
  Status count_instructions(json* counts) {
    const std::optional<InstructionCount> count = InstructionCount::of_environment();
    if (!count || !count->address()) return {};
    KRN_TRY(call(kInputSets));
    uint64_t least = UINT64_MAX;
    for (uint64_t i = 0; i < kInputSets; ++i) {
      const uint64_t before = count->now();
      KRN_TRY(call(1));
      least = std::min(least, count->now() - before);
    }
    (*counts)["instructions"] = least;
    return {};
  }

  // Of the call that takes the least, among as many as there are sets of inputs, or of one that is long.
  Status count_allocations(double steady_ns, json* counts) {
    std::optional<Allocations> least;
    for (int i = 0; i < (steady_ns < kLongCallNs ? kInputSets : 1); ++i) {
      const Allocations before = runtime_->tensors().allocations(device_);
      KRN_TRY(call(1));
      const Allocations after = runtime_->tensors().allocations(device_);
      const Allocations one{after.count - before.count, after.bytes - before.bytes};
      if (!least || std::tie(one.count, one.bytes) < std::tie(least->count, least->bytes)) least = one;
    }
    *counts = {{"allocations", least->count}, {"allocated_bytes", least->bytes}};
    return {};
  }

  // Until the device is done with them.
  Status call(uint64_t calls) {
    for (uint64_t i = 0; i < calls; ++i) {
      const std::vector<TensorRef>& inputs = inputs_[next_input_++ % kInputSets];
      KRN_TRY((eager_ ? session_->call_eager(inputs) : session_->call(inputs)).status());
    }
    return runtime_->tensors().synchronize(device_);
  }

  // Nanoseconds of a call, over so many of each caller.
  Result<uint64_t> timed(uint64_t calls) {
    const Clock::time_point begin = Clock::now();
    if (callers_ == 1) {
      KRN_TRY(call(calls));
      return since(begin) / calls;
    }
    std::vector<Status> said(static_cast<size_t>(callers_));
    {
      std::vector<std::jthread> threads;
      for (Status& status : said) threads.emplace_back([&status, calls, this] { status = call(calls); });
    }
    for (Status& status : said) KRN_TRY(std::move(status));
    return since(begin) / (calls * said.size());
  }

  Result<json> warm(const json& question) {
    const double agree = question.value("agree", 0.01);
    const int most_calls = question.value("most_calls", 200);
    const uint64_t most_ns = question.value("most_ns", uint64_t{30'000'000'000});
    const Clock::time_point begin = Clock::now();
    KRN_TRY_LET(const uint64_t first, timed(1));
    const size_t window = std::clamp<size_t>(kWindowNs / std::max<uint64_t>(first, 1), kLeastWindow, kWindow);
    std::vector<double> ns;
    bool settled = false;
    while (!settled && static_cast<int>(ns.size()) < most_calls && since(begin) < most_ns) {
      KRN_TRY_LET(const uint64_t one, timed(1));
      ns.push_back(static_cast<double>(one));
      const size_t n = ns.size();
      if (n < 2 * window) continue;
      const std::span<const double> all(ns);
      settled =
          std::abs(std::log(median(all.subspan(n - window)) / median(all.subspan(n - 2 * window, window)))) <= agree;
    }
    const double steady = median(std::span<const double>(ns).last(std::min(ns.size(), window)));
    wakes_ = steady < kLongCallNs;
    const double least = static_cast<double>(callers_ == 1 ? kLeastValueNs : kLeastCallersNs);
    calls_per_value_ = std::max<uint64_t>(1, static_cast<uint64_t>(std::ceil(least / std::max(steady, 1.0))));
    json counts = json::object();
    if (most_calls > 0 && callers_ == 1) KRN_TRY(count_allocations(steady, &counts));
    return json{{"counts", counts},
                {"first_ns", first},
                {"calls", ns.size() + 1},
                {"settled", settled},
                {"settle_ns", since(begin) - first},
                {"waited_ns", waited_before_ns_ + since_begin_.waited_ns()}};
  }

  Result<json> slot(const json& question) {
    const uint64_t fill_ns = question.value("fill_ns", uint64_t{20'000'000}),
                   least = question.value("least", uint64_t{5}), most_ns = question.value("most_ns", UINT64_MAX);
    const uint64_t wake_ns = device_.kind == Device::kCpu ? kWakeNs : kWakeDeviceNs;
    for (const Clock::time_point begin = Clock::now(); wakes_ && since(begin) < wake_ns;) KRN_TRY(timed(1).status());
    json ns = json::array();
    const DeviceCondition before = condition();
    const uint64_t waited = interference_->waited_ns(), stolen = interference_->stolen_ns(),
                   used = interference_->used_ns();
    const Clock::time_point begin = Clock::now();
    for (uint64_t took = 0; took < fill_ns || (ns.size() < least && took < most_ns); took = since(begin)) {
      KRN_TRY_LET(const uint64_t value, timed(calls_per_value_));
      ns.push_back(value);
    }
    const uint64_t lasted = since(begin);
    return json{{"ns", ns},
                {"calls", calls_per_value_},
                {"lasted_ns", lasted},
                {"waited_ns", interference_->waited_ns() - waited},
                {"stolen_ns", interference_->stolen_ns() - stolen},
                {"used_ns", interference_->used_ns() - used},
                {"disturbed", what_disturbed(apart_from_others(before), apart_from_others(condition()))}};
  }

  DeviceCondition condition() const { return asked_ ? asked_->condition() : DeviceCondition(); }
  // In the last second the other side of the pair had work on the device, as it should.
  static DeviceCondition apart_from_others(DeviceCondition condition) {
    condition.others_percent = 0;
    return condition;
  }

  const uint64_t waited_before_ns_ = waited_ns_of_first_thread();  // libraries were loaded
  ProcessInterference since_begin_;
  std::unique_ptr<Runtime> runtime_;
  std::unique_ptr<Session> session_;
  std::array<std::vector<TensorRef>, kInputSets> inputs_;
  Device device_;
  PluginDevice* asked_ = nullptr;  // how the device is doing; null: nobody tells, or the processor
  std::optional<ProcessInterference> interference_;
  std::atomic<uint64_t> next_input_ = 0;
  uint64_t calls_per_value_ = 1;
  int callers_ = 1;
  bool eager_ = false, wakes_ = true;
};

}  // namespace

json fallbacks_of(const ModelReport& report) {
  std::vector<std::string> out = report.reasons;
  for (const StepReport& step : report.steps)
    if (step.choice == "eager" && !step.reason.empty())
      out.push_back(step.name + ": " + step.reason + (step.note.empty() ? "" : ", " + step.note));
  std::vector<std::string> once;
  for (std::string& each : out)
    if (once.size() < kMaxFallbacks && std::find(once.begin(), once.end(), each) == once.end())
      once.push_back(std::move(each));
  return once;
}

json counts_of(const ModelReport& report) {
  json out = {{"nodes", report.nodes},
              {"nodes_compiled", report.nodes_compiled},
              {"nodes_eager", report.nodes - report.nodes_compiled},
              {"nodes_opaque", report.nodes_opaque},
              {"segments", report.segments.size()},
              {"peak_bytes", report.peak_bytes}};
  if (report.steps_of == report.chosen) {
    out["steps"] = report.steps.size();
    out["launches"] = std::accumulate(report.steps.begin(), report.steps.end(), 0,
                                      [](int sum, const StepReport& step) { return sum + step.launches; });
  }
  if (report.kernels_generated > 0) out["kernels_generated"] = report.kernels_generated;  // else they were cached
  return out;
}

int serve() {
  struct stat channel;  // whatever another program left open there is none
  if (::fstat(kWorkerChannel, &channel) != 0 || !S_ISSOCK(channel.st_mode))
    return fail(
        Status(Code::k_invalid_input, {"this word is asked by `keirin matrix` over a channel, which there is none of",
                                       {},
                                       "nothing was done",
                                       "keirin matrix --help"}));
  Worker worker;
  for (;;) {
    Result<Packet> question = receive_packet(kWorkerChannel, kMaxMessageBytes, {});
    if (!question.ok()) return kOk;  // the other side is gone, as it ends us
    Packet answer;
    Result<json> said = [&]() -> Result<json> {
      try {
        return worker.answer(question->head);
      } catch (const json::exception& error) {
        return Status(Code::k_invalid_input, error.what());
      }
    }();
    if (said.ok())
      answer.head = std::move(*said);
    else
      answer.head = {
          {"error",
           {{"code", code_name(said.status().code())},
            {"what", said.status().message().what +
                         (said.status().message().where.empty() ? "" : ": " + said.status().message().where)}}}};
    if (!send_packet(kWorkerChannel, answer, {}).ok()) return kOk;
  }
}

}  // namespace keirin::tools::matrix
