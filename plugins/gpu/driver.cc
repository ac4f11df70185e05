// SPDX-License-Identifier: Apache-2.0
//
// A failed call as an error of the kit, with the vendor's words.
#include "plugins/gpu/driver.h"

#include "plugins/kit/error.h"

namespace keirin::gpu {

void check(const Driver& driver, Result result, const char* what) {
  if (result != 0) throw kit::Error(driver.status_of(result), std::string(what) + ": " + driver.words_of(result));
}

}  // namespace keirin::gpu
