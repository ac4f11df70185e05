// SPDX-License-Identifier: Apache-2.0
//
// K: what the host pays per call. The bars are ten times the contract's figures, of the quickest of many: a slow machine passes, a plugin
// that waits, allocates or looks things up in each call does not.
#include <dlfcn.h>
#include <stdlib.h>

#include <algorithm>
#include <chrono>

#include "core/ops/builder.h"
#include "tests/certify/trial.h"

namespace {
thread_local int64_t g_allocations = 0;
}

// In front of the C library's, for everything in this process: how often the thread asked for memory.
extern "C" {
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* malloc(size_t size) noexcept {
  ++g_allocations;
  return __libc_malloc(size);
}
void* calloc(size_t n, size_t size) noexcept {
  ++g_allocations;
  return __libc_calloc(n, size);
}
void* realloc(void* p, size_t size) noexcept {
  ++g_allocations;
  return __libc_realloc(p, size);
}
}

namespace keirin::certify {
namespace {

using Clock = std::chrono::steady_clock;

// Of the quickest of `groups` groups of calls, one call's.
double quickest_us(int groups, int calls, const std::function<void()>& call) {
  double best = 1e9;
  for (int g = 0; g < groups; ++g) {
    const auto begin = Clock::now();
    for (int i = 0; i < calls; ++i) call();
    best = std::min(best, std::chrono::duration<double, std::micro>(Clock::now() - begin).count() / calls);
  }
  return best;
}

void needs_is_quick(Trial& t) {
  krn_exec* const exec = t.make(t.base());
  const krn_exec_table& table = t.exec();
  const double us = quickest_us(20, 20, [&] {
    auto out = make_struct<krn_needs>();
    (void)table.needs(exec, nullptr, 0, &out, nullptr);
  });
  expect(us < 100, "krn.exec.needs takes {:.1f} us; it has 10", us);
}

void run_is_quick(Trial& t) {
  const Region& region = t.sized({8});
  krn_exec* const exec = t.make(region);
  Arguments arguments(region, t.needs(exec));
  arguments.feed(region.row, 1);
  const krn_exec_table& table = t.exec();
  const krn_run& run = arguments.ready();
  const double us = quickest_us(50, 20, [&] { (void)table.run(exec, &run, nullptr); });
  expect(us < 50, "a run on 8 elements takes {:.1f} us; around its work it has 5", us);
}

void run_allocates_nothing(Trial& t) {
  const Region& region = t.base();
  krn_exec* const exec = t.make(region);
  Arguments arguments(region, t.needs(exec));
  arguments.feed(region.row, 1);
  const krn_exec_table& table = t.exec();
  const krn_run& run = arguments.ready();
  for (int i = 0; i < 20; ++i) (void)table.run(exec, &run, nullptr);
  // The least of a few times fifty: a GPU's driver may let its queue grow now and then.
  int64_t least = INT64_MAX;
  for (int k = 0; k < (Gpu::here() ? 5 : 1); ++k) {
    const int64_t before = g_allocations;
    for (int i = 0; i < 50; ++i) (void)table.run(exec, &run, nullptr);
    least = std::min(least, g_allocations - before);
    if (Gpu::here()) Gpu::here()->wait("after fifty runs");
  }
  expect(least == 0, "each run allocates memory {:.1f} times", static_cast<double>(least) / 50);
}

void claims_of_large_graphs(Trial& t) {
  Region region;
  Builder builder(region.graph);
  const OpCode row = t.row();
  ValueId x = region.graph.add_input(f32({4}), 0);
  constexpr int kNodes = 4000;
  for (int i = 0; i < kNodes; ++i) {
    ValueIds operands{x};
    if (row == OpCode::k_add || row == OpCode::k_mul) operands.push_back(x);
    x = *builder.emit1(row, operands);
  }
  region.graph.outputs.push_back({x, kNone, kNone});
  region.bytes = *write_region(region.graph);
  const auto begin = Clock::now();
  (void)t.claim(region);
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  expect(seconds < 3, "claiming of {} nodes takes {:.1f} s", kNodes, seconds);
}

constexpr Check kChecks[] = {
    {"K/needs_is_quick", "says in no time what a run needs", Rung::kCompiled, needs_is_quick},
    {"K/run_is_quick", "adds little to the work of a run", Rung::kRan, run_is_quick},
    {"K/run_allocates_nothing", "allocates nothing in a run", Rung::kRan, run_allocates_nothing},
    {"K/claims_of_large_graphs", "claims of a large graph in seconds", Rung::kClaimed, claims_of_large_graphs},
};

}  // namespace

std::span<const Check> cost_checks() { return kChecks; }

}  // namespace keirin::certify
