// SPDX-License-Identifier: Apache-2.0
//
// Printed kernels on emulated blocks against the interpreter: every case, under every schedule it may get.
#include <gtest/gtest.h>

#include <cstdio>

#include "plugins/codegen/text/c_printer.h"
#include "tests/unit/cuda/block_emulator.h"
#include "tests/unit/cuda/case_runner.h"

namespace keirin::test {
namespace {

using namespace codegen;

std::string run(HostModule& module, const KernelCase& c, const Schedule& s, const std::string& symbol) {
  CaseBuffers buffers(c);
  std::vector<void*> pointers;
  for (Storage& b : buffers.got) pointers.push_back(b.data());
  if (c.kernel.has_csr) {
    pointers.push_back(const_cast<int32_t*>(c.rows.data()));
    pointers.push_back(const_cast<int32_t*>(c.order.data()));
  }
  std::vector<char> workspace(static_cast<size_t>(s.workspace_bytes) + 16, char(0xa5));
  if (s.split) pointers.push_back(workspace.data());
  const std::vector<char> sizes = pack_sizes(c.kernel, s);
  std::string wrong = module.launch(symbol, s.blocks, s.threads, sizes.data(), pointers.data(), s.cluster);
  if (wrong.empty() && s.split) wrong = module.launch(symbol + "_finish", s.finish_blocks, s.threads, sizes.data(), pointers.data());
  for (size_t i = static_cast<size_t>(s.workspace_bytes); i < workspace.size() && s.split; ++i)
    if (workspace[i] != char(0xa5)) wrong = "wrote behind the workspace";
  return wrong.empty() ? buffers.difference(c) : wrong;
}

// By length and threads of a wave.
class PrintedKernels : public testing::TestWithParam<std::tuple<int64_t, int>> {};

TEST_P(PrintedKernels, AgreeWithTheInterpreter) {
  const auto [length, wave] = GetParam();
  GpuFacts facts;
  facts.wave = wave;
  const std::vector<KernelCase> cases = kernel_cases(length);
  const Dialect& dialect = host_dialect(wave);
  std::string text = print_prelude(dialect);
  int number = 0;
  for (const KernelCase& c : cases)
    for (const Schedule& s : schedules_for(c.kernel, true, facts))
      text += print_kernel(c.kernel, s, dialect, "k" + std::to_string(number++));
  std::string error;
  HostModule module(text, error);
  ASSERT_TRUE(error.empty()) << error;
  int splits = 0, kept = 0, shapes[4] = {};
  number = 0;
  for (const KernelCase& c : cases) {
    for (const Schedule& s : schedules_for(c.kernel, true, facts)) {
      EXPECT_EQ(run(module, c, s, "k" + std::to_string(number++)), "") << c.name << ": " << describe_schedule(c.kernel, s);
      splits += s.split, kept += s.chunks > 1, ++shapes[static_cast<int>(s.shape)];
    }
  }
  std::printf("%d kernels: flat %d, row %d (%d keep several pieces), column %d, tile %d, %d of them split\n", number, shapes[0], shapes[1],
              kept, shapes[2], shapes[3], splits);
}

INSTANTIATE_TEST_SUITE_P(Lengths, PrintedKernels, testing::Combine(testing::Values(5, 515), testing::Values(32, 64)),
                         [](const auto& info) {
                           return std::to_string(std::get<0>(info.param)) + "_wave" + std::to_string(std::get<1>(info.param));
                         });

// Rows that are not there, named by an index of whole rows or by one of elements, read or written.
TEST(PrintedKernels, AnIndexOutsideIsRefused) {
  for (const int64_t n : {5, 515})
    for (const bool along : {false, true})
      for (const bool written : {false, true}) {
        KernelMaker m;
        m.outer(6).inner(n);
        const int64_t rows = along ? n : 6, stride = along ? 1 : n;
        const int32_t index = m.op(Prim::kAdd, m.coord(along ? 1 : 0), m.load(kI64, {0, 0}));
        const std::vector<int64_t> rest = along ? std::vector<int64_t>{n, 0} : std::vector<int64_t>{0, 1}, all = {n, 1};
        const uint32_t from = m.access(m.buffer(kF32), written ? all : rest);
        const uint32_t to = m.store(m.load_access(from), kF32, written ? rest : all);
        m.k.accesses[written ? to : from].indirects.push_back({index, stride, rows});
        for (const Schedule& s : schedules_for(m.k)) {
          std::string error;
          HostModule module(print_prelude(kHostDialect) + print_kernel(m.k, s, kHostDialect, "k"), error);
          ASSERT_TRUE(error.empty()) << error;
          for (const auto& [first, wrong] : {std::pair{0, std::string_view()}, {1, kOutOfBounds}, {-1, kOutOfBounds}}) {
            KernelCase c{"", m.k, 0, {}, {}, 1, false};
            CaseBuffers buffers(c);
            for (size_t b = 0; b < buffers.got.size(); ++b)
              if (buffers.got[b].dtype() == kI64) write_element(buffers.got[b].data(), 0, kI64, 0, first);
            std::vector<void*> pointers;
            for (Storage& b : buffers.got) pointers.push_back(b.data());
            const std::vector<char> sizes = pack_sizes(m.k, s);
            EXPECT_EQ(module.launch("k", s.blocks, s.threads, sizes.data(), pointers.data(), s.cluster), wrong)
                << (along ? "along" : "rows") << (written ? " written " : " read ") << first << " " << describe_schedule(m.k, s);
          }
        }
      }
}

TEST(PrintedKernels, NanWinsMaximumAndFirstNanWinsArgmax) {
  KernelMaker m;
  m.outer(1).inner(45);
  const int32_t x = m.load(kF32, {45, 1});
  m.store(m.reduce(Monoid::kMax, x), kF32, {1, 0}, true);
  m.store(m.reduce(Monoid::kArgMax, x), kI64, {1, 0}, true);
  const Schedule s = choose_schedule(m.k, {});
  std::string error;
  HostModule module(print_prelude(kHostDialect) + print_kernel(m.k, s, kHostDialect, "k"), error);
  ASSERT_TRUE(error.empty()) << error;
  std::vector<float> in(45, 1.0f);
  in[17] = in[33] = NAN, in[2] = 5;
  float top = 0;
  int64_t where = -1;
  void* pointers[] = {in.data(), &top, &where};
  const std::vector<char> sizes = pack_sizes(m.k, s);
  ASSERT_EQ(module.launch("k", s.blocks, s.threads, sizes.data(), pointers), "");
  EXPECT_TRUE(std::isnan(top));
  EXPECT_EQ(where, 17);
}

GpuFacts few_threads() {
  GpuFacts facts;
  facts.num_units = 2, facts.threads_per_unit = 64, facts.max_row_threads = 64, facts.max_cluster = 8;
  return facts;
}

std::string run_alone(const KernelCase& c, const Schedule& s) {
  std::string error;
  HostModule module(print_prelude(kHostDialect) + print_kernel(c.kernel, s, kHostDialect, "k"), error);
  return error.empty() ? run(module, c, s, "k") : error;
}

KernelCase softmax_of(uint8_t dtype, int64_t rows, int64_t length) {
  KernelMaker m;
  m.outer(rows).inner(length);
  const int32_t x = m.load(dtype, {length, 1});
  const int32_t e = m.op(Prim::kExp, m.op(Prim::kSub, x, m.reduce(Monoid::kMax, x)));
  m.store(m.op(Prim::kDiv, e, m.reduce(Monoid::kSum, e)), dtype, {length, 1});
  return {"softmax", m.k, 0, {}, {}, 400, false};
}

// Softmax reads such a row once.
TEST(PrintedKernels, RowsThatNoBlockHoldsAreSharedByACluster) {
  for (int64_t length : {3000, 16384}) {
    const KernelCase c = softmax_of(kF32, 3, length);
    const Schedule s = choose_schedule(c.kernel, few_threads());
    EXPECT_EQ(s.cluster, length == 3000 ? 4 : 8);
    EXPECT_EQ(s.full, length == 16384);
    EXPECT_GT(s.chunks, 1);
    EXPECT_EQ(s.blocks % s.cluster, 0);
    EXPECT_EQ(run_alone(c, s), "") << describe_schedule(c.kernel, s);
    GpuFacts no_clusters = few_threads();
    no_clusters.max_cluster = 1;
    EXPECT_EQ(choose_schedule(c.kernel, no_clusters).cluster, 1);
  }
}

// Where a call waits, code serves that was made for sizes which promised less, or for more work.
TEST(PrintedKernels, WhatPromisesLessServesAsWell) {
  const auto served_by = [](const KernelCase& c, const std::function<bool(const Schedule&)>& is_there) {
    const Schedule s = choose_schedule(c.kernel, few_threads(), is_there);
    EXPECT_EQ(run_alone(c, s), "") << describe_schedule(c.kernel, s);
    return s;
  };
  const KernelCase rows = softmax_of(kF32, 64, 256);
  const Schedule best = choose_schedule(rows.kernel, few_threads());
  ASSERT_TRUE(best.full && best.whole);
  const Schedule with_spare = served_by(rows, [](const Schedule& s) { return !s.full; });
  EXPECT_TRUE(with_spare.whole && !with_spare.full && with_spare.vec == best.vec);
  const Schedule with_tails = served_by(rows, [](const Schedule& s) { return !s.whole; });
  EXPECT_FALSE(with_tails.whole || with_tails.full);
  const Schedule narrow = served_by(rows, [&](const Schedule& s) { return s.vec < best.vec; });
  EXPECT_LT(narrow.vec, best.vec);
  EXPECT_EQ(schedule_key(served_by(rows, [](const Schedule&) { return false; })), schedule_key(best)) << "nothing is there";
  // A short tensor, of which each thread takes one element, by code that takes as many as a word holds.
  KernelMaker m;
  m.outer(1).inner(32);
  m.store(m.op(Prim::kExp, m.load(kF32, {32, 1})), kF32, {32, 1});
  const KernelCase few{"few", m.k, 0, {}, {}, 4, false};
  GpuFacts many;
  const Schedule shared = choose_schedule(few.kernel, many);
  const Schedule wide = choose_schedule(few.kernel, many, [&](const Schedule& s) { return s.vec > shared.vec; });
  EXPECT_GT(wide.vec, shared.vec);
  EXPECT_EQ(run_alone(few, wide), "");
}

// While a block works on a row its next one is on its way: where registers leave room for few rows at once.
TEST(PrintedKernels, NextRowsComeAhead) {
  GpuFacts facts;
  facts.num_units = 1, facts.max_cluster = 8, facts.shared_bytes = 128 << 10;
  for (int64_t length : {16384, 16380, 40000}) {
    const KernelCase c = softmax_of(kBf16, 9, length);
    const Schedule s = choose_schedule(c.kernel, facts);
    EXPECT_TRUE(s.ahead) << describe_schedule(c.kernel, s);
    EXPECT_EQ(s.cluster, length == 40000 ? 8 : 1);
    EXPECT_EQ(s.shared_bytes, int64_t{s.threads} * s.chunks * 16);
    EXPECT_LT(s.blocks, 9 * s.cluster) << "a block has several rows";
    EXPECT_EQ(run_alone(c, s), "") << describe_schedule(c.kernel, s);
    facts.shared_bytes = 0;
    EXPECT_FALSE(choose_schedule(c.kernel, facts).ahead) << "nothing comes behind a thread's back here";
    facts.shared_bytes = 128 << 10;
  }
}

// Two operands of a row that fills a block of 1024.
TEST(PrintedKernels, TwoBlocksShareARowOfTwoOperands) {
  GpuFacts facts;
  facts.num_units = 2, facts.max_cluster = 8;
  KernelMaker m;
  m.outer(3).inner(16384);
  const int32_t x = m.op(Prim::kAdd, m.load(kF32, {16384, 1}), m.load(kF32, {16384, 1}));
  m.store(m.op(Prim::kSub, x, m.reduce(Monoid::kMax, x)), kF32, {16384, 1});
  const Schedule s = choose_schedule(m.k, facts);
  EXPECT_EQ(s.cluster, 2);
  EXPECT_EQ(s.threads, 512);
  EXPECT_TRUE(s.full);
  EXPECT_EQ(run_alone({"residual", m.k, 0, {}, {}, 40, false}, s), "") << describe_schedule(m.k, s);
}

// Rows that an index names: a thread asks for four at once.
TEST(PrintedKernels, GathersTakeSeveralRowsAtOnce) {
  KernelMaker m;
  m.outer(5000).inner(64);
  const int32_t index = m.load(kI64, {1, 0});
  const uint32_t table = m.access(m.buffer(kBf16), {0, 1});
  m.k.accesses[table].indirects.push_back({index, 64, 1000});
  m.store(m.load_access(table), kBf16, {64, 1});
  const Schedule s = choose_schedule(m.k, few_threads());
  EXPECT_EQ(s.shape, GpuShape::kFlat);
  EXPECT_EQ(s.chunks, 4);
  EXPECT_EQ(run_alone({"gather", m.k, 1000, {}, {}, 0, false}, s), "") << describe_schedule(m.k, s);
}

// Means of 7 x 7: the rows' starts are not whole words.
TEST(PrintedKernels, ShortRowsGoThroughSharedMemory) {
  for (int64_t length : {48, 49}) {
    KernelMaker m;
    m.outer(1000).inner(length);
    m.store(m.op(Prim::kMul, m.reduce(Monoid::kSum, m.load(kBf16, {length, 1})), m.real(1.0 / 49)), kBf16, {1, 0}, true);
    const KernelCase c{"mean", m.k, 0, {}, {}, 40, false};
    const Schedule s = choose_schedule(m.k, few_threads());
    EXPECT_EQ(s.staged, length == 48 ? 0 : 56) << "whole words need no detour";
    EXPECT_EQ(run_alone(c, s), "") << describe_schedule(m.k, s);
  }
}

// A pool of row-major images loads each line once, under windows of any shape.
TEST(PrintedKernels, WindowsAlongInnerSlide) {
  for (auto [high, wide] : {std::pair<int64_t, int64_t>{3, 3}, {2, 3}, {3, 2}, {1, 4}}) {
    KernelMaker m;
    m.outer(64).outer(8).serial(high).serial(wide).inner(8);
    m.k.column = true;
    const uint32_t in = m.access(m.buffer(kBf16), {256, 32, 16, 1, 2}, -17);
    m.k.accesses[in].guards.push_back({{-1, {0, 2, 1, 0, 0}}, 16});
    m.k.accesses[in].guards.push_back({{-1, {0, 0, 0, 1, 2}}, 16});
    m.k.accesses[in].fill = -INFINITY;
    m.store(m.reduce(Monoid::kMax, m.load_access(in)), kBf16, {64, 8, 0, 0, 1});
    const KernelCase c{"max_pool", m.k, 0, {}, {}, 1, false};
    const Schedule s = choose_schedule(m.k, few_threads());
    EXPECT_EQ(s.slide, 2);
    EXPECT_EQ(s.skew, 7) << "a column of padding before the word";
    EXPECT_EQ(run_alone(c, s), "") << high << " x " << wide << ": " << describe_schedule(m.k, s);
  }
}

// Sizes of small windows are compiled in, those of other serial axes are arguments.
TEST(PrintedKernels, SmallWindowsAreWalkedWithoutADivision) {
  for (int64_t wide : {3, 11}) {
    KernelMaker m;
    m.outer(512).serial(wide).inner(64);
    m.k.column = true;
    m.store(m.reduce(Monoid::kMax, m.load(kF32, {64 * wide, 64, 1})), kF32, {64, 0, 1});
    const Schedule s = choose_schedule(m.k, few_threads());
    const std::string text = print_kernel(m.k, s, kHostDialect, "k");
    EXPECT_EQ(text.find("size1 = " + std::to_string(wide) + ";") != std::string::npos, wide == 3) << text;
    EXPECT_EQ(run_alone({"window", m.k, 0, {}, {}, 1, false}, s), "") << describe_schedule(m.k, s);
  }
}

// Beside 1 the error of the fast erf does not count; alone it does.
TEST(PrintedKernels, TheFastErfStandsBesideOne) {
  const auto uses_it = [](bool one_first, double added, bool stored) {
    KernelMaker m;
    m.outer(4).inner(64);
    const int32_t x = m.load(kF32, {64, 1}), erf = m.op(Prim::kErf, x), one = m.real(added);
    m.store(m.op(Prim::kMul, x, one_first ? m.op(Prim::kAdd, one, erf) : m.op(Prim::kAdd, erf, one)), kF32, {64, 1});
    if (stored) m.store(erf, kF32, {64, 1});
    return print_kernel(m.k, choose_schedule(m.k, {}), kHostDialect, "k").find("krn_erf(") != std::string::npos;
  };
  for (bool one_first : {true, false}) {
    EXPECT_TRUE(uses_it(one_first, 1, false));
    EXPECT_FALSE(uses_it(one_first, 1, true)) << "its own value is a result";
    EXPECT_FALSE(uses_it(one_first, 0, false));
  }
}

TEST(PrintedKernels, NumbersBelowZeroStandWhereverNumbersDo) {
  KernelMaker m;
  m.outer(2).inner(9);
  const int32_t x = m.load(kF32, {9, 1});
  m.store(m.op(Prim::kSub, m.op(Prim::kNeg, m.real(-0.25)), m.op(Prim::kSub, x, m.real(-1.5))), kF32, {9, 1});
  m.store(m.op(Prim::kSub, m.convert(x, Kind::kF64), m.real(-2.5, Kind::kF64)), kF64, {9, 1});
  EXPECT_EQ(run_alone({"below_zero", m.k, 0, {}, {}, 1, false}, choose_schedule(m.k, {})), "");
}

// Full reductions and reductions of few long columns are cut over blocks.
TEST(PrintedKernels, LongReductionsAreSplit) {
  KernelMaker row;
  row.outer(1).inner(300000);
  row.store(row.op(Prim::kMul, row.reduce(Monoid::kSum, row.load(kF32, {0, 1})), row.real(0.5)), kF32, {0, 0}, true);
  row.store(row.reduce(Monoid::kArgMin, row.load(kF32, {0, 1})), kI64, {0, 0}, true);
  KernelMaker column;
  column.outer(1).serial(5000).inner(33);
  column.k.column = true;
  column.store(column.reduce(Monoid::kSum, column.load(kF32, {0, 33, 1})), kF32, {0, 0, 1});
  KernelCase cases[] = {{"row", row.k, 0, {}, {}, 3000, true}, {"column", column.k, 0, {}, {}, 300, true}};
  cases[0].kernel.stages = {cases[0].kernel.stages[0], cases[0].kernel.stages[2], cases[0].kernel.stages[1], cases[0].kernel.stages[3]};
  for (Node& n : cases[0].kernel.dag.nodes)
    if (n.prim == Prim::kScalar && n.imm == 2) n.imm = 1;
  GpuFacts facts;
  facts.num_units = 4, facts.threads_per_unit = 512;
  for (const KernelCase& c : cases) {
    const Schedule s = choose_schedule(c.kernel, facts);
    EXPECT_TRUE(s.split) << c.name;
    EXPECT_GT(s.splits, 1) << c.name;
    std::string error;
    HostModule module(print_prelude(kHostDialect) + print_kernel(c.kernel, s, kHostDialect, "k"), error);
    ASSERT_TRUE(error.empty()) << error;
    EXPECT_EQ(run(module, c, s, "k"), "") << c.name << ": " << describe_schedule(c.kernel, s);
  }
}

// Padding along inner: a piece may lie half outside, and what is outside is neither read nor written.
TEST(PrintedKernels, PiecesThatReachOutsideAreTakenByElements) {
  for (int64_t length : {64, 61}) {
    KernelMaker padded;
    padded.outer(3).inner(length);
    const uint32_t in = padded.access(padded.buffer(kF32), {length - 3, 1}, -1);
    padded.k.accesses[in].guards.push_back({{-1, {0, 1}}, length - 3});
    padded.k.accesses[in].fill = 7;
    padded.store(padded.load_access(in), kF32, {length, 1});
    EXPECT_EQ(run_alone({"padded", padded.k, 0, {}, {}, 0, false}, choose_schedule(padded.k, few_threads())), "") << length;
    KernelMaker part;
    part.outer(3).inner(length);
    const uint32_t out = part.store(part.load(kF32, {length, 1}), kF32, {length, 1});
    part.k.accesses[out].guards.push_back({{-2, {0, 1}}, length - 5});
    EXPECT_EQ(run_alone({"part", part.k, 0, {}, {}, 0, false}, choose_schedule(part.k, few_threads())), "") << length;
  }
}

}  // namespace
}  // namespace keirin::test
