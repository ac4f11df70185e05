// SPDX-License-Identifier: Apache-2.0
#include "cuda/cublaslt.h"

#include <dlfcn.h>

namespace keirin::cuda {
namespace {

struct Opened {
  CublasLt table;
  std::string why_not;
  bool ok = false;

  Opened() {
    void* library = nullptr;
    // LibTorch's own copy first: it is loaded already and its version is the one eager uses.
    for (int flags : {RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD, RTLD_NOW | RTLD_LOCAL})
      for (const char* name : {"libcublasLt.so.13", "libcublasLt.so.12"})
        if (!library) library = dlopen(name, flags);
    if (!library) {
      why_not = "libcublasLt is not installed";
      return;
    }
#define KRN_LOAD(name, ...)                                                   \
  table.name = reinterpret_cast<decltype(table.name)>(dlsym(library, #name)); \
  if (!table.name) {                                                          \
    why_not = "this cuBLASLt lacks " #name;                                   \
    return;                                                                   \
  }
    KRN_CUBLASLT(KRN_LOAD)
#undef KRN_LOAD
    if (table.cublasLtCreate(&table.handle) != 0) {
      why_not = "cublasLtCreate failed";
      return;
    }
    ok = true;
  }
};

}  // namespace

const CublasLt* CublasLt::get(std::string& why_not) {
  static const Opened opened;
  why_not = opened.why_not;
  return opened.ok ? &opened.table : nullptr;
}

}  // namespace keirin::cuda
