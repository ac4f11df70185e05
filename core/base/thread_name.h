// SPDX-License-Identifier: Apache-2.0
//
// What `top -H` and debuggers call a thread of ours. The threads that it starts are called the same, a team of OpenMP's, too.
#pragma once

#include <pthread.h>

namespace keirin {

// Of this thread; at most 15 characters.
inline void name_thread(const char* name) { ::pthread_setname_np(::pthread_self(), name); }

}  // namespace keirin
