// SPDX-License-Identifier: Apache-2.0
#include "core/host/background.h"

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

}  // namespace keirin
