// SPDX-License-Identifier: Apache-2.0
//
// Small graphs of moves, factories, reductions, casts and arithmetic over every dtype, drawn from a seed, with numbers that ranges, folds
// and wraps may be wrong at. Their constants are known to the passes and handed to the reference plugin as inputs: it computes every value.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "core/ops/builder.h"
#include "core/ops/table.h"
#include "tests/unit/passes/fake_evaluator.h"
#include "tests/unit/reference/region_runner.h"

namespace keirin::testing {

// Folds any row: the reference plugin computes what depends on the table's constants alone.
class ReferenceEvaluator final : public FakeEvaluator {
 public:
  Result<std::vector<FoldedConstant>> evaluate(const Graph& graph) override {
    KRN_TRY_LET(const std::vector<HostTensor> got, run(graph));
    std::vector<FoldedConstant> folded;
    for (size_t o = 0; o < got.size(); ++o) {
      Type type = graph.type(graph.outputs[o].value);
      type.strides = contiguous_strides(type.sizes);
      folded.push_back({static_cast<uint32_t>(table.size()), type});
      table.push_back(got[o].values());
    }
    return folded;
  }
  // The outputs of a graph whose leaves are constants of the table.
  Result<std::vector<HostTensor>> run(Graph graph) {
    std::vector<HostTensor> given;
    graph.inputs.clear();
    for (ValueId v = 0; v < graph.values.size(); ++v) {
      Value& value = graph.values[v];
      value.range.reset();
      if (value.kind != ValueKind::kConstant) continue;
      KRN_TRY_LET(const std::vector<double> elements, read(value.index));
      value.type.strides = contiguous_strides(value.type.sizes);
      given.push_back(HostTensor::of(value.type, elements));
      value.kind = ValueKind::kInput, value.index = static_cast<uint32_t>(given.size() - 1);
      graph.inputs.push_back(v);
    }
    return ReferencePlugin::get().run(graph, std::move(given));
  }
};

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
      evaluator_.table.push_back(values);
      pool_.push_back(graph_.add_constant({dtype, sizes, contiguous_strides(sizes)}, i, ValueKind::kConstant));
    }
    for (int i = 0; i < 14; ++i) grow();
  }

  const Graph& graph() const { return graph_; }
  ReferenceEvaluator& evaluator() { return evaluator_; }

  // Row-major values of these values of a graph that is this one or was made of it.
  Result<std::vector<std::vector<double>>> compute(Graph graph, const std::vector<ValueId>& of) {
    graph.outputs.clear();
    for (ValueId v : of) graph.outputs.push_back({v, kNone, kNone});
    KRN_TRY_LET(const std::vector<HostTensor> got, evaluator_.run(std::move(graph)));
    std::vector<std::vector<double>> out;
    for (const HostTensor& t : got) out.push_back(t.values());
    return out;
  }

 private:
  int64_t below(int64_t n) { return static_cast<int64_t>(random_() % static_cast<uint64_t>(n)); }
  double number() {
    const double all[] = {0, 1, -1, 2, 3, 7, 100, 127, -128, 255, -3, 0.5, -2.5, 3e9, -5e9, 0x1p60};
    return all[below(16)];
  }
  static double stored(DType dtype, double x) {
    switch (dtype) {
      case DType::k_bool: return x != 0;
      case DType::k_i8: return static_cast<int8_t>(static_cast<int64_t>(x));
      case DType::k_u8: return static_cast<uint8_t>(static_cast<int64_t>(x));
      case DType::k_i32: return static_cast<int32_t>(static_cast<int64_t>(x));
      case DType::k_i64: return std::trunc(x);
      default: return x;
    }
  }
  ValueId any() { return pool_[static_cast<size_t>(below(static_cast<int64_t>(pool_.size())))]; }
  void keep(Result<ValueId> v) {
    if (v.ok() && graph_.type(*v).num_elements() < 400) pool_.push_back(*v);
  }
  ValueId indices(int64_t count, int64_t limit) {
    // Known, or what a take reads would depend on the draw: 0, 1, ...
    const ValueId i = *build_.emit1(OpCode::k_iota, {},
                                    {{AttrKey::k_sizes, Dims{count}},
                                     {AttrKey::k_dtype, static_cast<int64_t>(DType::k_i64)},
                                     {AttrKey::k_start, int64_t{0}},
                                     {AttrKey::k_step, int64_t{limit > count ? 1 : 0}}});
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
        return keep(build_.emit1(OpCode::k_pad, {x},
                                 {{AttrKey::k_low, low},
                                  {AttrKey::k_high, high},
                                  {AttrKey::k_value_i, static_cast<int64_t>(value)},
                                  {AttrKey::k_value_d, value}}));
      }
      case 3: return keep(full(dtype));
      case 4: return keep(build_.emit1(OpCode::k_flip, {x}, {{AttrKey::k_dims, Dims{dim}}}));
      case 5: {
        const int64_t start = below(size), end = start + 1 + below(size - start);
        return keep(
            build_.emit1(OpCode::k_slice, {x},
                         {{AttrKey::k_dim, dim}, {AttrKey::k_start, start}, {AttrKey::k_end, end}, {AttrKey::k_step, 1 + below(2)}}));
      }
      case 6: return keep(build_.emit1(OpCode::k_cat, {x, x}, {{AttrKey::k_dim, dim}}));
      case 7: {  // beside another number
        const Result<ValueId> other = build_.full_i(static_cast<int64_t>(stored(dtype, number())), dtype, type.sizes);
        return other.ok() && !is_float(dtype) ? keep(build_.emit1(OpCode::k_cat, {x, *other}, {{AttrKey::k_dim, dim}})) : void();
      }
      case 8: return keep(build_.reshape(x, {type.num_elements()}));
      case 9: {
        Dims dims(rank);
        for (size_t d = 0; d < rank; ++d) dims[d] = static_cast<int64_t>(rank - 1 - d);
        return keep(build_.permute(x, dims));
      }
      case 10: return keep(build_.emit1(OpCode::k_take, {x, indices(2, size)}, {{AttrKey::k_dim, dim}}));
      case 11: {
        const int64_t start = below(size), end = start + 1 + below(size - start);
        Dims part = type.sizes;
        part[static_cast<size_t>(dim)] = end - start;
        const Result<ValueId> src = full(dtype, part);
        return src.ok() ? keep(build_.emit1(
                              OpCode::k_slice_scatter, {x, *src},
                              {{AttrKey::k_dim, dim}, {AttrKey::k_start, start}, {AttrKey::k_end, end}, {AttrKey::k_step, int64_t{1}}}))
                        : void();
      }
      case 12: {
        Dims part = type.sizes;
        part[static_cast<size_t>(dim)] = 1;
        const Result<ValueId> src = full(dtype, part);
        return src.ok()
                   ? keep(build_.emit1(OpCode::k_index_reduce, {x, indices(1, size), *src},
                                       {{AttrKey::k_dim, dim}, {AttrKey::k_reduce, std::string("none")}, {AttrKey::k_include_self, true}}))
                   : void();
      }
      case 13: return is_bool ? void() : keep(build_.emit1(OpCode::k_cumsum, {x}, {{AttrKey::k_dim, dim}}));
      case 14:
        return keep(build_.emit1(is_bool ? OpCode::k_any : OpCode::k_sum, {x}, {{AttrKey::k_dims, Dims{dim}}, {AttrKey::k_keepdim, true}}));
      case 15:
        return keep(
            build_.emit1(is_bool ? OpCode::k_all : OpCode::k_amax, {x}, {{AttrKey::k_dims, Dims{dim}}, {AttrKey::k_keepdim, true}}));
      case 16:
        return is_bool ? void()
                       : keep(build_.emit1(below(2) ? OpCode::k_argmax : OpCode::k_amin, {x},
                                           {{AttrKey::k_dims, Dims{dim}}, {AttrKey::k_keepdim, true}}));
      case 17:
        return keep(build_.cast(
            x, std::vector{DType::k_bool, DType::k_i8, DType::k_i64, DType::k_f32, DType::k_u8}[static_cast<size_t>(below(5))]));
      case 18: {
        const OpCode codes[] = {OpCode::k_add,     OpCode::k_sub, OpCode::k_mul, OpCode::k_maximum,
                                OpCode::k_minimum, OpCode::k_eq,  OpCode::k_lt};
        const Result<ValueId> other = full(dtype, type.sizes);
        return other.ok() && !is_bool ? keep(build_.emit1(codes[below(7)], {x, *other})) : void();
      }
      case 19:
        return is_bool ? keep(build_.emit1(OpCode::k_logical_not, {x})) : keep(build_.emit1(below(2) ? OpCode::k_neg : OpCode::k_abs, {x}));
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
    return is_float(dtype) ? build_.full(value, dtype, std::move(sizes))
                           : build_.full_i(static_cast<int64_t>(value), dtype, std::move(sizes));
  }

  std::mt19937 random_;
  Graph graph_;
  Builder build_;
  ReferenceEvaluator evaluator_;
  std::vector<ValueId> pool_;
};

}  // namespace keirin::testing
