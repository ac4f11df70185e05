// SPDX-License-Identifier: Apache-2.0
//
// The role of keirin-worker that worker mode starts: what it answers to is in compile_words.h (load, drop) and channel.h (a run is a
// number).
#pragma once

namespace keirin {

// The worker of worker mode: answers on `channel` until it closes. Returns the exit status.
int serve_run(int channel);

}  // namespace keirin
