// SPDX-License-Identifier: Apache-2.0
//
// What every schedule of a GPU kernel must keep, whatever the sizes: lanes that fit the row, threads that have work, blocks that cover
// it, and nothing of a device that it does not have. And which kernels may share their code, and which indices need no check.
#include "plugins/codegen/kernel/schedule.h"

#include <gtest/gtest.h>

#include <climits>
#include <cmath>
#include <vector>

#include "plugins/codegen/kernel/bounds.h"
#include "plugins/codegen/kernel/price.h"
#include "plugins/codegen/kernel/registers.h"
#include "tests/unit/cpu/kernel_maker.h"

namespace keirin::test {
namespace {

using namespace codegen;

KernelMaker copy_of(uint8_t dtype, int64_t rows, int64_t length) {
  KernelMaker m;
  m.outer(rows).inner(length);
  m.store(m.load(dtype, {length, 1}), dtype, {length, 1});
  return m;
}

// Groups of six channels, in f16 twelve bytes: read across the image, each brings a sector of 32; read as they lie, none is wasted.
TEST(Price, ShortRunsCostWhatIsMoved) {
  TargetInfo target;
  target.vector_bytes = 0, target.launch_ns = 0, target.flops_per_s = 1e18;
  const auto seconds = [&](bool across, int sector_bytes) {
    target.sector_bytes = sector_bytes;
    KernelMaker m;
    const int64_t pixels = 4096, groups = 32, channels = 6;
    if (across) m.outer(groups).outer(pixels).inner(channels);
    else m.outer(pixels).outer(groups).inner(channels);
    const std::vector<int64_t> strides = across ? std::vector<int64_t>{channels, groups * channels, 1}
                                                : std::vector<int64_t>{groups * channels, channels, 1};
    m.store(m.load(kF16, strides), kF16, strides);
    return price(m.k, target);
  };
  EXPECT_NEAR(seconds(true, 32) / seconds(true, 0), 32.0 / 12, 1e-9);
  EXPECT_DOUBLE_EQ(seconds(false, 32), seconds(false, 0));
  EXPECT_DOUBLE_EQ(seconds(true, 12), seconds(true, 0));
}

TEST(Schedule, LanesFitTheRow) {
  for (uint8_t dtype : {kU8, kBf16, kF32, kF64})
    for (int64_t length = 1; length < 200; ++length) {
      const Schedule s = choose_schedule(copy_of(dtype, 1 << 20, length).k, {});
      ASSERT_GE(s.vec, 1) << length;
      EXPECT_EQ(s.vec & (s.vec - 1), 0) << "a power of two, " << length;
      EXPECT_LE(s.vec * element_bytes(dtype), 16) << length;
      EXPECT_TRUE(s.vec == 1 || length % s.vec == 0 || length >= 8 * s.vec)
          << "short rows have no long tails, " << length << " by " << s.vec;
      EXPECT_EQ(s.whole, length % s.vec == 0) << length;
    }
}

// A thread takes less at once before most of the device stands still.
TEST(Schedule, ShortTensorsAreSharedByMoreThreads) {
  GpuFacts facts;
  facts.num_units = 10, facts.threads_per_unit = 1024;
  const int64_t wanted = 10 * 1024;
  for (int64_t length = 4; length < 16 * wanted; length += 4 + length / 50) {
    const Schedule s = choose_schedule(copy_of(kF32, 1, length / 4 * 4).k, facts);
    const int64_t pieces = (length / 4 * 4 + s.vec - 1) / s.vec;
    EXPECT_TRUE(s.vec == 1 || 8 * pieces >= wanted / 8 * 8) << length << " elements by " << s.vec;
    EXPECT_GE(s.blocks * s.threads, std::min<int64_t>(pieces, 10 * 32 * s.threads)) << length;
  }
}

KernelMaker turned(uint8_t dtype, int64_t rows, int64_t length) {
  KernelMaker m;  // [2, rows, length] of what lies as [2, length, rows]
  m.outer(2).outer(rows).inner(length);
  m.store(m.load(dtype, {rows * length, 1, rows}), dtype, {rows * length, length, 1});
  return m;
}

TEST(Schedule, TurnedLoadsGoThroughTilesThatCoverAll) {
  for (uint8_t dtype : {kBf16, kF32})
    for (auto [rows, length] : {std::pair<int64_t, int64_t>{200, 300}, {33, 64}, {64, 31}, {70, 1000}}) {
      const Schedule s = choose_schedule(turned(dtype, rows, length).k, {});
      ASSERT_EQ(s.shape, GpuShape::kTile) << rows << " x " << length;
      EXPECT_EQ(s.tile_axis, 1);
      EXPECT_EQ(s.blocks, 2 * ((rows + s.tile - 1) / s.tile) * ((length + s.tile - 1) / s.tile))
          << "one for each tile, " << rows << " x " << length;
    }
  for (auto [rows, tile] : {std::pair<int64_t, int>{1000, 256}, {200, 128}, {33, 32}}) {
    GpuFacts few;
    few.num_units = 2;
    const Schedule s = choose_schedule(turned(kBf16, rows, 9).k, few);
    EXPECT_TRUE(s.shape == GpuShape::kTile && s.narrow == 9) << rows;
    EXPECT_EQ(s.tile, tile) << rows;
    EXPECT_EQ(s.blocks, 2 * ((rows + s.tile - 1) / s.tile)) << rows;
  }
  EXPECT_EQ(choose_schedule(turned(kBf16, 200, 9).k, {}).vec, 8) << "a word of the run through rows and places";
  for (const bool by_place : {false, true}) {
    KernelMaker scaled;
    scaled.outer(2).outer(200).inner(9);
    const int32_t factor = by_place ? scaled.convert(scaled.coord(2), Kind::kF32) : scaled.load(kF32, {0, 1, 0});
    scaled.store(scaled.op(Prim::kMul, scaled.load(kF32, {1800, 1, 200}), factor), kF32, {1800, 9, 1});
    const Schedule s = choose_schedule(scaled.k, {});
    EXPECT_TRUE(s.narrow == 9 && s.vec == 1) << "what differs within a word";
  }
  KernelMaker apart = turned(kF32, 64, 9);  // what is stored does not lie in one run
  apart.k.accesses[1].index.coeff[1] = 10;
  EXPECT_EQ(choose_schedule(apart.k, {}).shape, GpuShape::kFlat);
  KernelMaker looked_up = turned(kF32, 64, 64);  // where an index decides the address, neighbours lie nowhere
  const int32_t index = looked_up.load(kI64, {0, 1, 0});
  looked_up.k.accesses[0].indirects.push_back({index, 64, 8});
  EXPECT_NE(choose_schedule(looked_up.k, {}).shape, GpuShape::kTile);
}

// A row that fills a block of 1024, of two operands: two blocks share it where blocks can.
TEST(Schedule, BlocksShareARowOnlyWhereTheDeviceLetsThem) {
  KernelMaker m;
  m.outer(300).inner(16384);
  const int32_t x = m.op(Prim::kAdd, m.load(kF32, {16384, 1}), m.load(kF32, {16384, 1}));
  m.store(m.op(Prim::kSub, x, m.reduce(Monoid::kMax, x)), kF32, {16384, 1});
  GpuFacts facts;
  for (int most : {1, 2, 8}) {
    facts.max_cluster = most;
    EXPECT_EQ(choose_schedule(m.k, facts).cluster, std::min(most, 2)) << most;
    for (int64_t length : {100, 5000, 40000, 200000}) {
      KernelMaker n;
      n.outer(300).inner(length);
      const int32_t y = n.load(kF32, {length, 1});
      n.store(n.op(Prim::kSub, y, n.reduce(Monoid::kMax, y)), kF32, {length, 1});
      EXPECT_LE(choose_schedule(n.k, facts).cluster, most) << length;
    }
  }
}

TEST(Schedule, AColumnIsSharedByAWaveAtMost) {
  for (int64_t width : {1, 3, 33, 1000})
    for (int64_t length : {1, 8, 100, 5000, 1000000}) {
      KernelMaker m;
      m.outer(1).serial(length).inner(width);
      m.k.column = true;
      m.store(m.reduce(Monoid::kSum, m.load(kF32, {0, width, 1})), kF32, {0, 0, 1});
      const Schedule s = choose_schedule(m.k, {});
      EXPECT_EQ(s.shape, GpuShape::kColumn);
      EXPECT_LE(s.group, 32) << width << " x " << length;
      EXPECT_EQ(s.threads % s.group, 0) << width << " x " << length;
      EXPECT_TRUE(s.group == 1 || length / s.group >= 4) << "each of them has something to add, " << width << " x " << length;
      if (s.split) {
        EXPECT_GE(s.splits * s.split_length, length) << width << " x " << length;
      }
    }
}

// One line under all windows of a piece serves only where the edge of the image moves with the windows.
TEST(Schedule, WindowsSlideWithTheirEdge) {
  const auto pool = [](int64_t step, Linear edge) {
    KernelMaker m;
    m.outer(64).serial(3).inner(8);
    m.k.column = true;
    const uint32_t in = m.access(m.buffer(kF32), {32, 1, step});
    m.k.accesses[in].guards.push_back({std::move(edge), 16});
    m.store(m.reduce(Monoid::kMax, m.load_access(in)), kF32, {8, 0, 1});
    return m.k;
  };
  const auto slide = [](const Kernel& k) { return slides(k, k.accesses[0]); };
  EXPECT_TRUE(slide(pool(2, {-1, {0, 1, 2}})));
  EXPECT_TRUE(slide(pool(1, {-1, {0, 1, 1}})));
  EXPECT_TRUE(slide(pool(2, {-1, {1, 0, 0}}))) << "an edge of the other axis is the same for the whole line";
  EXPECT_FALSE(slide(pool(2, {-1, {0, 1, 1}}))) << "the edge moves half as fast";
  EXPECT_FALSE(slide(pool(2, {-1, {0, 2, 2}})));
  EXPECT_FALSE(slide(pool(2, {-1, {0, 0, 2}})));
  EXPECT_FALSE(slide(pool(1, {-1, {1, 0, 0}}))) << "an ordinary contiguous load";
}

// Every function of a number, stored: what waits for the rest of its word fills the registers.
KernelMaker many_results(uint8_t dtype, int results) {
  const Kind kind = dtype == kF64 ? Kind::kF64 : Kind::kF32;
  KernelMaker m;
  m.outer(1 << 20).inner(512);
  const int32_t x = m.load(dtype, {512, 1});
  for (int i = 0; i < results; ++i) m.store(m.op(Prim::kAdd, x, m.real(i, kind)), dtype, {512, 1});
  m.store(m.op(Prim::kLt, x, m.real(0, kind)), kBool, {512, 1});
  return m;
}

// A row of that many operands, all of which a second pass reads.
KernelMaker norm_of(int operands, int64_t rows, int64_t length) {
  KernelMaker m;
  m.outer(rows).inner(length);
  int32_t sum = m.load(kF32, {length, 1}), apart = sum;
  for (int i = 1; i < operands; ++i) {
    const int32_t x = m.load(kF32, {length, 1});
    sum = m.op(Prim::kMaximum, sum, x), apart = m.op(Prim::kMul, apart, x);
  }
  const int32_t most = m.reduce(Monoid::kMax, sum);
  m.store(m.op(Prim::kSub, apart, most), kF32, {length, 1});
  return m;
}

// Of AMD's (rocm/target.def) and, in blocks of 1024, of NVIDIA's devices.
constexpr int kRegisters[] = {64 << 10, 96 << 10, 128 << 10};

TEST(Schedule, KernelsHaveRoomInRegisters) {
  std::vector<Kernel> kernels;
  for (int results : {1, 8, 26, 60})
    for (uint8_t dtype : {kF32, kF64}) kernels.push_back(many_results(dtype, results).k);
  for (int operands : {1, 2, 3, 6})
    for (int64_t length : {100, 5000, 16384, 32768})
      for (int64_t rows : {3, 1 << 14}) kernels.push_back(norm_of(operands, rows, length).k);
  for (int registers : kRegisters)
    for (int most_threads : {256, 512, 1024}) {
      GpuFacts facts;
      facts.registers = registers, facts.max_row_threads = most_threads;
      for (const Kernel& k : kernels) {
        const Schedule s = choose_schedule(k, facts);
        EXPECT_LE(registers_needed(k, s), registers_of_thread(facts, s.threads))
            << describe_schedule(k, s) << " of " << registers << ", " << k.accesses.size() << " accesses";
      }
    }
}

TEST(Schedule, TooManyResultsAreTakenInNarrowerPieces) {
  GpuFacts facts;
  const Kernel wide = many_results(kF64, 26).k, narrow = many_results(kF32, 4).k;
  EXPECT_EQ(choose_schedule(wide, facts).vec, 8) << "where nobody says how many registers there are";
  EXPECT_GT(registers_needed(wide, choose_schedule(wide, facts)), 400) << "26 doubles for each of 8 elements";
  facts.registers = 64 << 10;
  EXPECT_EQ(choose_schedule(wide, facts).vec, 2);
  EXPECT_EQ(choose_schedule(narrow, facts).vec, 8) << "a kernel that has room is laid out as before";
}

TEST(Schedule, RowsThatHaveNoRoomAreReadAgain) {
  GpuFacts facts;
  const Kernel one = norm_of(1, 1 << 14, 16384).k, many = norm_of(6, 1 << 14, 16384).k;
  EXPECT_GT(choose_schedule(many, facts).chunks, 0);
  facts.registers = 64 << 10, facts.max_row_threads = 512;
  const Schedule kept = choose_schedule(one, facts), again = choose_schedule(many, facts);
  EXPECT_EQ(kept.chunks * kept.vec * kept.group, 16384);
  EXPECT_EQ(again.chunks, 0) << "six operands of 32 elements each";
  EXPECT_EQ(again.vec, 4) << "narrower pieces would not help";
}

TEST(Schedule, AThreadHasItsShareOfTheRegisters) {
  GpuFacts facts;
  EXPECT_EQ(registers_of_thread(facts, 1024), INT_MAX);
  facts.registers = 96 << 10;
  EXPECT_EQ(registers_of_thread(facts, 1024), 96);
  EXPECT_EQ(registers_of_thread(facts, 512), 192);
  EXPECT_EQ(registers_of_thread(facts, 64), 255) << "what an instruction can name";
}

// Windows of a pool: each pixel's rows are at half of its own place, kept inside.
struct Windows : KernelMaker {
  int32_t at = -1;
  uint32_t in = 0;
  Windows(int64_t pixels, int64_t windows, double last, bool of_memory = false) {
    outer(pixels).inner(64);
    const int32_t half = op(Prim::kFloor, op(Prim::kMul, convert(coord(0), Kind::kF32), real(0.5)));
    const int32_t own = op(Prim::kSub, half, of_memory ? load(kF32, {1, 0}) : real(1));
    at = convert(op(Prim::kMinimum, op(Prim::kMaximum, own, real(0)), real(last)), Kind::kI64);
    in = access(buffer(kF32), {0, 1});
    k.accesses[in].indirects.push_back({at, 64, windows});
    store(load_access(in), kF32, {64, 1});
    find_inside(k);
  }
  bool is_inside() const { return k.accesses[in].indirects[0].inside; }
};

TEST(Bounds, AnIndexOfCoordinatesThatIsHeldInsideNeedsNoCheck) {
  EXPECT_TRUE(Windows(1000, 300, 299).is_inside());
  EXPECT_FALSE(Windows(1000, 300, 300).is_inside()) << "one too many";
  EXPECT_TRUE(Windows(600, 300, 1e6).is_inside()) << "no coordinate is so far";
  EXPECT_FALSE(Windows(604, 300, 1e6).is_inside());
  EXPECT_FALSE(Windows(1000, 300, 299, true).is_inside()) << "what memory holds may be no number";
  EXPECT_NE(structure_key(Windows(1000, 300, 299).k), structure_key(Windows(1000, 299, 299).k)) << "it is compiled in";
  EXPECT_EQ(structure_key(Windows(1000, 300, 299).k), structure_key(Windows(500, 301, 299).k));
}

TEST(Bounds, IntegersOfMemoryThatAreHeldInsideNeedNoCheck) {
  for (const int64_t last : {7, 8}) {
    KernelMaker m;
    m.outer(10).inner(64);
    const int32_t index = m.load(kI64, {1, 0});
    const uint32_t in = m.access(m.buffer(kF32), {0, 1});
    m.k.accesses[in].indirects.push_back({m.op(Prim::kMinimum, m.op(Prim::kMaximum, index, m.whole(0)), m.whole(last)), 64, 8});
    m.store(m.load_access(in), kF32, {64, 1});
    find_inside(m.k);
    EXPECT_EQ(m.k.accesses[in].indirects[0].inside, last == 7);
  }
}

TEST(Bounds, OfArithmetic) {
  KernelMaker m;
  m.outer(5).inner(64);
  const int32_t c = m.coord(0);
  const auto bounds = [&](int32_t node) {
    const Bounds b = bounds_of(m.k)[node];
    return std::pair(b.low, b.high);
  };
  EXPECT_EQ(bounds(m.op(Prim::kSub, m.whole(2), c)), std::pair(-2.0, 2.0));
  EXPECT_EQ(bounds(m.op(Prim::kMul, c, m.op(Prim::kNeg, c))), std::pair(-16.0, 0.0)) << "as if they were of two";
  EXPECT_EQ(bounds(m.op(Prim::kSelect, m.op(Prim::kLt, c, m.whole(2)), c, m.whole(9))), std::pair(0.0, 9.0));
  EXPECT_EQ(bounds(m.op(Prim::kAdd, m.load(kI64, {1, 0}), c)).first, -INFINITY);
  EXPECT_EQ(bounds(m.real(55 - 1e-12)), std::pair(55.0, 55.0)) << "in 32 bits";
  EXPECT_GE(bounds(m.convert(m.real(55 - 1e-12, Kind::kF64), Kind::kF32)).second, 55);
  const auto [low, high] = bounds(m.op(Prim::kMul, m.convert(c, Kind::kF32), m.real(0.1)));
  EXPECT_LE(low, 0);
  EXPECT_NEAR(high, 0.4, 1e-5);
  EXPECT_GE(high, 0.4) << "with what rounding adds";
}

// Rows whose index is read from memory are asked for several at once. A computed index is not a reason to hold registers for that.
TEST(Schedule, SeveralRowsAreAskedForAtOnceWhereTheirIndicesComeFromMemory) {
  EXPECT_EQ(choose_schedule(Windows(1 << 20, 1 << 19, (1 << 19) - 1).k, {}).chunks, 0);
  EXPECT_EQ(choose_schedule(Windows(1 << 20, 1 << 19, (1 << 19) - 1, true).k, {}).chunks, 4);
}

// Equal keys share code: what is compiled in must be told apart, what is an argument must not.
TEST(Structure, WhatIsCompiledInTellsKernelsApart) {
  const auto padded = [](int64_t length, double fill, bool guarded) {
    KernelMaker m;
    m.outer(3).inner(length);
    const uint32_t in = m.access(m.buffer(kF32), {length, 1}, -1);
    if (guarded) m.k.accesses[in].guards.push_back({{-1, {0, 1}}, length - 2});
    m.k.accesses[in].fill = fill;
    m.store(m.load_access(in), kF32, {length, 1});
    return structure_key(m.k);
  };
  EXPECT_NE(padded(10, 0, true), padded(10, -INFINITY, true)) << "what stands outside";
  EXPECT_NE(padded(10, 0, true), padded(10, 0, false));
  EXPECT_EQ(padded(10, 0, true), padded(12, 0, true)) << "sizes are arguments";
  EXPECT_EQ(padded(10, 0, false), padded(10, 1, false)) << "nothing is outside";
}

}  // namespace
}  // namespace keirin::test
