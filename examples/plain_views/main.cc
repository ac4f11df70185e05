// SPDX-License-Identifier: Apache-2.0
//
// The same without LibTorch's headers: tensors by address.
#include <keirin/keirin.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

int main(int argc, char** argv) {
  if (argc != 4) return std::fprintf(stderr, "usage: plain_views MODEL.pt2 ROWS COLUMNS\n"), 2;
  long rows = std::atol(argv[2]), columns = std::atol(argv[3]);
  std::vector<float> x(static_cast<size_t>(rows * columns));
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(std::rand()) / static_cast<float>(RAND_MAX) - 0.5f;
  try {
    keirin::Model model = keirin::Model::load(argv[1]);
    std::vector<keirin::TensorView> out = model.call({{x.data(), "f32", {rows, columns}, {}, "cpu", nullptr}});
    std::printf("%zu outputs, the first has %zu axes\n", out.size(), out[0].sizes.size());
  } catch (const keirin::Error& error) {
    return std::fprintf(stderr, "%s\n", error.what()), 1;
  }
}
