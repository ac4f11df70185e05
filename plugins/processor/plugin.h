// SPDX-License-Identifier: Apache-2.0
//
// The plugin of a processor, over the shell: a vendor states what there is and how a library for it is made.
#pragma once

#include <functional>
#include <memory>

#include "plugins/processor/library.h"
#include "plugins/processor/machine.h"
#include "plugins/shell/shell.h"

namespace keirin::processor {

struct Vendor {
  const Isa* isa;
  Found (*look)(const krn_hw& hardware);  // the processor as the host found it
  // For one policy and one way of compiling, from 0; the machine outlives it. Null, or answering null: there is none.
  std::unique_ptr<const Library> (*library)(const Machine& machine, const krn_policy& policy, uint32_t candidate);
  shell::Traits traits;
};

// Option `level`, else KEIRIN_CPU_LEVEL, names the level that code is generated for. `vendor` outlives everything. Runs may
// overlap; compiles may too, because the code cache locks itself.
std::unique_ptr<kit::Plugin> make_plugin(const Vendor& vendor, const krn_config& config);

}  // namespace keirin::processor
