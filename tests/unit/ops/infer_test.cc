// SPDX-License-Identifier: Apache-2.0
//
// Types of rows against expectations written by hand, and the refusals: an error leaves the Graph as it was.
#include "core/ops/infer.h"

#include <gtest/gtest.h>

#include "core/ops/builder.h"
#include "core/ops/strides.h"
#include "core/ops/table.h"

namespace keirin {
namespace {

Type f32(Dims sizes) {
  Dims strides = contiguous_strides(sizes);
  return Type{DType::k_f32, sizes, strides};
}

Type channels_last(Dims sizes) { return Type{DType::k_f32, sizes, channels_last_strides(sizes)}; }

Type typed(DType d, Dims sizes) {
  Dims strides = contiguous_strides(sizes);
  return Type{d, sizes, strides};
}

Result<Type> one(OpCode code, std::vector<Type> operands, Attrs attrs = {}) {
  Graph g;
  ValueIds ids;
  for (Type& t : operands) ids.push_back(g.add_input(t, static_cast<uint32_t>(ids.size())));
  auto v = Builder(g).emit1(code, ids, attrs);
  if (!v.ok()) {
    EXPECT_EQ(g.ops.size(), 0u);
    EXPECT_EQ(g.values.size(), operands.size());
    return v.status();
  }
  return g.type(v.value());
}

#define EXPECT_TYPE(result, dtype_, sizes_, strides_) \
  do {                                                \
    auto r = (result);                                \
    ASSERT_TRUE(r.ok()) << r.status().text();         \
    EXPECT_EQ(r->dtype, dtype_);                      \
    EXPECT_EQ(r->sizes, (Dims sizes_));               \
    EXPECT_EQ(r->strides, (Dims strides_));           \
  } while (false)

#define EXPECT_REFUSED(result, part)                                                 \
  do {                                                                               \
    auto r = (result);                                                               \
    ASSERT_FALSE(r.ok());                                                            \
    EXPECT_EQ(r.status().code(), Code::k_invalid_input);                             \
    EXPECT_NE(r.status().text().find(part), std::string::npos) << r.status().text(); \
  } while (false)

TEST(Infer, EveryRowHasARule){
// A row without a rule answers "has no shape rule"; any other refusal comes from the rule itself.
#define KRN_CHECK(name)                                                                           \
  {                                                                                               \
    Op op;                                                                                        \
    op.code = OpCode::k_##name;                                                                   \
    Type t = f32({2, 2});                                                                         \
    const OpRow* row = find_row(op.code);                                                         \
    std::vector<const Type*> operands(static_cast<size_t>(std::max(row->arity_min, 0)), &t);      \
    auto r = infer_types(op, operands);                                                           \
    EXPECT_TRUE(r.ok() || r.status().text().find("no shape rule") == std::string::npos) << #name; \
  }
#define KRN_SCALAR(id, name, ...) KRN_CHECK(name)
#define KRN_REDUCE(id, name, ...) KRN_CHECK(name)
#define KRN_MOVE(id, name, ...) KRN_CHECK(name)
#define KRN_FACTORY(id, name, ...) KRN_CHECK(name)
#define KRN_COMPOSITE(id, name, ...) KRN_CHECK(name)
#include "abi/ops.def"
#undef KRN_SCALAR
#undef KRN_REDUCE
#undef KRN_MOVE
#undef KRN_FACTORY
#undef KRN_COMPOSITE
}

// Every row with every number of operands: one too few or too many is refused for that, and the right ones are not.
TEST(Infer, EveryRowCountsItsOperands) {
  const Type t = f32({2, 2});
  int refused = 0;
  for (int code = 1; code < 500; ++code) {
    const OpRow* row = find_row(static_cast<OpCode>(code));
    if (row == nullptr || row->kind == RowKind::kOpaque) continue;
    for (int n = 0; n < 12; ++n) {
      Op op;
      op.code = static_cast<OpCode>(code);
      const std::vector<const Type*> operands(static_cast<size_t>(n), &t);
      const auto r = infer_types(op, operands);
      const bool fits = n >= row->arity_min && (row->arity_max < 0 || n <= row->arity_max);
      const bool counted = !r.ok() && r.status().message().what.find(std::to_string(n) + " operands") != std::string::npos;
      EXPECT_EQ(counted, !fits) << row->name << " of " << n << (r.ok() ? "" : ": " + r.status().text());
      refused += counted;
    }
  }
  EXPECT_GT(refused, 800);
}

TEST(Infer, PointwiseKeepsTheOrderOfMemory) {
  EXPECT_TYPE(one(OpCode::k_relu, {channels_last({2, 3, 4, 5})}), DType::k_f32, ({2, 3, 4, 5}), ({60, 1, 15, 3}));
  EXPECT_TYPE(one(OpCode::k_add, {f32({2, 3}), Type{DType::k_f32, {2, 3}, {0, 1}}}), DType::k_f32, ({2, 3}), ({3, 1}));
  Type transposed{DType::k_f32, {3, 2}, {1, 3}};
  EXPECT_TYPE(one(OpCode::k_add, {transposed, transposed}), DType::k_f32, ({3, 2}), ({1, 3}));
  EXPECT_TYPE(one(OpCode::k_add, {transposed, f32({3, 2})}), DType::k_f32, ({3, 2}), ({1, 3}));
  EXPECT_TYPE(one(OpCode::k_relu, {Type{DType::k_f32, {2, 2}, {8, 2}}}), DType::k_f32, ({2, 2}), ({2, 1}));
  EXPECT_TYPE(one(OpCode::k_lt, {f32({0}), f32({0})}), DType::k_bool, ({0}), ({1}));
}

TEST(Infer, PointwiseRefusesWhatCaptureMustSpellOut) {
  EXPECT_REFUSED(one(OpCode::k_add, {f32({2, 3}), f32({3})}), "differ");
  EXPECT_REFUSED(one(OpCode::k_add, {f32({2}), typed(DType::k_f64, {2})}), "dtype");
  EXPECT_REFUSED(one(OpCode::k_exp, {typed(DType::k_i64, {2})}), "i64");
  EXPECT_REFUSED(one(OpCode::k_add, {typed(DType::k_c64, {2}), typed(DType::k_c64, {2})}), "carried");
  EXPECT_REFUSED(one(OpCode::k_add, {f32({2})}), "1 operands");
  EXPECT_REFUSED(one(OpCode::k_relu, {f32({2})}, {{AttrKey::k_dim, int64_t{0}}}), "unknown attribute dim");
  EXPECT_REFUSED(one(OpCode::k_cast, {f32({2})}, {{AttrKey::k_dtype, 1.0}}), "wrong kind");
  EXPECT_TYPE(one(OpCode::k_select, {typed(DType::k_bool, {2}), typed(DType::k_i32, {2}), typed(DType::k_i32, {2})}),
              DType::k_i32, ({2}), ({1}));
}

TEST(Infer, Reductions) {
  Attrs last{{AttrKey::k_dims, Dims{1}}};
  EXPECT_TYPE(one(OpCode::k_sum, {typed(DType::k_i32, {2, 3})}, last), DType::k_i64, ({2}), ({1}));
  EXPECT_TYPE(
      one(OpCode::k_sum, {typed(DType::k_bf16, {2, 3})}, {{AttrKey::k_dims, Dims{0, 1}}, {AttrKey::k_keepdim, true}}),
      DType::k_bf16, ({1, 1}), ({1, 1}));
  EXPECT_TYPE(one(OpCode::k_argmax, {f32({2, 3})}, last), DType::k_i64, ({2}), ({1}));
  EXPECT_REFUSED(one(OpCode::k_sum, {f32({2, 3})}, {{AttrKey::k_dims, Dims{1, 0}}}), "ascending");
  EXPECT_REFUSED(one(OpCode::k_sum, {f32({2, 3})}, {{AttrKey::k_dims, Dims{2}}}), "ascending");
  EXPECT_REFUSED(one(OpCode::k_amax, {f32({2, 0})}, last), "empty");
  EXPECT_REFUSED(one(OpCode::k_argmax, {f32({2, 3})}, {{AttrKey::k_dims, Dims{0, 1}}}), "one axis");
}

TEST(Infer, ViewsHaveViewStrides) {
  EXPECT_TYPE(one(OpCode::k_expand, {f32({2, 1})}, {{AttrKey::k_sizes, Dims{2, 5}}}), DType::k_f32, ({2, 5}), ({1, 0}));
  EXPECT_TYPE(one(OpCode::k_permute, {f32({2, 3, 4})}, {{AttrKey::k_dims, Dims{2, 0, 1}}}), DType::k_f32, ({4, 2, 3}),
              ({1, 12, 4}));
  EXPECT_TYPE(one(OpCode::k_slice, {f32({2, 8})},
                  {{AttrKey::k_dim, int64_t{1}},
                   {AttrKey::k_start, int64_t{1}},
                   {AttrKey::k_end, int64_t{8}},
                   {AttrKey::k_step, int64_t{3}}}),
              DType::k_f32, ({2, 3}), ({8, 3}));
  Type heads{DType::k_f32, {2, 4, 3, 8}, {96, 8, 32, 1}};  // [B, H, L, D] over [B, L, H, D]
  EXPECT_TYPE(one(OpCode::k_reshape, {heads}, {{AttrKey::k_sizes, Dims{2, 2, 2, 3, 8}}}), DType::k_f32,
              ({2, 2, 2, 3, 8}), ({96, 16, 8, 32, 1}));
  EXPECT_TYPE(one(OpCode::k_reshape, {heads}, {{AttrKey::k_sizes, Dims{8, 24}}}), DType::k_f32, ({8, 24}),
              ({24, 1}));  // a copy
  EXPECT_REFUSED(one(OpCode::k_reshape, {f32({2, 3})}, {{AttrKey::k_sizes, Dims{4}}}), "elements");
  EXPECT_REFUSED(one(OpCode::k_expand, {f32({2, 3})}, {{AttrKey::k_sizes, Dims{2, 6}}}), "expand");
  EXPECT_REFUSED(one(OpCode::k_permute, {f32({2, 3})}, {{AttrKey::k_dims, Dims{0, 0}}}), "permutation");
}

TEST(Infer, ConvolutionsKeepChannelsLast) {
  Attrs attrs{{AttrKey::k_stride, Dims{2, 2}},
                          {AttrKey::k_padding, Dims{1, 1}},
                          {AttrKey::k_dilation, Dims{1, 1}},
                          {AttrKey::k_groups, int64_t{1}}};
  EXPECT_TYPE(one(OpCode::k_conv, {channels_last({1, 3, 9, 9}), f32({4, 3, 3, 3})}, attrs), DType::k_f32,
              ({1, 4, 5, 5}), ({100, 1, 20, 4}));
  EXPECT_TYPE(one(OpCode::k_conv, {f32({1, 3, 9, 9}), f32({4, 3, 3, 3})}, attrs), DType::k_f32, ({1, 4, 5, 5}),
              ({100, 25, 5, 1}));
  EXPECT_REFUSED(one(OpCode::k_conv, {f32({1, 2, 9, 9}), f32({4, 3, 3, 3})}, attrs), "does not fit");
  EXPECT_REFUSED(one(OpCode::k_conv, {f32({1, 3, 0, 0}), f32({4, 3, 3, 3})}, attrs), "larger");
}

TEST(Infer, SuggestsChannelsLastLikeEager) {
  EXPECT_TRUE(suggests_channels_last(channels_last({2, 3, 4, 5})));
  EXPECT_FALSE(suggests_channels_last(f32({2, 3, 4, 5})));
  EXPECT_FALSE(suggests_channels_last(f32({2, 1, 1, 1})));
  EXPECT_FALSE(suggests_channels_last(f32({2, 3})));
}

TEST(Infer, BroadcastingBinary) {
  Graph g;
  ValueId a = g.add_input(f32({2, 1, 3}), 0), b = g.add_input(typed(DType::k_i64, {4, 1}), 1);
  auto v = Builder(g).binary(OpCode::k_add, a, b, DType::k_f64);
  ASSERT_TRUE(v.ok()) << v.status().text();
  EXPECT_EQ(g.type(*v).sizes, (Dims{2, 4, 3}));
  EXPECT_EQ(g.type(*v).dtype, DType::k_f64);
  EXPECT_FALSE(Builder(g).binary(OpCode::k_add, a, g.add_input(f32({2}), 2), DType::k_f32).ok());
}

// Ranks and dtypes of all three operands of a bag, against the definition in words: a table of floats, integer indices in one row with
// integer offsets, or in rows without.
TEST(Infer, BagsOfAnyRanksAndDtypes) {
  const DType dtypes[] = {DType::k_f32, DType::k_i64, DType::k_i32, DType::k_bool};
  int good = 0;
  for (DType table : dtypes)
    for (size_t table_rank : {1, 2, 3})
      for (DType index : dtypes)
        for (size_t index_rank : {0, 1, 2, 3})
          for (DType offset : {DType::kNone, DType::k_i64, DType::k_i32, DType::k_f32, DType::k_bool})
            for (size_t offset_rank : {0, 1, 2}) {
              if (offset == DType::kNone && offset_rank > 0) continue;
              std::vector<Type> operands{typed(table, Dims(table_rank, 5)), typed(index, Dims(index_rank, 4))};
              if (offset != DType::kNone) operands.push_back(typed(offset, Dims(offset_rank, 3)));
              const auto whole = [](DType d) { return d == DType::k_i64 || d == DType::k_i32; };
              const bool fits = table == DType::k_f32 && table_rank == 2 && whole(index) &&
                                (offset == DType::kNone ? index_rank == 2 : index_rank == 1 && offset_rank == 1 && whole(offset));
              const auto got =
                  one(OpCode::k_embedding_bag, operands, {{AttrKey::k_mode, std::string("sum")}, {AttrKey::k_include_last_offset, false}});
              ASSERT_EQ(got.ok(), fits) << dtype_name(table) << table_rank << ", " << dtype_name(index) << index_rank << ", "
                                        << dtype_name(offset) << offset_rank;
              ASSERT_TRUE(!fits || got->sizes == (Dims{offset == DType::kNone ? 4 : 3, 5}));
              good += fits;
            }
  EXPECT_EQ(good, 2 + 2 * 2);
}

// Ranks, dtypes and sizes of the three operands of a product of groups, each wrong by itself.
TEST(Infer, ProductsOfGroups) {
  const auto type_of = [](Dims x, Dims w, Dims ends, DType dtype = DType::k_f32, DType weight = DType::k_f32, DType end = DType::k_i32) {
    return one(OpCode::k_grouped_matmul, {typed(dtype, std::move(x)), typed(weight, std::move(w)), typed(end, std::move(ends))});
  };
  EXPECT_TYPE(type_of({7, 5}, {3, 5, 4}, {3}), DType::k_f32, ({7, 4}), ({4, 1}));
  EXPECT_TYPE(type_of({0, 5}, {3, 5, 4}, {3}, DType::k_bf16, DType::k_bf16, DType::k_i64), DType::k_bf16, ({0, 4}), ({4, 1}));
  EXPECT_REFUSED(type_of({7, 5}, {3, 4, 5}, {3}), "does not fit weights");
  EXPECT_REFUSED(type_of({7, 5}, {5, 4}, {5}), "does not fit weights");
  EXPECT_REFUSED(type_of({1, 7, 5}, {3, 5, 4}, {3}), "does not fit weights");
  EXPECT_REFUSED(type_of({7, 5}, {3, 5, 4}, {4}), "not one integer for each");
  EXPECT_REFUSED(type_of({7, 5}, {3, 5, 4}, {3, 1}), "not one integer for each");
  EXPECT_REFUSED(type_of({7, 5}, {3, 5, 4}, {3}, DType::k_f32, DType::k_f32, DType::k_f32), "not one integer for each");
  EXPECT_REFUSED(type_of({7, 5}, {3, 5, 4}, {3}, DType::k_f32, DType::k_bf16), "differ in dtype");
  EXPECT_REFUSED(type_of({7, 5}, {3, 5, 4}, {3}, DType::k_i32, DType::k_i32), "does not take");
}

// A list that names an axis too few or too many, and numbers out of range, one at a time.
TEST(Infer, WindowsNameEachAxisAndStayInRange) {
  const AttrKey lists[] = {AttrKey::k_stride, AttrKey::k_padding, AttrKey::k_dilation, AttrKey::k_output_padding};
  const auto conv = [&](size_t wrong, size_t length, bool transposed) {
    Attrs attrs = {{AttrKey::k_groups, int64_t{1}}, {AttrKey::k_transposed, transposed}};
    for (size_t i = 0; i < 4; ++i) attrs.push_back({lists[i], Dims(i == wrong ? length : 2, i % 2 == 0 ? 1 : 0)});
    return one(OpCode::k_conv, {f32({1, 3, 8, 8}), f32({3, 3, 3, 3})}, attrs);
  };
  for (const bool transposed : {false, true}) {
    ASSERT_TRUE(conv(9, 0, transposed).ok());
    for (size_t wrong = 0; wrong < (transposed ? 4u : 3u); ++wrong)
      for (const size_t length : {0, 1, 3}) EXPECT_REFUSED(conv(wrong, length, transposed), "do not name each spatial axis");
  }
  const auto gradient = [](Dims grad, Dims kernel, Dims stride) {
    return one(OpCode::k_conv_grad_weight, {f32({1, 6, 8, 8}), f32(std::move(grad))},
               {{AttrKey::k_sizes, kernel},
                {AttrKey::k_stride, stride},
                {AttrKey::k_padding, Dims{1, 0}},
                {AttrKey::k_dilation, Dims{1, 1}},
                {AttrKey::k_groups, int64_t{2}}});
  };
  EXPECT_TYPE(gradient({1, 4, 4, 7}, {3, 2}, {2, 1}), DType::k_f32, ({4, 3, 3, 2}), ({18, 6, 2, 1}));
  EXPECT_REFUSED(gradient({1, 4, 4, 7}, {3}, {2, 1}), "do not name each spatial axis");
  EXPECT_REFUSED(gradient({1, 4, 4, 7}, {3, 2}, {2}), "do not name each spatial axis");
  EXPECT_REFUSED(gradient({1, 4, 4, 7}, {3, 0}, {2, 1}), "out of range");
  EXPECT_REFUSED(gradient({1, 4, 4, 8}, {3, 2}, {2, 1}), "is not of a convolution");
  EXPECT_REFUSED(gradient({1, 3, 4, 7}, {3, 2}, {2, 1}), "do not divide the channels");
  EXPECT_REFUSED(gradient({2, 4, 4, 7}, {3, 2}, {2, 1}), "differ in rank or batch");
  const auto pool = [](Dims kernel, Dims stride, Dims padding, Dims dilation) {
    return one(OpCode::k_max_pool, {f32({1, 3, 8, 8})},
               {{AttrKey::k_kernel, kernel},
                {AttrKey::k_stride, stride},
                {AttrKey::k_padding, padding},
                {AttrKey::k_dilation, dilation},
                {AttrKey::k_ceil_mode, false}});
  };
  ASSERT_TRUE(pool({2, 3}, {1, 1}, {1, 1}, {1, 1}).ok());
  EXPECT_REFUSED(pool({2, 0}, {1, 1}, {0, 0}, {1, 1}), "out of range");
  EXPECT_REFUSED(pool({2, 2}, {1, 0}, {0, 0}, {1, 1}), "out of range");
  EXPECT_REFUSED(pool({2, 2}, {1, 1}, {0, -1}, {1, 1}), "out of range");
  EXPECT_REFUSED(pool({2, 2}, {1, 1}, {0, 2}, {1, 1}), "out of range");
  EXPECT_REFUSED(pool({2, 2}, {1, 1}, {0, 0}, {1, 0}), "out of range");
}

// Each weight of each layer has its own size: one that has another's is refused, whichever it is.
TEST(Infer, RecurrentWeightsFitOneByOne) {
  const int64_t in = 5, hidden = 3, batch = 2, steps = 4;
  const std::vector<Type> right = {f32({steps, batch, in}),      f32({2, batch, hidden}),       f32({2, batch, hidden}),
                                   f32({4 * hidden, in}),        f32({4 * hidden, hidden}),     f32({4 * hidden}), f32({4 * hidden}),
                                   f32({4 * hidden, hidden}),    f32({4 * hidden, hidden}),     f32({4 * hidden}), f32({4 * hidden})};
  const auto emit = [](std::vector<Type> operands) {
    Graph g;
    ValueIds ids;
    for (Type& t : operands) ids.push_back(g.add_input(t, static_cast<uint32_t>(ids.size())));
    return Builder(g).emit(OpCode::k_lstm, ids,
                           {{AttrKey::k_layers, int64_t{2}},
                            {AttrKey::k_bidirectional, false},
                            {AttrKey::k_batch_first, false},
                            {AttrKey::k_has_biases, true}});
  };
  ASSERT_TRUE(emit(right).ok());
  for (size_t k = 3; k < right.size(); ++k)
    for (size_t d = 0; d < right[k].sizes.size(); ++d) {
      std::vector<Type> wrong = right;
      Dims sizes = right[k].sizes;
      sizes[d] += 1;
      wrong[k] = f32(sizes);
      const auto r = emit(wrong);
      ASSERT_FALSE(r.ok()) << "operand " << k << " axis " << d;
      EXPECT_NE(r.status().text().find("weights of layer " + std::to_string((k - 3) / 4) + " do not fit"), std::string::npos)
          << r.status().text();
    }
}

TEST(Infer, OperandsThatMayBeAbsentMustFitWhereTheyAreThere) {
  const Type x = f32({2, 5, 8}), w = f32({3, 8});
  EXPECT_TYPE(one(OpCode::k_linear, {x, w, f32({3})}), DType::k_f32, ({2, 5, 3}), ({15, 3, 1}));
  EXPECT_REFUSED(one(OpCode::k_linear, {x, w, f32({8})}), "the bias does not fit the weight");
  EXPECT_REFUSED(one(OpCode::k_linear, {x, w, f32({1, 3})}), "the bias does not fit the weight");
  const Type q = f32({2, 4, 8}), k = f32({2, 6, 8});
  const Attrs attrs = {{AttrKey::k_causal, false}, {AttrKey::k_gqa, false}, {AttrKey::k_scale, 1.0}};
  const auto with_mask = [&](Type mask) { return one(OpCode::k_attention, {q, k, k, std::move(mask)}, attrs); };
  EXPECT_TYPE(with_mask(f32({2, 4, 6})), DType::k_f32, ({2, 4, 8}), ({32, 8, 1}));
  EXPECT_TYPE(with_mask(typed(DType::k_bool, {2, 4, 6})), DType::k_f32, ({2, 4, 8}), ({32, 8, 1}));
  EXPECT_REFUSED(with_mask(f32({2, 6, 4})), "mask");
  EXPECT_REFUSED(with_mask(f32({4, 6})), "mask");
  EXPECT_REFUSED(with_mask(typed(DType::k_i64, {2, 4, 6})), "the mask is neither bool nor of q's dtype");
}

// Axes of one element leave open which order a tensor has: row-major is what eager takes it for.
TEST(Infer, RowMajorWinsWhereBothOrdersFit) {
  const auto neg = [](Dims sizes, Dims strides) { return one(OpCode::k_neg, {Type{DType::k_f32, std::move(sizes), std::move(strides)}}); };
  EXPECT_TYPE(neg({2, 1, 4, 5}, {20, 20, 5, 1}), DType::k_f32, ({2, 1, 4, 5}), ({20, 20, 5, 1}));
  EXPECT_TYPE(neg({2, 1, 4, 5}, {20, 1, 5, 1}), DType::k_f32, ({2, 1, 4, 5}), ({20, 20, 5, 1}));
  EXPECT_TYPE(neg({2, 1, 3}, {3, 7, 1}), DType::k_f32, ({2, 1, 3}), ({3, 3, 1}));
  EXPECT_TYPE(neg({2, 3, 4, 5}, {60, 1, 15, 3}), DType::k_f32, ({2, 3, 4, 5}), ({60, 1, 15, 3}));
}

}  // namespace
}  // namespace keirin
