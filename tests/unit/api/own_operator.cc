// SPDX-License-Identifier: Apache-2.0
//
// A library as users have them: it registers the operator of tests/data/import/own_operator.pt2 with LibTorch when it is opened.
#include <ATen/ATen.h>
#include <torch/library.h>

TORCH_LIBRARY(keirin_test, library) { library.def("bent(Tensor x, float factor) -> Tensor"); }

TORCH_LIBRARY_IMPL(keirin_test, CPU, library) {
  library.impl("bent", [](const at::Tensor& x, double factor) { return at::tanh(x * factor) + x; });
}
