// SPDX-License-Identifier: Apache-2.0
//
// The reference plugin through its tables: claims, refusals, strides, aliases, observed bits, failures that change
// nothing.
#include <gtest/gtest.h>

#include <cmath>

#include "core/ir/bytes.h"
#include "core/ops/builder.h"
#include "tests/unit/reference/region_runner.h"

namespace keirin {
namespace {

using testing::HostTensor;
using testing::last_error;
using testing::ReferencePlugin;

Type typed(DType d, Dims sizes, Dims strides = {}) {
  if (strides.empty()) strides = contiguous_strides(sizes);
  return Type{d, sizes, strides};
}

const krn_compile_table& compile_table() {
  return *reinterpret_cast<const krn_compile_table*>(ReferencePlugin::get().table("krn.compile"));
}

TEST(ReferencePlugin, AnswersTheManifestsGuid) {
  const uint8_t guid[16] = {0x6b, 0x72, 0x6e, 0x00, 0x72, 0x65, 0x66, 0x40,
                            0x80, 0x00, 0x6f, 0x72, 0x61, 0x63, 0x6c, 0x65};
  EXPECT_TRUE(std::equal(guid, guid + 16, ReferencePlugin::get().answer().guid.bytes));
  EXPECT_EQ(ReferencePlugin::get().table("krn.nothing"), nullptr);
}

TEST(ReferencePlugin, AnyStridesInAndOut) {
  Graph g;
  ValueId x = g.add_input(typed(DType::k_f32, {2, 3}, {1, 4}), 0);  // transposed, with a gap
  ValueId y = Builder(g).emit1(OpCode::k_neg, {x}).value();
  g.values[y].type.strides = {10, 2};
  g.outputs.push_back({y, kNone, kNone});
  auto r = ReferencePlugin::get().run(g, {HostTensor::of(g.type(x), {1, 2, 3, 4, 5, 6})});
  ASSERT_TRUE(r.ok()) << r.status().text();
  EXPECT_EQ(r->at(0).values(), (std::vector<double>{-1, -2, -3, -4, -5, -6}));
}

TEST(ReferencePlugin, RoundsWhereItIsObserved) {
  for (bool observed : {true, false}) {
    Graph g;
    ValueId a = g.add_input(typed(DType::k_bf16, {1}), 0), b = g.add_input(typed(DType::k_bf16, {1}), 1);
    Builder builder(g);
    ValueId sum = builder.emit1(OpCode::k_add, {a, b}).value();
    ValueId back = builder.emit1(OpCode::k_sub, {sum, a}).value();
    g.values[sum].observed = observed;
    g.outputs.push_back({back, kNone, kNone});
    auto r = ReferencePlugin::get().run(g, {HostTensor::of(g.type(a), {256}), HostTensor::of(g.type(b), {0.5})});
    ASSERT_TRUE(r.ok()) << r.status().text();
    EXPECT_EQ(r->at(0).values()[0], observed ? 0.0 : 0.5);
  }
}

TEST(ReferencePlugin, IntegersWrapAndNaNPropagates) {
  Graph g;
  ValueId a = g.add_input(typed(DType::k_i8, {2}), 0), f = g.add_input(typed(DType::k_f32, {3}), 1);
  Builder b(g);
  g.outputs.push_back({b.emit1(OpCode::k_mul, {a, a}).value(), kNone, kNone});
  g.outputs.push_back({b.emit1(OpCode::k_amax, {f}, {{AttrKey::k_dims, Dims{0}}}).value(), kNone, kNone});
  g.outputs.push_back({b.emit1(OpCode::k_argmax, {f}, {{AttrKey::k_dims, Dims{0}}}).value(), kNone, kNone});
  auto r =
      ReferencePlugin::get().run(g, {HostTensor::of(g.type(a), {-128, 100}), HostTensor::of(g.type(f), {1, NAN, 5})});
  ASSERT_TRUE(r.ok()) << r.status().text();
  EXPECT_EQ(r->at(0).values(), (std::vector<double>{0, 16}));
  EXPECT_TRUE(std::isnan(r->at(1).values()[0]));
  EXPECT_EQ(r->at(2).values()[0], 1);
}

TEST(ReferencePlugin, EmptyAndZeroDim) {
  Graph g;
  ValueId e = g.add_input(typed(DType::k_f32, {0, 3}), 0), s = g.add_input(typed(DType::k_f32, {}), 1);
  Builder b(g);
  g.outputs.push_back({b.emit1(OpCode::k_sum, {e}, {{AttrKey::k_dims, Dims{0}}}).value(), kNone, kNone});
  g.outputs.push_back({b.emit1(OpCode::k_exp, {e}).value(), kNone, kNone});
  g.outputs.push_back({b.emit1(OpCode::k_neg, {s}).value(), kNone, kNone});
  auto r = ReferencePlugin::get().run(g, {HostTensor::of(g.type(e), {}), HostTensor::of(g.type(s), {2})});
  ASSERT_TRUE(r.ok()) << r.status().text();
  EXPECT_EQ(r->at(0).values(), (std::vector<double>{0, 0, 0}));
  EXPECT_TRUE(r->at(1).values().empty());
  EXPECT_EQ(r->at(2).values(), (std::vector<double>{-2}));
}

TEST(ReferencePlugin, AnIndexOutOfRangeFailsTheRun) {
  Graph g;
  ValueId x = g.add_input(typed(DType::k_f32, {3, 2}), 0), i = g.add_input(typed(DType::k_i64, {1}), 1);
  g.outputs.push_back({Builder(g).emit1(OpCode::k_take, {x, i}, {{AttrKey::k_dim, int64_t{0}}}).value(), kNone, kNone});
  auto r =
      ReferencePlugin::get().run(g, {HostTensor::of(g.type(x), {1, 2, 3, 4, 5, 6}), HostTensor::of(g.type(i), {3})});
  ASSERT_FALSE(r.ok());
  EXPECT_EQ(r.status().code(), Code::k_invalid_input);
  EXPECT_NE(r.status().text().find("index 3"), std::string::npos) << r.status().text();
}

struct Claims {
  std::vector<uint32_t> nodes;
  uint32_t refused = 0;
};

void KRN_CALL take_claim(void* ctx, const krn_claim* c) {
  static_cast<Claims*>(ctx)->nodes.assign(c->nodes, c->nodes + c->num_nodes);
}
void KRN_CALL take_refusal(void* ctx, const krn_refusal*) { ++static_cast<Claims*>(ctx)->refused; }

TEST(ReferencePlugin, ClaimsEveryRow) {
  Graph g;
  ValueId x = g.add_input(typed(DType::k_f32, {2, 2}), 0);
  Builder b(g);
  ValueId y = b.emit1(OpCode::k_relu, {x}).value();
  g.outputs.push_back({b.emit1(OpCode::k_matmul, {y, y}).value(), kNone, kNone});
  auto bytes = write_region(g);
  ASSERT_TRUE(bytes.ok());
  krn_region region{};
  region.hdr.size = sizeof region;
  region.graph = {bytes->bytes.data(), bytes->bytes.size()};
  Claims claims;
  krn_claim_sink sink{take_claim, take_refusal, &claims};
  krn_policy policy{};
  policy.hdr.size = sizeof policy;
  ASSERT_EQ(compile_table().claim(ReferencePlugin::get().device(), &region, &policy, &sink, nullptr), KRN_STATUS_ok);
  EXPECT_EQ(claims.nodes, (std::vector<uint32_t>{0, 1}));
  EXPECT_EQ(claims.refused, 0u);
}

TEST(ReferencePlugin, RefusesCorruptBytesAndASecondCandidate) {
  Graph g;
  ValueId x = g.add_input(typed(DType::k_f32, {2}), 0);
  g.outputs.push_back({Builder(g).emit1(OpCode::k_relu, {x}).value(), kNone, kNone});
  auto bytes = write_region(g);
  ASSERT_TRUE(bytes.ok());
  krn_region region{};
  region.hdr.size = sizeof region;
  region.graph = {bytes->bytes.data(), bytes->bytes.size()};
  krn_options options{};
  options.hdr.size = sizeof options;
  options.candidate = 1;
  krn_exec* exec = nullptr;
  EXPECT_EQ(compile_table().compile(ReferencePlugin::get().device(), &region, nullptr, &options, &exec, nullptr),
            KRN_STATUS_unsupported);
  region.graph.size -= 8;
  EXPECT_EQ(compile_table().compile(ReferencePlugin::get().device(), &region, nullptr, nullptr, &exec, nullptr),
            KRN_STATUS_corrupt);
  EXPECT_EQ(exec, nullptr);
}

TEST(ReferencePlugin, SaysWhatItsCodeIsLike) {
  Graph g;
  const ValueId x = g.add_input(typed(DType::k_f32, {2, 3}), 0);
  Builder builder(g);
  const ValueId y = builder.emit1(OpCode::k_exp, {builder.emit1(OpCode::k_neg, {x}).value()}).value();
  g.outputs.push_back({y, kNone, kNone});
  const krn_exec_info info = ReferencePlugin::get().info(g);
  EXPECT_EQ(info.num_kernels, 2u) << "one for each node";
  EXPECT_TRUE(info.flags & KRN_EXEC_CONCURRENT);
  EXPECT_TRUE(info.flags & KRN_EXEC_INPUTS_INTACT);
}

}  // namespace
}  // namespace keirin
