/* SPDX-License-Identifier: Apache-2.0
 *
 * The reader must compile as C11 without a warning: a vendor's plugin may be written in C. */
#include "abi/graph.h"

int32_t open_from_c(const void* bytes, uint64_t size, krn_graph* out);
int32_t open_from_c(const void* bytes, uint64_t size, krn_graph* out) { return krn_graph_open(bytes, size, out); }
