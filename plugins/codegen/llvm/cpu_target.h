// SPDX-License-Identifier: Apache-2.0
//
// The machine that code is generated for: what LLVM calls it and which widths pay. Named by the features that the code may use,
// never by the model of the CPU, so that an artifact runs wherever those features are. Not a detector: the plugin fills it.
#pragma once

#include <string>

namespace keirin::codegen::native {

struct CpuTarget {
  std::string triple;         // "x86_64-unknown-linux-gnu"
  std::string cpu;            // LLVM's name of a feature level: "x86-64-v3", "x86-64-v4", "neoverse-v1"
  std::string features;       // more, in LLVM's form: "+f16c"
  int lanes = 8;              // f32 elements in the widest register that pays
  bool masks_narrow = false;  // masked loads and stores of 8- and 16-bit elements are instructions (AVX-512BW)
  bool contract = true;       // a multiply and an add may fuse; off under strict numerics

  // Part of every code key and of artifacts: equal text, equal code.
  std::string identity() const {
    return triple + ' ' + cpu + ' ' + features + " lanes " + std::to_string(lanes) + (masks_narrow ? " bw" : "") +
           (contract ? " fma" : "");
  }
};

}  // namespace keirin::codegen::native
