// SPDX-License-Identifier: Apache-2.0
//
// Texts of kernels by the host's C++ compiler: a library of their own, and what the emulator needs of it (blocks.h).
#pragma once

#include <span>
#include <string>
#include <vector>

#include "tests/emulator/blocks.h"

namespace keirin::test {

// With $CXX or c++. Empty with the compiler's words in `error`.
std::vector<char> compile_for_host(const std::string& text, std::string& error);

// A library that stays loaded. The text defines krn_host, krn_wave, and krn_shared: where what its blocks share begins and ends.
class HostCode {
 public:
  // `error` receives the loader's words on failure.
  HostCode(const std::vector<char>& code, std::string& error);
  HostCode(const HostCode&) = delete;
  void* symbol(const std::string& name) const;
  KrnHost& host() const { return *host_; }
  int wave() const { return wave_; }
  std::span<char> shared() const { return shared_; }

 private:
  void* library_ = nullptr;
  KrnHost* host_ = nullptr;
  int wave_ = 0;
  std::span<char> shared_;
};

}  // namespace keirin::test
