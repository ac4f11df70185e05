// SPDX-License-Identifier: Apache-2.0
//
// Holds the negotiated host tables. A table is taken only if it is large enough to hold its first function; functions beyond its
// size read as absent, which callers see as null because the tables here are zero-filled copies.
#include "plugins/kit/host.h"

#include <algorithm>
#include <cstring>

namespace keirin::kit {
namespace {

struct Tables {
  krn_host_core core{};
  krn_host_consts consts{};
  krn_host_memory memory{};
  krn_host_threads threads{};
};
Host g_host;
Tables g_tables;

template <class T>
const T* copy_table(const krn_offer& offer, const char* name, T& to) {
  const krn_table* table = offer.get_table ? offer.get_table(offer.host, name, 1) : nullptr;
  if (!table || table->size <= sizeof(krn_table)) return nullptr;
  std::memcpy(&to, table, std::min<size_t>(table->size, sizeof(T)));
  return &to;
}

}  // namespace

const Host& host() { return g_host; }

void set_host(const krn_offer& offer) {
  g_host.host = offer.host;
  g_host.role = offer.role;
  g_host.core = copy_table(offer, "krn.host.core", g_tables.core);
  g_host.consts = copy_table(offer, "krn.host.consts", g_tables.consts);
  g_host.memory = copy_table(offer, "krn.host.memory", g_tables.memory);
  g_host.threads = copy_table(offer, "krn.host.threads", g_tables.threads);
}

void breadcrumb(krn_str text) {
  if (g_host.core && g_host.core->breadcrumb) g_host.core->breadcrumb(g_host.host, text);
}

void log(int32_t level, krn_str text) {
  if (g_host.core && g_host.core->log) g_host.core->log(g_host.host, level, text);
}

}  // namespace keirin::kit
