// SPDX-License-Identifier: Apache-2.0
//
// Recipes by structure: which rows a call becomes, what stays opaque and why, and that an opaque call leaves no trace.
#include "core/ops/aten.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>

#include "core/ir/rows.h"
#include "core/ops/promote.h"

namespace keirin {
namespace {

struct Call {
  Graph graph;
  Builder builder{graph};
  std::vector<AtenArg> args;
  std::vector<std::string> names;
  std::string why;
  bool by_reciprocal = false;

  ValueId input(DType d, Dims sizes) {
    Dims strides = contiguous_strides(sizes);
    return graph.add_input(Type{d, sizes, strides}, static_cast<uint32_t>(graph.inputs.size()));
  }
  template <class T>
  Call& with(const char* name, T value) {
    args.push_back({std::move(value)});
    names.push_back(name);
    return *this;
  }
  Call& tensor(const char* name, DType d, Dims sizes) {
    return with(name, AtenArg::Value{input(d, std::move(sizes)), false});
  }

  Result<std::optional<ValueIds>> lower(std::string_view op) {
    return lower_aten(builder, {op, &args, &names, nullptr, by_reciprocal}, &why);
  }

  // The rows of the call, "cast mul cast"; "opaque" if it has none.
  std::string rows(std::string_view op) {
    auto r = lower(op);
    if (!r.ok()) return r.status().text();
    if (!r->has_value()) return "opaque";
    std::string text;
    for (const Op& o : graph.ops) text += (text.empty() ? "" : " ") + std::string(op_name(o.code));
    return text;
  }
};

// Whatever two dtypes meet in whatever call: it has rows or stays opaque, and none of it is an error of the host's.
TEST(Recipes, NoMeetingOfDtypesIsAnError) {
  const DType dtypes[] = {DType::k_f64, DType::k_f32, DType::k_f16, DType::k_bf16, DType::k_i64,
                          DType::k_i32, DType::k_i16, DType::k_i8,  DType::k_u8,   DType::k_bool};
  const char* const binary[] = {
      "add.Tensor",         "sub.Tensor", "rsub.Tensor", "mul.Tensor", "div.Tensor",  "fmod.Tensor",        "remainder.Tensor",
      "pow.Tensor_Tensor",  "maximum",    "minimum",     "eq.Tensor",  "ne.Tensor",   "lt.Tensor",          "le.Tensor",
      "gt.Tensor",          "ge.Tensor",  "logical_and", "logical_or", "logical_xor", "bitwise_and.Tensor", "bitwise_or.Tensor",
      "bitwise_xor.Tensor", "matmul",     "floor_divide"};
  const char* const unary[] = {"abs",  "neg",   "sign",  "reciprocal", "sqrt",        "rsqrt",       "exp",         "expm1",
                               "log",  "log1p", "log2",  "sin",        "cos",         "tanh",        "sigmoid",     "erf",
                               "relu", "silu",  "gelu",  "mish",       "hardsigmoid", "hardswish",   "log_sigmoid", "floor",
                               "ceil", "trunc", "round", "isnan",      "logical_not", "bitwise_not", "square",      "exp2",
                               "sum",  "mean",  "amax",  "cumsum",     "softplus",    "elu",         "leaky_relu"};
  int rows = 0, opaque = 0;
  for (const DType a : dtypes) {
    for (const DType b : dtypes)
      for (const char* name : binary) {
        Call call;
        const auto lowered = call.tensor("self", a, {4, 4})
                                 .tensor(std::string_view(name).starts_with("pow") ? "exponent" : "other", b, {4, 4})
                                 .lower("aten::" + std::string(name));
        ASSERT_TRUE(lowered.ok()) << name << " of " << dtype_name(a) << " and " << dtype_name(b) << ": " << lowered.status().text();
        (lowered->has_value() ? rows : opaque) += 1;
      }
    for (const char* name : unary) {
      Call call;
      const auto lowered = call.tensor("self", a, {4, 4}).lower("aten::" + std::string(name));
      ASSERT_TRUE(lowered.ok()) << name << " of " << dtype_name(a) << ": " << lowered.status().text();
      (lowered->has_value() ? rows : opaque) += 1;
    }
  }
  EXPECT_GT(rows, 1000);
  EXPECT_GT(opaque, 100);
}

TEST(Promote, LatticeAndCategories) {
  EXPECT_EQ(promote(DType::k_f16, DType::k_bf16), DType::k_f32);
  EXPECT_EQ(promote(DType::k_u8, DType::k_i8), DType::k_i16);
  EXPECT_EQ(promote(DType::k_i64, DType::k_f16), DType::k_f16);
  EXPECT_EQ(promote(DType::k_bool, DType::k_u8), DType::k_u8);
  auto result = [](DType dim, DType zero, DType number) {
    Promotion p;
    if (dim != DType::kNone) p.add_tensor(dim, false);
    if (zero != DType::kNone) p.add_tensor(zero, true);
    if (number != DType::kNone) p.add_number(number);
    return p.result();
  };
  EXPECT_EQ(result(DType::k_bf16, DType::k_f64, DType::kNone), DType::k_bf16);
  EXPECT_EQ(result(DType::k_i32, DType::k_f64, DType::kNone), DType::k_f64);
  EXPECT_EQ(result(DType::k_i32, DType::kNone, DType::k_f64), DType::k_f32);
  EXPECT_EQ(result(DType::k_bool, DType::kNone, DType::k_i64), DType::k_i64);
  EXPECT_EQ(result(DType::k_u8, DType::kNone, DType::k_i64), DType::k_u8);
  EXPECT_EQ(result(DType::kNone, DType::k_f16, DType::k_f64), DType::k_f16);
}

TEST(Aten, ADivisorsReciprocalWhereTheDeviceMultipliesByIt) {
  const auto rows = [](DType dtype, double divisor, bool by_reciprocal, const char* mode = nullptr) {
    Call c;
    c.by_reciprocal = by_reciprocal;
    c.tensor("self", dtype, {3}).with("other", divisor);
    if (mode) c.with("rounding_mode", std::string(mode));
    return c.rows(mode ? "aten::div.Tensor_mode" : "aten::div.Tensor");
  };
  EXPECT_EQ(rows(DType::k_f32, 3, false), "full reshape expand div");
  EXPECT_EQ(rows(DType::k_f32, 3, true), "full reciprocal reshape expand mul");
  EXPECT_EQ(rows(DType::k_f32, -8, true), "full reshape expand mul") << "the reciprocal of a power of two is exact";
  EXPECT_EQ(rows(DType::k_bf16, 3, true), "cast full reciprocal reshape expand mul cast") << "the reciprocal is not rounded to 16 bits";
  EXPECT_EQ(rows(DType::k_i64, 3, true), "cast full reciprocal reshape expand mul");
  EXPECT_EQ(rows(DType::k_f32, 3, true, "trunc"), "full reciprocal reshape expand mul trunc");
  Call tensors;
  tensors.by_reciprocal = true;
  EXPECT_EQ(tensors.tensor("self", DType::k_f32, {3}).tensor("other", DType::k_f32, {3}).rows("aten::div.Tensor"), "div");
}

TEST(Aten, NumbersStayInTheComputeDtype) {
  // 0.3 is not a bf16: the row runs in f32. 0.5 is: the row stays in bf16.
  std::string inexact = Call().tensor("self", DType::k_bf16, {4}).with("other", 0.3).rows("aten::mul.Tensor");
  EXPECT_EQ(inexact.substr(0, 4), "cast");
  EXPECT_EQ(inexact.substr(inexact.size() - 8), "mul cast");
  std::string exact = Call().tensor("self", DType::k_bf16, {4}).with("other", 0.5).rows("aten::mul.Tensor");
  EXPECT_EQ(exact.find("cast"), std::string::npos) << exact;
}

TEST(Aten, OneRowWhereEagerHasOneKernel) {
  EXPECT_EQ(Call()
                .tensor("self", DType::k_f32, {2, 3})
                .tensor("other", DType::k_f32, {2, 3})
                .with("alpha", int64_t{1})
                .rows("aten::add.Tensor"),
            "add");
  EXPECT_EQ(Call()
                .tensor("self", DType::k_f32, {4})
                .tensor("mat1", DType::k_f32, {2, 3})
                .tensor("mat2", DType::k_f32, {3, 4})
                .rows("aten::addmm"),
            "permute linear");
  EXPECT_EQ(Call().tensor("self", DType::k_f32, {2, 3, 4}).tensor("other", DType::k_f32, {4, 5}).rows("aten::matmul"),
            "reshape matmul reshape");
  EXPECT_EQ(Call()
                .tensor("query", DType::k_f32, {1, 2, 3, 4})
                .tensor("key", DType::k_f32, {1, 2, 5, 4})
                .tensor("value", DType::k_f32, {1, 2, 5, 4})
                .with("dropout_p", 0.0)
                .with("is_causal", false)
                .rows("aten::scaled_dot_product_attention"),
            "attention");
}

TEST(Aten, PlumbingIsItsOperand) {
  for (const char* op : {"aten::contiguous", "aten::clone", "aten::detach", "aten::alias"}) {
    Call c;
    c.tensor("self", DType::k_f32, {2});
    auto r = c.lower(op);
    ASSERT_TRUE(r.ok() && r->has_value()) << op;
    EXPECT_EQ((**r)[0], 0u) << op;
    EXPECT_TRUE(c.graph.ops.empty()) << op;
  }
}

TEST(Aten, WrappedNumbersAreRecognised) {
  Call c;
  ValueId number = c.builder.full(0.5, DType::k_f64, {}).value();
  c.tensor("self", DType::k_f32, {2}).with("other", AtenArg::Value{number, true});
  auto r = c.lower("aten::mul.Tensor");
  ASSERT_TRUE(r.ok() && r->has_value()) << c.why;
  EXPECT_EQ(c.graph.type((**r)[0]).dtype, DType::k_f32);
}

TEST(Aten, ResultsThatTheTableDoesNotCompute) {
  Call c;
  c.tensor("self", DType::k_f32, {1, 1, 4, 4}).with("kernel_size", Dims{2, 2});
  auto r = c.lower("aten::max_pool2d_with_indices");
  ASSERT_TRUE(r.ok() && r->has_value()) << c.why;
  ASSERT_EQ((*r)->size(), 2u);
  EXPECT_NE((**r)[0], kNone);
  EXPECT_EQ((**r)[1], kNone);
}

void expect_opaque(Call& c, std::string_view op, std::string_view why) {
  size_t values = c.graph.values.size(), ops = c.graph.ops.size();
  auto r = c.lower(op);
  ASSERT_TRUE(r.ok()) << r.status().text();
  EXPECT_FALSE(r->has_value()) << op;
  EXPECT_NE(c.why.find(why), std::string::npos) << c.why;
  EXPECT_EQ(c.graph.values.size(), values);
  EXPECT_EQ(c.graph.ops.size(), ops);
}

TEST(Aten, OpaqueLeavesNoTraceAndSaysWhy) {
  Call unknown;
  expect_opaque(unknown.tensor("self", DType::k_f32, {3}), "aten::topk", "not in the operator table");
  Call complex;
  expect_opaque(complex.tensor("self", DType::k_c64, {3}), "aten::neg", "carried");
  Call in_place;  // dropout_ calls its tensor otherwise
  EXPECT_EQ(in_place.tensor("self", DType::k_f32, {3}).with("p", 0.5).with("train", false).rows("aten::dropout"), "");
  Call dropout;
  expect_opaque(dropout.tensor("input", DType::k_f32, {3}).with("p", 0.5).with("train", true), "aten::dropout",
                "random");
  Call training;
  expect_opaque(training.tensor("input", DType::k_f32, {2, 3}).tensor("running_mean", DType::k_f32, {3}).with("training", true),
                "aten::batch_norm", "updates");
  Call statistics;
  expect_opaque(statistics.tensor("input", DType::k_f32, {2, 3}).with("training", true), "aten::native_batch_norm", "answers");
  Call mask;
  ValueId x = mask.input(DType::k_f32, {3}), m = mask.input(DType::k_bool, {3});
  expect_opaque(mask.with("self", AtenArg::Value{x, false}).with("indices", AtenArg::Values{m}), "aten::index.Tensor",
                "boolean");
  Call integers;
  expect_opaque(
      integers.tensor("self", DType::k_i64, {3}).with("other", int64_t{2}).with("rounding_mode", std::string("floor")),
      "aten::div.Tensor_mode", "rounding mode");
  Call late;  // fails after rows were emitted
  expect_opaque(late.tensor("self", DType::k_bf16, {3}).tensor("other", DType::k_f32, {4}), "aten::add.Tensor",
                "broadcast");
}

TEST(Aten, SpansThatAreWholeRowsHaveRows) {
  for (const int64_t step : {int64_t{1}, int64_t{2}}) {
    Call c;
    c.tensor("self", DType::k_f32, {8}).tensor("src", DType::k_f32, {4 / step}).with("dim", int64_t{0}).with("start", int64_t{2});
    c.with("end", int64_t{6}).with("step", step);
    EXPECT_NE(c.rows("aten::slice_scatter"), "opaque") << "step " << step << ": " << c.why;
  }
  Call none;
  none.tensor("self", DType::k_f32, {8}).tensor("src", DType::k_f32, {4}).with("dim", int64_t{0}).with("start", int64_t{2});
  expect_opaque(none.with("end", int64_t{6}).with("step", int64_t{0}), "aten::slice_scatter", "a step below 1");
}

TEST(Aten, TakingAlongAnAxisKeepsTheLengthOfTheIndices) {
  for (const Dims& indices : {Dims{3, 2}, Dims{1, 2}, Dims{3, 7}}) {
    Call c;
    c.tensor("self", DType::k_f32, {3, 4}).tensor("indices", DType::k_i64, indices).with("dim", int64_t{1});
    const auto r = c.lower("aten::take_along_dim");
    ASSERT_TRUE(r.ok() && r->has_value()) << c.why;
    EXPECT_EQ(c.graph.type((**r)[0]).sizes, (Dims{3, indices[1]}));
  }
}

TEST(Aten, ShufflesOnlyChannelsThatGroupsDivide) {
  Call good;
  EXPECT_EQ(good.tensor("self", DType::k_f32, {2, 4, 3}).with("groups", int64_t{2}).rows("aten::channel_shuffle"),
            "reshape permute reshape");
  const std::pair<Dims, int64_t> refused[] = {{{2, 4}, 2}, {{2, 4, 3}, 0}, {{2, 4, 3}, -2}, {{2, 4, 3}, 3}};
  for (const auto& [sizes, groups] : refused) {
    Call c;
    expect_opaque(c.tensor("self", DType::k_f32, sizes).with("groups", groups), "aten::channel_shuffle", "groups that do not divide");
  }
}

// Which factor belongs to which axis, in the spelling with one argument an axis.
TEST(Aten, ResizingKnowsTheFactorOfEachAxis) {
  Call c;
  c.tensor("self", DType::k_f32, {1, 1, 4, 6}).with("output_size", Dims{8, 18}).with("scales_h", 2.0).with("scales_w", 3.0);
  const auto r = c.lower("aten::upsample_nearest2d");
  ASSERT_TRUE(r.ok() && r->has_value()) << c.why;
  const Op& row = c.graph.ops.back();
  ASSERT_EQ(row.code, OpCode::k_upsample_nearest);
  EXPECT_EQ(row.ints(AttrKey::k_scales), (Dims{std::bit_cast<int64_t>(2.0), std::bit_cast<int64_t>(3.0)}));
}

TEST(Aten, AttentionIsOfOneRankFromThreeOn) {
  const Dims shapes[] = {{4, 8}, {2, 4, 8}, {1, 2, 4, 8}};
  for (const Dims& q : shapes)
    for (const Dims& k : shapes)
      for (const Dims& v : shapes) {
        Call c;
        c.tensor("query", DType::k_f32, q).tensor("key", DType::k_f32, k).tensor("value", DType::k_f32, v);
        if (q.size() >= 3 && q.size() == k.size() && q.size() == v.size()) {
          EXPECT_NE(c.rows("aten::scaled_dot_product_attention"), "opaque") << c.why;
        } else {
          expect_opaque(c, "aten::scaled_dot_product_attention", "attention below 3-d or of mixed ranks");
        }
      }
}

TEST(Aten, ARangeIsOfIntegersWhereAllBoundsAre) {
  for (int fractions = 0; fractions < 8; ++fractions) {
    Call c;
    const char* const names[] = {"start", "end", "step"};
    const int64_t bounds[] = {1, 7, 2};
    for (int i = 0; i < 3; ++i) fractions >> i & 1 ? c.with(names[i], static_cast<double>(bounds[i])) : c.with(names[i], bounds[i]);
    const auto r = c.lower("aten::arange.start_step");
    ASSERT_TRUE(r.ok() && r->has_value()) << c.why;
    EXPECT_EQ(c.graph.type((**r)[0]).dtype, fractions == 0 ? DType::k_i64 : DType::k_f32) << fractions;
    EXPECT_EQ(c.graph.type((**r)[0]).sizes, Dims{3});
  }
}

TEST(Aten, ListsOfTensorsAreCarriedIfOneOfThemIs) {
  for (size_t complex = 0; complex < 4; ++complex) {
    Call c;
    AtenArg::Values values;
    for (size_t i = 0; i < 3; ++i) values.push_back(c.input(i == complex ? DType::k_c64 : DType::k_f32, {2}));
    c.with("tensors", values).with("dim", int64_t{0});
    if (complex == 3) {
      EXPECT_EQ(c.rows("aten::cat"), "cat") << c.why;
    } else {
      expect_opaque(c, "aten::cat", "carried");
    }
  }
}

// LibTorch's product of groups: of rows, as they are stored, and nothing else.
TEST(Aten, ProductsOfGroupsOfRows) {
  const auto fill = [](Call& c, Dims x, Dims w, bool ends) {
    c.tensor("self", DType::k_f32, std::move(x)).tensor("mat2", DType::k_f32, std::move(w));
    if (ends) c.tensor("offs", DType::k_i32, {3});
  };
  Call plain, same, bias, wide, batches, matrices;
  fill(plain, {5, 4}, {3, 4, 8}, true);
  EXPECT_EQ(plain.rows("aten::_grouped_mm"), "grouped_matmul") << plain.why;
  fill(same, {5, 4}, {3, 4, 8}, true);
  same.with("bias", AtenArg::None{}).with("out_dtype", DType::k_f32);
  EXPECT_EQ(same.rows("aten::_grouped_mm"), "grouped_matmul") << same.why;
  fill(batches, {3, 5, 4}, {3, 4, 8}, false);
  expect_opaque(batches, "aten::_grouped_mm", "other than rows");
  fill(matrices, {5, 4}, {4, 8}, true);
  expect_opaque(matrices, "aten::_grouped_mm", "other than rows");
  fill(bias, {5, 4}, {3, 4, 8}, true);
  bias.tensor("bias", DType::k_f32, {3, 8});
  expect_opaque(bias, "aten::_grouped_mm", "with a bias");
  fill(wide, {5, 4}, {3, 4, 8}, true);
  wide.with("out_dtype", DType::k_f64);
  expect_opaque(wide, "aten::_grouped_mm", "another dtype");
}

TEST(Aten, UnboundArgumentsAreAnError) {
  Call c;
  auto r = c.lower("aten::relu");
  ASSERT_FALSE(r.ok());
  EXPECT_EQ(r.status().code(), Code::k_invalid_input);
  EXPECT_NE(r.status().text().find("self"), std::string::npos);
}

// What the exported models of the zoo need, so that a lost recipe is noticed here and not as a slow model.
TEST(Aten, KnowsTheZoo) {
  const char* needed[] = {"conv2d",
                          "batch_norm",
                          "relu",
                          "max_pool2d",
                          "add.Tensor",
                          "adaptive_avg_pool2d",
                          "flatten.using_ints",
                          "linear",
                          "hardswish",
                          "hardsigmoid",
                          "dropout",
                          "mul.Tensor",
                          "layer_norm",
                          "gelu",
                          "permute",
                          "upsample_bilinear2d.vec",
                          "cat",
                          "scaled_dot_product_attention",
                          "expand",
                          "unflatten.int",
                          "select.int",
                          "roll",
                          "pad",
                          "index.Tensor",
                          "masked_fill.Scalar",
                          "fill.Tensor",
                          "new_zeros",
                          "softmax.int",
                          "matmul",
                          "embedding",
                          "tanh",
                          "gather",
                          "arange",
                          "__and__.Tensor",
                          "ge.Scalar",
                          "new_ones",
                          "log",
                          "abs",
                          "min.other",
                          "where.self",
                          "full_like",
                          "silu",
                          "pow.Tensor_Scalar",
                          "mean.dim",
                          "rsqrt",
                          "cos",
                          "sin",
                          "neg",
                          "slice.Tensor",
                          "cumsum",
                          "diff",
                          "le.Tensor",
                          "eq.Scalar",
                          "to.dtype",
                          "index_select",
                          "scatter_add",
                          "scatter_reduce.two",
                          "repeat",
                          "leaky_relu",
                          "div.Tensor",
                          "group_norm",
                          "upsample_nearest2d.vec",
                          "exp",
                          "embedding_bag",
                          "bmm",
                          "stack",
                          "unbind.int",
                          "lstm.input",
                          "gru.input",
                          "einsum",
                          "conv1d",
                          "addmm",
                          "split.Tensor",
                          "convolution",
                          "_to_copy",
                          "native_layer_norm",
                          "_softmax",
                          "view",
                          "_unsafe_view",
                          "clone",
                          "tril",
                          "triu"};
  auto known = known_aten_ops();
  for (std::string op : needed) EXPECT_TRUE(std::binary_search(known.begin(), known.end(), "aten::" + op)) << op;
  EXPECT_EQ(std::adjacent_find(known.begin(), known.end()), known.end());
}

// padding="same" is a number for each axis where it is even, of one, two and three axes.
TEST(Aten, SamePaddingIsEvenOnEveryAxis) {
  for (const auto& [kernel, even] :
       {std::pair<Dims, bool>{{3}, true}, {{4}, false}, {{3, 5}, true}, {{3, 2}, false}, {{3, 5, 7}, true}, {{3, 5, 2}, false}}) {
    Call c;
    Dims x{2, 4}, w{6, 4};
    for (int64_t k : kernel) x.push_back(9), w.push_back(k);
    c.tensor("input", DType::k_f32, x).tensor("weight", DType::k_f32, w).with("padding", std::string("same"));
    EXPECT_EQ(c.rows("aten::conv" + std::to_string(kernel.size()) + "d.padding"), even ? "conv" : "opaque") << kernel.size() << c.why;
    if (!even || c.graph.ops.empty()) continue;
    Dims want;
    for (int64_t k : kernel) want.push_back(k / 2);
    EXPECT_EQ(c.graph.ops[0].ints(AttrKey::k_padding), want);
    EXPECT_EQ(c.graph.type(c.graph.ops[0].results[0]).sizes[2], 9);
  }
}

// Where a factory names no dtype, the default at the time of the export decides: the file knows its results.
TEST(Aten, AFactoryWithoutADtypeHasThatOfItsResult) {
  for (DType dtype : {DType::k_f64, DType::k_f32, DType::k_bf16}) {
    Call c;
    c.with("size", Dims{2, 3});
    const std::vector<Type> results = {Type{dtype, {2, 3}, {3, 1}}};
    const auto lowered = lower_aten(c.builder, {"aten::zeros", &c.args, &c.names, &results}, &c.why);
    ASSERT_TRUE(lowered.ok() && lowered->has_value()) << c.why;
    EXPECT_EQ(c.graph.type((**lowered)[0]).dtype, dtype);
  }
  Call c;
  EXPECT_EQ(c.with("size", Dims{2, 3}).rows("aten::zeros"), "full") << c.why;
  EXPECT_EQ(c.graph.values.back().type.dtype, DType::k_f32);
}

}  // namespace
}  // namespace keirin
