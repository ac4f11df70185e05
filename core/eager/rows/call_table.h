// SPDX-License-Identifier: Apache-2.0
//
// How the opaque ops of a Graph are called: the importer fills it, GraphCalls runs it. Includes torch; everyone else
// holds the table by a pointer to an incomplete type.
#pragma once

#include <vector>

#include "core/eager/program/boxed_call.h"

namespace keirin {

struct OpaqueCall {
  // Slots are the op's operands by position, taken or copied; nothing else is read.
  BoxedCall call;
  // Operands that the operator writes: it gets clones of them, and the clones are results.
  std::vector<uint32_t> cloned;
  // Where the results of the Graph's op come from, in order.
  struct Source {
    enum class Kind : uint8_t { kReturn, kElement, kClone };
    Kind kind = Kind::kReturn;
    uint32_t index = 0;    // number of the return or of the operand
    uint32_t element = 0;  // of a returned list
  };
  std::vector<Source> results;
};

class CallTable {
 public:
  std::vector<OpaqueCall> calls;
};

}  // namespace keirin
