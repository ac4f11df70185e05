// SPDX-License-Identifier: Apache-2.0
//
// Who answers the segments of a program instead of its operators (core/capture/pt2/segments.h), while an EagerProgram
// runs what lies between them. No torch.
#pragma once

#include <cstddef>
#include <vector>

#include "core/base/status.h"
#include "core/base/tensor.h"
#include "core/capture/pt2/segments.h"

namespace keirin {

struct SegmentInputs {
  std::vector<TensorRef> tensors;  // parallel to Segment::tensors; none is null
  std::vector<pt2::Number> numbers;
};

struct SegmentResults {
  std::vector<TensorRef> tensors;  // parallel to Segment::tensor_results
  std::vector<pt2::Number> numbers;
};

// `segment` is the position in Segments::all. Calls come from the thread that runs the program; several programs may
// run at once.
class SegmentRunner {
 public:
  virtual ~SegmentRunner() = default;
  // Whether `answer` is to be asked at all: gathering the inputs costs time.
  virtual bool wants(size_t segment) = 0;
  // True and the results, as eager's operators would leave them, writes included; false, and nothing is changed: the
  // operators are called. An error ends the run.
  virtual Result<bool> answer(size_t segment, const SegmentInputs& inputs, SegmentResults& results) = 0;
  // The segment's operators were called, after `answer` said false or was not asked.
  virtual void called(size_t segment) { static_cast<void>(segment); }
  // Whether the branch of a cond that is not taken is to be run too, on copies of its operands, before the one that is:
  // its results and errors go nowhere. Only branches that write nothing and have no loop are.
  virtual bool wants_other_branch() const { return false; }
};

}  // namespace keirin
