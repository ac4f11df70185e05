// SPDX-License-Identifier: Apache-2.0
//
// Rule G1 as a property: whatever is planted among the candidates of one computation, slow, wrong, unsteady or failing, the choice
// is the best of those that are right and faster, and eager if there is none. Judge and race together, as the choice runs them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "core/tune/elements.h"
#include "core/tune/inputs.h"
#include "core/tune/verify.h"
#include "tests/unit/host/heap_services.h"
#include "tests/unit/tune/fake_machine.h"

namespace keirin {
namespace {

constexpr int64_t kN = 256;

// y = tanh(x) by somebody: writes y and says how long it took.
struct Planted {
  const char* name;
  bool right;
  double speed;  // times eager's
  std::function<void(const float* x, float* y)> body;
};

void good(const float* x, float* y) {
  for (int64_t i = 0; i < kN; ++i) y[i] = static_cast<float>(std::tanh(static_cast<double>(x[i])));
}

std::vector<Planted> all_planted() {
  return {
      {"fast", true, 1.5, good},
      {"faster", true, 2.0, good},
      {"slow", true, 0.9, good},
      {"same", true, 1.0, good},
      {"identity", false, 3.0, [](const float* x, float* y) { std::copy(x, x + kN, y); }},
      {"zeros", false, 9.0, [](const float*, float* y) { std::fill(y, y + kN, 0.0f); }},
      {"constant", false, 9.0, [](const float*, float* y) { std::fill(y, y + kN, 0.5f); }},
      {"nan", false, 4.0,
       [](const float* x, float* y) {
         good(x, y);
         y[17] = std::nanf("");
       }},
      {"off_by_one", false, 4.0,
       [](const float* x, float* y) {
         good(x, y);
         std::rotate(y, y + 1, y + kN);
       }},
      {"short_by_one", false, 4.0,
       [](const float* x, float* y) {
         const float kept = y[kN - 1];
         good(x, y);
         y[kN - 1] = kept;  // never written
       }},
      {"rough", false, 4.0,
       [](const float* x, float* y) {
         for (int64_t i = 0; i < kN; ++i) y[i] = x[i] * (27 + x[i] * x[i]) / (27 + 9 * x[i] * x[i]);
       }},
  };
}

class Contest {
 public:
  explicit Contest(uint64_t seed) : machine_(seed, {0.02, 0, 0, 0.02}) {
    const Type type{DType::k_f32, {kN}, {1}};
    graph_.add_input(type, 0);
    InputOptions o;
    o.seed = seed;
    x_ = (*make_inputs(graph_, services_, o))[0];
    std::vector<double> exact(kN), rounded(kN);
    for (int64_t i = 0; i < kN; ++i) {
      const float x = static_cast<const float*>(x_->data())[i];
      exact[static_cast<size_t>(i)] = std::tanh(static_cast<double>(x));
      rounded[static_cast<size_t>(i)] = std::tanh(x);
    }
    referee_ = store(DType::k_f64, exact);
    eager_ = store(DType::k_f32, rounded);
  }

  // The name of the choice.
  std::string hold(const std::vector<Planted>& candidates) {
    std::vector<Runner> runners{machine_.runner("eager", 1e6)};
    for (const Planted& p : candidates) {
      const TensorRef y = store(DType::k_f32, std::vector<double>(kN, 7));
      p.body(static_cast<const float*>(x_->data()), static_cast<float*>(y->data()));
      const TensorRef r[] = {referee_}, e[] = {eager_}, c[] = {y};
      if (judge(r, e, c, services_)->verified) runners.push_back(machine_.runner(p.name, 1e6 / p.speed));
    }
    const Result<RaceSheet> sheet = race(runners, 0, machine_.options());
    return sheet->rows[sheet->winner].name;
  }

 private:
  TensorRef store(DType dtype, const std::vector<double>& values) {
    TensorRef t = *services_.allocate({dtype, {static_cast<int64_t>(values.size())}, {}, {}});
    each_element(*t, [&](int64_t i, void* at) { store_element(dtype, at, values[static_cast<size_t>(i)]); });
    return t;
  }
  test::HeapServices services_;
  test::FakeMachine machine_;
  Graph graph_;
  TensorRef x_, referee_, eager_;
};

TEST(Planted, EachAloneIsDroppedUnlessItIsRightAndFaster) {
  for (const Planted& p : all_planted())
    EXPECT_EQ(Contest(11).hold({p}), p.right && p.speed > 1 ? p.name : "eager") << p.name;
}

TEST(Planted, OfAnyMixTheBestRightOneIsChosen) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 200; ++round) {
    std::vector<Planted> mix;
    std::string best = "eager";
    double speed = 1;
    for (const Planted& p : all_planted()) {
      if (random() % 2) continue;
      mix.push_back(p);
      if (p.right && p.speed > speed) {
        best = p.name;
        speed = p.speed;
      }
    }
    std::shuffle(mix.begin(), mix.end(), random);
    ASSERT_EQ(Contest(static_cast<uint64_t>(round)).hold(mix), best) << "round " << round;
  }
}

}  // namespace
}  // namespace keirin
