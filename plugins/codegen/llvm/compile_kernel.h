// SPDX-License-Identifier: Apache-2.0
//
// Kernel -> relocatable object bytes. A Compiler holds LLVM's machine for one target and serves one thread; a process may have
// several. It throws std::runtime_error when LLVM refuses, which is a defect of the emitter.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "plugins/codegen/kernel/loops.h"
#include "plugins/codegen/llvm/cpu_target.h"

namespace keirin::codegen::native {

// Makes LLVM's code generator for this machine known; needed before compiling and before linking objects from a cache.
void register_targets();

class Compiler {
 public:
  explicit Compiler(CpuTarget target);
  ~Compiler();
  // `name` becomes the symbol. `ir`, if given, receives the optimised module as text.
  std::vector<uint8_t> compile(const Kernel& kernel, const std::string& name, std::string* ir = nullptr);

 private:
  struct Machine;
  CpuTarget target_;
  std::unique_ptr<Machine> machine_;
};

}  // namespace keirin::codegen::native
