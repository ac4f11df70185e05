// SPDX-License-Identifier: Apache-2.0
//
// A torch::nn module, compiled without Python and without a file: records what it does, lets Keirin decide, calls it.
#include <keirin/capture.h>
#include <torch/nn.h>

#include <cstdio>
#include <exception>

struct Net : torch::nn::Module {
  Net() {
    fc1 = register_module("fc1", torch::nn::Linear(64, 256));
    fc2 = register_module("fc2", torch::nn::Linear(256, 10));
  }
  at::Tensor forward(const at::Tensor& x) { return fc2(torch::gelu(fc1(x))); }
  torch::nn::Linear fc1{nullptr}, fc2{nullptr};
};

int main() try {
  auto net = std::make_shared<Net>();
  net->eval();
  const torch::NoGradGuard no_grad;
  const at::Tensor x = torch::randn({16, 64});
  keirin::CapturedModel model = keirin::capture(net);
  model.compile({x});
  std::puts(model.explain().c_str());
  const double difference = (model({x})[0] - net->forward(x)).abs().max().item<double>();
  std::printf("largest difference between the module and what answers: %.3g\n", difference);
  return difference < 1e-4 ? 0 : 1;
} catch (const std::exception& error) {
  return std::fprintf(stderr, "%s\n", error.what()), 1;
}
