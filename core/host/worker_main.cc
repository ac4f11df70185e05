// SPDX-License-Identifier: Apache-2.0
//
// keirin-worker: the process in which a plugin is looked at ("probe") and in which it compiles ("compile"), so that its crash or
// hang costs a verdict or an attempt and not the service. Started by the host only; descriptor 3 is the way back. It knows no
// LibTorch.
#include <sys/prctl.h>
#include <sys/resource.h>

#include <csignal>
#include <cstdio>
#include <string_view>

#include "core/host/compile_child.h"
#include "core/host/probe.h"

int main(int argc, char** argv) {
  constexpr int kChannel = 3;
  const std::string_view role = argc == 2 ? argv[1] : "";
  const rlimit no_core{0, 0};
  ::setrlimit(RLIMIT_CORE, &no_core);
  if (role == "probe") {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // no orphan if the host dies
    return keirin::serve_probe(0, kChannel);
  }
  // A compile child outlives the thread that started it, so the signal above would come too early: it watches its channel.
  if (role == "compile") return keirin::serve_compile(kChannel);
  std::fprintf(stderr, "keirin-worker is started by Keirin itself; see `keirin plugins --why`\n");
  return 2;
}
