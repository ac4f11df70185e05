// SPDX-License-Identifier: Apache-2.0
//
// What the processor that this process runs on is, as data: a row of the vendor's target.def, and what was found at run time.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "plugins/codegen/backend.h"
#include "plugins/codegen/llvm/cpu_target.h"

namespace keirin::processor {

// A level of an instruction set that code is generated for. Rates are priors for one core and never measured: fusion weighs
// with them, and the same model must get the same kernels in every process.
struct Level {
  const char* name;      // what option `level` and the table of devices call it
  const char* cpu;       // LLVM's
  const char* features;  // more, in LLVM's form
  int lanes;             // f32 elements in the widest register that pays; where vectors are scalable, their length decides
  codegen::native::Masks masks;
  uint32_t needs;        // bits of the vendor's features
  double gflops, special, bytes_per_s;
};

// What a vendor's folder says of its instruction set.
struct Isa {
  const char* triple;
  std::span<const Level> levels;  // the best first
  const char* none;               // why no level fits, for people
  uint32_t vector_lengths = 0;    // features with which vectors are as long as the machine says
  uint32_t bf16 = 0;              // features with which it multiplies bf16 itself
};

// What was found on this machine.
struct Found {
  uint32_t features = 0;    // bits of the vendor's features, as usable by processor and operating system
  int vector_bytes = 0;     // of scalable vectors
  std::string name;         // for people
  std::string fingerprint;  // features beyond the level that a library's speed rests on
};

struct Machine {
  std::string name;         // "AMD EPYC 9B14"
  std::string arch;         // the level's name
  std::string fingerprint;
  uint32_t features = 0;
  bool native_bf16 = false;
  uint64_t memory_bytes = 0;
  codegen::native::CpuTarget code;
  codegen::TargetInfo info;
};

// The first level whose needs are met; with `level`, that one and no feature beyond it, so that one machine can test all of
// them. Null with a reason where none fits, or none is called so.
std::unique_ptr<Machine> make_machine(const Isa& isa, const Found& found, std::string_view level, std::string& why_not);

}  // namespace keirin::processor
