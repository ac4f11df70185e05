// SPDX-License-Identifier: Apache-2.0
//
// Candidate 0: the file's op list verbatim. Every operator is called boxed, in the file's order, in-place operators
// included, so that results are eager's own bits and errors are eager's own errors. It optimises nothing but the
// lifetime of values. Invariant: after run() every buffer, parameter and input that the model writes holds what eager
// would have left there.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/base/tensor.h"
#include "core/capture/pt2/schema.h"
#include "core/eager/program/observed.h"
#include "core/eager/program/segment_runner.h"
#include "core/eager/weights/input_rules.h"
#include "core/eager/weights/weights.h"

namespace keirin {

// Errors that a referee's run is given on purpose, as eager's own dtypes make them (Monte Carlo arithmetic: Parker, 1997): what an
// operator computes is off by as much as rounding it to the file's dtype is, up or down at random; what rounds to itself stays.
// How far the answer moves is how far eager may be from fp64 with no error of meaning.
struct Roundings {
  uint32_t seed = 0;  // of the directions; 0: no errors
  bool tf32 = false;  // products of f32 round their operands to 10 bits
  const std::set<std::string, std::less<>>* whole = nullptr;  // but for these (ObservedRun::whole_products); not owned
};

class EagerProgram {
 public:
  // Resolves and binds everything; `unsupported` names the first node that this process cannot run. `program` must
  // outlive nothing: what is needed is copied. The tensors of `weights` must be on `device` already
  // (WeightTable::to_device) and are shared: what the model writes is seen through the table.
  // With `segments` of this very program, `run` may be given who answers them.
  static Result<std::unique_ptr<EagerProgram>> make(const pt2::Program& program, const WeightTable& weights,
                                                    Device device, const pt2::Segments* segments = nullptr);
  ~EagerProgram();

  // Inputs and outputs are flat, in the file's order. An input that is a number is a 0-d i64 tensor, and so is such an
  // output; an output that is None is null. Inputs on another device are refused, not moved, but for single elements in host
  // memory, which LibTorch's operators take along. Several threads may run at once if the model writes nothing.
  // `segments` may answer some of its segments; what it says no to, and the rest, is called as the file says.
  Result<std::vector<TensorRef>> run(const std::vector<TensorRef>& flat_inputs, SegmentRunner* segments = nullptr) const;

  // The same call, and what it showed. Inputs, weights and random generators are put back afterwards, also if it fails, so the outputs are
  // worth their sizes, strides and addresses; where they are views of what was written, not their values.
  // `products`: also which products of f32 were not rounded, where they might be; each form of them runs twice in fp64 for it.
  Result<std::vector<TensorRef>> observe(const std::vector<TensorRef>& flat_inputs, ObservedRun& seen, bool products = false) const;

  // The same call again, and what each node of the file took of what is counted at `count` (core/tune/instructions.h), by its name: its
  // call, with what hands it its operands. A node that ran more than once has the sum. What the model writes stays written.
  Result<std::map<std::string, uint64_t>> count_nodes(const std::vector<TensorRef>& flat_inputs, const uint64_t* count) const;

  // What the file's own operators answer in fp64: the referee of everything compiled. It shares no step of capture with what it
  // judges. `num_calls` calls in a row on copies of the inputs and of `written_weights` (all that a run writes), so that state carries
  // from one to the next and nothing of the caller's is changed; what is in `second` holds that before the second call. Memory is shared
  // between the copies as between the originals, and strides are theirs. What knows no fp64 runs in the file's dtype and is named in
  // `own_dtype`; so does what draws random numbers, which then draws what eager would.
  struct RefereeRun {
    // By call, each as it was when the call returned; weights parallel to `written_weights`.
    std::vector<std::vector<TensorRef>> outputs, inputs, weights;
    std::vector<std::string> own_dtype;
  };
  struct Contents {
    std::vector<std::pair<size_t, TensorRef>> inputs, weights;  // which of the inputs, which of the weights
  };
  Result<RefereeRun> referee(const std::vector<TensorRef>& flat_inputs, const std::vector<size_t>& written_weights, int num_calls,
                             const Roundings& roundings = {}, const Contents& second = {}) const;

  const InputRules& rules() const;
  size_t num_outputs() const;
  // Whether an operator of the file writes an argument, or an output is written back: a value of its own, a weight or an input.
  bool writes() const;
  // What a call may do besides answering, told by schemas and constants without a run, and where these do not tell, as if it did: the
  // first weight or input that it may write, an operator that may draw random numbers. Empty: it does not.
  const std::string& may_write() const;
  const std::string& may_draw() const;

 private:
  struct Impl;
  explicit EagerProgram(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace keirin
