// SPDX-License-Identifier: Apache-2.0
//
// How the opaque ops of a Graph are called: the importer fills it, GraphCalls runs it. Includes torch; everyone else
// holds the table by a pointer to an incomplete type.
#pragma once

#include <vector>

#include "core/eager/program/boxed_call.h"
#include "core/ir/graph.h"

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
  // Of the operands, as eager's call had them; empty: in any. Some kernels read the memory of an operand as if it lay as where LibTorch
  // calls them: what lies otherwise is copied first. Images with their channels innermost stay so, for which LibTorch has kernels, but no
  // indices.
  std::vector<Dims> strides;
};

class CallTable {
 public:
  std::vector<OpaqueCall> calls;
};

}  // namespace keirin
