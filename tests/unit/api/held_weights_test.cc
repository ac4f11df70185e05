// SPDX-License-Identifier: Apache-2.0
//
// A program in memory whose inputs are tensors that the caller holds: what torch.compile hands over.
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <iterator>

#include "core/eager/tensor_services.h"
#include "tests/support/shared_runtime.h"

namespace keirin {
namespace {

using test::shared_runtime;

std::string bytes_of(const std::string& name) {
  std::ifstream file(std::string(KEIRIN_SOURCE_DIR) + "/bench/zoo/models/small/" + name + ".pt2", std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class HeldWeights : public testing::Test {
 protected:
  void SetUp() override {
    auto plain = open({});
    ASSERT_TRUE(plain.ok()) << plain.status().text();
    auto inputs = (*plain)->example_inputs(1);
    ASSERT_TRUE(inputs.ok() && inputs->size() == 1);
    x_ = inputs->front();
    auto wanted = (*plain)->call({x_});
    ASSERT_TRUE(wanted.ok()) << wanted.status().text();
    wanted_ = wanted->front();
  }
  Result<std::unique_ptr<Session>> open(const std::vector<Session::HeldWeight>& held) {
    return Session::open(shared_runtime(), std::as_bytes(std::span(file_)), "mlp", held, {});
  }

  std::string file_ = bytes_of("mlp");
  TensorRef x_, wanted_;
};

TEST_F(HeldWeights, AreNoInputsAndAreNotCopied) {
  auto session = open({{0, "x", x_, 0, 0}});
  ASSERT_TRUE(session.ok()) << session.status().text();
  EXPECT_TRUE((*session)->signature().inputs.empty());
  auto first = (*session)->call({});
  ASSERT_TRUE(first.ok()) << first.status().text();
  EXPECT_TRUE(*same_bits(first->front(), wanted_));
  std::memset(x_->data(), 0, static_cast<size_t>(x_->storage_bytes()));  // the caller's own memory
  auto second = (*session)->call({});
  ASSERT_TRUE(second.ok());
  EXPECT_FALSE(*same_bits(second->front(), wanted_));
}

TEST_F(HeldWeights, AreRefusedWithTheirNames) {
  using Held = std::vector<Session::HeldWeight>;
  for (const Held& held : {Held{{7, "seventh", x_, 0, 0}}, Held{{0, "twice", x_, 0, 0}, {0, "twice", x_, 0, 0}}}) {
    auto session = open(held);
    ASSERT_FALSE(session.ok());
    EXPECT_EQ(session.status().code(), Code::k_invalid_input);
    EXPECT_NE(session.status().text().find(held[0].name), std::string::npos);
  }
}

TEST_F(HeldWeights, DamagedBytesAreAnError) {
  file_.resize(file_.size() / 2);
  auto session = open({});
  ASSERT_FALSE(session.ok());
  EXPECT_EQ(session.status().code(), Code::k_corrupt);
  EXPECT_NE(session.status().text().find("mlp"), std::string::npos);
}

TEST_F(HeldWeights, ADecisionIsSeenAndAModelWithoutEffectsHasNone) {
  auto session = open({});
  ASSERT_TRUE(session.ok());
  EXPECT_FALSE((*session)->is_decided({x_}));
  const auto before = random_state({});
  auto effects = (*session)->effects({x_});
  ASSERT_TRUE(effects.ok()) << effects.status().text();
  EXPECT_TRUE(effects->written_weights.empty() && effects->written_inputs.empty() && !effects->draws_random && !effects->in_segments);
  EXPECT_TRUE(*before == *random_state({}));
}

}  // namespace
}  // namespace keirin
