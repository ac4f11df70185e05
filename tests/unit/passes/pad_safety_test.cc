// SPDX-License-Identifier: Apache-2.0
//
// A proof that padding is safe is worth what it forbids: each rule has a graph that it allows and one that it does not, and whatever is
// allowed is computed by the reference plugin at both sizes, with NaN or a huge number in the padded elements: what is kept is the same, or
// NaN where the proof says so.
#include "core/passes/pad_safety.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <random>

#include "core/ir/rows.h"
#include "core/ops/builder.h"
#include "tests/unit/reference/region_runner.h"

namespace keirin {
namespace {

using testing::HostTensor;
using K = AttrKey;
using Attrs = Attrs;

constexpr double kAnything = std::numeric_limits<double>::quiet_NaN();  // as PadFill::value

// One graph at two sizes, made side by side.
struct Two {
  Graph graphs[2];
  std::vector<PadFill> fills;
  std::vector<double> most;  // by input: values are drawn from 0 to below it; 0: any float

  // Sizes of -1 are the padded one.
  static int64_t padded(int which) { return which == 0 ? 5 : 11; }
  static Dims at(Dims sizes, int which) {
    for (int64_t& s : sizes)
      if (s < 0) s *= -padded(which);
    return sizes;
  }
  ValueId input(DType dtype, const Dims& sizes, PadFill fill = {kAnything, false}, double limit = 0) {
    ValueId v = kNone;
    for (int which : {0, 1})
      v = graphs[which].add_input({dtype, at(sizes, which), contiguous_strides(at(sizes, which))},
                                  static_cast<uint32_t>(graphs[which].inputs.size()));
    fills.push_back(fill);
    most.push_back(limit);
    return v;
  }
  // kNone if the row refuses it at one of the sizes.
  ValueId op(OpCode code, const ValueIds& operands, const std::function<Attrs(int)>& attrs) {
    const Graph before = graphs[0];
    Builder small(graphs[0]), large(graphs[1]);
    const Result<ValueId> a = small.emit1(code, operands, attrs(0));
    if (!a.ok()) return kNone;
    const Result<ValueId> b = large.emit1(code, operands, attrs(1));
    if (b.ok()) return *b;
    graphs[0] = before;
    return kNone;
  }
  ValueId op(OpCode code, const ValueIds& operands, Attrs attrs = {}) {
    return op(code, operands, [&](int) { return attrs; });
  }
  ValueId sized(OpCode code, const ValueIds& operands, Dims sizes, Attrs more = {}) {
    return op(code, operands, [&](int which) {
      Attrs attrs = more;
      attrs.push_back({K::k_sizes, at(sizes, which)});
      return attrs;
    });
  }
  ValueId number(double value, const Dims& sizes, DType dtype = DType::k_f32) {
    return sized(OpCode::k_full, {}, sizes,
                 {{K::k_dtype, static_cast<int64_t>(dtype)}, {K::k_value_d, value}, {K::k_value_i, static_cast<int64_t>(value)}});
  }
  ValueId reduce(OpCode code, ValueId x, int64_t dim, bool keepdim = false) {
    return op(code, {x}, {{K::k_dims, Dims{dim}}, {K::k_keepdim, keepdim}});
  }
  ValueId slice(ValueId x, int64_t dim, int64_t start, int64_t end, int64_t step = 1) {  // end -1: the axis's
    return op(OpCode::k_slice, {x}, [&](int which) {
      const int64_t size = graphs[which].type(x).sizes[static_cast<size_t>(dim)];
      return Attrs{{K::k_dim, dim}, {K::k_start, start}, {K::k_end, end < 0 ? size : end}, {K::k_step, step}};
    });
  }
  void output(ValueId v) {
    for (Graph& graph : graphs) graph.outputs.push_back({v, kNone, kNone});
  }
  const Dims& sizes(ValueId v, int which = 0) const { return graphs[which].type(v).sizes; }
  Result<PadProof> prove() const { return prove_pad_safe(graphs[0], graphs[1], fills); }
};

// Elements of a row-major value of the larger graph that the smaller one has, too.
std::vector<double> kept(const std::vector<double>& all, const Dims& large, const Dims& small) {
  std::vector<double> out;
  for (size_t i = 0; i < all.size(); ++i) {
    bool inside = true;
    int64_t rest = static_cast<int64_t>(i);
    for (size_t a = large.size(); a-- > 0;) {
      inside = inside && rest % large[a] < small[a];
      rest /= large[a];
    }
    if (inside) out.push_back(all[i]);
  }
  return out;
}

std::string text_of(const std::vector<double>& values) {
  std::string text;
  for (double v : values) text += std::to_string(v) + " ";
  return text;
}

// Elements that are kept: how many are NaN in the larger graph, and of them how many in that alone.
struct Nans {
  int all = 0, made = 0;
};

// What was proved, computed: `junk` stands where nothing was said of the padded elements of floats.
Nans check_numbers(const Two& two, const PadProof& proof, double junk, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<HostTensor> small, large;
  for (size_t i = 0; i < two.fills.size(); ++i) {
    const Type &a = two.graphs[0].type(two.graphs[0].inputs[i]), &b = two.graphs[1].type(two.graphs[1].inputs[i]);
    const double fill = two.fills[i].is_extent ? Two::padded(0) : std::isnan(two.fills[i].value) ? junk : two.fills[i].value;
    std::vector<double> values, all(static_cast<size_t>(b.num_elements()), fill);
    for (int64_t k = 0; k < a.num_elements(); ++k)
      values.push_back(two.most[i] > 0 ? static_cast<double>(random() % static_cast<uint32_t>(two.most[i]))
                                       : static_cast<double>(random() % 17) / 8 - 1);
    size_t next = 0;
    for (size_t k = 0; k < all.size(); ++k) {
      bool inside = true;
      int64_t rest = static_cast<int64_t>(k);
      for (size_t d = b.sizes.size(); d-- > 0;) {
        inside = inside && rest % b.sizes[d] < a.sizes[d];
        rest /= b.sizes[d];
      }
      if (inside) all[k] = values[next++];
    }
    small.push_back(HostTensor::of(a, values));
    large.push_back(HostTensor::of(b, all));
  }
  const auto x = testing::ReferencePlugin::get().run(two.graphs[0], std::move(small));
  const auto y = testing::ReferencePlugin::get().run(two.graphs[1], std::move(large));
  EXPECT_TRUE(x.ok()) << x.status().text();
  EXPECT_TRUE(y.ok()) << y.status().text();
  Nans nans;
  for (size_t o = 0; x.ok() && y.ok() && o < x->size(); ++o) {
    const std::vector<double> want = (*x)[o].values();
    const std::vector<double> got = kept((*y)[o].values(), (*y)[o].type.sizes, (*x)[o].type.sizes);
    EXPECT_EQ(want.size(), got.size());
    for (size_t k = 0; k < want.size() && k < got.size() && !::testing::Test::HasFailure(); ++k) {
      const bool made = std::isnan(got[k]) && !std::isnan(want[k]);
      nans.made += made;
      nans.all += std::isnan(got[k]);
      EXPECT_TRUE((made && proof.or_nan[o]) || (std::isnan(want[k]) && std::isnan(got[k])) || want[k] == got[k] ||
                  std::fabs(want[k] - got[k]) <= 1e-5 * std::max(1.0, std::fabs(want[k])))
          << "output " << o << ", element " << k << ", padded with " << junk << ": " << want[k] << " and " << got[k] << "\n"
          << text_of(want) << "\n"
          << text_of(got);
    }
  }
  return nans;
}

// Of NaN in the place of numbers. kAllowed: the proof says that there may be, whether or not the reference makes some where NaN stands in
// the padding, and of numbers there none is made. kMade: and it does.
enum class MadeNan { kNone, kAllowed, kMade };

void expect_safe(Two& two, ValueId result, MadeNan nan = MadeNan::kNone) {
  ASSERT_NE(result, kNone);
  two.output(result);
  const Result<PadProof> proof = two.prove();
  ASSERT_TRUE(proof.ok()) << proof.status().text();
  ASSERT_EQ(proof->cut.size(), 1u);
  for (size_t a = 0; a < proof->cut[0].size(); ++a) EXPECT_EQ(proof->cut[0][a], two.sizes(result, 0)[a] != two.sizes(result, 1)[a]);
  EXPECT_EQ(proof->or_nan, std::vector<bool>{nan != MadeNan::kNone});
  for (double junk : {kAnything, 1e30, 3.0, -std::numeric_limits<double>::infinity()}) {
    const int made = check_numbers(two, *proof, junk, 3).made;
    if (std::isnan(junk) && nan == MadeNan::kMade) {
      EXPECT_GT(made, 0);
    } else if (junk == 3 || nan == MadeNan::kNone) {
      EXPECT_EQ(made, 0);
    }
  }
}

void expect_unsafe(Two& two, ValueId result, const std::string& why) {
  ASSERT_NE(result, kNone);
  two.output(result);
  const Result<PadProof> proof = two.prove();
  ASSERT_FALSE(proof.ok());
  EXPECT_EQ(proof.status().code(), Code::k_unsupported);
  EXPECT_NE(proof.status().text().find(why), std::string::npos) << proof.status().text();
  EXPECT_NE(proof.status().text().find("output 0"), std::string::npos) << proof.status().text();
}

TEST(PadSafety, ElementsOneByOneAndAgainstConstants) {
  Two two;
  const ValueId x = two.input(DType::k_f32, {-1, 3}), y = two.input(DType::k_f32, {3});
  const ValueId wide = two.sized(OpCode::k_expand, {two.sized(OpCode::k_reshape, {y}, {1, 3})}, {-1, 3});
  expect_safe(two, two.op(OpCode::k_exp, {two.op(OpCode::k_add, {x, wide})}));
}

TEST(PadSafety, ReductionsOfOtherAxesOnly) {
  for (OpCode code : {OpCode::k_sum, OpCode::k_amax, OpCode::k_prod, OpCode::k_argmax}) {
    Two other, same;
    expect_safe(other, other.reduce(code, other.input(DType::k_f32, {-1, 3}), 1));
    expect_unsafe(same, same.reduce(code, same.input(DType::k_f32, {-1, 3}), 0), std::string(op_name(code)));
  }
}

TEST(PadSafety, AReductionOfPaddedElementsThatAreNeutral) {
  const double infinity = std::numeric_limits<double>::infinity();
  const std::map<OpCode, double> neutral{{OpCode::k_sum, 0}, {OpCode::k_prod, 1}, {OpCode::k_amax, -infinity}, {OpCode::k_amin, infinity}};
  for (const auto& [code, value] : neutral) {
    Two right, wrong;
    expect_safe(right, right.reduce(code, right.input(DType::k_f32, {3, -1}, {value, false}), 1));
    expect_unsafe(wrong, wrong.reduce(code, wrong.input(DType::k_f32, {3, -1}, {value == 1 ? 0 : 1.0, false}), 1), "elements that count");
    // What changes with the size is no neutral element, whatever it is at this one.
    Two moves;
    expect_unsafe(moves, moves.reduce(code, moves.input(DType::k_f32, {3, -1}, {value, true}), 1), "elements that count");
  }
}

// The mask of a batch, and a mean by it.
TEST(PadSafety, AMaskedMean) {
  for (const bool multiplies : {false, true}) {
    Two two;
    const ValueId x = two.input(DType::k_f32, {2, -1}), mask = two.input(DType::k_bool, {2, -1}, {0, false}, 2);
    const ValueId masked =
        multiplies ? two.op(OpCode::k_mul, {x, two.op(OpCode::k_cast, {mask}, {{K::k_dtype, static_cast<int64_t>(DType::k_f32)}})})
                   : two.op(OpCode::k_select, {mask, x, two.number(0, {2, -1})});
    const ValueId count = two.reduce(OpCode::k_sum, two.op(OpCode::k_cast, {mask}, {{K::k_dtype, static_cast<int64_t>(DType::k_f32)}}), 1);
    const ValueId mean = two.op(OpCode::k_div, {two.reduce(OpCode::k_sum, masked, 1), count});
    expect_safe(two, mean, multiplies ? MadeNan::kMade : MadeNan::kNone);  // 0 times NaN
  }
}

TEST(PadSafety, MeansNormsAndSoftmaxOfOtherAxesOnly) {
  struct Case {
    OpCode code;
    Attrs other, same;
  };
  const Case cases[] = {{OpCode::k_mean, {{K::k_dims, Dims{1}}}, {{K::k_dims, Dims{0}}}},
                        {OpCode::k_var, {{K::k_dims, Dims{1}}, {K::k_correction, 1.0}}, {{K::k_dims, Dims{0}}, {K::k_correction, 1.0}}},
                        {OpCode::k_softmax, {{K::k_dim, int64_t{1}}}, {{K::k_dim, int64_t{0}}}},
                        {OpCode::k_log_softmax, {{K::k_dim, int64_t{1}}}, {{K::k_dim, int64_t{0}}}},
                        {OpCode::k_layer_norm, {{K::k_rank, int64_t{1}}, {K::k_eps, 1e-5}}, {{K::k_rank, int64_t{2}}, {K::k_eps, 1e-5}}}};
  for (const Case& each : cases) {
    SCOPED_TRACE(op_name(each.code));
    Two other, same;
    ValueIds operands{other.input(DType::k_f32, {-1, 4})};
    (void)same.input(DType::k_f32, {-1, 4});
    if (each.code == OpCode::k_layer_norm) operands.insert(operands.end(), {kNone, kNone});
    expect_safe(other, other.op(each.code, operands, each.other));
    expect_unsafe(same, same.op(each.code, operands, each.same), std::string(op_name(each.code)));
  }
}

TEST(PadSafety, ASoftmaxOverWhatIsMaskedToMinusInfinity) {
  Two two;
  const ValueId x = two.input(DType::k_f32, {2, -1}), mask = two.input(DType::k_bool, {2, -1}, {0, false}, 2);
  const ValueId scores = two.op(OpCode::k_select, {mask, x, two.number(-std::numeric_limits<double>::infinity(), {2, -1})});
  const ValueId shares = two.op(OpCode::k_softmax, {scores}, {{K::k_dim, int64_t{1}}});
  expect_safe(two, two.reduce(OpCode::k_sum, shares, 1));
  Two small;  // a large negative number is not none: where all of a row are, padded ones have a share
  const ValueId y = small.input(DType::k_f32, {2, -1}, {-1e30, false});
  expect_unsafe(small, small.op(OpCode::k_softmax, {y}, {{K::k_dim, int64_t{1}}}), "softmax");
}

TEST(PadSafety, AxesMergedAndTakenApart) {
  Two merged;  // [N, 3, 2] as [N * 3, 2] and back
  const ValueId x = merged.input(DType::k_f32, {-1, 3, 2});
  const ValueId flat = merged.op(OpCode::k_neg, {merged.sized(OpCode::k_reshape, {x}, {-3, 2})});
  expect_safe(merged, merged.sized(OpCode::k_reshape, {flat}, {-1, 6}));
  Two inner;  // [2, N] as [2 * N] and back as [N, 2]: other elements
  const ValueId y = inner.input(DType::k_f32, {2, -1});
  expect_unsafe(inner, inner.sized(OpCode::k_reshape, {inner.sized(OpCode::k_reshape, {y}, {-2})}, {-1, 2}), "reshape");
  Two product;  // an output that nobody cuts
  product.output(product.sized(OpCode::k_reshape, {product.input(DType::k_f32, {2, -1})}, {-2}));
  EXPECT_FALSE(product.prove().ok());
  Two apart;  // operands that meet otherwise at the larger size
  const ValueId a = apart.input(DType::k_f32, {2, -1}), b = apart.input(DType::k_f32, {-1, 2});
  expect_unsafe(apart, apart.op(OpCode::k_add, {apart.sized(OpCode::k_reshape, {a}, {-2}), apart.sized(OpCode::k_reshape, {b}, {-2})}),
                "add");
}

TEST(PadSafety, SlicesFromTheFrontAndNotFromTheEnd) {
  Two front, rest, steps, end;
  expect_safe(front, front.slice(front.input(DType::k_f32, {-1, 2}), 0, 1, 3));
  expect_safe(rest, rest.slice(rest.input(DType::k_f32, {-1, 2}), 0, 2, -1));
  expect_safe(steps, steps.slice(steps.input(DType::k_f32, {-1, 2}), 0, 1, -1, 2));
  const ValueId x = end.input(DType::k_f32, {-1, 2});
  expect_unsafe(end,
                end.op(OpCode::k_slice, {x},
                       [](int which) {
                         const int64_t size = Two::padded(which);
                         return Attrs{{K::k_dim, int64_t{0}}, {K::k_start, size - 1}, {K::k_end, size}, {K::k_step, int64_t{1}}};
                       }),
                "slice");
}

TEST(PadSafety, JoinedBeforePaddedElementsAndNotBehind) {
  Two before, behind;
  const ValueId head = before.input(DType::k_f32, {1, 2}), x = before.input(DType::k_f32, {-1, 2});
  (void)behind.input(DType::k_f32, {1, 2}), (void)behind.input(DType::k_f32, {-1, 2});
  expect_safe(before, before.op(OpCode::k_cat, {head, x}, {{K::k_dim, int64_t{0}}}));
  expect_unsafe(behind, behind.op(OpCode::k_cat, {x, head}, {{K::k_dim, int64_t{0}}}), "cat");
}

TEST(PadSafety, PadsFlipsAndSums) {
  const auto pad = [](Two& two, ValueId x, Dims low, Dims high) {
    return two.op(OpCode::k_pad, {x}, {{K::k_low, low}, {K::k_high, high}, {K::k_value_i, int64_t{2}}, {K::k_value_d, 2.0}});
  };
  Two low, high, alike, other, flip, flipped, sums, summed;
  expect_safe(low, pad(low, low.input(DType::k_f32, {-1, 2}), {1, 1}, {0, 2}));
  expect_unsafe(high, pad(high, high.input(DType::k_f32, {-1, 2}), {0, 0}, {1, 0}), "pad");
  expect_safe(alike, pad(alike, alike.input(DType::k_f32, {-1, 2}, {2, false}), {0, 0}, {1, 0}));
  expect_unsafe(other, pad(other, other.input(DType::k_f32, {-1, 2}, {3, false}), {0, 0}, {1, 0}), "pad");
  expect_safe(flip, flip.op(OpCode::k_flip, {flip.input(DType::k_f32, {-1, 2})}, {{K::k_dims, Dims{1}}}));
  expect_unsafe(flipped, flipped.op(OpCode::k_flip, {flipped.input(DType::k_f32, {-1, 2})}, {{K::k_dims, Dims{0}}}), "flip");
  expect_safe(sums, sums.op(OpCode::k_cumsum, {sums.input(DType::k_f32, {2, -1})}, {{K::k_dim, int64_t{1}}}));
  const ValueId flat = summed.sized(OpCode::k_reshape, {summed.input(DType::k_f32, {2, -1})}, {-2});
  expect_unsafe(summed, summed.op(OpCode::k_cumsum, {flat}, {{K::k_dim, int64_t{0}}}), "cumsum");
}

TEST(PadSafety, NumbersThatDependOnTheSize) {
  Two two, count;
  const ValueId x = two.input(DType::k_f32, {-1});
  const ValueId length = two.op(OpCode::k_full, {}, [](int which) {
    return Attrs{{K::k_sizes, Dims{Two::padded(which)}},
                 {K::k_dtype, static_cast<int64_t>(DType::k_f32)},
                 {K::k_value_d, static_cast<double>(Two::padded(which))}};
  });
  expect_unsafe(two, two.op(OpCode::k_div, {x, length}), "full");
  const ValueId positions = count.sized(
      OpCode::k_iota, {}, {-1}, {{K::k_dtype, static_cast<int64_t>(DType::k_i64)}, {K::k_start, int64_t{3}}, {K::k_step, int64_t{2}}});
  expect_safe(count, positions);
}

TEST(PadSafety, ProductsAlongRowsAndNotOverPaddedOnes) {
  Two rows, columns, summed, nothing, linear, batch;
  expect_safe(rows, rows.op(OpCode::k_matmul, {rows.input(DType::k_f32, {-1, 3}), rows.input(DType::k_f32, {3, 2})}));
  expect_safe(columns, columns.op(OpCode::k_matmul, {columns.input(DType::k_f32, {2, 3}), columns.input(DType::k_f32, {3, -1})}));
  expect_safe(batch, batch.op(OpCode::k_matmul, {batch.input(DType::k_f32, {-1, 2, 3}), batch.input(DType::k_f32, {-1, 3, 2})}));
  const ValueId anything = summed.input(DType::k_f32, {-1, 2});
  expect_unsafe(summed, summed.op(OpCode::k_matmul, {summed.input(DType::k_f32, {2, -1}, {1, false}), anything}), "matmul");
  Two nulls;  // 0 times NaN
  const ValueId zeros = nulls.input(DType::k_f32, {2, -1}, {0, false}), values = nulls.input(DType::k_f32, {-1, 2});
  expect_safe(nulls, nulls.op(OpCode::k_matmul, {zeros, values}), MadeNan::kMade);
  expect_safe(nothing, nothing.op(OpCode::k_matmul,
                                  {nothing.input(DType::k_f32, {2, -1}, {0, false}), nothing.input(DType::k_f32, {-1, 2}, {7, false})}));
  expect_safe(linear, linear.op(OpCode::k_linear, {linear.input(DType::k_f32, {2, -1, 3}), linear.input(DType::k_f32, {4, 3}), kNone}));
}

TEST(PadSafety, ProductsOfGroupsAlongRows) {
  const auto product = [](Two& two, const Dims& x, const Dims& weights) {
    const ValueId ends = two.sized(OpCode::k_iota, {}, {3},
                                   {{K::k_dtype, static_cast<int64_t>(DType::k_i64)}, {K::k_start, int64_t{0}}, {K::k_step, int64_t{2}}});
    const ValueId rows = two.input(DType::k_f32, x), w = two.input(DType::k_f32, weights);
    return two.op(OpCode::k_grouped_matmul, {rows, w, ends});
  };
  Two rows, summed, columns;
  expect_safe(rows, product(rows, {-1, 3}, {3, 3, 2}));
  expect_unsafe(summed, product(summed, {5, -1}, {3, -1, 2}), "grouped_matmul");
  expect_unsafe(columns, product(columns, {5, 3}, {3, 3, -1}), "grouped_matmul");
}

TEST(PadSafety, WindowsOverRowsAndNotAlongThem) {
  const Attrs conv{{K::k_stride, Dims{1}},    {K::k_padding, Dims{1}},  {K::k_dilation, Dims{1}},
                   {K::k_groups, int64_t{1}}, {K::k_transposed, false}, {K::k_output_padding, Dims{0}}};
  Two rows, along, pool, pooled;
  expect_safe(rows, rows.op(OpCode::k_conv, {rows.input(DType::k_f32, {-1, 2, 6}), rows.input(DType::k_f32, {3, 2, 3}), kNone}, conv));
  expect_unsafe(along, along.op(OpCode::k_conv, {along.input(DType::k_f32, {1, 2, -1}), along.input(DType::k_f32, {3, 2, 3}), kNone}, conv),
                "conv");
  const Attrs kernel{
      {K::k_kernel, Dims{2}}, {K::k_stride, Dims{2}}, {K::k_padding, Dims{0}}, {K::k_dilation, Dims{1}}, {K::k_ceil_mode, false}};
  expect_safe(pool, pool.op(OpCode::k_max_pool, {pool.input(DType::k_f32, {-1, 2, 6})}, kernel));
  expect_unsafe(pooled, pooled.op(OpCode::k_max_pool, {pooled.input(DType::k_f32, {2, 2, -1})}, kernel), "max_pool");
}

constexpr double kNone64 = -std::numeric_limits<double>::infinity();  // of an additive mask

Attrs attention_attrs(bool causal) { return {{K::k_causal, causal}, {K::k_scale, 0.5}, {K::k_gqa, false}}; }

TEST(PadSafety, AttentionOfOtherRowsAndOverPaddedKeys) {
  Two batch, queries, keys;
  const auto rows = [](Two& two, int64_t b, int64_t length) { return two.input(DType::k_f32, {b, 2, length, 4}); };
  const auto attend = [](Two& two, const ValueIds& operands, bool causal = false) {
    return two.op(OpCode::k_attention, operands, attention_attrs(causal));
  };
  expect_safe(batch, attend(batch, {rows(batch, -1, 3), rows(batch, -1, 6), rows(batch, -1, 6), kNone}));
  expect_safe(queries, attend(queries, {rows(queries, 1, -1), rows(queries, 1, 6), rows(queries, 1, 6), kNone}));
  expect_unsafe(keys, attend(keys, {rows(keys, 1, 3), rows(keys, 1, -1), rows(keys, 1, -1), kNone}), "padded keys");
}

// Of a query of the call padded keys come later. With as many keys as are not padded that is not so.
TEST(PadSafety, CausalAttention) {
  Two causal, cached;
  const auto rows = [](Two& two, int64_t length) { return two.input(DType::k_f32, {1, 2, length, 4}); };
  expect_safe(causal,
              causal.op(OpCode::k_attention, {rows(causal, -1), rows(causal, -1), rows(causal, -1), kNone}, attention_attrs(true)),
              MadeNan::kAllowed);
  expect_unsafe(cached, cached.op(OpCode::k_attention, {rows(cached, 8), rows(cached, -1), rows(cached, -1), kNone}, attention_attrs(true)),
                "padded keys");
}

// By a mask of the batch that is padded with false, or with minus infinity, as models hand it to each head and each query.
TEST(PadSafety, AttentionOverKeysThatTheMaskHides) {
  struct Case {
    DType dtype;
    double fill;
    bool safe;
  };
  for (const auto& [dtype, fill, safe] : {Case{DType::k_bool, 0, true}, Case{DType::k_bool, 1, false}, Case{DType::k_f32, kNone64, true},
                                          Case{DType::k_f32, 0, false}, Case{DType::k_f32, -1e30, false}}) {
    SCOPED_TRACE(std::string(dtype_name(dtype)) + " " + std::to_string(fill));
    Two two;
    const auto rows = [&] { return two.input(DType::k_f32, {2, 2, -1, 4}); };
    const ValueId q = rows(), k = rows(), v = rows(), mask = two.input(dtype, {2, -1}, {fill, false}, dtype == DType::k_bool ? 2 : 0);
    const ValueId wide = two.sized(OpCode::k_expand, {two.sized(OpCode::k_reshape, {mask}, {2, 1, 1, -1})}, {2, 2, -1, -1});
    const ValueId out = two.op(OpCode::k_attention, {q, k, v, wide}, attention_attrs(false));
    if (safe) expect_safe(two, out, dtype == DType::k_bool ? MadeNan::kAllowed : MadeNan::kMade);
    else expect_unsafe(two, out, "padded keys");
  }
  // Of what is padded along the queries alone nothing is known, which is not what hides a key.
  Two queries;
  const auto rows = [&](int64_t length) { return queries.input(DType::k_f32, {2, 2, length, 4}); };
  const ValueId q = rows(-1), k = rows(-1), v = rows(-1), mask = queries.input(DType::k_bool, {2, -1}, {0, false}, 2);
  const ValueId turned = queries.sized(OpCode::k_expand, {queries.sized(OpCode::k_reshape, {mask}, {2, 1, -1, 1})}, {2, 2, -1, -1});
  expect_unsafe(queries, queries.op(OpCode::k_attention, {q, k, v, turned}, attention_attrs(false)), "padded keys");
}

// What NaN could be hidden by is refused, whichever operator of the table it is; what is allowed hands it on.
TEST(PadSafety, NaNIsNotHidden) {
  int allowed = 0, refused = 0;
  for (int id = 1; id < 300; ++id) {
    if (find_row(static_cast<OpCode>(id)) == nullptr) continue;
    const OpRow& row = *find_row(static_cast<OpCode>(id));
    if (row.kind != RowKind::kScalar && row.kind != RowKind::kReduce) continue;
    SCOPED_TRACE(row.name);
    const size_t arity = row.kind == RowKind::kReduce ? 1 : static_cast<size_t>(row.arity_min);
    for (size_t at = 0; at < arity; ++at) {
      Two two;
      const ValueId zeros = two.input(DType::k_f32, {3, -1}, {0, false}), values = two.input(DType::k_f32, {-1, 3});
      const ValueId nan = two.op(OpCode::k_matmul, {zeros, values});
      ValueIds operands;
      for (size_t i = 0; i < arity; ++i)
        operands.push_back(i == at ? nan
                                   : two.input(row.code == OpCode::k_select && i == 0 ? DType::k_bool : DType::k_f32, {3, 3},
                                               {kAnything, false}, row.code == OpCode::k_select && i == 0 ? 2 : 0));
      Attrs attrs;
      if (row.code == OpCode::k_cast) attrs = {{K::k_dtype, static_cast<int64_t>(DType::k_f64)}};
      if (row.kind == RowKind::kReduce) attrs = {{K::k_dims, Dims{1}}, {K::k_keepdim, false}};
      const ValueId out = two.op(row.code, operands, attrs);
      if (out == kNone) continue;  // it takes no floats, or none there
      two.output(out);
      const Result<PadProof> proof = two.prove();
      (proof.ok() ? allowed : refused) += 1;
      if (!proof.ok()) {
        EXPECT_NE(proof.status().text().find("NaN"), std::string::npos) << proof.status().text();
        continue;
      }
      EXPECT_TRUE(proof->or_nan[0]);
      const int nans = check_numbers(two, *proof, kAnything, 5).all;
      if (arity > 1) continue;  // one may decide that another does not count
      EXPECT_EQ(nans, row.kind == RowKind::kReduce ? 3 : 9);
    }
  }
  EXPECT_GT(allowed, 30);
  EXPECT_GT(refused, 5);
  Two casts, pool;
  const auto made = [](Two& two) {
    return two.op(OpCode::k_matmul, {two.input(DType::k_f32, {3, -1}, {0, false}), two.input(DType::k_f32, {-1, 3})});
  };
  expect_unsafe(casts, casts.op(OpCode::k_cast, {made(casts)}, {{K::k_dtype, static_cast<int64_t>(DType::k_i64)}}), "NaN");
  const Attrs kernel{
      {K::k_kernel, Dims{2}}, {K::k_stride, Dims{2}}, {K::k_padding, Dims{0}}, {K::k_dilation, Dims{1}}, {K::k_ceil_mode, false}};
  expect_unsafe(pool, pool.op(OpCode::k_max_pool, {pool.sized(OpCode::k_reshape, {made(pool)}, {1, 3, 3})}, kernel), "NaN");
}

TEST(PadSafety, IndicesIntoWhatIsPaddedAndIndicesThatAre) {
  Two table, far, rows, computed;
  expect_safe(table, table.op(OpCode::k_take, {table.input(DType::k_f32, {6, 2}), table.input(DType::k_i64, {-1}, {0, false}, 6)},
                              {{K::k_dim, int64_t{0}}}));
  expect_unsafe(
      far,
      far.op(OpCode::k_take, {far.input(DType::k_f32, {6, 2}), far.input(DType::k_i64, {-1}, {6, false}, 6)}, {{K::k_dim, int64_t{0}}}),
      "out of range");
  const ValueId x = rows.input(DType::k_f32, {-1, 2}), index = rows.input(DType::k_i64, {4}, {0, false}, 5);
  expect_safe(rows, rows.op(OpCode::k_take, {x, index}, {{K::k_dim, int64_t{0}}}));
  EXPECT_EQ(rows.prove()->bounds, (std::vector<PadProof::Bound>{{1, 5}})) << "whoever pads looks that no index is beyond the call's rows";
  const ValueId y = computed.input(DType::k_f32, {-1, 2}), other = computed.input(DType::k_i64, {4}, {0, false}, 5);
  expect_unsafe(computed, computed.op(OpCode::k_take, {y, computed.op(OpCode::k_mul, {other, other})}, {{K::k_dim, int64_t{0}}}),
                "computed");
}

// As models pick the rows of a mask: [N, 4] at (n, k), by an index of n * 4 + k.
TEST(PadSafety, RowsPickedByPosition) {
  for (const bool transposed : {false, true}) {
    SCOPED_TRACE(transposed);
    Two two;
    const ValueId x = two.input(DType::k_f32, {-1, 4});
    const auto positions = [&](const Dims& sizes) {
      return two.sized(OpCode::k_iota, {}, sizes,
                       {{K::k_dtype, static_cast<int64_t>(DType::k_i64)}, {K::k_start, int64_t{0}}, {K::k_step, int64_t{1}}});
    };
    const ValueId rows = two.sized(OpCode::k_expand, {two.sized(OpCode::k_reshape, {positions({-1})}, {-1, 1})}, {-1, 4});
    const ValueId columns = two.sized(OpCode::k_expand, {two.sized(OpCode::k_reshape, {positions({4})}, {1, 4})}, {-1, 4});
    // As eager reads negative positions, of which there are none here.
    const ValueId wrapped = two.op(OpCode::k_select, {two.op(OpCode::k_lt, {columns, two.number(0, {-1, 4}, DType::k_i64)}),
                                                      two.op(OpCode::k_add, {columns, two.number(4, {-1, 4}, DType::k_i64)}), columns});
    const ValueId factor = two.op(OpCode::k_full, {}, [&](int which) {
      return Attrs{{K::k_sizes, Two::at({-1, 4}, which)},
                   {K::k_dtype, static_cast<int64_t>(DType::k_i64)},
                   {K::k_value_i, transposed ? Two::padded(which) : 4}};
    });
    const ValueId index = transposed ? two.op(OpCode::k_add, {two.op(OpCode::k_mul, {wrapped, factor}), rows})
                                     : two.op(OpCode::k_add, {two.op(OpCode::k_mul, {rows, factor}), wrapped});
    const ValueId picked = two.op(OpCode::k_take, {two.sized(OpCode::k_reshape, {x}, {-4}), index}, {{K::k_dim, int64_t{0}}});
    if (transposed)
      expect_unsafe(two, picked, "depends on the size");  // [4, N] is no shape of it
    else
      expect_safe(two, picked);
  }
}

// The same of [2, N] by row * N + column, as models pick what a mask says of a batch and a position: padded rows are still known.
TEST(PadSafety, RowsOfAPaddedLengthPickedByPosition) {
  for (const bool shifted : {false, true}) {
    SCOPED_TRACE(shifted);
    Two two;
    const ValueId mask = two.input(DType::k_bool, {2, -1}, {0, false}, 2);
    const auto positions = [&](const Dims& sizes, const Dims& shape, int64_t start) {
      const ValueId iota = two.sized(OpCode::k_iota, {}, sizes,
                                     {{K::k_dtype, static_cast<int64_t>(DType::k_i64)}, {K::k_start, start}, {K::k_step, int64_t{1}}});
      return two.sized(OpCode::k_expand, {two.sized(OpCode::k_reshape, {iota}, shape)}, {2, -1});
    };
    const ValueId rows = positions({2}, {2, 1}, 0), columns = positions({-1}, {1, -1}, shifted ? 1 : 0);
    const ValueId length = two.op(OpCode::k_full, {}, [&](int which) {
      return Attrs{{K::k_sizes, Two::at({2, -1}, which)},
                   {K::k_dtype, static_cast<int64_t>(DType::k_i64)},
                   {K::k_value_i, Two::padded(which)}};
    });
    const ValueId index = two.op(OpCode::k_add, {two.op(OpCode::k_mul, {rows, length}), columns});
    const ValueId picked = two.op(OpCode::k_take, {two.sized(OpCode::k_reshape, {mask}, {-2}), index}, {{K::k_dim, int64_t{0}}});
    const ValueId counts = two.op(OpCode::k_cast, {picked}, {{K::k_dtype, static_cast<int64_t>(DType::k_f32)}});
    if (shifted)
      expect_unsafe(two, two.reduce(OpCode::k_sum, counts, 1), "depends on the size");  // the last is the first of the next row
    else
      expect_safe(two, two.reduce(OpCode::k_sum, counts, 1));
  }
}

// The first so many of a table of positions.
TEST(PadSafety, TheFrontOfAConstant) {
  Two two;
  ValueId positions = kNone;
  for (Graph& graph : two.graphs) positions = graph.add_constant({DType::k_i64, {1, 40}, {40, 1}}, 0, ValueKind::kConstant);
  const ValueId table = two.input(DType::k_f32, {40, 2});
  const ValueId front = two.op(OpCode::k_slice, {positions}, [](int which) {
    return Attrs{{K::k_dim, int64_t{1}}, {K::k_start, int64_t{0}}, {K::k_end, Two::padded(which)}, {K::k_step, int64_t{1}}};
  });
  two.output(two.op(OpCode::k_take, {table, front}, {{K::k_dim, int64_t{0}}}));
  const Result<PadProof> proof = two.prove();
  ASSERT_TRUE(proof.ok()) << proof.status().text();
  EXPECT_EQ(proof->cut[0], (std::vector<bool>{false, true, false}));
}

// What holds at two sizes and not at all of them.
TEST(PadSafety, AnExtentAsAnIndexIntoWhatDoesNotGrow) {
  Two table, number, compared;
  const Attrs rows{{K::k_dim, int64_t{0}}};
  expect_unsafe(table, table.op(OpCode::k_take, {table.input(DType::k_f32, {100, 2}), table.input(DType::k_i64, {-1}, {5, true}, 6)}, rows),
                "out of range");
  expect_unsafe(number,
                number.op(OpCode::k_take, {number.input(DType::k_f32, {-1, 2}), number.input(DType::k_i64, {-1}, {7, false}, 5)}, rows),
                "out of range");
  // Below a hundred at this size.
  const ValueId x = compared.input(DType::k_i64, {-1}, {5, true}, 5);
  const ValueId below = compared.op(OpCode::k_lt, {x, compared.number(100, {-1}, DType::k_i64)});
  expect_unsafe(compared, compared.reduce(OpCode::k_all, below, 0), "all");
}

// Messages along edges: padded edges go from and to a padded node.
TEST(PadSafety, ARaggedGraph) {
  for (const bool to_padded : {true, false}) {
    SCOPED_TRACE(to_padded);
    Two two;
    const ValueId x = two.input(DType::k_f32, {-1, 2}), edges = two.input(DType::k_i64, {2, -2}, {to_padded ? 5.0 : 0.0, to_padded}, 5);
    const auto row = [&](int64_t i) { return two.sized(OpCode::k_reshape, {two.slice(edges, 0, i, i + 1)}, {-2}); };
    // As eager's index reads negative positions.
    const ValueId from = row(0);
    const ValueId extent = two.op(OpCode::k_full, {}, [](int which) {
      return Attrs{
          {K::k_sizes, Dims{2 * Two::padded(which)}}, {K::k_dtype, static_cast<int64_t>(DType::k_i64)}, {K::k_value_i, Two::padded(which)}};
    });
    const ValueId zero = two.number(0, {-2}, DType::k_i64);
    const ValueId wrapped = two.op(OpCode::k_select, {two.op(OpCode::k_lt, {from, zero}), two.op(OpCode::k_add, {from, extent}), from});
    const ValueId messages = two.op(OpCode::k_take, {x, wrapped}, {{K::k_dim, int64_t{0}}});
    const ValueId sums = two.op(OpCode::k_index_reduce, {two.number(0, {-1, 2}), row(1), messages},
                                {{K::k_dim, int64_t{0}}, {K::k_reduce, std::string("sum")}, {K::k_include_self, true}});
    if (to_padded)
      expect_safe(two, sums);
    else
      expect_unsafe(two, sums, "index_reduce");
  }
}

TEST(PadSafety, WhatHasNoRuleIsNotSafe) {
  Two two;
  const ValueId x = two.input(DType::k_f32, {-1, 2});
  for (int which : {0, 1}) {
    two.graphs[which].add_op(OpCode::kOpaque, {x}, {}, {two.graphs[which].type(x)});
    two.graphs[which].ops.back().call = 0;
    two.graphs[which].ops.back().origin = "mystery_1 @ block";
  }
  expect_unsafe(two, two.graphs[0].ops.back().results[0], "mystery_1 @ block");
}

// ---- random graphs

class Draw {
 public:
  explicit Draw(uint32_t seed) : random_(seed) {
    pool_ = {two.input(DType::k_f32, {-1, 3}), two.input(DType::k_f32, {3, -1, 2}, {below(2) ? kAnything : 0, false}),
             two.input(DType::k_f32, {2, 3}), two.input(DType::k_f32, {-1}, {1, false}), two.input(DType::k_f32, {3, -1, 2})};
    for (int i = 0; i < 12; ++i) step();
    two.output(pool_.back());
  }
  Two two;
  std::map<OpCode, int> used;

 private:
  int64_t below(int64_t n) { return static_cast<int64_t>(random_() % static_cast<uint32_t>(n)); }
  ValueId any() {
    return pool_[static_cast<size_t>(below(2) ? static_cast<int64_t>(pool_.size()) - 1 : below(static_cast<int64_t>(pool_.size())))];
  }
  void keep(ValueId v) {
    if (v == kNone || two.graphs[1].type(v).num_elements() > 3000 || two.graphs[0].type(v).num_elements() == 0) return;
    pool_.push_back(v);
    ++used[two.graphs[0].ops[two.graphs[0].values[v].producer].code];
  }
  Dims with(const Dims& sizes, size_t from, size_t count, const Dims& instead) {
    Dims out(sizes.begin(), sizes.begin() + static_cast<ptrdiff_t>(from));
    out.insert(out.end(), instead.begin(), instead.end());
    out.insert(out.end(), sizes.begin() + static_cast<ptrdiff_t>(from + count), sizes.end());
    return out;
  }
  ValueId reshaped(ValueId x, size_t from, size_t count, const std::function<Dims(const Dims&)>& instead) {
    return two.op(OpCode::k_reshape, {x}, [&](int which) {
      const Dims& sizes = two.sizes(x, which);
      return Attrs{{K::k_sizes, with(sizes, from, count, instead(sizes))}};
    });
  }

  void step() {
    const ValueId x = any();
    const Dims sizes = two.sizes(x);
    const int64_t rank = static_cast<int64_t>(sizes.size());
    if (rank == 0) return;
    const int64_t dim = below(rank);
    const auto d = static_cast<size_t>(dim);
    switch (below(19)) {
      case 0:
        return keep(two.op(below(2) ? OpCode::k_neg : OpCode::k_tanh, {x}));
      case 1: {
        for (ValueId y : pool_)
          if (y != x && two.sizes(y) == sizes && two.sizes(y, 1) == two.sizes(x, 1))
            return keep(two.op(below(2) ? OpCode::k_add : OpCode::k_mul, {x, y}));
        return keep(two.op(OpCode::k_mul, {x, x}));
      }
      case 2:
        return keep(
            two.reduce(std::vector{OpCode::k_sum, OpCode::k_amax, OpCode::k_prod}[static_cast<size_t>(below(3))], x, dim, below(2)));
      case 3:
        return keep(two.op(OpCode::k_softmax, {x}, {{K::k_dim, dim}}));
      case 4:
        return keep(two.op(OpCode::k_mean, {x}, {{K::k_dims, Dims{dim}}, {K::k_keepdim, true}}));
      case 5: {
        Dims dims(sizes.size());
        for (size_t i = 0; i < dims.size(); ++i) dims[i] = (static_cast<int64_t>(i) + 1) % rank;
        return keep(two.op(OpCode::k_permute, {x}, {{K::k_dims, dims}}));
      }
      case 6:
        return d + 1 < sizes.size() ? keep(reshaped(x, d, 2, [&](const Dims& s) { return Dims{s[d] * s[d + 1]}; })) : void();
      case 7:
        return keep(reshaped(x, d, 1, [&](const Dims& s) {
          return s[d] % 3 == 0 ? Dims{s[d] / 3, 3} : s[d] % 2 == 0 ? Dims{2, s[d] / 2} : Dims{s[d], 1};
        }));
      case 8:
        return keep(two.slice(x, dim, 0, 2));
      case 9:
        return keep(two.slice(x, dim, 1, -1, 1 + below(2)));
      case 10:
        return keep(two.op(OpCode::k_cat, {x, x}, {{K::k_dim, dim}}));
      case 11:
        return keep(two.op(OpCode::k_flip, {x}, {{K::k_dims, Dims{dim}}}));
      case 12:
        return keep(two.op(OpCode::k_cumsum, {x}, {{K::k_dim, dim}}));
      case 13: {
        Dims low(sizes.size(), 0), high(sizes.size(), 0);
        (below(2) ? low : high)[d] = 1;
        return keep(two.op(OpCode::k_pad, {x}, {{K::k_low, low}, {K::k_high, high}, {K::k_value_i, int64_t{0}}, {K::k_value_d, 0.0}}));
      }
      case 14: {
        if (sizes.back() != 3 || two.sizes(x, 1).back() != 3) return;
        return keep(two.op(OpCode::k_linear, {x, two.op(OpCode::k_neg, {pool_[2]}), kNone}));
      }
      case 15:
        return rank >= 2 ? keep(two.op(OpCode::k_matmul, {x, transposed(alike(x))})) : void();
      case 16: {
        const ValueId one = reshaped(x, 0, 0, [](const Dims&) { return Dims{1}; });
        return one == kNone ? void() : keep(two.op(OpCode::k_expand, {one}, [&](int which) {
          Dims to = two.sizes(one, which);
          to[0] = Two::padded(which);
          return Attrs{{K::k_sizes, to}};
        }));
      }
      case 17: {  // what a mask leaves, summed
        ValueId mask = kNone;
        for (int which : {0, 1}) {
          const Dims& of_x = two.sizes(x, which);
          mask = two.graphs[which].add_input({DType::k_f32, of_x, contiguous_strides(of_x)},
                                             static_cast<uint32_t>(two.graphs[which].inputs.size()));
        }
        two.fills.push_back({0, false});
        two.most.push_back(2);
        return keep(two.reduce(OpCode::k_sum, two.op(OpCode::k_mul, {x, mask}), dim, below(2)));
      }
      default: {
        const ValueId mask = two.op(OpCode::k_gt, {x, x});
        return keep(two.op(
            OpCode::k_select,
            {mask, x, two.op(OpCode::k_full, {}, [&](int which) {
               return Attrs{{K::k_sizes, two.sizes(x, which)}, {K::k_dtype, static_cast<int64_t>(DType::k_f32)}, {K::k_value_d, 0.0}};
             })}));
      }
    }
  }
  // Of the same sizes, itself if there is no other.
  ValueId alike(ValueId x) {
    for (ValueId y : pool_)
      if (y != x && two.sizes(y) == two.sizes(x) && two.sizes(y, 1) == two.sizes(x, 1)) return y;
    return x;
  }
  ValueId transposed(ValueId x) {
    Dims dims(two.sizes(x).size());
    for (size_t i = 0; i < dims.size(); ++i) dims[i] = static_cast<int64_t>(i);
    std::swap(dims[dims.size() - 1], dims[dims.size() - 2]);
    return two.op(OpCode::k_permute, {x}, {{K::k_dims, dims}});
  }

  std::mt19937 random_;
  ValueIds pool_;
};

TEST(PadSafety, WhateverIsProvedOfDrawnGraphsHolds) {
  int safe = 0, unsafe = 0, exact = 0, or_nan = 0;
  std::map<OpCode, int> used;
  for (uint32_t seed = 0; seed < 3000 && !HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Draw draw(seed);
    if (!draw.two.prove().ok()) {
      ++unsafe;
      continue;
    }
    ++safe;
    for (const auto& [code, count] : draw.used) used[code] += count;
    const PadProof proof = *draw.two.prove();
    for (double junk : {kAnything, 1e30, 3.0}) check_numbers(draw.two, proof, junk, seed);
    ++(proof.or_nan[0] ? or_nan : exact);
  }
  EXPECT_GT(safe, 600);
  EXPECT_GT(exact, 500);
  EXPECT_GT(or_nan, 20);
  EXPECT_GT(unsafe, 600);
  for (OpCode code : {OpCode::k_sum, OpCode::k_softmax, OpCode::k_mean, OpCode::k_reshape, OpCode::k_slice, OpCode::k_cat, OpCode::k_cumsum,
                      OpCode::k_pad, OpCode::k_linear, OpCode::k_matmul, OpCode::k_expand, OpCode::k_select, OpCode::k_permute})
    EXPECT_GT(used[code], 20) << op_name(code);
}

}  // namespace
}  // namespace keirin
