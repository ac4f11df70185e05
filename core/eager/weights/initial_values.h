// SPDX-License-Identifier: Apache-2.0
//
// Weights and inputs that a file names by rule and does not hold: record extra/keirin_init.json of a .pt2. Element i of
// a tensor is a pure function of (seed, name, i), so the values depend on neither threads nor order, and on no math
// library.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/services.h"
#include "core/base/status.h"

namespace keirin {

inline constexpr char kInitRecord[] = "extra/keirin_init.json";

struct InitRule {
  enum class Kind : uint8_t {
    kNormal,    // a = mean, b = standard deviation; no value further than 3.47 deviations away
    kUniform,   // [a, b)
    kConstant,  // a
    kIntegers,  // whole numbers in [a, b)
    kArange,    // a, a + b, a + 2b, ...
    kEdges      // [2, n] whole numbers in [0, a); b = 1: the last a columns are (0, 0), (1, 1), ...
  };
  Kind kind = Kind::kConstant;
  double a = 0, b = 0;
  int rows_of = -1;  // kEdges: a is the first size of that input, by flat position; -1: it is stated
};

// The rule of input `i` among inputs of these sizes, of which those behind it may be missing; `corrupt` where it names the rows of one that
// is not there or has none.
Result<InitRule> rule_at(const std::vector<InitRule>& rules, size_t i, const std::vector<TensorSpec>& inputs);

struct InitialValues {
  uint64_t seed = 0;
  std::map<std::string, InitRule, std::less<>> tensors;
  std::vector<InitRule> inputs;  // by flat position
};

// `corrupt` with the offending key for anything but the documented form.
Result<InitialValues> parse_initial_values(std::string_view json);

// A new CPU tensor of `spec`, drawn by the rule. The seed of an input is its name, like that of a weight.
Result<TensorRef> draw(TensorServices& services, const TensorSpec& spec, const InitRule& rule, uint64_t seed,
                       std::string_view name);

}  // namespace keirin
