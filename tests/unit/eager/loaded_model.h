// SPDX-License-Identifier: Apache-2.0
//
// A model of tests/data/import with its inputs and Python's outputs, for tests of the eager side. No torch.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "core/capture/pt2/read_pt2.h"
#include "core/eager/program/program.h"
#include "core/eager/tensor_services.h"
#include "core/eager/weights/load_weights.h"
#include "core/eager/weights/safetensors.h"

namespace keirin::testing {

inline std::string data_path(const std::string& file, const std::string& folder = "import") {
  return std::string(KEIRIN_SOURCE_DIR) + "/tests/data/" + folder + "/" + file;
}

inline int64_t num_elements(const Tensor& tensor) {
  int64_t n = 1;
  for (int64_t i = 0; i < tensor.rank(); ++i) n *= tensor.sizes()[i];
  return n;
}

inline std::vector<int64_t> sizes_of(const Tensor& tensor) { return {tensor.sizes(), tensor.sizes() + tensor.rank()}; }

// Over all elements, in f64.
inline double largest_difference(TensorServices& services, const TensorRef& a, const TensorRef& b) {
  const TensorRef x = *services.allocate({DType::k_f64, sizes_of(*a), {}, {}});
  const TensorRef y = *services.allocate({DType::k_f64, sizes_of(*b), {}, {}});
  EXPECT_TRUE(services.copy(x, a).ok() && services.copy(y, b).ok());
  double worst = 0;
  for (int64_t i = 0; i < num_elements(*a); ++i) {
    const double difference = std::abs(static_cast<double*>(x->data())[i] - static_cast<double*>(y->data())[i]);
    if (std::isnan(difference)) return difference;
    worst = std::max(worst, difference);
  }
  return worst;
}

struct LoadedModel {
  std::unique_ptr<TensorServices> services = make_tensor_services();
  pt2::Pt2File file;
  const pt2::Model* model = nullptr;
  WeightTable weights;
  std::map<std::string, TensorRef> golden;
  bool has_products = false;  // a library takes sums in it

  explicit LoadedModel(const std::string& name, const std::string& folder = "import") {
    auto read = pt2::read_pt2(data_path(name + ".pt2", folder));
    EXPECT_TRUE(read.ok()) << read.status().text();
    if (!read.ok()) return;
    file = std::move(*read);
    model = *file.model();
    for (const pt2::Node& node : model->program.graph.nodes)
      for (const char* product : {".conv", ".linear", ".matmul", "mm.", ".einsum", ".tensordot"})
        has_products |= node.target.find(product) != std::string::npos;
    auto loaded = load_weights(*model, std::nullopt, *services);
    EXPECT_TRUE(loaded.ok()) << loaded.status().text();
    weights = std::move(*loaded);
    auto tensors = read_safetensors(data_path(name + ".safetensors", folder), *services);
    EXPECT_TRUE(tensors.ok()) << tensors.status().text();
    for (auto& [key, tensor] : *tensors) golden[key] = tensor;
  }

  // Own copies: a model may write its inputs.
  std::vector<TensorRef> inputs() const {
    std::vector<TensorRef> out;
    for (size_t i = 0; golden.contains("in_" + std::to_string(i)); ++i) {
      out.push_back(*services->clone(golden.at("in_" + std::to_string(i))));
    }
    return out;
  }
  TensorRef expected(int call, size_t output) const {
    const auto found = golden.find("out_" + std::to_string(call) + "_" + std::to_string(output));
    return found == golden.end() ? nullptr : found->second;
  }

  // Equal dtype, sizes and bits, whatever the strides. Of a model with a product, numbers within 1e-6 of the largest: the order of
  // its sums is the library's, which has another one for each kind of processor.
  ::testing::AssertionResult same_bits(const TensorRef& got, const TensorRef& wanted) const {
    if (got == nullptr || wanted == nullptr) return ::testing::AssertionFailure() << "a tensor is missing";
    if (got->dtype() != wanted->dtype() || sizes_of(*got) != sizes_of(*wanted)) {
      return ::testing::AssertionFailure()
             << "dtype or sizes differ: " << dtype_name(got->dtype()) << " against " << dtype_name(wanted->dtype())
             << ", rank " << got->rank() << " against " << wanted->rank();
    }
    const TensorRef dense = *services->allocate({wanted->dtype(), sizes_of(*wanted), {}, {}});
    if (!services->copy(dense, got).ok()) return ::testing::AssertionFailure() << "the result cannot be copied";
    const int64_t bytes = num_elements(*wanted) * dtype_bytes(wanted->dtype());
    const bool sums_differ = has_products && wanted->dtype() == DType::k_f32 && largest_difference(dense, wanted) <= 1e-6 * largest(wanted);
    if (bytes != 0 && !sums_differ && std::memcmp(dense->data(), wanted->data(), static_cast<size_t>(bytes)) != 0) {
      return ::testing::AssertionFailure()
             << "bits differ, first element " << first(*dense) << " against " << first(*wanted)
             << ", largest difference " << largest_difference(dense, wanted);
    }
    return ::testing::AssertionSuccess();
  }

  double largest_difference(const TensorRef& a, const TensorRef& b) const {
    return testing::largest_difference(*services, a, b);
  }

 private:
  double largest(const TensorRef& tensor) const {
    double out = 0;
    for (int64_t i = 0; i < num_elements(*tensor); ++i)
      out = std::max(out, std::abs(static_cast<double>(static_cast<const float*>(tensor->data())[i])));
    return out;
  }
  double first(const Tensor& tensor) const {
    return tensor.dtype() == DType::k_f32 && num_elements(tensor) > 0 ? *static_cast<const float*>(tensor.data()) : 0;
  }
};

}  // namespace keirin::testing
