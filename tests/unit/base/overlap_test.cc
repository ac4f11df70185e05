// SPDX-License-Identifier: Apache-2.0
//
// Which tensors share memory, against sets of addresses that are written out element by element, over random views.
#include "core/base/overlap.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

namespace keirin {
namespace {

class Strided final : public Tensor {
 public:
  Strided(DType dtype, std::vector<int64_t> sizes, std::vector<int64_t> strides, void* data)
      : dtype_(dtype), sizes_(std::move(sizes)), strides_(std::move(strides)), data_(data) {}
  DType dtype() const override { return dtype_; }
  Device device() const override { return {}; }
  const int64_t* sizes() const override { return sizes_.data(); }
  const int64_t* strides() const override { return strides_.data(); }
  int64_t rank() const override { return static_cast<int64_t>(sizes_.size()); }
  void* data() const override { return data_; }
  int64_t storage_bytes() const override { return 0; }

  std::set<const char*> bytes() const {
    std::set<const char*> out;
    add(0, static_cast<const char*>(data_), out);
    return out;
  }

 private:
  void add(size_t d, const char* at, std::set<const char*>& out) const {
    if (d == sizes_.size()) {
      for (int64_t i = 0; i < dtype_bytes(dtype_); ++i) out.insert(at + i);
      return;
    }
    for (int64_t i = 0; i < sizes_[d]; ++i) add(d + 1, at + i * strides_[d] * dtype_bytes(dtype_), out);
  }
  DType dtype_;
  std::vector<int64_t> sizes_, strides_;
  void* data_;
};

alignas(64) char memory[4096];

// A view as slices, transpositions and expansions make it of row-major memory.
Strided random_view(std::mt19937& random) {
  const auto below = [&](int64_t n) { return static_cast<int64_t>(random() % static_cast<uint64_t>(n)); };
  std::vector<int64_t> sizes, strides;
  int64_t stride = 1, offset = 0;
  for (int64_t d = below(4); d > 0; --d) {
    const int64_t whole = 1 + below(5), step = 1 + below(2), start = below(whole);
    const int64_t size = below(9) == 0 ? 0 : (whole - start + step - 1) / step;
    offset += start * stride;
    sizes.push_back(size);
    strides.push_back(stride * step);
    if (below(6) == 0) sizes.push_back(1 + below(3)), strides.push_back(0);
    stride *= whole;
  }
  for (size_t d = sizes.size(); d > 1; --d) {
    const auto k = static_cast<size_t>(below(static_cast<int64_t>(d)));
    std::swap(sizes[d - 1], sizes[k]), std::swap(strides[d - 1], strides[k]);
  }
  const DType dtype = below(5) == 0 ? DType::k_f64 : DType::k_f32;
  return Strided(dtype, sizes, strides, memory + 4 * (2 * below(8) + offset));
}

TEST(Overlap, IsThatOfTheElements) {
  std::mt19937 random(7);
  int shared = 0, apart_in_range = 0, inside = 0;
  for (int i = 0; i < 40000; ++i) {
    const Strided a = random_view(random), b = random_view(random);
    const auto in_a = a.bytes(), in_b = b.bytes();
    size_t common = 0;
    for (const char* byte : in_a) common += in_b.count(byte);
    if (common > 0) {
      EXPECT_TRUE(ranges_meet(a, b));
      EXPECT_TRUE(shares_elements(a, b));
      EXPECT_TRUE(shares_elements(b, a));
    } else {
      EXPECT_FALSE(shares_elements(a, b));
      EXPECT_FALSE(shares_elements(b, a));
      apart_in_range += ranges_meet(a, b);
    }
    if (covers(a, b)) {
      EXPECT_EQ(common, in_b.size());
      ++inside;
    }
    shared += common > 0;
  }
  EXPECT_GT(shared, 1000);
  EXPECT_GT(apart_in_range, 500);
  EXPECT_GT(inside, 300);
}

TEST(Overlap, ColumnsOfOneMatrixAreApart) {
  const Strided left(DType::k_f32, {4, 2}, {5, 1}, memory), right(DType::k_f32, {4, 2}, {5, 1}, memory + 8);
  const Strided all(DType::k_f32, {4, 5}, {5, 1}, memory), expanded(DType::k_f32, {3, 5}, {0, 1}, memory);
  EXPECT_TRUE(ranges_meet(left, right));
  EXPECT_FALSE(shares_elements(left, right));
  EXPECT_TRUE(covers(all, left));
  EXPECT_FALSE(covers(left, all));
  EXPECT_TRUE(covers(all, expanded));
  EXPECT_TRUE(covers(left, Strided(DType::k_f32, {2, 4}, {1, 5}, memory)));
}

TEST(Overlap, TensorsWithoutElementsShareNothing) {
  const Strided none(DType::k_f32, {0, 5}, {5, 1}, memory), all(DType::k_f32, {4, 5}, {5, 1}, memory);
  EXPECT_FALSE(ranges_meet(none, all));
  EXPECT_FALSE(shares_elements(all, none));
}

TEST(Overlap, IsExactHoweverLargeTheTensorsAre) {
  // The heads of query, key and value of 64 sequences of 37, in one tensor.
  const auto heads = [](int64_t which) { return Strided(DType::k_f32, {64, 8, 37, 32}, {37 * 768, 32, 768, 1}, memory + 4 * 256 * which); };
  const Strided turned(DType::k_f32, {64, 8, 32, 37}, {37 * 768, 32, 1, 768}, memory);
  for (const int64_t a : {0, 1, 2})
    for (const int64_t b : {0, 1, 2}) {
      EXPECT_TRUE(ranges_meet(heads(a), heads(b)));
      EXPECT_EQ(shares_elements(heads(a), heads(b)), a == b);
      EXPECT_EQ(shares_elements(turned, heads(b)), b == 0);
      EXPECT_EQ(covers(heads(b), turned), b == 0);
      EXPECT_EQ(covers(turned, heads(b)), b == 0);
    }
  const Strided some(DType::k_f32, {64, 4, 37, 16}, {37 * 768, 64, 768, 2}, memory + 4 * 33);
  EXPECT_TRUE(covers(heads(0), some));
  EXPECT_FALSE(covers(some, heads(0)));
  const Strided over(DType::k_f32, {64, 8, 37, 32}, {37 * 768, 32, 768, 1}, memory + 4 * 240);  // its last head reaches the keys
  EXPECT_TRUE(shares_elements(over, heads(1)));
  EXPECT_FALSE(covers(heads(0), over));
}

// Whichever is asked for first.
TEST(Overlap, OfManyElementsAndAColumn) {
  const Strided many(DType::k_f32, {300, 300}, {400, 1}, memory), gaps(DType::k_f32, {700}, {400}, memory + 4 * 350),
      inside(DType::k_f32, {700}, {400}, memory + 4 * 20);
  EXPECT_FALSE(shares_elements(many, gaps));
  EXPECT_FALSE(shares_elements(gaps, many));
  EXPECT_TRUE(shares_elements(many, inside));
  EXPECT_TRUE(shares_elements(inside, many));
}

}  // namespace
}  // namespace keirin
