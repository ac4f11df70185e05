// SPDX-License-Identifier: Apache-2.0
#include "cpu/vendor_step.h"

#include "plugins/codegen/kernel/rows.h"
#include "plugins/kit/error.h"

namespace keirin::cpu {
namespace {

constexpr uint32_t kNoBuffer = 0xffffffffu;

}  // namespace

VendorStep::VendorStep(dnnl::primitive primitive, const dnnl::memory::desc& scratchpad, std::string description)
    : primitive_(std::move(primitive)), scratchpad_(scratchpad), description_(std::move(description)) {}

void VendorStep::bind(int argument, const dnnl::memory::desc& desc, const codegen::TensorDesc& tensor) {
  bindings_.push_back({argument, desc, tensor.buffer, tensor.offset * codegen::dtype_bytes(tensor.dtype), nullptr});
}

int64_t VendorStep::constant_bytes() const {
  int64_t bytes = 0;
  for (const Binding& binding : bindings_)
    if (binding.pack) bytes += static_cast<int64_t>(binding.pack->layout().get_size());
  return bytes;
}

void VendorStep::bind_pack(int argument, std::shared_ptr<const PackedWeight> pack) {
  const dnnl::memory::desc layout = pack->layout();
  bindings_.push_back({argument, layout, kNoBuffer, 0, std::move(pack)});
}

std::unique_ptr<VendorStep::ArgumentSet> VendorStep::take() const {
  {
    std::lock_guard lock(mutex_);
    if (!pool_.empty()) {
      auto set = std::move(pool_.back());
      pool_.pop_back();
      return set;
    }
  }
  auto set = std::make_unique<ArgumentSet>();
  auto add = [&](int argument, const dnnl::memory::desc& desc, void* data) {
    set->memories.emplace_back(desc, vendor_engine(), data);
    set->arguments.push_back({argument, set->memories.back().get()});
  };
  for (const Binding& b : bindings_) add(b.argument, b.desc, b.pack ? b.pack->data() : nullptr);
  add(DNNL_ARG_SCRATCHPAD, scratchpad_, nullptr);
  set->stream = dnnl::stream(vendor_engine());
  return set;
}

krn_code VendorStep::run(const codegen::RunContext& context) const try {
  std::unique_ptr<ArgumentSet> set = take();
  for (size_t i = 0; i < bindings_.size(); ++i) {
    if (bindings_[i].pack) continue;
    char* base = static_cast<char*>(context.buffers[bindings_[i].buffer]);
    dnnl_memory_set_data_handle(set->memories[i].get(), base + bindings_[i].offset_bytes);
  }
  if (workspace_ != kNoBuffer) dnnl_memory_set_data_handle(set->memories.back().get(), context.buffers[workspace_]);
  const dnnl_status_t status = dnnl_primitive_execute(primitive_.get(), set->stream.get(),
                                                      static_cast<int>(set->arguments.size()), set->arguments.data());
  std::lock_guard lock(mutex_);
  pool_.push_back(std::move(set));
  if (status == dnnl_success) return KRN_STATUS_ok;
  kit::set_error(context.err, KRN_STATUS_internal, description_ + " failed with oneDNN status " + std::to_string(status));
  return KRN_STATUS_internal;
} catch (const std::bad_alloc&) {
  return KRN_STATUS_exhausted;
} catch (const std::exception& e) {
  kit::set_error(context.err, KRN_STATUS_internal, e.what());
  return KRN_STATUS_internal;
}

}  // namespace keirin::cpu
