// SPDX-License-Identifier: Apache-2.0
#include "cuda/text_step.h"

#include <functional>

#include "abi/plugin.h"
#include "plugins/codegen/c_printer.h"
#include "plugins/codegen/rows.h"
#include "plugins/kit/error.h"
#include "plugins/kit/tables.h"

namespace keirin::cuda {
namespace {

constexpr size_t kMaxPointers = 128;

class TextStep final : public codegen::Step {
 public:
  TextStep(const TextKernel& k, const CodeTarget& target, bool load)
      : text_(k.what), launches_(k.launches), sizes_(k.sizes), workspace_bytes_(k.workspace_bytes), reads_words_(k.reads_words),
        next_size_(k.next_size) {
    early_ = k.early && std::stoi(target.arch.substr(3)) >= 90;
    std::string ignored;
    driver_ = Driver::get(ignored);
    if (k.pointers.size() + 1 > kMaxPointers) throw kit::Error(KRN_STATUS_unsupported, k.what + " has more tensors than a launch can pass");
    for (const codegen::TensorDesc& t : k.pointers) places_.push_back({t.buffer, t.offset * codegen::dtype_bytes(t.dtype)});
    const std::string name = text_code_name(k, target);
    code_store().compile_text(name, whole_text(k), target);
    for (const TextKernel::Launch& launch : k.launches) {
      functions_.push_back(load ? code_store().load_function(name, launch.symbol) : nullptr);
      if (load && launch.shared_bytes > 0)
        check(driver_->cuFuncSetAttribute(functions_.back(), CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, static_cast<int>(launch.shared_bytes)), "cuFuncSetAttribute");
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
    if (workspace_bytes_ > 0) pointers[n++] = context.buffers[workspace_];
    void* arguments[] = {const_cast<int64_t*>(sizes_.data()), pointers};
    for (size_t i = 0; i < launches_.size(); ++i) {
      if (!functions_[i] || !driver_) {
        kit::set_error(context.err, KRN_STATUS_internal, text_ + " was compiled without a device and cannot run");
        return KRN_STATUS_internal;
      }
      CUlaunchAttribute attribute{};
      CUlaunchConfig config{};
      config.attrs = &attribute;
      if (launches_[i].together) {
        attribute.id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
        attribute.value.cooperative = 1;
        config.numAttrs = 1;
      } else if (early_ && i == 0) {
        attribute.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
        attribute.value.programmaticStreamSerializationAllowed = 1;
        config.numAttrs = 1;
      }
      config.gridDimX = static_cast<unsigned>(launches_[i].blocks), config.gridDimY = config.gridDimZ = 1;
      config.blockDimX = static_cast<unsigned>(launches_[i].threads), config.blockDimY = config.blockDimZ = 1;
      config.sharedMemBytes = static_cast<unsigned>(launches_[i].shared_bytes);
      config.hStream = reinterpret_cast<CUstream>(context.run->stream.native);
      const CUresult result = driver_->cuLaunchKernelEx(&config, functions_[i], arguments, nullptr);
      if (result == CUDA_SUCCESS) continue;
      const char* words = nullptr;
      driver_->cuGetErrorString(result, &words);
      kit::set_error(context.err, code_of(result), text_ + ": cuLaunchKernel: " + (words ? words : "unknown error"));
      return code_of(result);
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
  const Driver* driver_;
  std::string text_;
  std::vector<TextKernel::Launch> launches_;
  std::vector<CUfunction> functions_;
  std::vector<int64_t> sizes_;
  std::vector<Place> places_;
  int64_t workspace_bytes_;
  bool reads_words_;
  bool early_ = false;
  int next_size_;
  uint32_t workspace_ = 0;
};

}  // namespace

const char* const kMatrixText = R"(
#ifdef __CUDA_ARCH__
KRN_FN void krn_product(float (&d)[4], const unsigned (&x)[4], unsigned y0, unsigned y1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." TYPE "." TYPE ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y0), "r"(y1));
}
KRN_FN unsigned krn_pair(float low, float high) {
  unsigned v;
  asm("cvt.rn." TYPE "x2.f32 %0, %1, %2;" : "=r"(v) : "f"(high), "f"(low));
  return v;
}
#endif
)";

std::string text_code_name(const TextKernel& kernel, const CodeTarget& target) {
  return kTextPrefix + std::to_string(std::hash<std::string>()(whole_text(kernel))) + " " + target.identity();
}

std::string whole_text(const TextKernel& kernel) { return codegen::print_prelude(codegen::kCudaDialect) + kernel.text; }

std::unique_ptr<codegen::Step> make_text_step(const TextKernel& kernel, const CodeTarget& target, bool load) {
  return std::make_unique<TextStep>(kernel, target, load);
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

}  // namespace keirin::cuda
