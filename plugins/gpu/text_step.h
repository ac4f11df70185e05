// SPDX-License-Identifier: Apache-2.0
//
// Steps whose kernels are written by hand as text instead of printed from loops: attention, products of few rows, bags, row
// updates. Their text stands on the printer's prelude (plugins/codegen/text/c_printer.h), so that what does not need matrix units
// also runs on the emulated blocks of the tests. All launches of a step take the same two arguments: sizes, then pointers.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "plugins/codegen/backend.h"
#include "plugins/gpu/driver.h"

namespace keirin::gpu {

struct TextKernel {
  struct Launch {
    std::string symbol;
    int64_t blocks = 1;
    int threads = 128;
    int64_t shared_bytes = 0;  // that the text takes without saying how many; they are asked for
    bool together = false;     // its blocks wait for each other: all of them must fit on the device at once
  };
  std::string what;                     // for people: "attention [64x12, 128x128, 64]"
  std::string defines;                  // what its text is told: sizes, types, what follows
  std::vector<std::string_view> parts;  // files of text/, in order, without the prelude; they outlive it
  std::vector<Launch> launches;         // in order
  int next_size = -1;                   // the one of `sizes` that is 1 where the step after begins early; -1: the text lets none
  bool early = false;                   // begins before the step before has ended; the text waits where it must
  std::vector<int64_t> sizes;           // KrnSizes<i64, sizes.size()>
  bool reads_words = true;              // whole ones of 16 bytes: what does not start at their multiples is refused by the run
  std::vector<codegen::TensorDesc> pointers;  // null where a tensor is absent; a place for the workspace follows in every text
  int64_t workspace_bytes = 0;
};

// Names of hand-written code in the store begin so.
inline constexpr const char* kTextPrefix = "text ";

std::string text_code_name(const TextKernel& kernel, const CodeTarget& target);
// Its defines and parts, put together.
std::string text_of(const TextKernel& kernel);
// What the compiler gets: the vendor's prelude, then the kernel's text.
std::string whole_text(const TextKernel& kernel, const Driver& driver);
// Compiles it unless it is known. `load` false: for machines without the device.
std::unique_ptr<codegen::Step> make_text_step(const TextKernel& kernel, const CodeTarget& target, bool load);

// What a post-op does to the f32 `v` of a text, as statements; an addition adds the text's RESIDUAL. Empty: it has no form.
std::string epilogue_text(const codegen::PostOp& post);

// Bytes of a dtype that hand-written kernels take, and its storage class in the prelude's words ("d_bf16"); 0 and null for others.
int float_bytes(uint8_t dtype);
const char* float_storage(uint8_t dtype);

}  // namespace keirin::gpu
