// SPDX-License-Identifier: Apache-2.0
//
// A function on LibTorch's tensors as a program: it runs once, and every operator that it asks the dispatcher for on this thread is
// written down before autograd sees it, whole (`linear`, `layer_norm`, `lstm`) and in place where the function says so. What comes out
// is what a file would hold, at the sizes of this run, so that one importer and one eager executor serve both. Unmodified modules,
// lambdas and TorchScript are recorded alike.
//
// What hangs on the values of tensors has no program: `item()`, `nonzero()`, a branch on a comparison. It is refused by its operator's
// name. What no operator shows (memory read by address, C++ state) cannot be seen here: whoever uses a recording compares it with the
// function on other values.
#pragma once

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/capture/pt2/read_pt2.h"

namespace keirin {

using TorchFunction = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;

// A tensor that the function read besides its inputs.
struct RecordedRead {
  std::string name;      // as given, else "tensor0", "tensor1", ...
  at::Tensor tensor;     // the caller's own; of one that the function made unseen and let go of: a copy, which is the recording's
  bool is_own = false;   // the latter
};

struct Recording {
  // One program. Its user inputs are those of the function, then `reads` in their order.
  pt2::Pt2File file;
  std::vector<RecordedRead> reads;
};

// Runs `function` once on `inputs`, without gradients; `names` says what tensors it reads are called (parameters, buffers). Inputs, what
// is read and the random generators are as before when it returns. `unsupported` names what has no program; an exception of
// the function is kept in the Status. Any thread; a function that records is not recorded.
Result<Recording> record(const TorchFunction& function, const std::vector<at::Tensor>& inputs,
                         const std::vector<std::pair<std::string, at::Tensor>>& names);
// What an operator is made of, where LibTorch's own kernel of it is written with others (CompositeImplicitAutograd): a program of one run
// of that kernel. `inputs` are the tensors among the operator's arguments, each of them once, and are the program's inputs; `arguments`
// puts them into all arguments. They need have no elements (the device "meta"): only forms count. The program's outputs are the operator's
// results, lists as their elements. `unsupported` where it has no such kernel, where the kernel looks at elements or reads other tensors,
// and where it asks for more than kMostParts operators, as one that unrolls a loop does. Any thread; inside of `record` as well.
inline constexpr size_t kMostParts = 64;
Result<pt2::Program> record_parts(const c10::OperatorHandle& op, const std::vector<at::Tensor>& inputs,
                                  const std::function<torch::jit::Stack(const std::vector<at::Tensor>&)>& arguments);
// Whether this thread is inside of `record`.
bool is_recording();

}  // namespace keirin
