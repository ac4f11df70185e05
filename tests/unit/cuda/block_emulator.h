// SPDX-License-Identifier: Apache-2.0
//
// Runs printed kernels on a machine without a GPU: the host dialect, compiled by the C++ compiler, on emulated blocks
// (tests/emulator).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "plugins/codegen/kernel/schedule.h"
#include "plugins/codegen/text/c_printer.h"
#include "tests/emulator/host_code.h"

namespace keirin::test {

class HostModule {
 public:
  // Compiles with $CXX or c++; `error` receives the compiler's words on failure.
  HostModule(const std::string& text, std::string& error);
  HostModule(const HostModule&) = delete;
  // One launch; blocks of a cluster run side by side. Returns what went wrong, or nothing.
  std::string launch(const std::string& symbol, int64_t blocks, int threads, const void* sizes, const void* pointers, int cluster = 1);

 private:
  std::unique_ptr<HostCode> code_;
};

// The host dialect with waves of that many threads.
const codegen::Dialect& host_dialect(int wave);
// Sizes in the form a kernel takes them: i32 or i64, splits behind.
std::vector<char> pack_sizes(const codegen::Kernel& kernel, const codegen::Schedule& schedule);

}  // namespace keirin::test
