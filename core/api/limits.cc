// SPDX-License-Identifier: Apache-2.0
#include "core/api/limits.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <map>
#include <mutex>
#include <tuple>

#include "core/ops/builder.h"
#include "core/ops/work.h"
#include "core/tune/inputs.h"

namespace keirin {
namespace {

constexpr int kRounds = 5;               // the best counts: others can only make it slower
constexpr double kRoundSeconds = 0.004;  // at least, so that the clock and one wait for the device are nothing
constexpr int64_t kLeastBytes = 4096, kMostBytes = int64_t{1} << 28;  // a copy; above, the rate is that of memory

// Seconds of one of many calls in a row, waited for at the end. Negative: it does not run here.
double best_seconds(TensorServices& services, Device device, const std::function<Status()>& call) {
  const auto now = [] { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); };
  const auto round = [&](int64_t calls) {
    const double start = now();
    for (int64_t i = 0; i < calls; ++i)
      if (!call().ok()) return -1.0;
    if (!services.synchronize(device).ok()) return -1.0;
    return (now() - start) / static_cast<double>(calls);
  };
  if (round(1) < 0) return -1;  // libraries load
  const double once = round(1);
  if (once < 0) return -1;
  const auto calls = std::max<int64_t>(1, static_cast<int64_t>(std::ceil(kRoundSeconds / std::max(once, 1e-7))));
  double best = once;
  for (int i = 0; i < kRounds; ++i) {
    const double each = round(calls);
    if (each < 0) return -1;
    best = std::min(best, each);
  }
  return best;
}

// Seconds for moving so many bytes, half of them read and half written.
double copy_seconds(TensorServices& services, Device device, double bytes) {
  const int64_t some = std::clamp(static_cast<int64_t>(bytes), kLeastBytes, kMostBytes);
  const Dims sizes{some / 8};  // f32, two of them
  const auto from = make_tensor({DType::k_f32, sizes, contiguous_strides(sizes)}, {}, services, device, 1);
  if (!from.ok()) return -1;
  const auto to = services.clone(*from);
  if (!to.ok()) return -1;
  const double seconds = best_seconds(services, device, [&] { return services.copy(*to, *from); });
  return seconds < 0 ? -1 : seconds * std::max(1.0, bytes / static_cast<double>(some));
}

// Flops a second of one operator on these types, as LibTorch runs it. Negative: it does not run here.
double rate_of(TensorServices& services, Device device, OpCode code, const Type& left, const Type& right, Attrs attrs) {
  Graph graph;
  const ValueIds operands = {graph.add_input(left, 0), graph.add_input(right, 1)};
  const Result<ValueId> result = Builder(graph).emit1(code, operands, std::move(attrs));
  if (!result.ok()) return -1;
  graph.outputs.push_back({*result});
  std::vector<TensorRef> inputs;
  for (const ValueId each : operands) {
    auto input = make_tensor(graph.type(each), {}, services, device, each);
    if (!input.ok()) return -1;
    inputs.push_back(std::move(*input));
  }
  const auto eager = EagerGraph::make(graph, nullptr, {}, {device, std::nullopt});
  if (!eager.ok()) return -1;
  const double seconds = best_seconds(services, device, [&] { return (*eager)->run(inputs).status(); });
  return seconds > 0 ? contraction_of(graph, graph.ops[0]).flops / seconds : -1;
}

// The best of some shapes that fill the machine. Negative: none runs.
double flops_per_second(TensorServices& services, Device device, bool convolution, DType dtype) {
  const bool gpu = device.kind != Device::kCpu;
  double best = -1;
  for (const int64_t side : gpu ? std::vector<int64_t>{4096, 8192} : std::vector<int64_t>{512, 1024}) {
    const Type square{dtype, {side, side}, {side, 1}};
    best = std::max(best, rate_of(services, device, OpCode::k_matmul, square, square, {}));
  }
  if (!convolution) return best;
  for (const int64_t kernel : {1, 3})
    for (const int64_t channels : gpu ? std::vector<int64_t>{256, 512} : std::vector<int64_t>{64, 128}) {
      const Dims x{gpu ? 64 : 4, channels, 28, 28}, w{channels, channels, kernel, kernel};
      const Dims ones{1, 1}, padding{kernel / 2, kernel / 2}, zeros{0, 0};
      best = std::max(best,
                      rate_of(services, device, OpCode::k_conv, {dtype, x, channels_last_strides(x)}, {dtype, w, channels_last_strides(w)},
                              {{AttrKey::k_stride, ones},
                               {AttrKey::k_padding, padding},
                               {AttrKey::k_dilation, ones},
                               {AttrKey::k_groups, int64_t{1}},
                               {AttrKey::k_transposed, false},
                               {AttrKey::k_output_padding, zeros}}));
    }
  return best;
}

// What was measured in this process.
class Rates {
 public:
  Rates(TensorServices& services, Device device) : services_(services), device_(device) {}

  // Seconds; 0 where something of it could not be measured.
  double least_seconds(const Work& work) {
    double computes = 0;
    for (const Contraction& each : work.contractions) {
      // On processors LibTorch's convolutions are another library's than its products, which on some are half as fast as they could be.
      const bool convolution = each.convolution || device_.kind == Device::kCpu;
      const double rate = known(convolution ? Kind::kConvolution : Kind::kProduct, static_cast<int64_t>(each.dtype),
                                [&] { return flops_per_second(services_, device_, convolution, each.dtype); });
      if (rate <= 0) return 0;
      computes += each.flops / rate;
    }
    // The time of the next power of two, in proportion: a model's steps are of many sizes, and each would want a copy of its own.
    const double bytes = std::max(work.bytes, static_cast<double>(kLeastBytes)), power = std::exp2(std::ceil(std::log2(bytes)));
    const double moves = known(Kind::kCopy, static_cast<int64_t>(power), [&] { return copy_seconds(services_, device_, power); });
    if (moves <= 0) return 0;
    const double least = known(Kind::kCopy, kLeastBytes, [&] { return copy_seconds(services_, device_, kLeastBytes); });  // a launch
    return std::max({moves * bytes / power, least, computes});
  }

 private:
  enum class Kind { kCopy, kProduct, kConvolution };

  // `of`: bytes of a copy, else the dtype. One thread measures at a time.
  double known(Kind kind, int64_t of, const std::function<double()>& measure) {
    static std::mutex mutex;
    static std::map<std::tuple<int, int, int, Kind, int64_t>, double> measured;
    const std::lock_guard lock(mutex);
    const auto [at, fresh] = measured.try_emplace({device_.kind, device_.index, services_.num_threads(), kind, of}, 0);
    if (fresh) at->second = measure();
    return at->second;
  }

  TensorServices& services_;
  const Device device_;
};

}  // namespace

void add_limits(const Session::Impl& session, const Prepared& prepared, const BuiltPlan* built, ModelReport& report) {
  Rates rates(session.runtime.tensors(), session.device);
  report.limit_ms = rates.least_seconds(least_work(prepared.graph)) * 1e3;
  if (!built || !built->plan || built->plan->steps().size() != report.steps.size()) return;
  std::map<size_t, const Graph*> regions;
  for (const BuiltRegion& region : built->regions) regions[region.step] = &region.cut.graph;
  const std::vector<PlanStep>& steps = built->plan->steps();
  for (size_t s = 0; s < steps.size(); ++s) {
    if (const auto found = regions.find(s); found != regions.end()) {
      report.steps[s].limit_us = rates.least_seconds(least_work(*found->second)) * 1e6;
      continue;
    }
    if (steps[s].results.empty()) continue;
    const uint32_t producer = prepared.graph.values[steps[s].results[0]].producer;
    if (producer != kNone) report.steps[s].limit_us = rates.least_seconds(least_work(prepared.graph, prepared.graph.ops[producer])) * 1e6;
  }
}

}  // namespace keirin
