// SPDX-License-Identifier: Apache-2.0
//
// Running a program. A device plugin enqueues on run.stream here and returns; this one works inline, which the host allows for
// CPU tensors. Nothing in `run` throws or allocates.
#include "device.h"

namespace skeleton_plugin {
namespace {

class Executable final : public keirin::kit::Executable {
 public:
  explicit Executable(Compiled compiled) : compiled_(std::move(compiled)) {}

  void info(krn_exec_info& out) const override {
    out.flags = KRN_EXEC_CONCURRENT | KRN_EXEC_INPUTS_INTACT;
    out.num_kernels = static_cast<uint32_t>(compiled_.program.instructions.size());
  }

  void needs(krn_needs& out) const override {
    out.workspace_bytes = static_cast<uint64_t>(compiled_.program.workspace_bytes);
    out.workspace_align = 64;
  }

  void save(std::string& token, std::string& body) const override {
    token = artifact_token();
    body = skeleton_plugin::save(compiled_);
  }

  krn_code run(const krn_run& run, krn_err* err) noexcept override {
    bool fits = run.num_inputs == compiled_.program.num_inputs && run.num_outputs == compiled_.program.num_outputs &&
                run.workspace_bytes >= static_cast<uint64_t>(compiled_.program.workspace_bytes);
    if (!fits) {
      keirin::kit::set_error(err, KRN_STATUS_invalid_input, "run: tensors or workspace do not match the compiled region");
      return KRN_STATUS_invalid_input;
    }
    for (const Instruction& i : compiled_.program.instructions) {
      const float* a = address(run, i.a);
      const float* b = address(run, i.b);
      float* out = address(run, i.out);
      for (int64_t e = 0; e < i.elements; ++e) out[e] = value(i.op, a[e], b[e]);
    }
    return KRN_STATUS_ok;
  }

 private:
  static float value(uint32_t op, float a, float b) {
    switch (op) {
      case keirin::kit::kOp_add: return a + b;
      case keirin::kit::kOp_relu: return a <= 0 ? 0 : a;
      default: return a;  // kCopy
    }
  }

  float* address(const krn_run& run, uint32_t buffer) const {
    if (buffer < run.num_inputs) return static_cast<float*>(run.inputs[buffer].data);
    buffer -= run.num_inputs;
    if (buffer < run.num_outputs) return static_cast<float*>(run.outputs[buffer].data);
    return reinterpret_cast<float*>(static_cast<char*>(run.workspace) + compiled_.program.temp_offsets[buffer - run.num_outputs]);
  }

  const Compiled compiled_;
};

}  // namespace

std::unique_ptr<keirin::kit::Executable> make_executable(Compiled compiled) {
  return std::make_unique<Executable>(std::move(compiled));
}

}  // namespace skeleton_plugin
