// SPDX-License-Identifier: Apache-2.0
//
// Operators of Python packages that this process has not loaded: what ours answer against what the packages' own
// answered in Python, in the file's dtypes and as the referee runs them; and what is said of an operator that nobody
// has.
#include "core/eager/program/package_ops.h"

#include "core/eager/program/bind.h"
#include "tests/unit/eager/loaded_model.h"

namespace keirin {
namespace {

using testing::LoadedModel;
using testing::sizes_of;

class PackageOps : public ::testing::TestWithParam<const char*> {};

double largest(const LoadedModel& loaded, const TensorRef& tensor) {
  const TensorRef zero = *loaded.services->allocate({tensor->dtype(), sizes_of(*tensor), {}, {}});
  std::memset(zero->data(), 0, static_cast<size_t>(zero->storage_bytes()));
  return loaded.largest_difference(tensor, zero);
}

// Numbers of two libraries that sum in other orders; whole numbers and their places are equal.
void expect_near(const LoadedModel& loaded, const TensorRef& got, const TensorRef& wanted, const std::string& where) {
  ASSERT_NE(got, nullptr) << where;
  ASSERT_EQ(sizes_of(*got), sizes_of(*wanted)) << where;
  const double bound = is_float(wanted->dtype()) ? 2e-6 * std::max(1.0, largest(loaded, wanted)) : 0;
  EXPECT_LE(loaded.largest_difference(got, wanted), bound) << where;
}

TEST_P(PackageOps, AnswerAsThePackageDoes) {
  LoadedModel loaded(GetParam(), "packages");
  ASSERT_NE(loaded.model, nullptr);
  auto program = EagerProgram::make(loaded.model->program, loaded.weights, {});
  ASSERT_TRUE(program.ok()) << program.status().text();
  auto outputs = (*program)->run(loaded.inputs());
  ASSERT_TRUE(outputs.ok()) << outputs.status().text();
  auto referee = (*program)->referee(loaded.inputs(), {}, 1);
  ASSERT_TRUE(referee.ok()) << referee.status().text();
  for (const std::string& op : referee->own_dtype) EXPECT_FALSE(is_package_op(op)) << op << " did not run in fp64";
  ASSERT_GT(outputs->size(), 0u);
  for (size_t i = 0; i < outputs->size(); ++i) {
    const TensorRef wanted = loaded.expected(0, i);
    ASSERT_NE(wanted, nullptr) << "output " << i;
    EXPECT_EQ(outputs->at(i)->dtype(), wanted->dtype()) << "output " << i;
    expect_near(loaded, outputs->at(i), wanted, "output " + std::to_string(i));
    expect_near(loaded, referee->outputs[0][i], wanted, "output " + std::to_string(i) + " in fp64");
  }
  EXPECT_EQ(loaded.expected(0, outputs->size()), nullptr);
}

INSTANTIATE_TEST_SUITE_P(Models, PackageOps,
                         ::testing::Values("grouped_mm", "nms", "roi_align", "scatter", "quantized"),
                         [](const auto& info) { return std::string(info.param); });

// LibTorch's own has no form in fp64; the referee has one, and is as near to it as bf16 is.
TEST(GroupedProduct, RunsInFp64) {
  LoadedModel loaded("grouped_product", "packages");
  ASSERT_NE(loaded.model, nullptr);
  auto program = EagerProgram::make(loaded.model->program, loaded.weights, {});
  ASSERT_TRUE(program.ok()) << program.status().text();
  auto referee = (*program)->referee(loaded.inputs(), {}, 1);
  ASSERT_TRUE(referee.ok()) << referee.status().text();
  EXPECT_TRUE(referee->own_dtype.empty());
  const TensorRef wanted = loaded.expected(0, 0);
  ASSERT_EQ(sizes_of(*referee->outputs[0][0]), sizes_of(*wanted));
  const double error = loaded.largest_difference(referee->outputs[0][0], wanted);
  EXPECT_LE(error, 0x1p-6 * largest(loaded, wanted));
  EXPECT_GT(error, 0) << "else it was computed in bf16";
}

TEST(UnknownOperator, IsRefusedWithTheLibraryThatHasIt) {
  const auto text = [](const char* target) { return find_operator(target).status().text(); };
  EXPECT_EQ(text("torch.ops.torchvision.deform_conv2d.default"),
            "unsupported: op torch.ops.torchvision.deform_conv2d.default is not registered in this process\n"
            "  give the library that registers it with --load-library: libtorchvision.so of its C++ build "
            "(torchvision/_C.so of the "
            "Python package needs a process with Python)");
  EXPECT_NE(text("torch.ops.torch_cluster.knn.default").find("--load-library: the libraries of torch_cluster/"),
            std::string::npos);
  EXPECT_NE(text("torch.ops.flash_attn._flash_attn_forward.default").find("registers it in Python"), std::string::npos);
  EXPECT_NE(text("torch.ops.mine.relu.default").find("give the library that registers it with --load-library"),
            std::string::npos);
}

// Whoever loads the package's own library later meets no second registration.
TEST(PackageOp, TakesNoNameOfThePackages) {
  ASSERT_TRUE(find_operator("torch.ops.torchvision.nms.default").ok());
  ASSERT_TRUE(find_operator("torch.ops.torchvision.nms.default").ok()) << "twice";
  EXPECT_FALSE(c10::Dispatcher::singleton().findSchema({"torchvision::nms", ""}).has_value());
}

}  // namespace
}  // namespace keirin
