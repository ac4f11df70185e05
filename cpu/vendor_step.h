// SPDX-License-Identifier: Apache-2.0
//
// One oneDNN primitive with its arguments bound to buffers of an executable, of which some are laid out anew in the workspace before it, or
// after it. Runs may overlap: each takes a set of argument objects from a pool, so a run allocates nothing once as many have overlapped as
// overlap now.
#pragma once

#include <memory>
#include <oneapi/dnnl/dnnl.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cpu/packed_weights.h"
#include "plugins/codegen/backend.h"
#include "plugins/kit/pool.h"

namespace keirin::cpu {

class VendorStep : public codegen::Step {
 public:
  VendorStep(dnnl::primitive primitive, const dnnl::memory::desc& scratchpad, std::string description);

  void bind(int argument, const dnnl::memory::desc& desc, const codegen::TensorDesc& tensor) { bind(argument, desc, tensor, desc); }
  // The primitive takes it in `layout`: where that is another, it is copied so before each run.
  void bind(int argument, const dnnl::memory::desc& desc, const codegen::TensorDesc& tensor, const dnnl::memory::desc& layout);
  // The primitive writes it in `layout`, from where it is copied after each run if that is another.
  void bind_result(int argument, const dnnl::memory::desc& desc, const codegen::TensorDesc& tensor, const dnnl::memory::desc& layout);
  void bind_pack(int argument, std::shared_ptr<const PackedWeight> pack);

  krn_code run(const codegen::RunContext& context) const override;
  std::string describe() const override { return description_; }
  int64_t workspace_bytes() const override { return workspace_bytes_; }
  void set_workspace(uint32_t buffer) override { workspace_ = buffer; }
  int64_t constant_bytes() const override;

 private:
  // A copy into another layout and the place of that in the workspace, with room for the copy's own scratchpad behind it.
  struct Move {
    dnnl::primitive reorder;
    dnnl::memory::desc lies, scratchpad;
    int64_t at, scratchpad_at;
    bool after;
  };
  struct Binding {
    int argument;
    dnnl::memory::desc layout;
    uint32_t buffer;
    int64_t offset_bytes;
    std::shared_ptr<const PackedWeight> pack;
    std::optional<Move> move;
  };
  struct ArgumentSet {
    struct Copy {
      dnnl::memory lies, scratchpad;
      std::vector<dnnl_exec_arg_t> arguments;
    };
    std::vector<dnnl::memory> memories;
    std::vector<Copy> copies;  // one for each binding that moves, in order
    std::vector<dnnl_exec_arg_t> arguments;
    dnnl::stream stream;
  };
  void add(int argument, const dnnl::memory::desc& desc, const codegen::TensorDesc& tensor, const dnnl::memory::desc& layout, bool after);
  int64_t take_workspace(const dnnl::memory::desc& desc);
  std::unique_ptr<ArgumentSet> take() const;
  void point(ArgumentSet& set, const codegen::RunContext& context) const;
  dnnl_status_t copy(const ArgumentSet& set, bool after) const;

  dnnl::primitive primitive_;
  dnnl::memory::desc scratchpad_;
  std::string description_;
  std::vector<Binding> bindings_;
  int64_t workspace_bytes_ = 0;
  uint32_t workspace_ = 0xffffffffu;
  mutable kit::Pool<ArgumentSet> pool_;
};

}  // namespace keirin::cpu
