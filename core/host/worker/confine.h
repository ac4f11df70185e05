// SPDX-License-Identifier: Apache-2.0
//
// What a worker takes from itself before a plugin's code runs in it: the system calls by which that code could reach other processes of the
// user's, or have what it starts outlive it. Not a sandbox: files and the network stay open, and trust is decided before (find/allowed.h).
#pragma once

namespace keirin {

// From now on, in this process and what it starts: signals go to the process itself and to its group only; no tracing, no access to
// another process's memory, no group or session of one's own; a refused call fails with EPERM. False where the kernel offers no filter,
// or under a sanitizer, which traces itself.
bool confine_to_this_process();

}  // namespace keirin
