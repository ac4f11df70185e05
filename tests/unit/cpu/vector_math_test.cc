// SPDX-License-Identifier: Apache-2.0
//
// The generated elementary functions against the double ones of the C library. Quick: a stride over all bit patterns and the
// special values. With KEIRIN_SLOW_TESTS=1 (ctest label slow): more than 10^8 arguments each. Errors are in units of the last
// place of the true result, counted at f32's smallest spacing where it is denormal.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdlib>
#include <thread>

#include "tests/unit/cpu/kernel_maker.h"
#include "tests/unit/cpu/levels.h"

namespace keirin::test {
namespace {

using namespace codegen;
using native::CpuTarget;

struct Function {
  const char* name;
  Prim prim;
  double (*truth)(double);
  double bound;  // ulp
  double low, high;  // arguments drawn from it; all bit patterns when equal
};

const Function kFunctions[] = {
    {"exp", Prim::kExp, [](double x) { return std::exp(x); }, 1.1, -104, 89},
    {"exp2", Prim::kExp2, [](double x) { return std::exp2(x); }, 1.1, -150, 128},
    {"expm1", Prim::kExpm1, [](double x) { return std::expm1(x); }, 1.6, -18, 89},
    {"log", Prim::kLog, [](double x) { return std::log(x); }, 1.1, 0, 0},
    {"log1p", Prim::kLog1p, [](double x) { return std::log1p(x); }, 1.6, 0, 0},
    {"log2", Prim::kLog2, [](double x) { return std::log2(x); }, 1.6, 0, 0},
    {"tanh", Prim::kTanh, [](double x) { return std::tanh(x); }, 1.6, -10, 10},
    {"erf", Prim::kErf, [](double x) { return std::erf(x); }, 1.6, -4, 4},
    {"sin", Prim::kSin, [](double x) { return std::sin(x); }, 1.6, -100, 100},
    {"cos", Prim::kCos, [](double x) { return std::cos(x); }, 1.6, -100, 100},
};

constexpr int64_t kChunk = 1 << 14;

Kernel kernel_of(Prim prim) {
  KernelMaker m;
  m.outer(1).inner(kChunk);
  m.store(m.op(prim, m.load(kF32, {kChunk, 1})), kF32, {kChunk, 1});
  return m.k;
}

double ulps(float got, double want) {
  const auto rounded = static_cast<float>(want);
  if (std::isnan(want)) return std::isnan(got) ? 0 : INFINITY;
  if (got == rounded) return 0;
  if (std::isnan(got) || std::isinf(got) || std::isinf(rounded)) {
    // The largest finite value beside infinity is a rounding, anything else a mistake.
    if (std::isinf(rounded) && std::fabs(got) == std::numeric_limits<float>::max()) return 1;
    if (std::isinf(got) && std::fabs(rounded) == std::numeric_limits<float>::max()) return 1;
    return INFINITY;
  }
  int exponent;
  std::frexp(want, &exponent);
  return std::fabs(static_cast<double>(got) - want) / std::ldexp(1.0, std::max(exponent - 24, -149));
}

struct Worst {
  double error = 0;
  float argument = 0;
  int64_t count = 0;
};

// Arguments number first, first + step, ... of the function's sweep.
Worst sweep(const Function& f, native::KernelFunction code, const Kernel& k, uint64_t first, uint64_t step, uint64_t count) {
  Worst worst;
  std::vector<float> x(kChunk), y(kChunk);
  const bool all = f.low == f.high;
  for (uint64_t done = 0; done < count; done += kChunk) {
    for (int64_t i = 0; i < kChunk; ++i) {
      const uint64_t n = first + (done + static_cast<uint64_t>(i)) * step;
      // Half of the arguments are bit patterns spread over all floats, half lie where the function is neither 0, 1 nor infinite.
      if (all || i % 2 == 0) x[i] = std::bit_cast<float>(static_cast<uint32_t>(n * 2654435761u >> 0));
      else x[i] = static_cast<float>(f.low + (f.high - f.low) * static_cast<double>(static_cast<uint32_t>(n * 2246822519u)) * 0x1p-32);
    }
    run_generated(k, code, {x.data(), y.data()}, nullptr, nullptr, kChunk);
    for (int64_t i = 0; i < kChunk; ++i) {
      const double error = ulps(y[i], f.truth(x[i]));
      if (error > worst.error) worst.error = error, worst.argument = x[i];
    }
    worst.count += kChunk;
  }
  return worst;
}

TEST(VectorMath, WithinTheStatedErrorOfTheDoubleFunctions) {
  const bool slow = std::getenv("KEIRIN_SLOW_TESTS") != nullptr;
  const uint64_t count = slow ? 104'000'000 : 1'000'000;
  native::CodeCache cache;
  for (const Function& f : kFunctions) {
    const Kernel k = kernel_of(f.prim);
    uint32_t generated = 0;
    auto code = cache.get(k, levels().back(), generated);
    Worst halves[2];
    std::thread other([&] { halves[1] = sweep(f, code, k, 1, 2, count / 2); });
    halves[0] = sweep(f, code, k, 0, 2, count / 2);
    other.join();
    const Worst& worst = halves[0].error > halves[1].error ? halves[0] : halves[1];
    printf("%-6s %lld arguments, worst %.3f ulp at %.9g\n", f.name, static_cast<long long>(halves[0].count + halves[1].count),
           worst.error, static_cast<double>(worst.argument));
    EXPECT_LE(worst.error, f.bound) << f.name << " at " << worst.argument;
  }
}

TEST(VectorMath, SpecialValuesOnEveryLevel) {
  const float specials[] = {0.0f,    -0.0f,    INFINITY, -INFINITY, NAN,      1e-45f,  -1e-45f, 1e-40f, -1e-40f, 1.0f,
                            -1.0f,   88.7228f, 88.73f,   -87.4f,    -103.97f, -104.1f, 127.99f, 128.0f, -149.0f, -150.1f,
                            3.4e38f, -3.4e38f, 1e30f,    0x1p30f,   -0x1p31f, 0.5f,    2.0f,    10.0f};
  native::CodeCache cache;
  for (const CpuTarget& target : levels()) {
    for (const Function& f : kFunctions) {
      const Kernel k = kernel_of(f.prim);
      uint32_t generated = 0;
      auto code = cache.get(k, target, generated);
      std::vector<float> x(kChunk, 1.0f), y(kChunk);
      std::copy(std::begin(specials), std::end(specials), x.begin());
      run_generated(k, code, {x.data(), y.data()}, nullptr, nullptr, kChunk);
      for (size_t i = 0; i < std::size(specials); ++i) {
        const double want = f.truth(x[i]);
        EXPECT_LE(ulps(y[i], want), 2) << f.name << "(" << x[i] << ") is " << y[i] << ", not " << want << " on " << target.cpu;
        if (want == 0) {
          EXPECT_EQ(std::signbit(y[i]), std::signbit(want)) << f.name << "(" << x[i] << ") on " << target.cpu;
        }
      }
    }
  }
}

}  // namespace
}  // namespace keirin::test
