// SPDX-License-Identifier: Apache-2.0
//
// One convolution with what follows it, or one attention, as a problem for a vendor's library that plans: asked for,
// built, tuned and run. Problems are values: equal ones share one plan in the process.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "plugins/gpu/driver.h"

namespace keirin::gpu {

struct ConvTensor {
  uint8_t dtype = 0;
  std::vector<int64_t> sizes, strides;  // rank 4 or 5: batch, channels, space
};

// A scalar op on the running result; those with an operand take it as it broadcasts (size 1).
struct ConvStage {
  enum Op : uint8_t { kAdd, kMul, kRelu, kSigmoid, kTanh, kSilu, kGelu, kGeluTanh };
  Op op = kAdd;
  ConvTensor operand;  // kAdd, kMul
};

// y is the convolution of x with w. `result` says which of the three is asked for, given the other two: as y itself, or the gradient of x
// (which is also what a transposed convolution computes) or of w, y being the gradient of the convolution's result then.
struct ConvProblem {
  enum Role : uint8_t { kX, kW, kY };  // places among a plan's addresses
  ConvTensor x, w, y;
  std::vector<int64_t> stride, padding, dilation;
  std::vector<ConvStage> stages;
  bool tf32 = false;        // f32 operands may be rounded to TF32
  bool new_filter = false;  // the kernel just before writes w
  Role result = kY;

  const ConvTensor& of(Role role) const { return role == kX ? x : role == kW ? w : y; }
  // The given one that is not the filter.
  Role fed() const { return result == kX ? kY : kX; }
  bool is_forward_in_two_axes() const { return result == kY && x.sizes.size() == 4; }
  std::string key() const;
  // What it has in common with the same convolution of other batches and images: all but their sizes. Those that lie neither row by row
  // nor with channels innermost are like none but themselves.
  std::string family() const;
  double volume() const;  // elements of x
};

// Attention without a mask, of 16-bit heads in any strides: [batch, heads, lines, width]; fewer heads of k and v are
// shared evenly.
struct HeadsProblem {
  ConvTensor q, k, v, o;
  double scale = 1;
  bool causal = false;  // query i sees keys up to i

  std::string key() const;
};

class LibraryPlan {
 public:
  virtual ~LibraryPlan() = default;
  // Enqueues; waits for nothing. `addresses`: x, w, y whatever is asked for, then the stages' operands in order; or q, k, v, o. Concurrent
  // calls are fine.
  virtual int32_t run(Stream stream, std::span<void* const> addresses, void* workspace, std::string& why_not) const = 0;
  virtual int64_t workspace_bytes() const = 0;
  virtual double seconds() const = 0;  // as measured when it was chosen; 0: it was the only one
  virtual std::string name() const = 0;
};

class PlanLibrary {
 public:
  virtual ~PlanLibrary() = default;
  // The library while somebody waits: what it `supports` and how it plans a convolution is as it was for one of its family at the nearest
  // sizes, without heuristics, timing or compiling. Nothing of attention, and of families that it was not asked about. Lives as long as it.
  virtual const PlanLibrary& at_once() const;
  virtual const char* name() const = 0;  // for people: "miopen"
  // Whether the library names an engine for the problem on the current context's device. Milliseconds; remembered, also
  // by artifacts.
  virtual bool supports(const ConvProblem& problem, std::string& why_not) const = 0;
  virtual bool supports(const HeadsProblem& problem, std::string& why_not) const = 0;
  // Builds the candidates of many plans at once, on threads: what `plan` would do one after the other.
  virtual void prepare(std::span<const ConvProblem> convs, std::span<const HeadsProblem> heads) const = 0;
  // The best of the first few plans, timed on memory of their own. Remembered. Throws kit::Error.
  virtual std::shared_ptr<const LibraryPlan> plan(const ConvProblem& problem) const = 0;
  virtual std::shared_ptr<const LibraryPlan> plan(const HeadsProblem& problem) const = 0;
};

// Strides without gaps: rows innermost, or channels.
std::vector<int64_t> packed_strides(const std::vector<int64_t>& sizes, bool channels_last);
// Whether it lies so, but for axes of one element.
bool is_packed(const ConvTensor& tensor, bool channels_last);

// What a plan's addresses stand for, in order, and which of them is written.
std::vector<const ConvTensor*> tensors_of(const ConvProblem& problem);
std::vector<const ConvTensor*> tensors_of(const HeadsProblem& problem);
size_t result_of(const ConvProblem& problem);
size_t result_of(const HeadsProblem& problem);
size_t fed_of(const ConvProblem& problem);  // see EdgeCase
size_t fed_of(const HeadsProblem& problem);
// From the first element to the last.
int64_t bytes_of(const ConvTensor& tensor);

// What is fed (ConvProblem::fed) full of one value, all other numbers small and positive, and what the first and the last element of the
// result are then. Libraries' plans were seen that write 0 for -infinity, and NaN for the tanh or sigmoid of a large number.
struct EdgeCase {
  enum Value : uint8_t { kLarge, kInfinity, kNan };
  enum Shows : uint8_t { kNoNan, kNotFinite, kIsNan };
  Value value;
  bool negative;
  Shows shows;

  uint32_t bits(uint8_t dtype) const;                    // a word of what is fed, of f32, f16 or bf16
  bool shown_by(uint32_t element, uint8_t dtype) const;  // the bits of an element of the result
};
std::vector<EdgeCase> edge_cases(const ConvProblem& problem);
std::vector<EdgeCase> edge_cases(const HeadsProblem& problem);  // none

}  // namespace keirin::gpu
