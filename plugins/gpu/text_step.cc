// SPDX-License-Identifier: Apache-2.0
#include "plugins/gpu/text_step.h"

#include <functional>

#include "abi/plugin.h"
#include "plugins/codegen/kernel/rows.h"
#include "plugins/codegen/text/c_printer.h"
#include "plugins/gpu/code_store.h"
#include "plugins/kit/error.h"
#include "plugins/kit/tables.h"

namespace keirin::gpu {
namespace {

constexpr size_t kMaxPointers = 128;

class TextStep final : public codegen::Step {
 public:
  TextStep(const TextKernel& k, const CodeTarget& target, bool load)
      : driver_(*target.driver),
        text_(k.what),
        launches_(k.launches),
        sizes_(k.sizes),
        workspace_bytes_(k.workspace_bytes),
        reads_words_(k.reads_words),
        next_size_(k.next_size) {
    early_ = k.early && target.begins_early;
    if (k.pointers.size() + 1 > kMaxPointers) throw kit::Error(KRN_STATUS_unsupported, k.what + " has more tensors than a launch can pass");
    for (const codegen::TensorDesc& t : k.pointers) places_.push_back({t.buffer, t.offset * codegen::dtype_bytes(t.dtype)});
    parameters_[0] = {static_cast<uint32_t>(8 * sizes_.size()), false};
    parameters_[1] = {static_cast<uint32_t>(8 * (places_.size() + 1)), true};
    const std::string name = text_code_name(k, target);
    code_store().compile_text(name, whole_text(k, driver_), target);
    for (const TextKernel::Launch& launch : k.launches) {
      functions_.push_back(load ? code_store().load_function(driver_, name, launch.symbol) : nullptr);
      if (load && launch.shared_bytes > 0)
        check(driver_, driver_.allow_shared(functions_.back(), launch.shared_bytes), "shared memory of a kernel");
    }
  }

  krn_code run(const codegen::RunContext& context) const override {
    void* pointers[kMaxPointers];
    size_t n = 0;
    for (const Place& p : places_) {
      const bool absent = p.buffer == codegen::TensorDesc::KRN_NONE_BUFFER;
      // Memory of LibTorch's allocator starts at multiples of a word; a view of a caller's may not.
      if (reads_words_ && !absent && reinterpret_cast<uintptr_t>(context.buffers[p.buffer]) % 16 != 0) {
        kit::set_error(context.err, KRN_STATUS_unsupported, text_ + ": an operand does not start at a multiple of 16 bytes; eager answers");
        return KRN_STATUS_unsupported;
      }
      pointers[n++] = absent ? nullptr : static_cast<char*>(context.buffers[p.buffer]) + p.bytes;
    }
    pointers[n] = workspace_bytes_ > 0 ? context.buffers[workspace_] : nullptr;  // a text may have a place for it and no use
    void* arguments[] = {const_cast<int64_t*>(sizes_.data()), pointers};
    for (size_t i = 0; i < launches_.size(); ++i) {
      if (!functions_[i]) {
        kit::set_error(context.err, KRN_STATUS_internal, text_ + " was compiled without a device and cannot run");
        return KRN_STATUS_internal;
      }
      const TextKernel::Launch& l = launches_[i];
      const Launch launch{functions_[i], l.blocks, l.threads, l.shared_bytes, l.together, early_ && i == 0, parameters_};
      const Result result = driver_.launch(launch, reinterpret_cast<Stream>(context.run->stream.native), arguments);
      if (result == 0) continue;
      kit::set_error(context.err, driver_.status_of(result), text_ + ": its launch: " + driver_.words_of(result));
      return driver_.status_of(result);
    }
    return KRN_STATUS_ok;
  }
  std::string describe() const override { return text_; }
  int64_t workspace_bytes() const override { return workspace_bytes_; }
  void set_workspace(uint32_t buffer) override { workspace_ = buffer; }
  bool begins_early() const override { return early_; }
  void let_next_begin() override {
    if (next_size_ >= 0) sizes_[static_cast<size_t>(next_size_)] = 1;
  }

 private:
  struct Place {
    uint32_t buffer;
    int64_t bytes;
  };
  const Driver& driver_;
  std::string text_;
  std::vector<TextKernel::Launch> launches_;
  std::vector<Function> functions_;
  std::vector<int64_t> sizes_;
  std::vector<Place> places_;
  Parameter parameters_[2];
  int64_t workspace_bytes_;
  bool reads_words_;
  bool early_ = false;
  int next_size_;
  uint32_t workspace_ = 0;
};

}  // namespace

std::string text_code_name(const TextKernel& kernel, const CodeTarget& target) {
  return kTextPrefix + std::to_string(std::hash<std::string>()(whole_text(kernel, *target.driver))) + " " + target.identity();
}

std::string text_of(const TextKernel& kernel) {
  std::string out = kernel.defines;
  for (std::string_view part : kernel.parts) out += part;
  return out;
}

std::string whole_text(const TextKernel& kernel, const Driver& driver) {
  return codegen::print_prelude(driver.words().dialect) + text_of(kernel);
}

std::unique_ptr<codegen::Step> make_text_step(const TextKernel& kernel, const CodeTarget& target, bool load) {
  return std::make_unique<TextStep>(kernel, target, load);
}

std::string epilogue_text(const codegen::PostOp& post) {
  switch (post.op) {
    case kit::kOp_add: return "v += RESIDUAL;";
    case kit::kOp_relu: return "v = krn_max(v, 0.0f);";
    case kit::kOp_sigmoid: return "v = 1.0f / (1.0f + expf(-v));";
    case kit::kOp_tanh: return "v = tanhf(v);";
    case kit::kOp_silu: return "v = v / (1.0f + expf(-v));";
    case kit::kOp_hardswish: return "v = v * krn_min(krn_max(v + 3.0f, 0.0f), 6.0f) / 6.0f;";
    case kit::kOp_gelu: return "v = 0.5f * v * (1.0f + krn_erf(v * 0.707106781f));";
    case kit::kOp_gelu_tanh: return "v = 0.5f * v * (1.0f + tanhf(0.797884561f * (v + 0.044715f * v * v * v)));";
    default: return {};
  }
}

int float_bytes(uint8_t dtype) { return float_storage(dtype) ? (dtype == kit::kDType_f32 ? 4 : 2) : 0; }

const char* float_storage(uint8_t dtype) {
  switch (dtype) {
    case kit::kDType_f16: return "d_f16";
    case kit::kDType_bf16: return "d_bf16";
    case kit::kDType_f32: return "d_f32";
    default: return nullptr;
  }
}

}  // namespace keirin::gpu
