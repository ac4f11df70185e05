// SPDX-License-Identifier: Apache-2.0
//
// Random regions of pointwise, reduce and view ops: whatever fusion does, the values stay those of node-by-node evaluation. A
// failing seed is printed; run it alone with --gtest_filter and KEIRIN_SEED.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "tests/unit/codegen/check.h"

namespace keirin::codegen::test {
namespace {

class RandomGraph {
 public:
  explicit RandomGraph(uint32_t seed) : gen_(seed) {}

  RegionBuilder build() {
    for (int i = 0; i < 3; ++i) values_.push_back(g_.input(pick(4) == 0 ? kDType_bf16 : kDType_f32, sizes(), {}));
    index_ = g_.input(kDType_i64, {5});
    int ops = 3 + pick(18);
    for (int i = 0; i < ops; ++i) values_.push_back(bounded(step()));
    g_.output(values_.back());
    for (int extra = pick(3); extra-- > 0;) g_.output(any());
    return std::move(g_);
  }

 private:
  int pick(int n) { return static_cast<int>(gen_() % static_cast<uint32_t>(n)); }
  int any() { return values_[pick(static_cast<int>(values_.size()))]; }
  Dims sizes() {
    Dims out;
    for (int rank = 1 + pick(3); rank-- > 0;) out.push_back(std::vector<int64_t>{1, 2, 3, 4, 6, 8, 12}[pick(7)]);
    return out;
  }
  int rank(int x) { return static_cast<int>(g_.sizes(x).size()); }
  // tanh keeps everything finite and comparable.
  int bounded(int x) {
    if (pick(4) == 0 && g_.dtype(x) == kDType_bf16) g_.observe(x);
    return pick(3) == 0 ? g_.unary(kOp_tanh, x) : x;
  }

  int step() {
    int x = any();
    const Dims s = g_.sizes(x);
    int r = rank(x), d = r ? pick(r) : 0;
    switch (pick(17)) {
      case 0: return g_.unary(kOp_sigmoid, x);
      case 1: return g_.unary(kOp_neg, x);
      case 2:
      case 3: return binary(pick(2) ? kOp_add : kOp_mul, x);
      case 4: return r ? g_.reduce(kOp_sum, scaled(x), {d}, pick(2)) : x;
      case 5: return r ? g_.reduce(kOp_amax, x, {d}, pick(2)) : x;
      case 6: return r ? g_.softmax(x, d) : x;
      case 7: return r ? g_.binary(kOp_sub, x, g_.mean(x, {d})) : x;
      case 8: return transpose(x);
      case 9: return reshape(x);
      case 10: return r && s[d] > 1 ? g_.slice(x, d, pick(2), s[d], 1 + pick(2)) : x;
      case 11: return r ? g_.flip(x, {d}) : x;
      case 12: return r ? g_.cat({x, g_.unary(kOp_relu, x), x}, d) : x;
      case 13: {
        if (!r) return x;
        Dims low(r, 0), high(r, 0);
        low[d] = 1 - pick(3), high[d] = pick(3);
        return s[d] + low[d] + high[d] > 0 ? g_.pad(x, low, high, 0.5) : x;
      }
      case 14: return r && s[d] >= 4 && r < 4 ? g_.take(x, index_, d) : x;
      case 15: return g_.cast(x, g_.dtype(x) == kDType_f32 ? kDType_bf16 : kDType_f32);
      // Continuous at the switch: a bf16 operand that need not be rounded may land on either side of it.
      default: return g_.where(g_.compare(kOp_gt, x, g_.scalar(0, x)), x, g_.binary(kOp_mul, x, g_.scalar(0.25, x)));
    }
  }

  int scaled(int x) { return g_.binary(kOp_mul, x, g_.scalar(0.125, x)); }

  int binary(uint32_t op, int x) {
    for (int tries = 0; tries < 6; ++tries) {
      int y = any();
      if (g_.dtype(y) == g_.dtype(x) && compatible(g_.sizes(x), g_.sizes(y))) return g_.binary(op, x, y);
    }
    return g_.binary(op, x, x);
  }
  static bool compatible(const Dims& a, const Dims& b) {
    int64_t n = 1;
    for (size_t i = 0; i < std::max(a.size(), b.size()); ++i) {
      int64_t x = i < a.size() ? a[a.size() - 1 - i] : 1, y = i < b.size() ? b[b.size() - 1 - i] : 1;
      if (x != y && x != 1 && y != 1) return false;
      n *= std::max(x, y);
    }
    return n <= 4096;
  }
  int transpose(int x) {
    Dims dims(rank(x));
    for (size_t i = 0; i < dims.size(); ++i) dims[i] = static_cast<int64_t>(i);
    std::shuffle(dims.begin(), dims.end(), gen_);
    return g_.permute(x, dims);
  }
  int reshape(int x) {
    int64_t n = 1;
    for (int64_t s : g_.sizes(x)) n *= s;
    Dims to;
    for (int64_t f : {2, 3, 4}) {
      if (n % f == 0 && pick(2)) to.push_back(f), n /= f;
    }
    to.insert(to.begin() + pick(static_cast<int>(to.size()) + 1), n);
    return g_.reshape(x, to);
  }

  std::mt19937 gen_;
  RegionBuilder g_;
  std::vector<int> values_;
  int index_ = -1;
};

TEST(RandomGraph, FusedEqualsUnfused) {
  const char* only = std::getenv("KEIRIN_SEED");
  const char* count = std::getenv("KEIRIN_SEEDS");
  uint32_t first = only ? static_cast<uint32_t>(std::atoi(only)) : 0;
  uint32_t last = only ? first + 1 : count ? static_cast<uint32_t>(std::atoi(count)) : 600;
  uint32_t kernels = 0, nodes = 0;
  for (uint32_t seed = first; seed < last; ++seed) {
    SCOPED_TRACE("KEIRIN_SEED=" + std::to_string(seed));
    RegionBuilder g = RandomGraph(seed).build();
    if (FILE* f = std::getenv("KEIRIN_DUMP_REGION") ? std::fopen(std::getenv("KEIRIN_DUMP_REGION"), "wb") : nullptr) {
      std::vector<uint8_t> bytes = g.bytes();
      std::fwrite(bytes.data(), 1, bytes.size(), f);
      std::fclose(f);
    }
    InterpBackend backend;
    backend.info.launch_ns = seed % 2 ? 1000 : 0;  // without a launch cost fusion decides otherwise
    backend.puts_together = seed % 3 == 0;
    // bf16 values that need not be rounded may be: the tolerance is that of bf16 where it occurs.
    Checked c = check(g, backend, {}, 3e-2);
    kernels += c.kernels();
    nodes += static_cast<uint32_t>(read_region(g.bytes()).nodes.size());
    if (::testing::Test::HasFailure()) break;
  }
  std::printf("%u graphs, %u nodes, %u kernels\n", last - first, nodes, kernels);
}

}  // namespace
}  // namespace keirin::codegen::test
