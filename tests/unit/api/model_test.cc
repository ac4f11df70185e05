// SPDX-License-Identifier: Apache-2.0
//
// The public front door: tensors by address in and out, errors that are thrown.
#include "core/api/keirin.h"

#include <gtest/gtest.h>

#include <cstring>

#include "tests/support/shared_runtime.h"
#include "tests/support/temp_folder.h"

namespace keirin {
namespace {

const std::string kModel = std::string(KEIRIN_SOURCE_DIR) + "/bench/zoo/models/small/mlp.pt2";

TensorView view_of(const TensorRef& tensor) {
  TensorView view;
  view.data = tensor->data();
  view.dtype = dtype_name(tensor->dtype());
  view.sizes.assign(tensor->sizes(), tensor->sizes() + tensor->rank());
  return view;  // row-major, as example inputs are
}

TEST(Model, AnswersInTensorsByAddress) {
  const test::TempFolder folder;
  LoadOptions options;
  options.cache_dir = folder.path() + "/cache";
  const Model model = Model::load(kModel, options);
  auto session = Session::open(test::shared_runtime(), kModel, {});
  ASSERT_TRUE(session.ok()) << session.status().text();
  const auto inputs = (*session)->example_inputs(3);
  ASSERT_TRUE(inputs.ok()) << inputs.status().text();
  const auto want = (*session)->call_eager(*inputs);
  ASSERT_TRUE(want.ok()) << want.status().text();
  std::vector<TensorView> views;
  for (const TensorRef& input : *inputs) views.push_back(view_of(input));
  std::vector<TensorView> got = model.call(views);
  ASSERT_EQ(got.size(), want->size());
  for (size_t i = 0; i < got.size(); ++i) {
    const Tensor& tensor = *want->at(i);
    EXPECT_EQ(got[i].dtype, dtype_name(tensor.dtype()));
    EXPECT_EQ(got[i].device, "cpu");
    EXPECT_EQ(got[i].sizes, std::vector<int64_t>(tensor.sizes(), tensor.sizes() + tensor.rank()));
    EXPECT_EQ(got[i].strides, std::vector<int64_t>(tensor.strides(), tensor.strides() + tensor.rank()));
    ASSERT_NE(got[i].owner, nullptr);
    int64_t bytes = dtype_bytes(tensor.dtype());
    for (int64_t size : got[i].sizes) bytes *= size;
    EXPECT_EQ(std::memcmp(got[i].data, tensor.data(), static_cast<size_t>(bytes)), 0) << "nothing is decided yet: eager answers";
  }
  EXPECT_EQ(model.report_json(), "[]");
}

TEST(Model, WhatIsNoTensorIsThrown) {
  const test::TempFolder folder;
  LoadOptions options;
  options.cache_dir = folder.path() + "/cache";
  const Model model = Model::load(kModel, options);
  const auto words = [&](auto change) -> std::string {
    float data[4] = {};
    TensorView view{data, "f32", {2, 2}, {}, "cpu", nullptr};
    change(view);
    try {
      model.call({view});
    } catch (const std::exception& error) {
      return error.what();
    }
    return "nothing was refused";
  };
  EXPECT_NE(words([](TensorView& v) { v.dtype = "f33"; }).find("input 0 has the unknown dtype f33"), std::string::npos);
  EXPECT_NE(words([](TensorView& v) { v.device = "gpu"; }).find("input 0 is on the unknown device gpu"), std::string::npos);
  EXPECT_NE(words([](TensorView&) {}), "nothing was refused") << "sizes that the model does not take";
  EXPECT_NE(words([](TensorView& v) { v.strides = {1}; }), "nothing was refused") << "not a stride for each axis";
  EXPECT_NE(words([](TensorView& v) { v.sizes = {-2, 2}; }), "nothing was refused");
}

}  // namespace
}  // namespace keirin
