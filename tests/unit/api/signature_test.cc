// SPDX-License-Identifier: Apache-2.0
//
// What a file says about itself: names by structure, ranges, operators that the table knows.
#include "core/api/signature.h"

#include <gtest/gtest.h>

#include "core/capture/pt2/read_pt2.h"

namespace keirin {
namespace {

pt2::Pt2File read(const std::string& path) {
  auto file = pt2::read_programs(std::string(KEIRIN_SOURCE_DIR) + path);
  EXPECT_TRUE(file.ok()) << file.status().text();
  return std::move(*file);
}

std::string names(const std::vector<Port>& ports) {
  std::string out;
  for (const Port& port : ports) out += (out.empty() ? "" : " ") + port.name + ":" + port.dtype;
  return out;
}

TEST(Signature, NamesTheLeavesOfNestedArgumentsAndResults) {
  const pt2::Pt2File file = read("/tests/data/pt2/structured.pt2");  // forward(d, *, scale, flag, k) -> {"o": .., "p": [.., None]}
  const Signature s = signature_of((*file.model())->program);
  EXPECT_EQ(names(s.inputs), "d.a:f32 d.b.0:f32 scale:f32");
  EXPECT_EQ(names(s.outputs), "o:f32 p.0:f32 p.1:");
}

TEST(Signature, NamesPositionsWhereThereAreNoKeys) {
  const pt2::Pt2File file = read("/tests/data/pt2/lstm.pt2");
  const Signature s = signature_of((*file.model())->program);
  EXPECT_EQ(names(s.inputs), "x:f32");
  EXPECT_EQ(names(s.outputs), "0:f32 1:f32 2:f32");
}

TEST(Signature, TellsWhichSizesAreFreeAndTheirRange) {
  const pt2::Pt2File file = read("/tests/data/pt2/mlp.pt2");
  const Signature s = signature_of((*file.model())->program);
  ASSERT_EQ(s.inputs.size(), 1u);
  ASSERT_EQ(s.inputs[0].sizes.size(), 2u);
  const Dimension& batch = s.inputs[0].sizes[0];
  EXPECT_TRUE(batch.free);
  EXPECT_EQ(batch.min, 2);
  EXPECT_EQ(batch.max, 64);
  EXPECT_FALSE(s.inputs[0].sizes[1].free);
  EXPECT_EQ(s.outputs[0].sizes[0].symbol, batch.symbol);
}

TEST(Signature, TellsTheRangeOfANumber) {
  const pt2::Pt2File file = read("/tests/data/pt2/sliced.pt2");  // forward(x, k)
  const Signature s = signature_of((*file.model())->program);
  EXPECT_EQ(names(s.inputs), "x:f32 k:i64");
  EXPECT_FALSE(s.inputs[0].is_number);
  const Dimension& k = s.inputs[1].number;
  EXPECT_TRUE(s.inputs[1].is_number && s.inputs[1].sizes.empty());
  EXPECT_TRUE(k.free);
  EXPECT_EQ(k.size, 5);
  EXPECT_EQ(k.min, 2);
  EXPECT_EQ(k.max, 0);
}

TEST(Signature, FindsInputsByNameAndByPosition) {
  const pt2::Pt2File file = read("/tests/data/pt2/structured.pt2");
  const Signature s = signature_of((*file.model())->program);
  EXPECT_EQ(*input_position(s, "scale"), 2u);
  EXPECT_EQ(*input_position(s, "2"), 2u);
  const Status none = input_position(s, "mask").status();
  EXPECT_EQ(none.code(), Code::k_invalid_input);
  EXPECT_NE(none.text().find("d.a, d.b.0, scale"), std::string::npos) << none.text();
}

TEST(Forecast, CountsWhatTheTableKnows) {
  const pt2::Pt2File known = read("/bench/zoo/models/small/mlp.pt2");
  const Forecast all = forecast_of((*known.model())->program);
  EXPECT_GT(all.nodes, 0);
  EXPECT_EQ(all.known, all.nodes);
  EXPECT_EQ(all.operators.count("aten::linear"), 1u);
  const pt2::Pt2File opaque = read("/tests/data/import/opaque.pt2");
  const Forecast some = forecast_of((*opaque.model())->program);
  EXPECT_LT(some.known, some.nodes);
  EXPECT_FALSE(some.opaque.empty());
}

TEST(Forecast, InPlaceOperatorsAreKnownByTheirFunctionalName) {
  const pt2::Pt2File file = read("/tests/data/import/in_place.pt2");
  const Forecast forecast = forecast_of((*file.model())->program);
  EXPECT_EQ(forecast.known, forecast.nodes) << forecast.opaque.begin()->first;
}

}  // namespace
}  // namespace keirin
