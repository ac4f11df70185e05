// SPDX-License-Identifier: Apache-2.0
//
// G: memory that is not the plugin's stays as it is, memory that is the host's comes back, and memory of its own does not grow.
#include <malloc.h>

#include <algorithm>

#include "tests/certify/trial.h"

namespace keirin::certify {
namespace {

// One run on memory of these kinds, and where it wrote beside it.
std::string output_damage(Trial& t, const Region& region) {
  krn_exec* const exec = t.make(region);
  Arguments arguments(region, t.needs(exec));
  arguments.feed(region.row, 1);
  t.run(exec, arguments.ready());
  return arguments.outputs[0].damage();
}

void output_ends(Trial& t) {
  for (const Dims& sizes : {Dims{8, 16}, Dims{37}, Dims{3, 5, 7}}) {
    const std::string damage = output_damage(t, t.sized(sizes));
    expect(damage != "behind the last element", "it writes behind the last element of an output");
  }
}

void output_begins(Trial& t) {
  for (const Dims& sizes : {Dims{8, 16}, Dims{37}})
    expect(output_damage(t, t.sized(sizes)) != "before the first element", "it writes before the first element of an output");
}

void output_gaps(Trial& t) {
  const Region& region = t.claimed(region_of(t.row(), f32({8, 12}), f32({8, 12}, {16, 1})), "an output with gaps");
  expect(output_damage(t, region) != "between the elements", "it writes between the elements of an output");
}

void reads_to_the_end(Trial& t) {
  for (const Dims& sizes : {Dims{8, 16}, Dims{37}, Dims{3, 5, 7}}) t.try_once(t.sized(sizes), Place::kEndOfPage);
}
void reads_from_the_begin(Trial& t) {
  for (const Dims& sizes : {Dims{8, 16}, Dims{37}}) t.try_once(t.sized(sizes), Place::kBeginOfPage);
}

void inputs_intact(Trial& t) {
  const Region& region = t.base();
  krn_exec* const exec = t.make(region);
  Arguments arguments(region, t.needs(exec)), same(region, t.needs(exec));
  arguments.feed(region.row, 1);
  same.feed(region.row, 1);
  t.run(exec, arguments.ready());
  for (size_t k = 0; k < arguments.inputs.size(); ++k) {
    arguments.inputs[k].fetch();
    for (int64_t i = 0; i < arguments.inputs[k].size(); ++i)
      expect(arguments.inputs[k].get(i) == same.inputs[k].get(i), "it changes element {} of input {}, which it may only read", i, k);
    expect(arguments.inputs[k].damage().empty(), "it writes beside input {}", k);
  }
}

void workspace_bound(Trial& t) {
  const Region& region = t.base();
  krn_exec* const exec = t.make(region);
  Arguments arguments(region, t.needs(exec));
  arguments.feed(region.row, 1);
  t.run(exec, arguments.ready());
  const std::string damage = arguments.workspace->damage();
  expect(damage.empty(), "it writes {} of the workspace, of which it asked for {} bytes", damage, arguments.run.workspace_bytes);
}

void workspace_dirty(Trial& t) {
  const Region& region = t.base();
  krn_exec* const exec = t.make(region);
  Arguments arguments(region, t.needs(exec));
  if (arguments.run.workspace_bytes == 0) throw NotOffered{"it asks for no workspace"};
  arguments.workspace->fill(0xff);
  arguments.feed(region.row, 1);
  t.run(exec, arguments.ready());
  arguments.expect_right();
}

void writes_all(Trial& t) {
  const Region& region = t.sized({9, 15});
  krn_exec* const exec = t.make(region);
  Arguments arguments(region, t.needs(exec));
  arguments.feed(region.row, 1);
  arguments.outputs[0].fill(0xff);
  t.run(exec, arguments.ready());
  arguments.expect_right();
}

void same_argument_twice(Trial& t) {
  const Region region = region_of(OpCode::k_add, Dims{8, 16});
  if (!t.claims(region)) throw NotOffered{"no operator of the probe list with two operands is claimed"};
  krn_exec* const exec = t.make(region);
  Arguments arguments(region, t.needs(exec));
  arguments.feed(region.row, 1);
  arguments.in[1] = arguments.in[0];
  arguments.in[0].flags |= KRN_TENSOR_MAY_ALIAS;
  arguments.in[1].flags |= KRN_TENSOR_MAY_ALIAS;
  for (int64_t i = 0; i < arguments.inputs[0].size(); ++i)
    arguments.expected[static_cast<size_t>(i)] = 2 * arguments.inputs[0].get(i);
  t.run(exec, arguments.ready());
  arguments.expect_right();
}

void no_host_memory(Trial& t) {
  (void)t.base();
  const int64_t before = t.host.allocations;
  t.release(t.make(t.base()));
  const int64_t asked = t.host.allocations - before;
  if (asked == 0) throw NotOffered{"it asks the host for no memory"};
  for (int64_t k = 0; k < std::min<int64_t>(asked, 200); ++k) {
    t.host.fails_at = t.host.allocations + k;
    const krn_region view = t.base().view();
    const krn_policy policy = Trial::policy();
    const krn_options options = Trial::options();
    krn_exec* made = nullptr;
    const krn_code code =
        t.call("krn.compile.compile", [&](krn_err* err) { return t.compile().compile(t.opened(), &view, &policy, &options, &made, err); });
    t.host.fails_at = -1;
    expect(code == KRN_STATUS_ok || code == KRN_STATUS_exhausted, "without memory from the host compile answers {}, not exhausted",
           code_name(code));
    if (code == KRN_STATUS_ok) t.release(made);
  }
  t.try_once(t.base());
}

void gives_host_memory_back(Trial& t) {
  const Region& region = t.base();
  t.try_once(region);
  t.shut_down();
  expect(t.host.live == 0, "after shutdown {} blocks of the host's memory were not given back", t.host.live.load());
}

void closes_weights(Trial& t) {
  const Region region = linear_region(4, 8, 6);
  if (!t.claims(region)) throw NotOffered{"a product with weights is not claimed"};
  Arguments arguments(region, krn_needs{});
  arguments.feed(region.row, 1);
  (void)arguments.ready();
  t.host.weights = {{0, arguments.in[1]}, {1, arguments.in[2]}};
  t.release(t.make(region));
  expect(t.host.weights_open == 0, "it opens weights and leaves {} of them open", t.host.weights_open.load());
}

void allocates_not_while_running(Trial& t) {
  const Region& region = t.base();
  krn_exec* const exec = t.make(region);
  Arguments arguments(region, t.needs(exec));
  arguments.feed(region.row, 1);
  const int64_t before = t.host.device_allocations;
  for (int i = 0; i < 3; ++i) t.run(exec, arguments.ready());
  expect(t.host.device_allocations == before, "run asks for device memory, which is for compiling");
}

size_t in_use() { return ::mallinfo2().uordblks + ::mallinfo2().hblkhd; }

void compiling_keeps_nothing(Trial& t) {
  const Region& region = t.base();
  const auto cycles = [&](int n) {
    for (int i = 0; i < n; ++i) t.release(t.make(region));
  };
  cycles(30);
  const size_t before = in_use();
  const int n = t.request().quick ? 60 : 300;
  cycles(n);
  const auto grown = (static_cast<int64_t>(in_use()) - static_cast<int64_t>(before)) / n;
  expect(grown < 512, "each compile and release of the same region keeps {} bytes", grown);
}

void running_keeps_nothing(Trial& t) {
  const Region& region = t.base();
  krn_exec* const exec = t.make(region);
  Arguments arguments(region, t.needs(exec));
  arguments.feed(region.row, 1);
  const krn_run& run = arguments.ready();
  const auto runs = [&](int n) {
    for (int i = 0; i < n; ++i) expect(t.exec().run(exec, &run, nullptr) == KRN_STATUS_ok, "run {} fails", i);
  };
  runs(2000);
  const size_t before = in_use();
  runs(t.request().quick ? 20000 : 100000);
  const auto grown = static_cast<int64_t>(in_use()) - static_cast<int64_t>(before);
  expect(grown < 16384, "{} bytes of memory are kept by {} runs", grown, t.request().quick ? 20000 : 100000);
}

// Others may have the device as well, and drivers give memory out in pieces of megabytes: the least of three growths, of many calls each.
void keeps_no_device_memory(Trial& t) {
  const Region& region = t.base();
  Gpu* const gpu = Gpu::here();
  if (!gpu) throw NotOffered{"its device is the host, whose memory two other checks watch"};
  if (gpu->free_bytes() == 0) throw NotRun{"the driver does not tell how much of the device's memory is free"};
  krn_exec* const exec = t.make(region);
  Arguments arguments(region, t.needs(exec));
  arguments.feed(region.row, 1);
  const krn_run& run = arguments.ready();
  const int n = t.request().quick ? 60 : 300, m = t.request().quick ? 5000 : 20000;
  const auto calls = [&] {
    for (int i = 0; i < n; ++i) t.release(t.make(region));
    for (int i = 0; i < m; ++i) expect(t.exec().run(exec, &run, nullptr) == KRN_STATUS_ok, "run {} fails", i);
    gpu->wait("after many runs");
  };
  calls();
  int64_t least = INT64_MAX;
  for (int k = 0; k < 3; ++k) {
    const uint64_t before = gpu->free_bytes();
    calls();
    least = std::min(least, static_cast<int64_t>(before) - static_cast<int64_t>(gpu->free_bytes()));
  }
  expect(least < 4 << 20, "{} compiles and {} runs keep {} bytes of the device's memory", n, m, least);
}

constexpr Check kChecks[] = {
    {"G/output_ends", "writes nothing behind an output", Rung::kRan, output_ends},
    {"G/output_begins", "writes nothing before an output", Rung::kRan, output_begins},
    {"G/output_gaps", "writes nothing between an output's elements", Rung::kRan, output_gaps},
    {"G/reads_to_the_end", "reads nothing behind an input", Rung::kRan, reads_to_the_end},
    {"G/reads_from_the_begin", "reads nothing before an input", Rung::kRan, reads_from_the_begin},
    {"G/inputs_intact", "leaves its inputs as they are", Rung::kRan, inputs_intact},
    {"G/workspace_bound", "keeps to the workspace that it asked for", Rung::kRan, workspace_bound},
    {"G/workspace_dirty", "expects nothing of what the workspace holds", Rung::kRan, workspace_dirty},
    {"G/writes_all", "writes every element of an output", Rung::kRan, writes_all},
    {"G/same_argument_twice", "takes the same memory for two inputs", Rung::kRan, same_argument_twice},
    {"G/no_host_memory", "ends in order where the host has no memory", Rung::kRan, no_host_memory},
    {"G/gives_host_memory_back", "gives the host's memory back", Rung::kRan, gives_host_memory_back},
    {"G/closes_weights", "closes the weights that it opens", Rung::kRan, closes_weights},
    {"G/allocates_not_while_running", "asks for no device memory in run", Rung::kRan, allocates_not_while_running},
    {"G/compiling_keeps_nothing", "keeps no memory of what was released", Rung::kRan, compiling_keeps_nothing},
    {"G/running_keeps_nothing", "keeps no memory of runs", Rung::kRan, running_keeps_nothing},
    {"G/keeps_no_device_memory", "keeps no memory of the device", Rung::kRan, keeps_no_device_memory},
};

}  // namespace

std::span<const Check> memory_checks() { return kChecks; }

}  // namespace keirin::certify
