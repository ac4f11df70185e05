// SPDX-License-Identifier: Apache-2.0
//
// Times one model the way a program that knows nothing of Keirin's measuring would: a plain LibTorch program (a TorchScript file,
// operator by operator, its optimiser off), or Keirin's own call, before anything is compiled or after. For each number of seconds
// that it reads it calls the model for that long and prints the median of a call in milliseconds: bench/outside/run.py asks
// several such programs in turns.
//
//   keirin_outside libtorch MODEL.ts INPUTS.ts THREADS      keirin_outside eager|compiled MODEL.pt2 INPUTS.ts THREADS
#include <ATen/Parallel.h>
#include <keirin/torch.h>
#include <torch/script.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <iostream>
#include <string>

namespace {

double median_ms(const std::function<void()>& call, double seconds) {
  using Clock = std::chrono::steady_clock;
  std::vector<double> times;
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  while (times.size() < 3 || Clock::now() < end) {
    const auto start = Clock::now();
    call();
    times.push_back(std::chrono::duration<double, std::milli>(Clock::now() - start).count());
  }
  std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
  return times[times.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fprintf(stderr, "usage: %s libtorch|eager|compiled MODEL INPUTS THREADS\n", argv[0]);
    return 2;
  }
  const int threads = std::stoi(argv[4]);
  at::set_num_threads(threads);
  c10::InferenceMode guard;
  torch::jit::setGraphExecutorOptimize(false);
  std::vector<at::Tensor> inputs;
  for (const auto& each : torch::jit::load(argv[3]).attributes(false)) if (each.isTensor()) inputs.push_back(each.toTensor());
  std::function<void()> call;
  if (std::string(argv[1]) == "libtorch") {
    torch::jit::Module module = torch::jit::load(argv[2]);
    module.eval();
    std::vector<c10::IValue> values(inputs.begin(), inputs.end());
    call = [module, values]() mutable { module.forward(values); };
  } else {
    keirin::LoadOptions options;
    options.threads = threads;
    keirin::Model model = keirin::Model::load(argv[2], options);
    if (std::string(argv[1]) == "compiled") keirin::compile(model, inputs);
    call = [model, inputs] { keirin::call(model, inputs); };
  }
  for (double seconds; std::cin >> seconds;) {
    std::printf("%.6f\n", median_ms(call, seconds));
    std::fflush(stdout);
  }
}
