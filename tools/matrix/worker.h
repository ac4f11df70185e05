// SPDX-License-Identifier: Apache-2.0
//
// The words between the matrix and its workers: `keirin matrix-worker` of either side, or a Python process that trains or
// adapts somebody else's compiler (bench/peers/worker), one model in one variant per process, that is asked over a channel
// (core/host/worker/channel.h) and sleeps between questions. A question is {"ask": word, ...}; an answer is an object, or
// {"error": {"code", "what"}}. Both sides may be of different versions of Keirin: a field is added, never renamed. What
// an answer has to hold is checked in side.cc.
//
//   hello  device, package                         -> protocol, parts {name: version or build}
//          (package: where Python finds Keirin, for a case that trains; else empty)
//   open   case, variant, candidate, device,       -> chosen, disturbed, counts {name: number}, fallbacks [text],
//          threads, cache, verify, package, imagine  build_ns, threads, errors {name: number}
//          (candidate: what answers; empty: found by the variant's race. imagine: an instruction set that is compiled for
//          and not here, after which nothing else can be asked; else empty)
//   warm   agree, most_calls, most_ns              -> first_ns, calls, settled, settle_ns, waited_ns (since the process began, while
//                                                    others had the processor), counts {name: number}
//   device                                         -> disturbed (what others do on the device, in words, over its last
//                                                    second: the other side of a pair has slept for longer)
//   slot   fill_ns, least, most_ns                 -> ns [a call; callers at once: their time over all their calls],
//                                                    calls (of one value and caller), lasted_ns, waited_ns,
//          (as many calls as fill it, at least so        stolen_ns, used_ns, disturbed (what else others did, in
//          many unless they take longer than most_ns)    words)
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>

#include "core/exec/report.h"

namespace keirin::tools::matrix {

inline constexpr int kProtocol = 1;
inline constexpr const char* kWorkerWord = "matrix-worker";
inline constexpr int kWorkerChannel = 3;  // descriptor of the worker's end
inline constexpr uint64_t kMaxMessageBytes = 16 << 20;

// Why parts of a model are eager, in words, each once.
nlohmann::json fallbacks_of(const ModelReport& report);
// What is the same in each process that runs the same plan (judge.cc says which of it decides).
nlohmann::json counts_of(const ModelReport& report);

// Answers until the other side is gone. The process's exit code.
int serve();

}  // namespace keirin::tools::matrix
