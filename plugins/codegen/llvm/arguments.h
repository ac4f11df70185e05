// SPDX-License-Identifier: Apache-2.0
//
// Where each size and stride stands in the arguments of a generated kernel. The order is that of size_arguments(); behind it
// come two of our own: the length of a block of the inner axis, and the number of blocks. This file holds no values.
#pragma once

#include <cstdint>
#include <vector>

#include "plugins/codegen/kernel/loops.h"

namespace keirin::codegen::native {

struct LinearArguments {
  int32_t offset = 0;
  int32_t first_coeff = 0;
};

struct AccessArguments {
  LinearArguments index;
  struct Indirect {
    int32_t stride, limit;
  };
  std::vector<Indirect> indirects;
  struct Guard {
    LinearArguments form;
    int32_t limit;
  };
  std::vector<Guard> guards;
};

struct Arguments {
  explicit Arguments(const Kernel& kernel);

  std::vector<AccessArguments> accesses;
  std::vector<int32_t> literals;  // by node; -1: not an argument
  int32_t block = 0;       // elements of inner that one unit of work covers
  int32_t num_blocks = 0;  // units of work for each point of the outer axes
};

// Pointers that a kernel takes behind its buffers.
enum ExtraPointer : uint32_t { kRowPointers, kEdgeOrder, kErrorFlag, kNumExtraPointers };

// A compiled kernel: does the units of work [begin, end). `scratch` belongs to the calling thread; it is scratch_bytes() long.
using KernelFunction = void (*)(void* const* pointers, const int64_t* arguments, int64_t begin, int64_t end, void* scratch);

}  // namespace keirin::codegen::native
