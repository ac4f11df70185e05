// SPDX-License-Identifier: Apache-2.0
//
// Loop kernels as text of the C family: one printer, a dialect is a row of data. The text includes no header. Sizes, strides and
// pointers are arguments, so that one text serves all kernels of equal structure and schedule.
//
// A kernel takes KrnSizes (size_arguments in order, then the number of splits and the length of one) and KrnPointers (one per buffer,
// row_ptr and perm if has_csr, the workspace if split). An index of rows outside [0, limit) ends in krn_refuse(). With room for
// `many`, its KrnSizes are many + 1 first blocks of kernels, ascending, behind the last one's the grid's end and then numbers that no block
// has, and the sizes of each; its KrnPointers are each one's in turn.
#pragma once

#include <string>
#include <string_view>

#include "plugins/codegen/kernel/loops.h"
#include "plugins/codegen/kernel/schedule.h"

namespace keirin::codegen {

struct Dialect {
  std::string_view name;
  int wave;               // threads of a wave, which exchange registers
  std::string_view prelude;  // spells kernels, shared memory, barriers, exchange, storage conversions
};

// C++ for a host that emulates blocks of threads, and fills krn_host (text/host.krn). A vendor's own row comes with its backend.
extern const Dialect kHostDialect;

// What stands once at the head of a module.
std::string print_prelude(const Dialect& dialect);
// The kernel as `symbol`; a split one as `symbol` (the partial results) and `symbol`_finish.
std::string print_kernel(const Kernel& kernel, const Schedule& schedule, const Dialect& dialect, const std::string& symbol);

}  // namespace keirin::codegen
