// SPDX-License-Identifier: Apache-2.0
//
// The machine that code is generated for: what LLVM calls it and which widths pay. Named by the features that the code may use,
// never by the model of the CPU, so that an artifact runs wherever those features are. Not a detector: the plugin fills it.
#pragma once

#include <cstdint>
#include <string>

namespace keirin::codegen::native {

// What vectors can be loaded and stored in part by an instruction. Where they cannot, a row's tail goes element by element.
enum class Masks : uint8_t {
  kNone,  // nothing: NEON
  kWide,  // elements of 32 and 64 bits: AVX2
  kAll,   // of 8 and 16 bits, too: AVX-512BW, SVE
};

struct CpuTarget {
  std::string triple;         // "x86_64-unknown-linux-gnu"
  std::string cpu;            // LLVM's name of a feature level: "x86-64-v3", "x86-64-v4", "neoverse-v1"
  std::string features;       // more, in LLVM's form: "+f16c"
  int lanes = 8;              // f32 elements in the widest register that pays
  Masks masks = Masks::kWide;
  int scale = 0;              // length of scalable vectors on this machine, in units of 128 bits; 0: there are none
  bool contract = true;       // a multiply and an add may fuse; off under strict numerics

  // Part of every code key and of artifacts: equal text, equal code.
  std::string identity() const {
    return triple + ' ' + cpu + ' ' + features + " lanes " + std::to_string(lanes) + (masks == Masks::kAll ? " bw" : "") +
           (scale ? " scale " + std::to_string(scale) : "") + (contract ? " fma" : "");
  }
};

}  // namespace keirin::codegen::native
