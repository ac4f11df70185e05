// SPDX-License-Identifier: Apache-2.0
//
// Tells a forked copy of a process from the process itself. In a copy only the thread that forked goes on: a lock that another one held
// is held for ever, and no plugin may be used. What holds either remembers the count and asks whether it still stands.
#pragma once

#include <cstdint>

#include "core/base/status.h"

namespace keirin {

// How many forks lie between the process that first asked and this one.
uint64_t fork_count();

// The refusal of a copy: eager answers there.
Status forked_copy();

}  // namespace keirin
