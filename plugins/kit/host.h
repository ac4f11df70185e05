// SPDX-License-Identifier: Apache-2.0
//
// The host's tables, fetched once at negotiation. They live as long as the process; a table the host does not offer is null.
#pragma once

#include "abi/plugin.h"

namespace keirin::kit {

struct Host {
  krn_host* host = nullptr;
  uint32_t role = 0;
  const krn_host_core* core = nullptr;
  const krn_host_consts* consts = nullptr;
  const krn_host_memory* memory = nullptr;
  const krn_host_threads* threads = nullptr;
};

// Filled by the entry; the same for the life of the process.
const Host& host();
void set_host(const krn_offer& offer);

// Last words for the crash journal, and a line in the log; both do nothing without a host.
void breadcrumb(krn_str text);
void log(int32_t level, krn_str text);

}  // namespace keirin::kit
