// SPDX-License-Identifier: Apache-2.0
//
// A fact is never a guess: of drawn graphs every value is computed by the reference plugin, and each element must lie in the range that
// the pass `infer` wrote down, and be the number that splat_of tells. Every row of moves, factories and reductions takes part, over
// dtypes and over numbers that a range might be wrong at.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <random>

#include "core/ops/builder.h"
#include "core/ops/table.h"
#include "core/passes/facts.h"
#include "core/passes/pass.h"
#include "tests/unit/passes/fake_evaluator.h"
#include "tests/unit/reference/region_runner.h"

namespace keirin {
namespace {

using K = AttrKey;

class Drawn {
 public:
  explicit Drawn(uint32_t seed) : random_(seed), build_(graph_) {
    const DType kinds[] = {DType::k_i64, DType::k_i32, DType::k_i8, DType::k_u8, DType::k_bool, DType::k_f32, DType::k_f64};
    const DType dtype = kinds[seed % 7];
    // Constants, so that the pass knows what they hold; handed to the plugin as inputs.
    for (uint32_t i = 0; i < 3; ++i) {
      const Dims sizes{2 + below(3), 2 + below(3)};
      std::vector<double> values;
      const double low = number(), high = number();
      for (int64_t n = sizes[0] * sizes[1]; n > 0; --n) values.push_back(stored(dtype, below(3) ? low : high));
      inputs_.push_back(testing::HostTensor::of({dtype, sizes, contiguous_strides(sizes)}, values));
      evaluator_.table.push_back(values);
      pool_.push_back(graph_.add_constant(inputs_.back().type, i, ValueKind::kConstant));
    }
    for (int i = 0; i < 14; ++i) grow();
  }

  void check(uint32_t seed) {
    PassContext context;
    context.evaluator = &evaluator_;
    ASSERT_TRUE(passes::infer(graph_, context).ok());
    Graph run = graph_;
    for (Value& v : run.values) {
      v.range.reset();
      if (v.kind == ValueKind::kConstant) v.kind = ValueKind::kInput;
    }
    for (ValueId v = 0; v < 3; ++v) run.inputs.push_back(v);
    for (ValueId v = 3; v < run.values.size(); ++v) run.outputs.push_back({v, kNone, kNone});
    const auto got = testing::ReferencePlugin::get().run(run, inputs_);
    ASSERT_TRUE(got.ok()) << got.status().text();
    for (ValueId v = 3; v < run.values.size(); ++v) {
      const std::vector<double> values = (*got)[v - 3].values();
      const Op& op = graph_.ops[graph_.values[v].producer];
      const std::optional<Range> range = graph_.values[v].range;
      const std::optional<double> splat = splat_of(graph_, v);
      known_[op.code] += range.has_value();
      splats_[op.code] += splat.has_value();
      for (double x : values) {
        EXPECT_TRUE(!range || (std::isnan(x) ? range->may_be_nan : range->low <= x && x <= range->high)) << x << " of [" << range->low << ", " << range->high << "]";
        EXPECT_TRUE(!splat || x == *splat || (std::isnan(x) && std::isnan(*splat))) << x << ", told " << *splat;
      }
      ASSERT_FALSE(::testing::Test::HasFailure()) << "seed " << seed << ", " << find_row(op.code)->name << " of " << dtype_name(graph_.type(v).dtype);
    }
  }

  static std::map<OpCode, int> known_, splats_;  // how often something was known, by row

 private:
  int64_t below(int64_t n) { return static_cast<int64_t>(random_() % static_cast<uint64_t>(n)); }
  double number() {
    const double all[] = {0, 1, -1, 2, 3, 7, 100, 127, -128, 255, -3};
    return all[below(11)];
  }
  static double stored(DType dtype, double x) {
    switch (dtype) {
      case DType::k_bool: return x != 0;
      case DType::k_i8: return static_cast<int8_t>(static_cast<int64_t>(x));
      case DType::k_u8: return static_cast<uint8_t>(static_cast<int64_t>(x));
      default: return x;
    }
  }
  ValueId any() { return pool_[static_cast<size_t>(below(static_cast<int64_t>(pool_.size())))]; }
  void keep(Result<ValueId> v) {
    if (v.ok() && graph_.type(*v).num_elements() < 400) pool_.push_back(*v);
  }
  ValueId indices(int64_t count, int64_t limit) {
    // Known, or what a take reads would depend on the draw: 0, 1, ...
    const ValueId i = *build_.emit1(OpCode::k_iota, {}, {{K::k_sizes, Dims{count}}, {K::k_dtype, static_cast<int64_t>(DType::k_i64)},
                                                         {K::k_start, int64_t{0}}, {K::k_step, int64_t{limit > count ? 1 : 0}}});
    return i;
  }

  void grow() {
    const ValueId x = any();
    const Type type = graph_.type(x);
    const DType dtype = type.dtype;
    const auto rank = static_cast<size_t>(type.rank());
    const int64_t dim = rank ? below(static_cast<int64_t>(rank)) : 0;
    const int64_t size = rank ? type.sizes[static_cast<size_t>(dim)] : 1;
    const bool is_bool = dtype == DType::k_bool;
    if (rank == 0 || type.num_elements() == 0) return keep(full(dtype));
    switch (below(21)) {
      case 0: case 1: case 2: {
        Dims low(rank, 0), high(rank, 0);
        low[static_cast<size_t>(dim)] = below(4) - 1, high[static_cast<size_t>(dim)] = below(4) - 1;
        if (low[static_cast<size_t>(dim)] + high[static_cast<size_t>(dim)] + size <= 0) return;
        const double value = stored(dtype, number());
        return keep(build_.emit1(OpCode::k_pad, {x}, {{K::k_low, low}, {K::k_high, high}, {K::k_value_i, static_cast<int64_t>(value)}, {K::k_value_d, value}}));
      }
      case 3: return keep(full(dtype));
      case 4: return keep(build_.emit1(OpCode::k_flip, {x}, {{K::k_dims, Dims{dim}}}));
      case 5: {
        const int64_t start = below(size), end = start + 1 + below(size - start);
        return keep(build_.emit1(OpCode::k_slice, {x}, {{K::k_dim, dim}, {K::k_start, start}, {K::k_end, end}, {K::k_step, 1 + below(2)}}));
      }
      case 6: return keep(build_.emit1(OpCode::k_cat, {x, x}, {{K::k_dim, dim}}));
      case 7: {  // beside another number
        const Result<ValueId> other = build_.full_i(static_cast<int64_t>(stored(dtype, number())), dtype, type.sizes);
        return other.ok() && !is_float(dtype) ? keep(build_.emit1(OpCode::k_cat, {x, *other}, {{K::k_dim, dim}})) : void();
      }
      case 8: return keep(build_.reshape(x, {type.num_elements()}));
      case 9: {
        Dims dims(rank);
        for (size_t d = 0; d < rank; ++d) dims[d] = static_cast<int64_t>(rank - 1 - d);
        return keep(build_.permute(x, dims));
      }
      case 10: return keep(build_.emit1(OpCode::k_take, {x, indices(2, size)}, {{K::k_dim, dim}}));
      case 11: {
        const int64_t start = below(size), end = start + 1 + below(size - start);
        Dims part = type.sizes;
        part[static_cast<size_t>(dim)] = end - start;
        const Result<ValueId> src = full(dtype, part);
        return src.ok() ? keep(build_.emit1(OpCode::k_slice_scatter, {x, *src}, {{K::k_dim, dim}, {K::k_start, start}, {K::k_end, end}, {K::k_step, int64_t{1}}})) : void();
      }
      case 12: {
        Dims part = type.sizes;
        part[static_cast<size_t>(dim)] = 1;
        const Result<ValueId> src = full(dtype, part);
        return src.ok() ? keep(build_.emit1(OpCode::k_index_reduce, {x, indices(1, size), *src},
                                            {{K::k_dim, dim}, {K::k_reduce, std::string("none")}, {K::k_include_self, true}})) : void();
      }
      case 13: return is_bool ? void() : keep(build_.emit1(OpCode::k_cumsum, {x}, {{K::k_dim, dim}}));
      case 14: return keep(build_.emit1(is_bool ? OpCode::k_any : OpCode::k_sum, {x}, {{K::k_dims, Dims{dim}}, {K::k_keepdim, true}}));
      case 15: return keep(build_.emit1(is_bool ? OpCode::k_all : OpCode::k_amax, {x}, {{K::k_dims, Dims{dim}}, {K::k_keepdim, true}}));
      case 16: return is_bool ? void() : keep(build_.emit1(below(2) ? OpCode::k_argmax : OpCode::k_amin, {x}, {{K::k_dims, Dims{dim}}, {K::k_keepdim, true}}));
      case 17: return keep(build_.cast(x, std::vector{DType::k_bool, DType::k_i8, DType::k_i64, DType::k_f32, DType::k_u8}[static_cast<size_t>(below(5))]));
      case 18: {
        const OpCode codes[] = {OpCode::k_add, OpCode::k_sub, OpCode::k_mul, OpCode::k_maximum, OpCode::k_minimum, OpCode::k_eq, OpCode::k_lt};
        const Result<ValueId> other = full(dtype, type.sizes);
        return other.ok() && !is_bool ? keep(build_.emit1(codes[below(7)], {x, *other})) : void();
      }
      case 19: return is_bool ? keep(build_.emit1(OpCode::k_logical_not, {x})) : keep(build_.emit1(below(2) ? OpCode::k_neg : OpCode::k_abs, {x}));
      default: {
        Dims one = type.sizes;
        one[static_cast<size_t>(dim)] = 1;
        const Result<ValueId> narrow = full(dtype, one);
        return narrow.ok() ? keep(build_.expand_to(*narrow, type.sizes)) : void();
      }
    }
  }
  Result<ValueId> full(DType dtype, Dims sizes = {2, 3}) {
    const double value = stored(dtype, number());
    return is_float(dtype) ? build_.full(value, dtype, std::move(sizes)) : build_.full_i(static_cast<int64_t>(value), dtype, std::move(sizes));
  }

  std::mt19937 random_;
  Graph graph_;
  Builder build_;
  testing::FakeEvaluator evaluator_;
  std::vector<testing::HostTensor> inputs_;
  std::vector<ValueId> pool_;
};
std::map<OpCode, int> Drawn::known_, Drawn::splats_;

TEST(Infer, WhatIsKnownOfAValueHoldsForEveryElement) {
  for (uint32_t seed = 0; seed < 1500 && !HasFatalFailure(); ++seed) Drawn(seed).check(seed);
  for (OpCode code : {OpCode::k_pad, OpCode::k_cat, OpCode::k_slice, OpCode::k_flip, OpCode::k_slice_scatter, OpCode::k_index_reduce, OpCode::k_cumsum, OpCode::k_sum,
                      OpCode::k_argmax, OpCode::k_take, OpCode::k_cast, OpCode::k_full})
    EXPECT_GT(Drawn::known_[code], 10) << find_row(code)->name;
  for (OpCode code : {OpCode::k_full, OpCode::k_expand, OpCode::k_slice, OpCode::k_cast}) EXPECT_GT(Drawn::splats_[code], 10) << find_row(code)->name;
}

}  // namespace
}  // namespace keirin
