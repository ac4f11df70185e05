// SPDX-License-Identifier: Apache-2.0
//
// keirin-worker: the process in which a plugin is looked at, so that its crash or hang costs a verdict and not the service.
// Started by the host only: the request is standard input, the answer goes to descriptor 3. It knows no LibTorch.
#include <sys/prctl.h>
#include <sys/resource.h>

#include <csignal>
#include <cstdio>
#include <string_view>

#include "core/host/probe.h"

int main(int argc, char** argv) {
  if (argc != 2 || std::string_view(argv[1]) != "probe") {
    std::fprintf(stderr, "keirin-worker is started by Keirin itself; see `keirin plugins --why`\n");
    return 2;
  }
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // no orphan if the host dies
  const rlimit no_core{0, 0};
  ::setrlimit(RLIMIT_CORE, &no_core);
  return keirin::serve_probe(0, 3);
}
