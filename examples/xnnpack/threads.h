// SPDX-License-Identifier: Apache-2.0
//
// What stands for XNNPACK's thread pool: the host's threads, under the name of the pool that XNNPACK was built for.
#pragma once

#include "abi/plugin.h"

extern "C" {

// XNNPACK hands its address to the functions of threads.cc and never looks inside. They may be called on any thread.
struct pthreadpool {
  const krn_host_threads* table;
  krn_host* host;
  int32_t num_threads;
};
}
