// SPDX-License-Identifier: Apache-2.0
//
// A model that no one graph can hold, because sizes or branches hang on data, as a chain: its segments
// (core/capture/pt2/segments.h) are sessions of their own at the sizes that a run showed, and everything between them
// is eager's. So whatever holds for a model holds for a segment: capture, referee, judge, race, guard, ledger. The
// chain itself has to answer as eager does, and to be faster than it as a whole. A segment of sizes that nothing was
// decided for is eager's. Internal to core/api.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "core/api/session_impl.h"
#include "core/eager/program/segment_runner.h"

namespace keirin {

class Chain {
 public:
  // Of a session that is otherwise complete; it owns the chain. `segments` of its program.
  Chain(Session::Impl& whole, const pt2::Segments& segments);
  ~Chain();

  // Runs the model on these inputs and decides for each segment at the sizes that it meets; then for the chain as a
  // whole, which is published in the session's table. Calls go on meanwhile. One caller at a time.
  Result<ModelReport> decide(const std::vector<TensorRef>& inputs);
  // Eager with the plans of the segments in it. Errors are final: what came before one has been written. Any thread.
  Result<std::vector<TensorRef>> call(const std::vector<TensorRef>& inputs);
  // Reasons that came up while it served (a plan that was revoked), each once.
  std::vector<std::string> take_reasons();
  // How often segments were answered by plans, and by eager although something was decided for other sizes of theirs.
  uint64_t answered() const { return answered_.load(std::memory_order_relaxed); }
  uint64_t unadmitted() const { return unadmitted_.load(std::memory_order_relaxed); }

 private:
  struct Sized;
  struct Part;
  class Timing;
  class Asking;
  class Serving;
  class Choosing;

  Result<std::shared_ptr<Sized>> at_sizes(size_t segment, const SegmentInputs& inputs);
  void decide_segment(size_t segment, const SegmentInputs& inputs);
  Result<bool> answer(size_t segment, const SegmentInputs& inputs, SegmentResults& results);

  Session::Impl& whole_;
  const pt2::Segments& segments_;
  std::set<std::string> written_;  // weights that a call may write
  std::vector<std::unique_ptr<Part>> parts_;  // parallel to segments_.all
  std::atomic<uint64_t> answered_{0}, unadmitted_{0};
};

}  // namespace keirin
