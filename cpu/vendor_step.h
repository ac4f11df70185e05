// SPDX-License-Identifier: Apache-2.0
//
// One oneDNN primitive with its arguments bound to buffers of an executable. Runs may overlap: each takes a set of argument
// objects from a pool, so a run allocates nothing once as many have overlapped as overlap now.
#pragma once

#include <memory>
#include <mutex>
#include <oneapi/dnnl/dnnl.hpp>
#include <string>
#include <vector>

#include "cpu/packed_weights.h"
#include "plugins/codegen/backend.h"

namespace keirin::cpu {

class VendorStep : public codegen::Step {
 public:
  VendorStep(dnnl::primitive primitive, const dnnl::memory::desc& scratchpad, std::string description);

  void bind(int argument, const dnnl::memory::desc& desc, const codegen::TensorDesc& tensor);
  void bind_pack(int argument, std::shared_ptr<const PackedWeight> pack);

  krn_code run(const codegen::RunContext& context) const override;
  std::string describe() const override { return description_; }
  int64_t workspace_bytes() const override { return static_cast<int64_t>(scratchpad_.get_size()); }
  void set_workspace(uint32_t buffer) override { workspace_ = buffer; }
  int64_t constant_bytes() const override;

 private:
  struct Binding {
    int argument;
    dnnl::memory::desc desc;
    uint32_t buffer;
    int64_t offset_bytes;
    std::shared_ptr<const PackedWeight> pack;
  };
  struct ArgumentSet {
    std::vector<dnnl::memory> memories;
    std::vector<dnnl_exec_arg_t> arguments;
    dnnl::stream stream;
  };
  std::unique_ptr<ArgumentSet> take() const;

  dnnl::primitive primitive_;
  dnnl::memory::desc scratchpad_;
  std::string description_;
  std::vector<Binding> bindings_;
  uint32_t workspace_ = 0xffffffffu;
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<ArgumentSet>> pool_;
};

}  // namespace keirin::cpu
