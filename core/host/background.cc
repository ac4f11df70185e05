// SPDX-License-Identifier: Apache-2.0
#include "core/host/background.h"

#include <limits.h>
#include <malloc.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace keirin {

void give_way() {
  const sched_param none{};
  // Unlike a high nice value, the idle policy never takes a processor from a thread that wakes up.
  if (::sched_setscheduler(0, SCHED_IDLE, &none) == 0) return;
  (void)::setpriority(PRIO_PROCESS, static_cast<id_t>(::syscall(SYS_gettid)), 19);
}

void keep_freed_memory() {
#if defined(__GLIBC__)
  ::mallopt(M_MMAP_MAX, 0);
  ::mallopt(M_TRIM_THRESHOLD, INT_MAX);
  ::mallopt(M_TOP_PAD, 64 << 20);
#endif
}

void give_back_memory() {
#if defined(__GLIBC__)
  ::malloc_trim(0);
#endif
}

}  // namespace keirin
