// SPDX-License-Identifier: Apache-2.0
//
// One case of a row and dtype to be timed: the row as models have it, at a size at which the work outlasts what starting it takes. A row
// of 1,024 elements is what a layer norm or a softmax is given; `rows` of them are 1 MiB of f32 on a processor, which its second-level
// cache holds in part, and 16 MiB on a GPU. Products have about as many multiplications as a processor does in a millisecond. All
// operands lie row by row; what models keep constant (weights, statistics, numbers) is constant here.
#include <cmath>

#include "core/ops/table.h"
#include "tests/conformance/sheet.h"

namespace keirin::conformance {
namespace {

using K = AttrKey;

constexpr int64_t kWidth = 1024;

Feed plain_feed() { return {Feed::kNumbers, 0, false}; }
Feed positive() { return {Feed::kPositive, 0, false}; }
Feed index(int64_t bound) { return {Feed::kIndex, bound, false}; }

Case scalar(Sheet& s, OpCode row, DType t, const Dims& sizes) {
  if (row == OpCode::k_cast)
    return s.finish({s.operand(t, sizes, {is_float(t) ? Feed::kSmall : Feed::kNumbers, 0, false})},
                    {{K::k_dtype, static_cast<int64_t>(t == DType::k_f32 ? DType::k_bf16 : DType::k_f32)}});
  const RowDomain domain = row_meaning(row).domain;
  Feed feed = plain_feed();
  if (domain == RowDomain::k_pos || domain == RowDomain::k_nonneg) feed.fill = Feed::kPositive;
  if (domain == RowDomain::k_nonzero) feed.fill = Feed::kNonzero;
  ValueIds operands;
  for (int i = 0; i < find_row(row)->arity_min; ++i)
    operands.push_back(s.operand(row == OpCode::k_select && i == 0 ? DType::k_bool : t, sizes, feed));
  return s.finish(std::move(operands));
}

Case move(Sheet& s, OpCode row, DType t, int64_t rows) {
  const Dims sizes{rows, kWidth};
  const auto range = [](int64_t end, int64_t step) {
    return Attrs{{K::k_dim, int64_t{1}}, {K::k_start, int64_t{0}}, {K::k_end, end}, {K::k_step, step}};
  };
  const Attrs sum{
      {K::k_dim, int64_t{row == OpCode::k_scatter}}, {K::k_reduce, std::string("sum")}, {K::k_include_self, true}};
  switch (row) {
    case OpCode::k_expand: return s.finish({s.operand(t, {rows, 1})}, {{K::k_sizes, sizes}});
    case OpCode::k_reshape: return s.finish({s.operand(t, sizes)}, {{K::k_sizes, Dims{rows * kWidth}}});
    case OpCode::k_permute: return s.finish({s.operand(t, sizes)}, {{K::k_dims, Dims{1, 0}}});
    case OpCode::k_slice: return s.finish({s.operand(t, {rows, 2 * kWidth})}, range(2 * kWidth, 2));
    case OpCode::k_cat: {
      const ValueId a = s.operand(t, {rows, kWidth / 2}), b = s.operand(t, {rows, kWidth / 2});
      return s.finish({a, b}, {{K::k_dim, int64_t{1}}});
    }
    case OpCode::k_pad:
      return s.finish({s.operand(t, sizes)},
                      {{K::k_low, Dims{0, 1}}, {K::k_high, Dims{0, 1}}, {K::k_value_i, int64_t{0}}, {K::k_value_d, 0.0}});
    case OpCode::k_flip: return s.finish({s.operand(t, sizes)}, {{K::k_dims, Dims{1}}});
    case OpCode::k_take: {
      const ValueId x = s.operand(t, {8 * rows, kWidth}), i = s.plain(DType::k_i64, {rows}, index(8 * rows));
      return s.finish({x, i}, {{K::k_dim, int64_t{0}}});
    }
    case OpCode::k_gather: {
      const ValueId x = s.operand(t, sizes), i = s.plain(DType::k_i64, sizes, index(kWidth));
      return s.finish({x, i}, {{K::k_dim, int64_t{1}}});
    }
    case OpCode::k_scatter: {
      const ValueId x = s.operand(t, sizes), i = s.plain(DType::k_i64, sizes, index(kWidth)), y = s.operand(t, sizes);
      return s.finish({x, i, y}, sum);
    }
    case OpCode::k_index_reduce: {
      const ValueId x = s.operand(t, sizes), i = s.plain(DType::k_i64, {4 * rows}, index(rows)), y = s.operand(t, {4 * rows, kWidth});
      return s.finish({x, i, y}, sum);
    }
    case OpCode::k_slice_scatter: {
      const ValueId x = s.operand(t, sizes), y = s.operand(t, {rows, kWidth / 2});
      return s.finish({x, y}, range(kWidth, 2));
    }
    case OpCode::k_relayout:
      return s.finish({s.operand(t, {rows / 64, 64, 32, 32})}, {{K::k_encoding, std::string("channels_last")}});
    default: return s.finish({s.operand(t, sizes)}, {{K::k_dim, int64_t{1}}});  // cumsum
  }
}

Case recurrent(Sheet& s, OpCode row, DType t, int64_t rows) {
  const int64_t gates = row == OpCode::k_lstm ? 4 : 3, steps = 16, batch = rows / 32, hidden = 128;
  ValueIds v{s.operand(t, {steps, batch, hidden}, plain_feed())};
  for (int64_t i = 0; i < (gates == 4 ? 2 : 1); ++i) v.push_back(s.plain(t, {1, batch, hidden}, plain_feed()));
  for (const Dims& sizes : {Dims{gates * hidden, hidden}, Dims{gates * hidden, hidden}, Dims{gates * hidden}, Dims{gates * hidden}})
    v.push_back(s.constant(t, sizes, plain_feed()));
  return s.finish(v, {{K::k_layers, int64_t{1}}, {K::k_bidirectional, false}, {K::k_batch_first, false}, {K::k_has_biases, true}});
}

Case composite(Sheet& s, OpCode row, DType t, int64_t rows) {
  const Dims sizes{rows, kWidth}, image{rows / 64, 64, 32, 32};
  const Attr eps{K::k_eps, 1e-5};
  const auto channels = [&](Feed feed) { return s.constant(t, {64}, feed); };
  switch (row) {
    case OpCode::k_matmul: {
      const ValueId a = s.operand(t, {rows, 256}, plain_feed()), b = s.operand(t, {256, 256}, plain_feed());
      return s.finish({a, b});
    }
    case OpCode::k_linear: {
      const ValueId x = s.operand(t, {rows, 256}, plain_feed());
      const ValueId w = s.constant(t, {256, 256}, plain_feed()), b = s.constant(t, {256}, plain_feed());
      return s.finish({x, w, b});
    }
    case OpCode::k_grouped_matmul: {
      const ValueId x = s.operand(t, {rows, 256}, plain_feed()), w = s.constant(t, {8, 256, 256}, plain_feed());
      return s.finish({x, w, s.plain(DType::k_i32, {8}, {Feed::kPartition, rows, false})});
    }
    case OpCode::k_conv: {
      const ValueId x = s.operand(t, {rows / 256, 64, 28, 28}, plain_feed());
      const ValueId w = s.constant(t, {64, 64, 3, 3}, plain_feed()), b = channels(plain_feed());
      return s.finish({x, w, b}, {{K::k_stride, Dims{1, 1}}, {K::k_padding, Dims{1, 1}}, {K::k_dilation, Dims{1, 1}},
                                  {K::k_groups, int64_t{1}}, {K::k_transposed, false}, {K::k_output_padding, Dims{0, 0}}});
    }
    case OpCode::k_conv_grad_weight: {
      const Dims both{rows / 256, 64, 28, 28}, ones{1, 1};
      const ValueId x = s.operand(t, both, plain_feed()), grad = s.operand(t, both, plain_feed());
      return s.finish({x, grad}, {{K::k_sizes, Dims{3, 3}}, {K::k_stride, ones}, {K::k_padding, ones}, {K::k_dilation, ones},
                                  {K::k_groups, int64_t{1}}});
    }
    case OpCode::k_attention: {
      const Dims heads{rows / 64, 4, 128, 64};
      const ValueId q = s.operand(t, heads, plain_feed()), k = s.operand(t, heads, plain_feed()), v = s.operand(t, heads, plain_feed());
      return s.finish({q, k, v}, {{K::k_causal, false}, {K::k_scale, 0.125}});
    }
    case OpCode::k_lstm:
    case OpCode::k_gru: return recurrent(s, row, t, rows);
    case OpCode::k_max_pool:
    case OpCode::k_avg_pool: {
      Attrs attrs{{K::k_kernel, Dims{3, 3}}, {K::k_stride, Dims{2, 2}}, {K::k_padding, Dims{1, 1}}, {K::k_ceil_mode, false}};
      if (row == OpCode::k_max_pool) attrs.push_back({K::k_dilation, Dims{1, 1}});
      else attrs.push_back({K::k_count_include_pad, false}), attrs.push_back({K::k_divisor, int64_t{0}});
      return s.finish({s.operand(t, image)}, std::move(attrs));
    }
    case OpCode::k_adaptive_avg_pool: return s.finish({s.operand(t, image)}, {{K::k_sizes, Dims{1, 1}}});
    case OpCode::k_upsample_nearest: return s.finish({s.operand(t, image)}, {{K::k_sizes, Dims{64, 64}}, {K::k_scales, Dims{}}});
    case OpCode::k_upsample_bilinear:
      return s.finish({s.operand(t, image)}, {{K::k_sizes, Dims{64, 64}}, {K::k_scales, Dims{}}, {K::k_align_corners, false}});
    case OpCode::k_embedding_bag: {
      const ValueId w = s.operand(t, {10000, 64}, plain_feed()), i = s.plain(DType::k_i64, {4 * rows, 8}, index(10000));
      return s.finish({w, i, kNone}, {{K::k_mode, std::string("sum")}, {K::k_include_last_offset, false}});
    }
    case OpCode::k_batch_norm: {
      const ValueId x = s.operand(t, image, plain_feed());
      const ValueId w = channels(plain_feed()), b = channels(plain_feed()), mean = channels(plain_feed()), var = channels(positive());
      return s.finish({x, w, b, mean, var}, {eps});
    }
    case OpCode::k_group_norm: {
      const ValueId x = s.operand(t, image, plain_feed()), w = channels(plain_feed()), b = channels(plain_feed());
      return s.finish({x, w, b}, {{K::k_groups, int64_t{8}}, eps});
    }
    case OpCode::k_layer_norm:
    case OpCode::k_rms_norm: {
      ValueIds in{s.operand(t, sizes, plain_feed()), s.constant(t, {kWidth}, plain_feed())};
      if (row == OpCode::k_layer_norm) in.push_back(s.constant(t, {kWidth}, plain_feed()));
      return s.finish(in, {{K::k_rank, int64_t{1}}, eps});
    }
    case OpCode::k_softmax:
    case OpCode::k_log_softmax: return s.finish({s.operand(t, sizes, plain_feed())}, {{K::k_dim, int64_t{1}}});
    default: {  // mean, var
      Attrs attrs{{K::k_dims, Dims{1}}, {K::k_keepdim, false}};
      if (row == OpCode::k_var) attrs.push_back({K::k_correction, 1.0});
      return s.finish({s.operand(t, sizes, plain_feed())}, std::move(attrs));
    }
  }
}

}  // namespace

std::optional<Case> speed_case(OpCode row, DType dtype, int64_t rows) {
  const RowKind kind = find_row(row)->kind;
  const bool of_numbers =  // an operand after the first is a number in every model
      row == OpCode::k_leaky_relu || row == OpCode::k_elu || row == OpCode::k_softplus || row == OpCode::k_clamp;
  Sheet s(row, dtype, "speed", of_numbers ? Layout::kNumbers : Layout::kContiguous, Law::kBits);
  const Dims sizes{rows, kWidth};
  switch (kind) {
    case RowKind::kScalar:
      if (accepts(row_meaning(row).dtypes, dtype)) return scalar(s, row, dtype, sizes);
      return {};
    case RowKind::kReduce: {
      Feed feed = plain_feed();
      if (row == OpCode::k_prod && is_float(dtype)) feed.fill = Feed::kNearOne;
      if (accepts(row_meaning(row).dtypes, dtype))
        return s.finish({s.operand(dtype, sizes, feed)}, {{K::k_dims, Dims{1}}, {K::k_keepdim, false}});
      return {};
    }
    case RowKind::kMove:
      if (dtype == DType::k_bool && (row == OpCode::k_cumsum || row == OpCode::k_scatter || row == OpCode::k_index_reduce)) return {};
      return move(s, row, dtype, rows);
    case RowKind::kFactory:
      if (row == OpCode::k_iota && dtype_bytes(dtype) < 4) return {};  // it counts further than those can
      if (row == OpCode::k_iota)
        return s.finish({}, {{K::k_sizes, Dims{rows * kWidth}}, {K::k_dtype, static_cast<int64_t>(dtype)}, {K::k_start, int64_t{0}},
                             {K::k_step, int64_t{1}}});
      return s.finish(
          {}, {{K::k_sizes, sizes}, {K::k_dtype, static_cast<int64_t>(dtype)}, {K::k_value_i, int64_t{1}}, {K::k_value_d, 1.0}});
    case RowKind::kComposite:
      if (is_float(dtype)) return composite(s, row, dtype, rows);
      return {};
    case RowKind::kOpaque: break;
  }
  return {};
}

}  // namespace keirin::conformance
