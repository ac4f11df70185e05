// SPDX-License-Identifier: Apache-2.0
//
// Which steps of a plan may be one: of equal key, and none needs what another writes or overwrites what another reads. Knows no kernel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <vector>

namespace keirin::codegen {

struct Touch {
  std::string key;             // empty: a step by itself
  std::set<uint32_t> touched;  // memory that it reads or writes
  std::set<uint32_t> written;  // of it
};

// The steps by number, in an order that does what the given one does; those of one entry stand where the first of them stood.
std::vector<std::vector<size_t>> put_together(std::span<const Touch> steps);

}  // namespace keirin::codegen
