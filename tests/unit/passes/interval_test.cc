// SPDX-License-Identifier: Apache-2.0
//
// The promise of Interval: whatever a formula gives for points in the intervals lies in the interval that it gives for them.
#include "abi/interval.h"

#include <gtest/gtest.h>

#include <limits>
#include <random>

namespace keirin::scalar {
namespace {

bool contains(const Interval& x, double y) { return y != y ? x.nan : x.low <= y && y <= x.high; }
bool contains(const Truth& t, bool y) { return y ? t.can_be_true : t.can_be_false; }

class Points {
 public:
  explicit Points(uint32_t seed) : rng_(seed) {}
  double number() {
    const double kSpecial[] = {0, 1, -1, 2, -0.5, 1e308, INFINITY, -INFINITY, 3.5};
    return rng_() % 2 ? kSpecial[rng_() % 9] : static_cast<double>(rng_() % 2001) / 100 - 10;
  }
  Interval interval() {
    double a = number(), b = number();
    return Interval(least(a, b), greatest(a, b), rng_() % 4 == 0);
  }
  double point(const Interval& x) {
    if (x.nan && rng_() % 4 == 0) return std::numeric_limits<double>::quiet_NaN();
    switch (rng_() % 3) {
      case 0: return x.low;
      case 1: return x.high;
      default: {
        double mid = x.low / 2 + x.high / 2;
        return mid >= x.low && mid <= x.high ? mid : x.low;
      }
    }
  }

 private:
  std::mt19937 rng_;
};

TEST(Interval, HoldsWhatTheFormulasGive) {
  Points p(1);
  for (int i = 0; i < 200000; ++i) {
    Interval a = p.interval(), b = p.interval(), c = p.interval();
    double x = p.point(a), y = p.point(b), z = p.point(c);
#define EXPECT_HOLDS(f)                                                                                  \
  EXPECT_TRUE(contains(rows::row_##f(a, b), rows::row_##f(x, y)))                                        \
      << #f << " of " << x << " in [" << a.low << "," << a.high << "] and " << y << " in [" << b.low << "," << b.high << "]"
#define EXPECT_HOLDS1(f) \
  EXPECT_TRUE(contains(rows::row_##f(a), rows::row_##f(x))) << #f << " of " << x << " in [" << a.low << "," << a.high << "]"
    EXPECT_HOLDS(add);
    EXPECT_HOLDS(sub);
    EXPECT_HOLDS(mul);
    EXPECT_HOLDS(div);
    EXPECT_HOLDS(maximum);
    EXPECT_HOLDS(minimum);
    EXPECT_HOLDS(eq);
    EXPECT_HOLDS(ne);
    EXPECT_HOLDS(lt);
    EXPECT_HOLDS(le);
    EXPECT_HOLDS(gt);
    EXPECT_HOLDS(ge);
    EXPECT_HOLDS1(neg);
    EXPECT_HOLDS1(abs);
    EXPECT_HOLDS1(sign);
    EXPECT_HOLDS1(reciprocal);
    EXPECT_HOLDS1(sqrt);
    EXPECT_HOLDS1(relu);
    EXPECT_HOLDS1(floor);
    EXPECT_HOLDS1(ceil);
    EXPECT_HOLDS1(trunc);
    EXPECT_HOLDS1(round);
    EXPECT_TRUE(contains(rows::row_clamp(a, b, c), rows::row_clamp(x, y, z)));
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace keirin::scalar
