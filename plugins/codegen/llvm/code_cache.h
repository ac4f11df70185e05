// SPDX-License-Identifier: Apache-2.0
//
// Generated code of this process, by structure of the kernel and target: equal structures compile once, whatever their sizes and
// whichever executable asks. Objects can be written out and taken back, so that a warm start generates nothing.
//
// Thread-safe. Code stays mapped until the process ends: executables keep bare pointers to it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "plugins/codegen/kernel/loops.h"
#include "plugins/codegen/llvm/arguments.h"
#include "plugins/codegen/llvm/cpu_target.h"

namespace keirin::codegen::native {

class CodeCache {
 public:
  CodeCache();
  ~CodeCache();

  // `generated` counts what is compiled now; `dump` is called with its text. Throws std::runtime_error when LLVM refuses.
  KernelFunction get(const Kernel& kernel, const CpuTarget& target, uint32_t& generated,
                     const std::function<void(const std::string& name, const std::string& ir)>& dump = {});

  // Null: its structure was not compiled yet.
  KernelFunction known(const Kernel& kernel, const CpuTarget& target);

  // Records [u32 name bytes][name][u64 object bytes][object] for each kernel; load ignores what it has and returns false where
  // the bytes do not follow that form.
  void save(std::span<const Kernel* const> kernels, const CpuTarget& target, std::vector<uint8_t>& out) const;
  bool load(std::span<const uint8_t> bytes);

  uint64_t code_bytes() const;
  uint64_t num_generated() const;  // since the process began

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Bytes of scratch that each thread needs for a kernel cut into blocks of `block` elements.
int64_t scratch_bytes(const Kernel& kernel, int64_t block);

// The symbol of a kernel's code: a hash of its structure and of the target.
std::string code_name(const Kernel& kernel, const CpuTarget& target);

}  // namespace keirin::codegen::native
