// SPDX-License-Identifier: Apache-2.0
//
// keirin-worker: the process in which a plugin is looked at ("probe"), compiles ("compile") and, in worker mode, runs ("run"), so that
// its crash or hang costs a verdict, an attempt or a call's time and not the service. Started by the host only; descriptor 3 is the way
// back. It knows no LibTorch.
#include <sys/prctl.h>
#include <sys/resource.h>

#include <csignal>
#include <cstdio>
#include <string_view>

#include "core/host/find/probe.h"
#include "core/host/worker/compile_server.h"
#include "core/host/worker/confine.h"
#include "core/host/worker/run_server.h"

int main(int argc, char** argv) {
  constexpr int kChannel = 3;
  const std::string_view role = argc == 2 ? argv[1] : "";
  const rlimit no_core{0, 0};
  ::setrlimit(RLIMIT_CORE, &no_core);
  if (role == "probe") {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // no orphan if the host dies
    return keirin::serve_probe(0, kChannel);
  }
  // The probe opens each device first, unconfined: a driver may start a helper of its own with another user's rights for that, which a
  // confined process could not give it.
  (void)keirin::confine_to_this_process();
  // These outlive the thread that started them, so the signal above would come too early: they watch their channel.
  if (role == "compile") return keirin::serve_compile(kChannel);
  if (role == "run") return keirin::serve_run(kChannel);
  std::fprintf(stderr, "keirin-worker is started by Keirin itself; see `keirin plugins --why`\n");
  return 2;
}
