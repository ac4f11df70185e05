// SPDX-License-Identifier: Apache-2.0
//
// F: answers, on operators whose right answer needs no oracle. What every operator should give is the sheet's (tests/conformance).
#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/certify/trial.h"

namespace keirin::certify {
namespace {

void runs(Trial& t) { t.try_once(t.base()); }

void all_sizes(Trial& t) {
  for (int64_t n = 1; n <= (t.request().quick ? 40 : 140); ++n) {
    const Region region = region_of(t.row(), Dims{n});
    if (t.claims(region)) t.try_once(region);
  }
}

void large(Trial& t) { t.try_once(t.sized({300, 1000})); }
void empty(Trial& t) { t.try_once(t.sized({3, 0, 2})); }
void no_dimension(Trial& t) { t.try_once(t.sized({})); }

const Region& strided(Trial& t, const Type& in, const Type& out, const char* what) { return t.claimed(region_of(t.row(), in, out), what); }

void strided_input(Trial& t) { t.try_once(strided(t, f32({8, 12}, {1, 8}), f32({8, 12}), "an input in another order")); }
void gaps_in_input(Trial& t) { t.try_once(strided(t, f32({8, 12}, {40, 3}), f32({8, 12}), "an input with gaps")); }
void expanded_input(Trial& t) { t.try_once(strided(t, f32({8, 12}, {0, 1}), f32({8, 12}), "an input that repeats its rows")); }
void strided_output(Trial& t) { t.try_once(strided(t, f32({8, 12}), f32({8, 12}, {1, 8}), "an output in another order")); }
void unaligned(Trial& t) { t.try_once(t.sized({5, 13}), Place::kShifted, Place::kShifted); }

void specials(Trial& t) {
  const Region& region = t.sized({61});
  krn_exec* const exec = t.make(region);
  Arguments arguments(region, t.needs(exec));
  using L = std::numeric_limits<float>;
  const float values[] = {L::quiet_NaN(), L::infinity(), -L::infinity(), -0.0f, 0.0f, L::max(), -L::max(), 1, -1};
  arguments.feed(region.row, [&](int64_t i) { return values[static_cast<size_t>(i) % std::size(values)]; });
  t.run(exec, arguments.ready());
  arguments.expect_right();
}

void repeats(Trial& t) {
  const Region& region = t.base();
  krn_exec* const exec = t.make(region);
  Arguments arguments(region, t.needs(exec));
  for (int i = 0; i < 100; ++i) {
    arguments.feed(region.row, 1);
    t.run(exec, arguments.ready());
    try {
      arguments.expect_right();
    } catch (const Failed& failed) {
      fail("run {}: {}", i + 1, failed.what);
    }
  }
}

void other_values(Trial& t) {
  const Region& region = t.sized({6, 4});
  krn_exec* const exec = t.make(region);
  Arguments arguments(region, t.needs(exec));
  for (const int seed : {1, 2}) {
    arguments.feed(region.row, seed);
    t.run(exec, arguments.ready());
    arguments.expect_right();
  }
}

void other_addresses(Trial& t) {
  const Region& region = t.sized({4, 6});
  krn_exec* const exec = t.make(region);
  const krn_needs needs = t.needs(exec);
  Arguments first(region, needs), second(region, needs);
  first.feed(region.row, 1);
  second.feed(region.row, 2);
  t.run(exec, first.ready());
  first.expect_right();
  t.run(exec, second.ready());
  second.expect_right();
  first.expect_right();
}

void compiled_again(Trial& t) {
  for (int i = 0; i < 6; ++i) {
    try {
      t.try_once(t.base());
    } catch (const Failed& failed) {
      fail("compiled for the {}. time: {}", i + 1, failed.what);
    }
  }
}

// Sums of products of eighths are exact in f32 at these sizes.
struct Weighted {
  const Region& region;
  krn_exec* exec = nullptr;
  std::unique_ptr<Arguments> arguments;

  Weighted(Trial& t, const Region& of, int seed) : region(of) {
    // Weights lie where they are while compiling and at every run.
    arguments = std::make_unique<Arguments>(region, krn_needs{});
    arguments->feed(region.row, seed);
    (void)arguments->ready();
    t.host.weights = {{0, arguments->in[1]}, {1, arguments->in[2]}};
    exec = t.make(region);
    arguments->give_workspace(t.needs(exec));
  }
  void check(Trial& t) {
    t.run(exec, arguments->ready());
    arguments->expect_right();
  }
};

void weights(Trial& t) {
  const Region& region = t.claimed(linear_region(5, 8, 6), "a product with weights");
  Weighted(t, region, 1).check(t);
}

void other_weights(Trial& t) {
  const Region& region = t.claimed(linear_region(4, 8, 6), "a product with weights");
  Weighted one(t, region, 1), other(t, region, 2);
  one.check(t);
  other.check(t);
  one.check(t);
}

constexpr Check kChecks[] = {
    {"F/run", "gives the right answer", Rung::kCompiled, runs, Rung::kRan},
    {"F/all_sizes", "gives it at every size", Rung::kAllSizes, all_sizes},
    {"F/large", "gives it for a large tensor", Rung::kRan, large},
    {"F/empty", "gives it for a tensor without elements", Rung::kRan, empty},
    {"F/no_dimension", "gives it for a tensor without dimensions", Rung::kRan, no_dimension},
    {"F/strided_input", "walks an input by its strides", Rung::kRan, strided_input},
    {"F/gaps_in_input", "walks over gaps in an input", Rung::kRan, gaps_in_input},
    {"F/expanded_input", "walks an input that repeats itself", Rung::kRan, expanded_input},
    {"F/strided_output", "writes an output by its strides", Rung::kRan, strided_output},
    {"F/unaligned", "takes memory that is aligned to one element", Rung::kRan, unaligned},
    {"F/specials", "keeps NaN, infinities and -0", Rung::kRan, specials},
    {"F/repeats", "gives the same in every run", Rung::kRan, repeats},
    {"F/other_values", "looks at its inputs in every run", Rung::kRan, other_values},
    {"F/other_addresses", "goes where the run's tensors are", Rung::kRan, other_addresses},
    {"F/compiled_again", "gives the same from every compile", Rung::kRan, compiled_again},
    {"F/weights", "multiplies by its weights", Rung::kRan, weights},
    {"F/other_weights", "knows two executables' weights apart", Rung::kRan, other_weights},
};

}  // namespace

std::span<const Check> numerics_checks() { return kChecks; }

}  // namespace keirin::certify
