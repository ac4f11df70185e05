// SPDX-License-Identifier: Apache-2.0
//
// Calls of the plan cpu/all of one model, where it is told: by one caller, their median time; by several at once, calls per second. What
// copying a call's inputs and outputs takes is measured beside it. bench/worker/run.py asks this in turns.
//
//   keirin_worker_cost process|worker MODEL.pt2 CALLERS [cpu|cuda|rocm]
//
// On a GPU the plan is that of the device's plugin, a call is waited for, and copies are the device's.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "core/api/session.h"

namespace keirin {
namespace {

using Clock = std::chrono::steady_clock;

double since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

double median_us(double seconds, const std::function<Status()>& call, Status& failed) {
  std::vector<double> us;
  for (const Clock::time_point begin = Clock::now(); us.size() < 50 || since(begin) < seconds;) {
    const Clock::time_point start = Clock::now();
    if (const Status status = call(); !status.ok()) failed = status;
    us.push_back(since(start) * 1e6);
  }
  std::nth_element(us.begin(), us.begin() + static_cast<ptrdiff_t>(us.size() / 2), us.end());
  return us[us.size() / 2];
}

Result<nlohmann::json> measure(const std::string& where, const std::string& model, int callers, const std::string& device) {
  Options options;
  options.run_in = where;
  options.device = device;
  options.only_candidate = device.substr(0, device.find(':')) + "/all";
  options.sample_rate = 0;
  options.use_cache = false;
  KRN_TRY_LET(const auto runtime, Runtime::open(options));
  KRN_TRY_LET(const auto session, Session::open(*runtime, model, options));
  KRN_TRY_LET(const std::vector<TensorRef> inputs, session->example_inputs(0));
  KRN_TRY_LET(const ModelReport report, session->compile(inputs));
  KRN_TRY_LET(const std::vector<TensorRef> outputs, session->call(inputs));
  int64_t bytes = 0;
  for (const auto* tensors : {&inputs, &outputs})
    for (const TensorRef& tensor : *tensors) bytes += tensor->storage_bytes();
  Status failed;
  TensorServices& tensors = runtime->tensors();
  const Device where_it_is = inputs.front()->device();
  const auto call = [&]() -> Status {
    KRN_TRY(session->call(inputs).status());
    return tensors.synchronize(where_it_is);
  };
  (void)median_us(0.5, call, failed);
  const double call_us = median_us(1.5, call, failed);
  const TensorSpec spec{DType::k_u8, {bytes}, {}, where_it_is};
  KRN_TRY_LET(const TensorRef from, tensors.allocate(spec));
  KRN_TRY_LET(const TensorRef to, tensors.allocate(spec));
  const auto copy = [&]() -> Status {
    if (where_it_is.kind == Device::kCpu) {
      std::memcpy(to->data(), from->data(), static_cast<size_t>(bytes));
      asm volatile("" : : "r"(to->data()) : "memory");
      return {};
    }
    KRN_TRY(tensors.copy(to, from));
    return tensors.synchronize(where_it_is);
  };
  const double copy_us = median_us(0.2, copy, failed);
  std::atomic<bool> stop{false};
  std::atomic<int64_t> calls{0};
  const auto several = [&](double seconds) {
    stop = false;
    std::vector<std::thread> threads;
    for (int t = 0; t < callers; ++t)
      threads.emplace_back([&] {
        while (!stop) calls += call().ok();
      });
    const Clock::time_point begin = Clock::now();
    calls = 0;
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
    const double per_s = static_cast<double>(calls) / since(begin);
    stop = true;
    for (std::thread& thread : threads) thread.join();
    return per_s;
  };
  (void)several(1.0);
  const double calls_per_s = several(2.0);
  KRN_TRY(failed);
  return nlohmann::json{
      {"bytes", bytes}, {"chosen", report.chosen}, {"call_us", call_us}, {"copy_us", copy_us}, {"calls_per_s", calls_per_s}};
}

}  // namespace
}  // namespace keirin

int main(int argc, char** argv) {
  if (argc != 4 && argc != 5) {
    std::fprintf(stderr, "usage: %s process|worker MODEL CALLERS [DEVICE]\n", argv[0]);
    return 2;
  }
  const auto measured = keirin::measure(argv[1], argv[2], std::stoi(argv[3]), argc == 5 ? argv[4] : "cpu");
  if (!measured.ok()) {
    std::fprintf(stderr, "%s\n", measured.status().text().c_str());
    return 1;
  }
  std::printf("%s\n", measured->dump().c_str());
  return 0;
}
