// SPDX-License-Identifier: Apache-2.0
//
// Running a program. A device plugin enqueues on run.stream here and returns; this one works inline, which the host allows for
// CPU tensors. Nothing in `run` throws or allocates.
#include "device.h"

namespace skeleton {
namespace {

class SkeletonExecutable : public keirin::kit::Executable {
 public:
  explicit SkeletonExecutable(Program program) : program_(std::move(program)) {}

  void info(krn_exec_info& out) const override {
    out.flags = KRN_EXEC_CONCURRENT | KRN_EXEC_INPUTS_INTACT;
    out.num_kernels = static_cast<uint32_t>(program_.instructions.size());
  }

  void needs(krn_needs& out) const override {
    out.workspace_bytes = static_cast<uint64_t>(program_.workspace_bytes);
    out.workspace_align = 64;
  }

  krn_code run(const krn_run& run, krn_err* err) noexcept override {
    bool fits = run.num_inputs == program_.num_inputs && run.num_outputs == program_.num_outputs &&
                run.workspace_bytes >= static_cast<uint64_t>(program_.workspace_bytes);
    if (!fits) {
      keirin::kit::set_error(err, KRN_STATUS_invalid_input, "run: tensors or workspace do not match the compiled region");
      return KRN_STATUS_invalid_input;
    }
    for (const Instruction& i : program_.instructions) {
      const float* a = address(run, i.a);
      const float* b = address(run, i.b);
      float* out = address(run, i.out);
      for (int64_t e = 0; e < i.elements; ++e) out[e] = i.op == keirin::kit::kOp_add ? a[e] + b[e] : a[e] <= 0 ? 0 : a[e];
    }
    return KRN_STATUS_ok;
  }

 private:
  float* address(const krn_run& run, uint32_t buffer) const {
    if (buffer < run.num_inputs) return static_cast<float*>(run.inputs[buffer].data);
    buffer -= run.num_inputs;
    if (buffer < run.num_outputs) return static_cast<float*>(run.outputs[buffer].data);
    return reinterpret_cast<float*>(static_cast<char*>(run.workspace) + program_.temp_offsets[buffer - run.num_outputs]);
  }

  Program program_;
};

}  // namespace

std::unique_ptr<keirin::kit::Executable> make_executable(Program program) {
  return std::make_unique<SkeletonExecutable>(std::move(program));
}

}  // namespace skeleton
