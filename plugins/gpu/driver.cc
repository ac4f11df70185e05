// SPDX-License-Identifier: Apache-2.0
//
// Opening what the vendor has, and a failed call as an error of the kit, with the vendor's words.
#include "plugins/gpu/driver.h"

#include <dlfcn.h>

#include "plugins/kit/error.h"

namespace keirin::gpu {

void* open_first(const std::vector<const char*>& names, std::string& why_not) {
  for (int flags : {RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD, RTLD_NOW | RTLD_LOCAL})
    for (const char* name : names)
      if (name && *name)
        if (void* library = dlopen(name, flags)) return library;
  const char* text = dlerror();
  why_not = text ? text : "not found";
  return nullptr;
}

void* find_function(void* library, const char* name, std::string& lacks) {
  void* found = dlsym(library, name);
  if (!found) lacks = name;
  return found;
}

void check(const Driver& driver, Result result, const char* what) {
  if (result != 0) throw kit::Error(driver.status_of(result), std::string(what) + ": " + driver.words_of(result));
}

}  // namespace keirin::gpu
