// SPDX-License-Identifier: Apache-2.0
//
// One convolution with what follows it, or one attention, as a cuDNN graph: asked for, built, tuned and run. cuDNN itself is opened at run time and
// used through NVIDIA's header-only frontend, which only cudnn.cc includes. Problems are values: equal ones share one plan in the
// process. Where the plugin was built without the headers, cudnn_missing says so and nothing else may be called.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cuda/driver.h"

namespace keirin::cuda {

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

struct ConvProblem {
  ConvTensor x, w, y;
  std::vector<int64_t> stride, padding, dilation;
  std::vector<ConvStage> stages;
  bool tf32 = true;  // f32 through tensor cores, as LibTorch's convolutions do unless told otherwise
  bool new_filter = false;  // the kernel just before writes w

  std::string key() const;
};

// Attention without a mask, of 16-bit heads in any strides: [batch, heads, lines, width]; fewer heads of k and v are shared evenly.
struct HeadsProblem {
  ConvTensor q, k, v, o;
  double scale = 1;
  bool causal = false;  // query i sees keys up to i

  std::string key() const;
};

class LibraryPlan {
 public:
  virtual ~LibraryPlan() = default;
  // Enqueues; waits for nothing. `addresses`: x, w, y, then the stages' operands in order; or q, k, v, o. Concurrent calls are fine.
  virtual int32_t run(CUstream stream, std::span<void* const> addresses, void* workspace, std::string& why_not) const = 0;
  virtual int64_t workspace_bytes() const = 0;
  virtual double seconds() const = 0;  // as measured when it was chosen; 0: it was the only one
  virtual std::string name() const = 0;
};

// Empty, or why cuDNN cannot be used here. Any thread.
const std::string& cudnn_missing();
// Whether cuDNN names an engine for the problem on the current context's device. Milliseconds; remembered, also by artifacts.
bool cudnn_supports(const ConvProblem& problem, std::string& why_not);
bool cudnn_supports(const HeadsProblem& problem, std::string& why_not);
// Builds the candidates of many plans at once, on threads: what cudnn_plan would do one after the other.
void cudnn_prepare(std::span<const ConvProblem> convs, std::span<const HeadsProblem> heads);
// The best of the first few plans, timed on memory of their own. Remembered. Throws kit::Error.
std::shared_ptr<const LibraryPlan> cudnn_plan(const ConvProblem& problem);
std::shared_ptr<const LibraryPlan> cudnn_plan(const HeadsProblem& problem);

}  // namespace keirin::cuda
