// SPDX-License-Identifier: Apache-2.0
//
// Values come from facts: what an index picks from bounds it, whatever moves stand between, and every set is the same tomorrow.
#include "core/tune/inputs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "tests/unit/host/heap_services.h"

namespace keirin {
namespace {

Type type(DType dtype, Dims sizes) {
  Dims strides = contiguous_strides(sizes);
  return {dtype, std::move(sizes), std::move(strides)};
}

class Builder {
 public:
  ValueId input(DType dtype, Dims sizes) {
    return graph.add_input(type(dtype, std::move(sizes)), static_cast<uint32_t>(graph.inputs.size()));
  }
  ValueId constant(DType dtype, Dims sizes) {
    return graph.add_constant(type(dtype, std::move(sizes)), constants_++, ValueKind::kConstant);
  }
  ValueId op(OpCode code, ValueIds operands, Attrs attrs, Type result) {
    return graph.ops[graph.add_op(code, std::move(operands), std::move(attrs), {std::move(result)})].results[0];
  }
  Graph graph;

 private:
  uint32_t constants_ = 0;
};

template <class T>
std::vector<T> read(const TensorRef& t) {
  const T* data = static_cast<const T*>(t->data());
  return std::vector<T>(data, data + t->storage_bytes() / static_cast<int64_t>(sizeof(T)));
}

TEST(Inputs, AnIndexBehindMovesAndCastsStaysBelowTheRows) {
  Builder b;
  const ValueId ids = b.input(DType::k_i64, {2, 50});
  const ValueId table = b.constant(DType::k_f32, {10, 4});
  const ValueId flat = b.op(OpCode::k_reshape, {ids}, {{AttrKey::k_sizes, Dims{100}}}, type(DType::k_i64, {100}));
  const ValueId narrow = b.op(OpCode::k_cast, {flat}, {{AttrKey::k_dtype, int64_t{5}}}, type(DType::k_i32, {100}));
  const ValueId rows = b.op(OpCode::k_take, {table, narrow}, {{AttrKey::k_dim, int64_t{0}}}, type(DType::k_f32, {100, 4}));
  b.graph.outputs.push_back({rows, kNone, kNone});
  const auto hints = infer_inputs(b.graph);
  ASSERT_EQ(hints.size(), 1u);
  EXPECT_EQ(hints[0].kind, InputHint::kIntegers);
  EXPECT_EQ(hints[0].b, 10);
  EXPECT_EQ(hints[0].why, "index of take: 10 rows");
  test::HeapServices services;
  const auto tensors = make_inputs(b.graph, services, {});
  ASSERT_TRUE(tensors.ok());
  std::set<int64_t> seen;
  for (const int64_t i : read<int64_t>((*tensors)[0])) seen.insert(i);
  EXPECT_EQ(*seen.begin(), 0);
  EXPECT_EQ(*seen.rbegin(), 9);
}

TEST(Inputs, TheTighterOfTwoTablesCounts) {
  Builder b;
  const ValueId ids = b.input(DType::k_i64, {8});
  for (const int64_t rows : {100, 7, 50})
    b.op(OpCode::k_take, {b.constant(DType::k_f32, {rows, 2}), ids}, {{AttrKey::k_dim, int64_t{0}}}, type(DType::k_f32, {8, 2}));
  EXPECT_EQ(infer_inputs(b.graph)[0].b, 7);
}

// A row and a column that are made one index have ranges that nobody knows: the caller's are taken. A number added leaves one.
TEST(Inputs, AnIndexComputedOfTwoIsTheCallers) {
  const auto hints_of = [](bool two) {
    Builder b;
    const Type ids = type(DType::k_i64, {8});
    const ValueId row = b.input(DType::k_i64, {8}),
                  column = two ? b.input(DType::k_i64, {8}) : b.op(OpCode::k_full, {}, {{AttrKey::k_value_i, int64_t{1}}}, ids);
    const ValueId width = b.op(OpCode::k_full, {}, {{AttrKey::k_value_i, int64_t{4}}}, ids);
    const ValueId scaled = two ? b.op(OpCode::k_mul, {row, width}, {}, ids) : row;
    const ValueId index = b.op(OpCode::k_add, {scaled, column}, {}, ids);
    b.op(OpCode::k_take, {b.constant(DType::k_f32, {16, 2}), index}, {{AttrKey::k_dim, int64_t{0}}}, type(DType::k_f32, {8, 2}));
    return infer_inputs(b.graph);
  };
  EXPECT_FALSE(hints_of(false).at(0).unknown_meaning);
  EXPECT_TRUE(hints_of(true).at(0).unknown_meaning && hints_of(true).at(1).unknown_meaning);
}

// LibTorch looks at what `take` is asked for; where anything else reads an index, none is made that is past the end.
// As T5 has it: of a logarithm of a distance, which bounds nothing; then held between rows that there are.
TEST(Inputs, AnIndexComputedOfFloatsIsTheCallersUnlessItIsBounded) {
  for (const bool below : {false, true})
    for (const bool above : {false, true}) {
      Builder b;
      const ValueId x = b.input(DType::k_f32, {50}), distance = b.input(DType::k_i64, {50}), table = b.constant(DType::k_f32, {10, 4});
      const auto number = [&](int64_t n) {
        return b.op(OpCode::k_full, {}, {{AttrKey::k_sizes, Dims{50}}, {AttrKey::k_dtype, static_cast<int64_t>(DType::k_i64)},
                                         {AttrKey::k_value_i, n}}, type(DType::k_i64, {50}));
      };
      const ValueId wide = b.op(OpCode::k_cast, {distance}, {{AttrKey::k_dtype, static_cast<int64_t>(DType::k_f32)}},
                                type(DType::k_f32, {50}));
      const ValueId log = b.op(OpCode::k_log, {wide}, {}, type(DType::k_f32, {50}));
      ValueId bucket = b.op(OpCode::k_cast, {log}, {{AttrKey::k_dtype, static_cast<int64_t>(DType::k_i64)}}, type(DType::k_i64, {50}));
      if (below && above) bucket = b.op(OpCode::k_clamp, {bucket, number(0), number(9)}, {}, type(DType::k_i64, {50}));
      else if (below) bucket = b.op(OpCode::k_maximum, {bucket, number(0)}, {}, type(DType::k_i64, {50}));
      else if (above) bucket = b.op(OpCode::k_minimum, {bucket, number(9)}, {}, type(DType::k_i64, {50}));
      const ValueId rows = b.op(OpCode::k_take, {table, bucket}, {{AttrKey::k_dim, int64_t{0}}}, type(DType::k_f32, {50, 4}));
      b.graph.outputs = {{rows, kNone, kNone}, {b.op(OpCode::k_exp, {x}, {}, type(DType::k_f32, {50})), kNone, kNone}};
      const auto hints = infer_inputs(b.graph);
      EXPECT_FALSE(hints[0].unknown_meaning) << "no index is computed of it";
      EXPECT_EQ(hints[1].unknown_meaning, !(below && above)) << below << above;
    }
}

TEST(Inputs, ARowPastTheEndIsMadeForTakesAlone) {
  test::HeapServices services;
  const TensorRef ids = test::tensor_of<int64_t>(DType::k_i64, {2, 2}, {0, 1, 2, 3});
  for (const OpCode other : {OpCode::k_take, OpCode::k_gather, OpCode::k_scatter}) {
    Builder b;
    const ValueId index = b.input(DType::k_i64, {2, 2}), table = b.constant(DType::k_f32, {7, 2}), flat = b.constant(DType::k_i64, {2, 2});
    b.op(OpCode::k_take, {table, index}, {{AttrKey::k_dim, int64_t{0}}}, type(DType::k_f32, {2, 2, 2}));
    ValueIds operands{table, flat};
    Attrs attrs{{AttrKey::k_dim, int64_t{0}}};
    if (other == OpCode::k_scatter) {
      operands.push_back(b.constant(DType::k_f32, {2, 2}));
      attrs.push_back({AttrKey::k_reduce, std::string("sum")});
    }
    b.op(other, operands, attrs,
         type(DType::k_f32, other == OpCode::k_gather ? Dims{2, 2}
                            : other == OpCode::k_take ? Dims{2, 2, 2}
                                                      : Dims{7, 2}));
    const Result<TensorRef> made = with_refused_index(ids, infer_inputs(b.graph)[0], services);
    ASSERT_TRUE(made.ok());
    ASSERT_EQ(*made != nullptr, other == OpCode::k_take) << static_cast<int>(other);
    if (!*made) continue;
    EXPECT_EQ(read<int64_t>(*made), (std::vector<int64_t>{0, 1, 2, 7}));
  }
  EXPECT_EQ(read<int64_t>(ids), (std::vector<int64_t>{0, 1, 2, 3})) << "the caller's own";
}

TEST(Inputs, GatherScatterAndIndexReduce) {
  Builder b;
  const ValueId g = b.input(DType::k_i64, {4, 3}), s = b.input(DType::k_i64, {4, 3}), u = b.input(DType::k_i64, {3});
  const ValueId x = b.constant(DType::k_f32, {4, 6}), src = b.constant(DType::k_f32, {4, 3}), wide = b.constant(DType::k_f32, {4, 6});
  b.op(OpCode::k_gather, {x, g}, {{AttrKey::k_dim, int64_t{1}}}, type(DType::k_f32, {4, 3}));
  b.op(OpCode::k_scatter, {x, s, src}, {{AttrKey::k_dim, int64_t{1}}, {AttrKey::k_reduce, std::string("sum")}}, type(DType::k_f32, {4, 6}));
  b.op(OpCode::k_index_reduce, {x, u, wide}, {{AttrKey::k_dim, int64_t{0}}, {AttrKey::k_reduce, std::string("none")}},
       type(DType::k_f32, {4, 6}));
  const auto hints = infer_inputs(b.graph);
  EXPECT_EQ(hints[0].b, 6);
  EXPECT_EQ(hints[1].b, 6);
  EXPECT_EQ(hints[2].kind, InputHint::kArange) << "two writes to one row would have no order";
  EXPECT_EQ(hints[2].b, 4);
}

TEST(Inputs, OffsetsOfABagAscend) {
  for (const bool last : {false, true}) {
    Builder b;
    const ValueId indices = b.input(DType::k_i64, {20}), offsets = b.input(DType::k_i64, {5});
    b.op(OpCode::k_embedding_bag, {b.constant(DType::k_f32, {9, 3}), indices, offsets},
         {{AttrKey::k_mode, std::string("sum")}, {AttrKey::k_include_last_offset, last}}, type(DType::k_f32, {last ? 4 : 5, 3}));
    test::HeapServices services;
    const auto tensors = make_inputs(b.graph, services, {});
    ASSERT_TRUE(tensors.ok());
    for (const int64_t i : read<int64_t>((*tensors)[0])) EXPECT_TRUE(i >= 0 && i < 9);
    const auto at = read<int64_t>((*tensors)[1]);
    EXPECT_EQ(at, last ? (std::vector<int64_t>{0, 5, 10, 15, 20}) : (std::vector<int64_t>{0, 4, 8, 12, 16}));
  }
}

// The ends of groups ascend to the number of rows; counts that are summed to such are as small as that takes.
TEST(Inputs, EndsOfGroupsAscend) {
  for (const bool summed : {false, true}) {
    Builder b;
    const ValueId given = b.input(DType::k_i32, {5});
    const ValueId ends =
        summed ? b.op(OpCode::k_cumsum, {given}, {{AttrKey::k_dim, int64_t{0}}}, type(DType::k_i32, {5})) : given;
    b.op(OpCode::k_grouped_matmul, {b.constant(DType::k_f32, {40, 3}), b.constant(DType::k_f32, {5, 3, 2}), ends}, {},
         type(DType::k_f32, {40, 2}));
    test::HeapServices services;
    bool any = false;
    for (uint32_t set = 0; set < 5; ++set) {
      InputOptions options;
      options.set = set;
      const auto tensors = make_inputs(b.graph, services, options);
      ASSERT_TRUE(tensors.ok());
      std::vector<int32_t> at = read<int32_t>((*tensors)[0]);
      if (!summed) {
        EXPECT_EQ(at, (std::vector<int32_t>{0, 10, 20, 30, 40}));
      }
      for (size_t i = 0; i < at.size(); ++i) {
        EXPECT_GE(at[i], 0);
        if (summed && i > 0) at[i] += at[i - 1];
      }
      EXPECT_LE(at.back(), 40);
      any = any || at.back() > 0;
    }
    EXPECT_TRUE(any);
  }
}

TEST(Inputs, MasksHoldBothValues) {
  Builder b;
  const ValueId mask = b.input(DType::k_bool, {3}), attention = b.input(DType::k_i64, {2, 4});
  b.op(OpCode::k_logical_not, {mask}, {}, type(DType::k_bool, {3}));
  b.op(OpCode::k_cast, {attention}, {{AttrKey::k_dtype, int64_t{9}}}, type(DType::k_f32, {2, 4}));
  test::HeapServices services;
  for (uint32_t set = 0; set < 20; ++set) {
    InputOptions o;
    o.set = set;
    const auto tensors = make_inputs(b.graph, services, o);
    std::set<int> bools, ints;
    for (const uint8_t v : read<uint8_t>((*tensors)[0])) bools.insert(v);
    for (const int64_t v : read<int64_t>((*tensors)[1])) ints.insert(static_cast<int>(v));
    EXPECT_EQ(bools, (std::set<int>{0, 1}));
    EXPECT_EQ(ints, (std::set<int>{0, 1}));
  }
}

TEST(Inputs, DomainsAreKept) {
  Builder b;
  const ValueId x = b.input(DType::k_f32, {64}), y = b.input(DType::k_f32, {64}), free = b.input(DType::k_f32, {64});
  b.op(OpCode::k_log, {x}, {}, type(DType::k_f32, {64}));
  b.op(OpCode::k_div, {free, y}, {}, type(DType::k_f32, {64}));
  test::HeapServices services;
  const auto tensors = make_inputs(b.graph, services, {});
  for (const float v : read<float>((*tensors)[0])) EXPECT_GE(v, 0.1f);
  for (const float v : read<float>((*tensors)[1])) EXPECT_GE(v, 0.1f);
  int negative = 0;
  for (const float v : read<float>((*tensors)[2])) negative += v < 0;
  EXPECT_GT(negative, 15);
  EXPECT_LT(negative, 49);
}

TEST(Inputs, IntegersOfAnOpaqueOperatorAreSmall) {
  Builder b;
  const ValueId i = b.input(DType::k_i64, {6}), x = b.input(DType::k_f32, {5, 9});
  b.op(OpCode::kOpaque, {x, i}, {{AttrKey::k_aten, std::string("my::pick")}}, type(DType::k_f32, {6, 9}));
  const auto hints = infer_inputs(b.graph);
  EXPECT_EQ(hints[0].kind, InputHint::kIntegers);
  EXPECT_EQ(hints[0].a, 0);
  EXPECT_EQ(hints[0].b, 5);
  EXPECT_EQ(hints[1].kind, InputHint::kNormal);
}

TEST(Inputs, OfAModelThatRefusesNumbersAreTheCallers) {
  for (const auto& [name, drawn] :
       {std::pair("aten::binary_cross_entropy", false), std::pair("aten::binary_cross_entropy_with_logits", true)}) {
    Builder b;
    const ValueId x = b.input(DType::k_f32, {4});
    b.op(OpCode::kOpaque, {x}, {{AttrKey::k_aten, std::string(name)}}, type(DType::k_f32, {}));
    EXPECT_EQ(infer_inputs(b.graph)[0].unknown_meaning, !drawn) << name;
  }
}

TEST(Inputs, TheSameSeedGivesTheSameBytesAndAnotherSetOthers) {
  Builder b;
  b.input(DType::k_f32, {1000});
  test::HeapServices services;
  InputOptions first, second;
  second.set = 1;
  const auto a = read<float>((*make_inputs(b.graph, services, first))[0]);
  EXPECT_EQ(a, read<float>((*make_inputs(b.graph, services, first))[0]));
  EXPECT_NE(a, read<float>((*make_inputs(b.graph, services, second))[0]));
  double sum = 0, squares = 0;
  for (const float v : a) {
    sum += v;
    squares += static_cast<double>(v) * v;
  }
  EXPECT_NEAR(sum / 1000, 0, 0.1);
  EXPECT_NEAR(squares / 1000, 1, 0.15);
  EXPECT_EQ(a[0], a[0]);
}

TEST(Inputs, OverridesStridesAndNarrowFloats) {
  Builder b;
  const Type channels_last{DType::k_f32, {1, 2, 2, 2}, channels_last_strides({1, 2, 2, 2})};
  b.graph.add_input(channels_last, 0);
  b.input(DType::k_bf16, {3});
  b.input(DType::k_f16, {5});
  test::HeapServices services;
  InputOptions o;
  o.overrides = {InputHint{InputHint::kArange, 0, 0, "test"}, InputHint{InputHint::kConstant, -1.5, 0, "test"},
                 InputHint{InputHint::kConstant, 1.0 / 3, 0, "test"}};
  const auto tensors = make_inputs(b.graph, services, o);
  ASSERT_TRUE(tensors.ok());
  EXPECT_EQ(read<float>((*tensors)[0]), (std::vector<float>{0, 4, 1, 5, 2, 6, 3, 7})) << "row-major order through the strides";
  EXPECT_EQ(read<uint16_t>((*tensors)[1])[0], 0xbfc0);
  EXPECT_EQ(read<uint16_t>((*tensors)[2])[0], 0x3555) << "one third, rounded to nearest";
}

TEST(Inputs, EdgesOfFloats) {
  test::HeapServices services;
  const auto t = make_tensor(type(DType::k_f16, {9}), {InputHint::kEdges, 0, 0, ""}, services, {}, 1);
  ASSERT_TRUE(t.ok());
  EXPECT_EQ(read<uint16_t>(*t), (std::vector<uint16_t>{0, 0x8000, 0x3c00, 0x7e00, 0x7c00, 0xfc00, 0x7bff, 0xfbff, 1}));
}

// Another seed, another set or another input is another draw: what is verified on three sets is verified on three.
TEST(Inputs, EverySeedSetAndPositionIsADrawOfItsOwn) {
  test::HeapServices services;
  Graph g;
  for (uint32_t i = 0; i < 4; ++i) g.add_input({DType::k_f32, {16}, {1}}, i);
  std::map<std::vector<float>, std::string> drawn;
  for (uint64_t seed = 0; seed < 30; ++seed)
    for (uint32_t set = 0; set < 4; ++set) {
      InputOptions options;
      options.seed = seed, options.set = set;
      const auto tensors = make_inputs(g, services, options);
      ASSERT_TRUE(tensors.ok()) << tensors.status().text();
      const auto again = make_inputs(g, services, options);
      for (size_t i = 0; i < tensors->size(); ++i) {
        const auto* x = static_cast<const float*>(tensors->at(i)->data());
        const auto* y = static_cast<const float*>(again->at(i)->data());
        const std::string which = "seed " + std::to_string(seed) + ", set " + std::to_string(set) + ", input " + std::to_string(i);
        EXPECT_TRUE(std::equal(x, x + 16, y)) << which << " is not repeated";
        const auto [other, is_new] = drawn.emplace(std::vector<float>(x, x + 16), which);
        ASSERT_TRUE(is_new) << which << " is " << other->second;
      }
    }
  EXPECT_EQ(drawn.size(), 30u * 4 * 4);
}

// What a kind of hint promises in inputs.h, for every bound and number of elements.
TEST(Inputs, EveryKindKeepsItsBounds) {
  test::HeapServices services;
  const auto draw = [&](InputHint::Kind kind, double a, double b, int64_t n) {
    const auto made = make_tensor({DType::k_i64, {n}, {1}}, {kind, a, b, "test"}, services, {}, static_cast<uint64_t>(n) * 31 + 7);
    EXPECT_TRUE(made.ok());
    const auto* x = static_cast<const int64_t*>((*made)->data());
    return std::vector<int64_t>(x, x + n);
  };
  for (int64_t n : {1, 2, 3, 8, 50})
    for (int64_t b : {1, 2, 3, 7, 60}) {
      const std::string where = std::to_string(n) + " elements, bound " + std::to_string(b);
      const std::vector<int64_t> arange = draw(InputHint::kArange, 0, static_cast<double>(b), n);
      for (int64_t i = 0; i < n; ++i) EXPECT_EQ(arange[static_cast<size_t>(i)], i % b) << where;
      const std::vector<int64_t> endless = draw(InputHint::kArange, 0, 0, n);
      for (int64_t i = 0; i < n; ++i) EXPECT_EQ(endless[static_cast<size_t>(i)], i);
      for (int64_t a : {-3, 0, 1}) {
        std::set<int64_t> seen;
        for (int64_t x : draw(InputHint::kIntegers, static_cast<double>(a), static_cast<double>(a + b), n)) {
          EXPECT_TRUE(x >= a && x < a + b) << x << " of " << where;
          seen.insert(x);
        }
        EXPECT_TRUE(n < 50 || b > 3 || static_cast<int64_t>(seen.size()) == b) << "each of a few is drawn among many";
      }
      for (double ends : {0.0, 1.0}) {
        const std::vector<int64_t> ascending = draw(InputHint::kAscending, ends, static_cast<double>(b), n);
        EXPECT_EQ(ascending[0], 0) << where;
        EXPECT_TRUE(std::is_sorted(ascending.begin(), ascending.end())) << where;
        EXPECT_TRUE(ends != 0 && n > 1 ? ascending.back() == b : ascending.back() < b) << where;
      }
      for (int64_t x : draw(InputHint::kMask, 0, 1, n)) EXPECT_TRUE(x == 0 || x == 1);
    }
}

// Several threads make what one makes.
TEST(Inputs, SlicesAreThoseOfTheWhole) {
  test::HeapServices one, many;
  one.set_num_threads(1);
  constexpr int64_t n = 200001;
  const auto made = [&](test::HeapServices& services, DType dtype, InputHint::Kind kind) {
    return *make_tensor(type(dtype, {3, n / 3}), {kind, 0, 1000, "test"}, services, {}, 77);
  };
  for (const auto kind : {InputHint::kNormal, InputHint::kPositive, InputHint::kUniform})
    EXPECT_EQ(read<float>(made(one, DType::k_f32, kind)), read<float>(made(many, DType::k_f32, kind)));
  for (const auto kind : {InputHint::kIntegers, InputHint::kMask, InputHint::kAscending, InputHint::kArange})
    EXPECT_EQ(read<int64_t>(made(one, DType::k_i64, kind)), read<int64_t>(made(many, DType::k_i64, kind)));
}

// What hangs together stays so by and large: signs, zeros, infinities and integers are kept, and each set differs from the others.
TEST(Inputs, ValuesNearOthers) {
  test::HeapServices services;
  const TensorRef x = test::tensor_of<float>(DType::k_f32, {2, 3}, {1, -2, 0, 1e-20f, INFINITY, 3});
  const auto near = [&](const TensorRef& of, uint64_t seed) {
    const auto made = near_to(of, services, seed);
    EXPECT_TRUE(made.ok()) << made.status().text();
    return *made;
  };
  const auto* from = static_cast<const float*>(x->data());
  const TensorRef first = near(x, 1), again = near(x, 1), second = near(x, 2);
  EXPECT_NE(first->data(), x->data());
  const auto *a = static_cast<const float*>(first->data()), *b = static_cast<const float*>(second->data());
  for (int i = 0; i < 6; ++i) {
    EXPECT_EQ(a[i], static_cast<const float*>(again->data())[i]);
    if (from[i] == 0 || std::isinf(from[i])) {
      EXPECT_EQ(a[i], from[i]);
      continue;
    }
    EXPECT_NE(a[i], b[i]);
    EXPECT_LE(a[i] / from[i], 1) << "what was in the domain of a root or an arc sine still is";
    EXPECT_GE(a[i] / from[i], 1 - 0x1p-5);
  }
  const TensorRef state = near(test::tensor_of<float>(DType::k_f32, {3}, {0, 0, 0}), 1);
  for (int i = 0; i < 3; ++i) EXPECT_GT(static_cast<const float*>(state->data())[i], 0) << "zeros alone show nothing";
  const TensorRef rows = near(test::tensor_of<int64_t>(DType::k_i64, {3}, {7, -1, 0}), 1);
  EXPECT_EQ(static_cast<const int64_t*>(rows->data())[0], 7);
  EXPECT_EQ(static_cast<const int64_t*>(rows->data())[1], -1);
}

// What a float may have been before it was rounded, in fp64.
TEST(Inputs, ValuesOffByTheirRounding) {
  test::HeapServices services;
  const TensorRef x = test::tensor_of<float>(DType::k_f32, {2, 3}, {1, -2, 0, 4, 5, 3});
  const auto* from = static_cast<const float*>(x->data());
  int up = 0, down = 0;
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    const auto off = off_by_roundings(x, services, seed);
    ASSERT_TRUE(off.ok()) << off.status().text();
    ASSERT_EQ((*off)->dtype(), DType::k_f64);
    const auto* at = static_cast<const double*>((*off)->data());
    for (int i = 0; i < 6; ++i) {
      EXPECT_EQ(std::abs(at[i] - from[i]), 0x1p-24 * std::abs(from[i]));
      up += at[i] > from[i], down += at[i] < from[i];
    }
  }
  EXPECT_GT(up, 5);
  EXPECT_GT(down, 5);
  const TensorRef rows = test::tensor_of<int64_t>(DType::k_i64, {1}, {7});
  EXPECT_EQ(*off_by_roundings(rows, services, 1), rows);
}

}  // namespace
}  // namespace keirin
