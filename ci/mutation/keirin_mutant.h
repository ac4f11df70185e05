// SPDX-License-Identifier: Apache-2.0
//
// The switch in front of every mutant that ci/mutate writes into a copy of our sources: on(N) is true where KEIRIN_MUTANT is N. Where
// KEIRIN_MUTANT_REACHED names a file, on(N) also sets byte N of it, from every thread, plugin and child process that asks. It takes no
// memory from the heap and leaves errno alone, because there are tests that count both. No product is ever built with it.
#pragma once

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace keirin_mutant {

inline constinit int chosen = -1;  // 0: none; negative: nobody has asked yet
inline constinit unsigned char* reached = nullptr;
inline constinit long reached_bytes = 0;

[[gnu::noinline, gnu::cold]] inline int look() {
  const int error = errno;
  const char* number = ::getenv("KEIRIN_MUTANT");
  const int found = number == nullptr ? 0 : ::atoi(number);
  if (const char* path = ::getenv("KEIRIN_MUTANT_REACHED")) {
    const int file = ::open(path, O_RDWR | O_CLOEXEC);
    struct stat about {};
    if (file >= 0 && ::fstat(file, &about) == 0) {
      void* map = ::mmap(nullptr, size_t(about.st_size), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
      if (map != MAP_FAILED) {
        reached_bytes = long(about.st_size);
        __atomic_store_n(&reached, static_cast<unsigned char*>(map), __ATOMIC_RELEASE);
      }
    }
    if (file >= 0) ::close(file);
  }
  __atomic_store_n(&chosen, found, __ATOMIC_RELEASE);
  errno = error;
  return found;
}

inline bool on(int number) {
  int now = __atomic_load_n(&chosen, __ATOMIC_ACQUIRE);
  if (now < 0) now = look();
  unsigned char* marks = __atomic_load_n(&reached, __ATOMIC_ACQUIRE);
  if (marks != nullptr && number < reached_bytes && __atomic_load_n(marks + number, __ATOMIC_RELAXED) == 0)
    __atomic_store_n(marks + number, 1, __ATOMIC_RELAXED);
  return now == number;
}

}  // namespace keirin_mutant
