// SPDX-License-Identifier: Apache-2.0
//
// The role of keirin-worker that claims and compiles: what a CompileClient asks it. The questions and answers are in compile_words.h.
#pragma once

namespace keirin {

// Answers questions on `channel` until it closes. Returns the exit status.
int serve_compile(int channel);

}  // namespace keirin
