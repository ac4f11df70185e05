// SPDX-License-Identifier: Apache-2.0
#include "core/base/request.h"

#include <atomic>

namespace keirin {
namespace {

std::atomic<uint64_t> g_compiles{0};
thread_local int t_scopes = 0;

}  // namespace

RequestScope::RequestScope(bool answers) : answers_(answers) { t_scopes += answers_; }
RequestScope::~RequestScope() { t_scopes -= answers_; }

bool answers_request() { return t_scopes > 0; }

void note_compile() {
  if (t_scopes > 0) g_compiles.fetch_add(1, std::memory_order_relaxed);
}

uint64_t compiles_on_requests() { return g_compiles.load(std::memory_order_relaxed); }

}  // namespace keirin
