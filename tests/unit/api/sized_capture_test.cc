// SPDX-License-Identifier: Apache-2.0
//
// What was learned of graphs at some sizes against capture and the passes at others: the graph, number for number, and the constants,
// element for element.
#include "core/api/sized_capture.h"

#include <cstring>
#include <random>

#include "core/api/free_sizes.h"
#include "core/passes/pass.h"
#include "tests/unit/eager/loaded_model.h"

namespace keirin {
namespace {

using testing::LoadedModel;

// Ranges are for the passes, and used up by them.
Graph without_ranges(Graph graph) {
  for (Value& value : graph.values) value.range.reset();
  return graph;
}

Prepared prepare(const LoadedModel& loaded, const Sizes& sizes, FoldedConstants& folded) {
  const auto shapes = example_shapes(loaded.model->program, sizes);
  EXPECT_TRUE(shapes.ok()) << shapes.status().text();
  auto captured = import_graph(loaded.model->program, loaded.weights, shapes->specs);
  EXPECT_TRUE(captured.ok()) << captured.status().text();
  Prepared prepared = with_weights(std::move(*captured), loaded.weights, {});
  FoldEvaluator evaluator(prepared.constants, *loaded.services, {}, &folded);
  PassContext context;
  context.evaluator = &evaluator;
  const Status status = run_passes(prepared.graph, context);
  EXPECT_TRUE(status.ok()) << status.text();
  prepared.folded = evaluator.origins();
  return prepared;
}

struct Learned {
  Result<SizedCapture> capture = Status(Code::k_unsupported, "nothing was learned");
  size_t at = 0;  // sizes
};

Learned learn(const LoadedModel& loaded, const SizeBox& box, const Sizes& kind, FoldedConstants& folded) {
  const std::vector<Sizes> sizes = SizedCapture::sizes_to_learn(box, kind);
  std::vector<Prepared> graphs;
  for (const Sizes& each : sizes) graphs.push_back(prepare(loaded, each, folded));
  std::vector<const Prepared*> prepared;
  for (const Prepared& each : graphs) prepared.push_back(&each);
  return {SizedCapture::of(box, sizes, prepared, loaded.weights.size()), sizes.size()};
}

struct Case {
  const char* model;
  SizeBox box;
};
const Case kCases[] = {{"ranges_encoder", {{1, 2}, {16, 48}}},
                       {"ranges_masked", {{1, 2}, {16, 48}}},
                       {"ranges_distances", {{3, 20}, {16, 48}}},
                       {"ranges_clips", {{1}, {64}}},
                       {"ranges_convnet", {{1}, {32}}},
                       {"ranges_graph", {{2, 2}, {64, 256}}}};

TEST(SizedCapture, IsWhatCaptureAndPassesMake) {
  for (const Case& each : kCases) {
    SCOPED_TRACE(each.model);
    const LoadedModel loaded(each.model);
    FoldedConstants folded;
    Sizes generic(each.box.least.size());
    for (size_t d = 0; d < generic.size(); ++d) generic[d] = static_cast<int64_t>(d);
    const Learned learned = learn(loaded, each.box, generic, folded);
    ASSERT_TRUE(learned.capture.ok()) << learned.capture.status().text();
    EXPECT_GE(learned.at, 20u);
    std::mt19937 random(3);
    int compared = 0;
    for (int i = 0; i < 120; ++i) {
      Sizes sizes;
      for (size_t d = 0; d < generic.size(); ++d)
        sizes.push_back(std::uniform_int_distribution<int64_t>(each.box.least[d], each.box.most[d])(random));
      if (!learned.capture->holds(sizes)) continue;
      ++compared;
      FoldedConstants apart;
      const auto written = learned.capture->at(sizes, loaded.weights, *loaded.services, {}, apart);
      ASSERT_TRUE(written.ok()) << written.status().text();
      const Prepared captured = prepare(loaded, sizes, folded);
      ASSERT_EQ(written->graph, without_ranges(captured.graph));
      ASSERT_EQ(written->constants.size(), captured.constants.size());
      for (size_t k = 0; k < captured.constants.size(); ++k) {
        const Tensor& a = *written->constants[k];
        const Tensor& b = *captured.constants[k];
        ASSERT_EQ(spec_text(spec_of(a)), spec_text(spec_of(b)));
        ASSERT_EQ(std::memcmp(a.data(), b.data(), static_cast<size_t>(a.storage_bytes())), 0) << "constant " << k;
      }
    }
    EXPECT_GE(compared, 60);
  }
}

TEST(SizedCapture, EqualSizesAndOnesAreKindsOfTheirOwn) {
  const LoadedModel loaded("ranges_encoder");
  const SizeBox box{{1, 2}, {16, 48}};
  FoldedConstants folded;
  for (const Sizes& like : {Sizes{1, 7}, Sizes{5, 5}}) {
    const Sizes kind = kind_of(like);
    for (const Sizes& sizes : SizedCapture::sizes_to_learn(box, kind)) EXPECT_EQ(kind_of(sizes), kind);
    const Learned learned = learn(loaded, box, kind, folded);
    ASSERT_TRUE(learned.capture.ok()) << learned.capture.status().text();
    EXPECT_TRUE(learned.capture->holds(like));
    EXPECT_FALSE(learned.capture->holds({3, 7}));
    const auto written = learned.capture->at(like, loaded.weights, *loaded.services, {}, folded);
    ASSERT_TRUE(written.ok()) << written.status().text();
    EXPECT_EQ(written->graph, without_ranges(prepare(loaded, like, folded).graph));
  }
}

// Boxes in which the structure is one: learned of more graphs inside of each, where there are several.
TEST(SizedCapture, IsInPiecesWhereStructuresDiffer) {
  const LoadedModel loaded("ranges_encoder");
  const SizeBox box{{1, 2}, {16, 48}};
  FoldedConstants folded;
  const std::vector<Sizes> sizes = SizedCapture::sizes_to_learn(box, {0, 1});
  const auto pieces = [&](const auto& is_other) {
    std::vector<Prepared> graphs;
    for (const Sizes& each : sizes) {
      graphs.push_back(prepare(loaded, each, folded));
      if (is_other(each)) graphs.back().graph.ops.back().effects = true;
    }
    std::vector<const Prepared*> prepared;
    for (const Prepared& each : graphs) prepared.push_back(&each);
    const std::vector<SizeBox> out = SizedCapture::pieces_of(box, sizes, prepared);
    EXPECT_EQ(SizedCapture::of(box, sizes, prepared, loaded.weights.size()).ok(), out.size() == 1);
    const auto few = SizedCapture::of(box, {sizes[0], sizes[1]}, {prepared[0], prepared[1]}, loaded.weights.size());
    EXPECT_FALSE(few.ok()) << "two sizes fit any line";
    return out;
  };
  const auto one = pieces([](const Sizes&) { return false; });
  ASSERT_EQ(one.size(), 1u);
  EXPECT_EQ(one[0].most, box.most);
  const auto edge = pieces([](const Sizes& each) { return each[1] == 48; });
  ASSERT_EQ(edge.size(), 2u);
  EXPECT_LT(edge[0].most[1], 48);
  EXPECT_EQ(edge[1].least, (Sizes{1, 48}));
  const auto two = pieces([](const Sizes& each) { return each[1] > 20; });
  ASSERT_EQ(two.size(), 2u);
  EXPECT_LE(two[0].most[1], 20);
  EXPECT_GT(two[1].least[1], 20);
  EXPECT_EQ(two[0].least, box.least);
  EXPECT_EQ(two[1].most, box.most);
  const auto corner = pieces([](const Sizes& each) { return each[0] > 7 && each[1] > 20; });
  EXPECT_GE(corner.size(), 3u);
  for (const SizeBox& piece : corner)
    for (const Sizes& a : sizes)
      for (const Sizes& b : sizes)
        if (piece.holds(a) && piece.holds(b)) EXPECT_EQ(a[0] > 7 && a[1] > 20, b[0] > 7 && b[1] > 20);
}

}  // namespace
}  // namespace keirin
