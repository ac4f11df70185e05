// SPDX-License-Identifier: Apache-2.0
//
// For stand-ins of libraries, which do their work within the call: they wait first for what streams were given before. Does nothing in a
// process without the emulated HIP.
#pragma once

#include <dlfcn.h>

namespace keirin::standin {

inline void wait_for_streams() {
  static const auto wait = [] {
    void* const hip = ::dlopen("libamdhip64.so.7", RTLD_NOW | RTLD_NOLOAD);
    return hip ? reinterpret_cast<int (*)()>(::dlsym(hip, "hipDeviceSynchronize")) : nullptr;
  }();
  if (wait) (void)wait();
}

}  // namespace keirin::standin
