// SPDX-License-Identifier: Apache-2.0
//
// Which of the library's algorithms a product gets. The library's first guess is often not its best for small or odd products, so
// its guesses are timed once, on scratch memory and a stream of our own, with cold caches as weights are met in a model. What it
// is not: a search of our own; only what the library proposes takes part. A choice is remembered by problem in the process's
// store of code and travels with artifacts, so that a warm start times nothing.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "plugins/gpu/lt_library.h"

namespace keirin::gpu {

struct Product {
  lt::Desc desc = nullptr;
  lt::Layout a = nullptr, b = nullptr, c = nullptr, d = nullptr;  // the library's own A and B
  size_t a_bytes = 0, b_bytes = 0, c_bytes = 0, d_bytes = 0, bias_bytes = 0;  // no C: it is not added
  bool f64 = false;
};

struct Choice {
  lt::Algo algo{};
  uint64_t workspace_bytes = 0;
  int32_t place = 0;         // among the library's guesses
  float microseconds = 0;    // 0: not timed
};

// `problem` names it for good: everything that the library's answer depends on but its version, which is added. `such_sizes` names what is
// alike in it and in problems whose best algorithms are, as a rule, the same.
struct Keys {
  std::string problem, such_sizes;
};

// Without memory for scratch: the library's first guess.
Choice choose_algorithm(const lt::Table& api, const Keys& keys, const Product& product, std::span<const lt::Guess> found);
// The library's first guess; nothing where it has none. `ask` for it takes a tenth of a millisecond, and the layers of a model ask alike.
std::optional<lt::Guess> first_algorithm(const lt::Table& api, const Keys& keys, const std::function<std::vector<lt::Guess>()>& ask);
// What a problem of such sizes has, if there was one and `checked` gives it back for this one.
std::optional<lt::Guess> algorithm_like_others(const lt::Table& api, const Keys& keys,
                                               const std::function<std::optional<lt::Guess>(const lt::Guess&)>& checked);

}  // namespace keirin::gpu
