// SPDX-License-Identifier: Apache-2.0
//
// How much a .pt2 file may ask for before it is refused. The caller may raise each one; none depends on another.
// They bound the graph and the directory, not the weights: those are bounded by the size of the file itself.
#pragma once

#include <cstdint>

#include "core/capture/pt2/sym_expr.h"

namespace keirin::pt2 {

struct Limits {
  uint64_t json_bytes = 256ull << 20;  // one JSON or extra record; never above 4 GiB - 1
  uint32_t json_depth = 64;
  uint64_t string_bytes = 1ull << 20;  // one JSON string
  uint64_t records = 400'000;          // entries of the zip directory
  uint64_t directory_bytes = 128ull << 20;
  uint64_t nodes = 1'000'000;  // of one program, inner graphs included
  uint64_t values = 4'000'000;
  uint64_t weights = 100'000;  // weights and constants of one program
  uint64_t symbols = 65'536;
  uint32_t rank = 64;
  uint32_t graph_depth = 8;         // inner graphs inside inner graphs
  ExprLimits expr;                  // of one expression
  uint64_t expr_nodes = 2'000'000;  // of all different expressions together
};

}  // namespace keirin::pt2
