// SPDX-License-Identifier: Apache-2.0
//
// Loads an exported model, lets Keirin decide for one shape, calls it and prints what was chosen.
// Usage: five_lines MODEL.pt2 ROWS COLUMNS (a model of one f32 input; the example uses the zoo's `mlp`)
#include <keirin/torch.h>

#include <cstdio>
#include <exception>

int main(int argc, char** argv) try {
  if (argc != 4) return std::fprintf(stderr, "usage: five_lines MODEL.pt2 ROWS COLUMNS\n"), 2;
  at::Tensor x = at::randn({std::atoll(argv[2]), std::atoll(argv[3])});
  keirin::Model model = keirin::Model::load(argv[1]);
  std::vector<at::Tensor> before = keirin::call(model, {x});  // eager answers from the start
  keirin::compile(model, {x});
  std::vector<at::Tensor> after = keirin::call(model, {x});
  std::puts(model.explain().c_str());
  double difference = (before[0] - after[0]).abs().max().item<double>();
  std::printf("largest difference between eager and the chosen plan: %.3g\n", difference);
  return difference < 1e-3 ? 0 : 1;
} catch (const std::exception& error) {  // a file that is not there, a shape that the model does not take
  return std::fprintf(stderr, "%s\n", error.what()), 1;
}
