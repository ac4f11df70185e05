// SPDX-License-Identifier: Apache-2.0
//
// What a case's scenario times: calls of a model that is warm, or a part of what a new process takes before it has answered once. One
// table, of which cases get their scenarios, samples their measures, and cells their statistics.
#pragma once

#include <string>
#include <string_view>

#include "core/tune/stats.h"

namespace keirin::tools::matrix {

struct Measure {
  std::string_view scenario;  // of a case; of calls: any that none of the others has
  std::string_view sample;    // in records of kind `sample`: nanoseconds
  size_t slots;               // of a block, a side
  Protocol protocol;
};
inline constexpr Measure kCallTimes{"", "latency_ns", 2, kCalls};
// Of one process on an empty cache, one after the other.
inline constexpr Measure kStartTimes[] = {
    {"cold-start", "start_ns", 1, kStarts},      // until it can be asked: the program and LibTorch are loaded
    {"cold-compile", "compile_ns", 1, kStarts},  // until the model answers: plugins found, file read, compiled, verified; no race
    {"cold-call", "first_call_ns", 1, kStarts},  // the first call
};

// Of a case's text, from anywhere.
const Measure& measure_of(std::string_view item);
inline bool is_start(std::string_view item) { return !measure_of(item).scenario.empty(); }

}  // namespace keirin::tools::matrix
