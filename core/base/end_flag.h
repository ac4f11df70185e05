// SPDX-License-Identifier: Apache-2.0
//
// How work that nobody waits for any more is ended: it belongs to a thread, the thread has a flag, and whatever takes
// long looks at it between two pieces.
#pragma once

#include <atomic>

namespace keirin {

// The work of this thread is to end as soon as it can once `*flag` is true: its results are nobody's then. The flag
// outlives the thread, or the next call; null: the work is wanted to its end.
void end_when(std::atomic<bool>* flag);
// What this thread was told; null: nothing. Who starts a thread for its work hands it on.
std::atomic<bool>* end_flag();
bool is_to_end();

}  // namespace keirin
