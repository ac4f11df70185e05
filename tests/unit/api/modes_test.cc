// SPDX-License-Identifier: Apache-2.0
//
// Grad and inference mode are not guarded: neither eager here nor a plan records gradients, and what either hands out is made in the
// caller's mode. So a plan that was decided in one mode answers in all of them, as eager does.
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>

#include "core/api/session.h"
#include "core/eager/at_tensor.h"
#include "tests/support/others.h"
#include "tests/support/shared_runtime.h"

namespace keirin {
namespace {

enum Mode { kNone, kNoGrad, kInference };

template <class Fn>
auto in_mode(Mode mode, Fn&& fn) {
  const at::AutoGradMode grad(mode == kNone);
  if (mode != kInference) return fn();
  const c10::InferenceMode inference;
  return fn();
}

test::Others nobody;

struct Modes : testing::TestWithParam<const char*> {
  static std::unique_ptr<Session> open(bool compiled) {
    Options options;
    options.force = compiled ? "compiled" : "eager";
    options.race_seconds = 0.05;
    options.use_cache = false;
    options.interference = &nobody;
    auto session =
        Session::open(test::shared_runtime(), std::string(KEIRIN_SOURCE_DIR) + "/tests/data/import/" + GetParam() + ".pt2", options);
    EXPECT_TRUE(session.ok()) << session.status().text();
    return session.ok() ? std::move(*session) : nullptr;
  }
};

TEST_P(Modes, APlanAnswersInEachAsEagerDoes) {
  for (const Mode decided : {kNone, kNoGrad, kInference}) {
    const auto plan = open(true), eager = open(false);
    const std::vector<TensorRef> inputs = *plan->example_inputs(1);
    const auto report = in_mode(decided, [&] { return plan->compile(inputs); });
    ASSERT_TRUE(report.ok()) << report.status().text();
    ASSERT_GT(report->nodes_compiled, 0) << explain_text(*report);
    // Each mode after each other one, so that what one call let go of would serve the next.
    for (const Mode called : {kNone, kNoGrad, kInference, kNoGrad, kNone, kInference, kNone}) {
      SCOPED_TRACE(testing::Message() << "decided in " << decided << ", called in " << called);
      const auto answer = [&](Session& session) {
        std::vector<TensorRef> own;
        for (const TensorRef& input : inputs) {
          const at::Tensor copy = to_at(input).clone();
          own.push_back(from_at(copy.is_floating_point() ? copy.requires_grad_() : copy));
        }
        const auto outputs = in_mode(called, [&] { return session.call(own); });
        EXPECT_TRUE(outputs.ok()) << outputs.status().text();
        std::vector<at::Tensor> all;
        if (outputs.ok())
          for (const TensorRef& output : *outputs) all.push_back(to_at(output));
        for (const TensorRef& input : own) all.push_back(to_at(input).detach());
        return std::pair(all, outputs.ok() ? outputs->size() : 0);
      };
      const auto [ours, num_outputs] = answer(*plan);
      const auto [theirs, num_theirs] = answer(*eager);
      ASSERT_EQ(num_outputs, num_theirs);
      for (size_t i = 0; i < ours.size(); ++i) {
        EXPECT_TRUE(at::allclose(ours[i], theirs[i], 1e-5, 1e-6)) << "tensor " << i;
        if (i >= num_outputs) continue;
        EXPECT_FALSE(ours[i].requires_grad());
        EXPECT_EQ(ours[i].is_inference(), called == kInference);
        EXPECT_EQ(theirs[i].is_inference(), called == kInference);
        in_mode(called, [&] { return at::Tensor(ours[i]).add_(1); });  // the caller's to write
      }
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Models, Modes, testing::Values("mlp", "exchange_functional", "writes_input", "rows"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace keirin
