// SPDX-License-Identifier: Apache-2.0
//
// The plugin under test, through the host's one seam and the real ABI: claim, compile, run on guarded memory.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/host/plugins.h"
#include "core/ir/bytes.h"
#include "tests/conformance/case.h"
#include "tests/conformance/memory.h"

namespace keirin::conformance {

// Compiled for one case.
struct Compiled {
  RegionBytes bytes;
  std::shared_ptr<Executable> executable;
  bool claimed = false;
  std::string why;  // not claimed
};
// Without an executable. `constants` in the order of the graph's constants, where the device reads them.
Result<Compiled> claim_case(PluginDevice& device, const Case& c, const std::vector<TensorRef>& constants);
Result<Compiled> compile_case(PluginDevice& device, const Case& c, const std::vector<TensorRef>& constants);

class Subject {
 public:
  // `folder` holds one plugin; `worker` is the program of the children. With kWorker nothing of it compiles or runs here.
  static Result<std::unique_ptr<Subject>> open(const std::string& folder, const std::string& worker, TensorServices& services,
                                               RunIn run_in = RunIn::kProcess);

  Result<Compiled> compile(const Case& c, const std::vector<Lent>& constants);
  // An input and what lend() made of it. A constant keeps its address from compile to run.
  struct Fed {
    const GuardedTensor* tensor = nullptr;
    const Lent* lent = nullptr;
  };
  PluginDevice& device() { return *device_; }
  bool on_gpu() const { return device_->torch_device().kind != Device::kCpu; }
  // The plugin's kernels are a GPU's, though its memory is the host's: an index out of range may end as any error.
  void let_answer_bad_index() { may_answer_bad_index_ = true; }
  bool may_answer_bad_index() const { return may_answer_bad_index_; }
  Result<Lent> lend(const GuardedTensor& tensor) { return tensor.lend(services_, device_->torch_device()); }
  // `inputs` by value of the graph; answers what was wrong with memory, after a failed run too, or empty.
  Result<std::string> run(const Compiled& compiled, const std::vector<Fed>& inputs, const std::vector<GuardedTensor>& outputs);

 private:
  explicit Subject(TensorServices& services) : services_(services) {}
  TensorServices& services_;
  std::unique_ptr<PluginHost> host_;
  PluginDevice* device_ = nullptr;
  bool may_answer_bad_index_ = false;
};

}  // namespace keirin::conformance
