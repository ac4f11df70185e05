// SPDX-License-Identifier: Apache-2.0
//
// The host that a check shows to a plugin: the tables of the contract with everything countable, and as bad as the contract allows.
// One thread sets it up; plugins may call the tables from any.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <set>
#include <string>

#include "abi/plugin.h"
#include "core/host/call/host_tables.h"

namespace keirin::certify {

class TrialHost {
 public:
  using Slice = void(KRN_CALL*)(void*, int64_t, int64_t, int32_t);

  TrialHost();
  TrialHost(const TrialHost&) = delete;

  // As it is offered.
  std::set<std::string> missing;                // tables that are not
  const krn_table* core = nullptr;              // krn.host.core; replaced by a shorter one
  int64_t fails_at = -1;                        // the allocation of that number, and all after it, gives nothing
  std::atomic<bool> cancels{false};             // what every token says
  std::function<void(int64_t n, int64_t grain, Slice fn, void* ctx)> slices;  // how parallel_for cuts; empty: in two, here
  std::map<uint32_t, krn_tensor> weights;       // by id, of whatever region
  // What was done with it.
  std::atomic<int64_t> allocations{0}, live{0}; // krn.host.core and krn.host.memory
  std::atomic<int64_t> device_allocations{0};   // krn.host.memory alone
  std::atomic<int64_t> weights_open{0};

  krn_host* handle() { return reinterpret_cast<krn_host*>(this); }
  // An offer of the versions that this build speaks.
  krn_offer offer(uint32_t role = KRN_ROLE_RUN);
};

}  // namespace keirin::certify
