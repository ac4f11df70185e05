// SPDX-License-Identifier: Apache-2.0
//
// How much the process's resident memory rose at most since the object was made, from the kernel's own high-water mark, which it
// resets. One at a time; other threads of the process count, too. Zero where there is no /proc.
#pragma once

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>

namespace keirin::test {

class PeakMemory {
 public:
  PeakMemory() {
    if (const int fd = ::open("/proc/self/clear_refs", O_WRONLY | O_CLOEXEC); fd >= 0) {
      (void)!::write(fd, "5", 1);
      ::close(fd);
    }
    before_ = read("VmHWM:");
  }
  int64_t risen_bytes() const { return std::max<int64_t>(0, read("VmHWM:") - before_); }

 private:
  static int64_t read(const char* field) {
    char text[4096] = {};
    const int fd = ::open("/proc/self/status", O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 0;
    const ssize_t got = ::read(fd, text, sizeof text - 1);
    ::close(fd);
    const char* at = got > 0 ? ::strstr(text, field) : nullptr;
    return at == nullptr ? 0 : ::strtoll(at + ::strlen(field), nullptr, 10) * 1024;
  }
  int64_t before_ = 0;
};

}  // namespace keirin::test
