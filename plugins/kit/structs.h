// SPDX-License-Identifier: Apache-2.0
//
// Growable structs of the contract, read and written as it asks: a caller's struct may be shorter or longer than ours; what is
// missing reads as zero, what we do not know is left alone.
#pragma once

#include <algorithm>
#include <cstring>

#include "abi/plugin.h"
#include "plugins/kit/error.h"

namespace keirin::kit {

// A struct of ours, zeroed and with its header filled.
template <class T>
T init() {
  T out;
  std::memset(&out, 0, sizeof out);
  out.hdr.size = sizeof out;
  return out;
}

// Copies what both sides know. An entry chained to it that must be understood is refused: this kit knows none.
template <class T>
T read(const T* in) {
  T out = init<T>();
  if (!in) return out;
  if (in->hdr.size < sizeof(krn_hdr)) throw Error(KRN_STATUS_invalid_input, "a struct is smaller than its header");
  std::memcpy(&out, in, std::min<size_t>(sizeof out, in->hdr.size));
  out.hdr.size = sizeof out;
  for (const krn_hdr* next = in->hdr.next; next; next = next->next)
    if (next->flags & KRN_HDR_MUST_UNDERSTAND)
      throw Error(KRN_STATUS_version,
                  "the host chained an entry of kind " + std::to_string(next->kind) + " that this plugin must understand and does not");
  return out;
}

// Writes what both sides know into the caller's struct, whose header stays the caller's.
template <class T>
void write(T* out, const T& value) {
  const size_t bytes = std::min<size_t>(sizeof value, out->hdr.size);
  if (bytes > sizeof(krn_hdr))
    std::memcpy(reinterpret_cast<char*>(out) + sizeof(krn_hdr), reinterpret_cast<const char*>(&value) + sizeof(krn_hdr),
                bytes - sizeof(krn_hdr));
}

// Element i of an array whose stride the caller states.
template <class T>
T read(const krn_array& array, uint32_t i) {
  return read(reinterpret_cast<const T*>(static_cast<const char*>(array.data) + static_cast<size_t>(i) * array.stride));
}

}  // namespace keirin::kit
