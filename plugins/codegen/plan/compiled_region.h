// SPDX-License-Identifier: Apache-2.0
//
// A compiled region: a flat list of steps over numbered buffers. Immutable after compile, so that runs may overlap; each run has
// its own table of base addresses, taken from a pool.
#pragma once

#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "plugins/codegen/backend.h"
#include "plugins/codegen/plan/fuse.h"
#include "plugins/codegen/plan/sized_plans.h"
#include "plugins/codegen/plan/storage.h"
#include "plugins/kit/pool.h"

namespace keirin::codegen {

class CompiledRegion {
 public:
  // Plans and compiles the region. Throws kit::Error; (unsupported) past the last candidate or for a node without a lowering.
  // `known`: grouping() of an executable of the same region and target (fuse.h); null: searched for. `sized`: of backends like
  // this one alone; learns what is planned, and says it where it knows; null: nobody does.
  static std::unique_ptr<CompiledRegion> compile(std::span<const uint8_t> region, Backend& backend, const CompileContext& context,
                                                 const Grouping* known = nullptr, SizedPlans* sized = nullptr);

  int64_t workspace_bytes() const { return workspace_bytes_; }
  static constexpr int64_t kWorkspaceAlign = 256;
  uint32_t num_kernels() const { return static_cast<uint32_t>(kernels_.size()); }
  uint32_t num_anchors() const { return num_anchors_; }
  uint32_t num_codegen() const { return num_codegen_; }
  int64_t constant_bytes() const;  // of its steps; what two executables share counts in both
  // Inputs are never written, but for updates of aliased ones.
  bool inputs_intact() const { return !updates_inputs_; }

  // Enqueues every step. Any thread; allocates nothing once as many runs have overlapped as overlap now. invalid_input: inputs are as
  // before, but for rows that an index names and that whoever repeats the run writes again.
  krn_code run(const krn_run& run, krn_host* host, const krn_host_threads* threads, krn_err* err) const;

  std::span<const Together> kernels() const { return steps_of_kernels_; }
  const Grouping& grouping() const { return grouping_; }
  std::string describe() const;  // one line per step

 private:
  friend class Builder;
  struct RunTable {
    std::vector<void*> buffers;
    std::vector<std::shared_ptr<const void>> keep;
  };
  std::unique_ptr<RunTable> take_table() const;
  void return_table(std::unique_ptr<RunTable> table) const;

  std::vector<std::unique_ptr<Step>> steps_;
  std::vector<BufferInfo> buffers_;
  std::vector<int64_t> offsets_;  // of temps in the workspace, by buffer
  std::vector<Kernel> kernels_;
  std::vector<Together> steps_of_kernels_;  // in kernels_
  Grouping grouping_;
  uint32_t num_inputs_ = 0, num_outputs_ = 0, num_anchors_ = 0, num_codegen_ = 0;
  int64_t workspace_bytes_ = 0;
  bool updates_inputs_ = false;
  size_t updates_from_ = SIZE_MAX;  // a step: with it or one behind it failing, an input may be half updated
  mutable kit::Pool<RunTable> pool_;
};

}  // namespace keirin::codegen
