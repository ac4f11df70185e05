// SPDX-License-Identifier: Apache-2.0
//
// The C table of the recording library (symbol `keirin_cuda_graph`). Functions return 0, or 1 with the words in error().
#pragma once

extern "C" struct KeirinCudaGraph {
  unsigned long long size;  // of this table where the library was built: one of another size is of another version, and not used
  void* (*create)(int device);            // null on failure
  unsigned long long (*drawn)(int device);     // how many random numbers its generator has given; grows with each draw
  int (*is_capturing)(int device);             // 1: somebody records what the current stream of this thread is given
  // Makes a capturing stream current on the calling thread. Until `end` other threads can draw random numbers on the device only if what is
  // recorded draws none (draws = 0).
  int (*begin)(void* recording, int device, int draws);
  int (*end)(void* recording, int keep);  // restores the stream; keep = 0: after a failure, the result does not matter
  // The recorded copy between these addresses, or -1; and where it goes and comes from in later replays.
  int (*find_copy)(void* recording, const void* to, const void* from);
  int (*redirect)(void* recording, int copy, void* to, const void* from);
  int (*replay)(void* recording);         // enqueues on the current stream
  void (*destroy)(void* recording);
  const char* (*error)();                 // of the calling thread
};
