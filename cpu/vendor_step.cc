// SPDX-License-Identifier: Apache-2.0
#include "cpu/vendor_step.h"

#include "plugins/codegen/kernel/rows.h"
#include "plugins/kit/error.h"

namespace keirin::cpu {
namespace {

constexpr uint32_t kNoBuffer = 0xffffffffu;
constexpr int64_t kAlign = 64;  // of what lies in a workspace

}  // namespace

VendorStep::VendorStep(dnnl::primitive primitive, const dnnl::memory::desc& scratchpad, std::string description)
    : primitive_(std::move(primitive)), scratchpad_(scratchpad), description_(std::move(description)) {
  take_workspace(scratchpad);
}

// Where so much of it begins. The primitive's own scratchpad is at 0.
int64_t VendorStep::take_workspace(const dnnl::memory::desc& desc) {
  const int64_t at = workspace_bytes_;
  workspace_bytes_ += (static_cast<int64_t>(desc.get_size()) + kAlign - 1) / kAlign * kAlign;
  return at;
}

void VendorStep::bind(int argument, const dnnl::memory::desc& desc, const codegen::TensorDesc& tensor, const dnnl::memory::desc& layout) {
  add(argument, desc, tensor, layout, false);
}

void VendorStep::bind_result(int argument, const dnnl::memory::desc& desc, const codegen::TensorDesc& tensor,
                             const dnnl::memory::desc& layout) {
  add(argument, desc, tensor, layout, true);
}

void VendorStep::add(int argument, const dnnl::memory::desc& desc, const codegen::TensorDesc& tensor, const dnnl::memory::desc& layout,
                     bool after) {
  bindings_.push_back({argument, layout, tensor.buffer, tensor.offset * codegen::dtype_bytes(tensor.dtype), nullptr, std::nullopt});
  if (layout == desc) return;
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  const dnnl::engine& engine = vendor_engine();
  const dnnl::reorder::primitive_desc d(engine, after ? layout : desc, engine, after ? desc : layout, attributes);
  const int64_t at = take_workspace(layout), scratchpad_at = take_workspace(d.scratchpad_desc());
  bindings_.back().move = Move{dnnl::reorder(d), desc, d.scratchpad_desc(), at, scratchpad_at, after};
  description_ += after ? ", result copied" : argument == DNNL_ARG_WEIGHTS ? ", weights copied" : ", operand copied";
}

int64_t VendorStep::constant_bytes() const {
  int64_t bytes = 0;
  for (const Binding& binding : bindings_)
    if (binding.pack) bytes += static_cast<int64_t>(binding.pack->layout().get_size());
  return bytes;
}

void VendorStep::bind_pack(int argument, std::shared_ptr<const PackedWeight> pack) {
  const dnnl::memory::desc layout = pack->layout();
  bindings_.push_back({argument, layout, kNoBuffer, 0, std::move(pack), std::nullopt});
}

std::unique_ptr<VendorStep::ArgumentSet> VendorStep::take() const {
  if (auto set = pool_.take()) return set;
  auto set = std::make_unique<ArgumentSet>();
  auto add = [&](int argument, const dnnl::memory::desc& desc, void* data) {
    set->memories.emplace_back(desc, vendor_engine(), data);
    set->arguments.push_back({argument, set->memories.back().get()});
  };
  for (const Binding& b : bindings_) {
    add(b.argument, b.layout, b.pack ? b.pack->data() : nullptr);
    if (!b.move) continue;
    ArgumentSet::Copy copy{{b.move->lies, vendor_engine(), nullptr}, {b.move->scratchpad, vendor_engine(), nullptr}, {}};
    const dnnl_memory_t laid_out = set->memories.back().get(), lies = copy.lies.get();
    copy.arguments = {{DNNL_ARG_FROM, b.move->after ? laid_out : lies},
                      {DNNL_ARG_TO, b.move->after ? lies : laid_out},
                      {DNNL_ARG_SCRATCHPAD, copy.scratchpad.get()}};
    set->copies.push_back(std::move(copy));
  }
  add(DNNL_ARG_SCRATCHPAD, scratchpad_, nullptr);
  set->stream = dnnl::stream(vendor_engine());
  return set;
}

// The set's objects at this run's memory.
void VendorStep::point(ArgumentSet& set, const codegen::RunContext& context) const {
  char* const workspace = workspace_ == kNoBuffer ? nullptr : static_cast<char*>(context.buffers[workspace_]);
  size_t copy = 0;
  for (size_t i = 0; i < bindings_.size(); ++i) {
    const Binding& b = bindings_[i];
    if (b.pack) continue;
    char* const address = static_cast<char*>(context.buffers[b.buffer]) + b.offset_bytes;
    dnnl_memory_set_data_handle(set.memories[i].get(), b.move ? workspace + b.move->at : address);
    if (!b.move) continue;
    dnnl_memory_set_data_handle(set.copies[copy].lies.get(), address);
    dnnl_memory_set_data_handle(set.copies[copy].scratchpad.get(), workspace + b.move->scratchpad_at);
    ++copy;
  }
  if (workspace) dnnl_memory_set_data_handle(set.memories.back().get(), workspace);
}

dnnl_status_t VendorStep::copy(const ArgumentSet& set, bool after) const {
  size_t copy = 0;
  for (const Binding& b : bindings_) {
    if (!b.move) continue;
    const std::vector<dnnl_exec_arg_t>& arguments = set.copies[copy++].arguments;
    if (b.move->after != after) continue;
    const dnnl_status_t status =
        dnnl_primitive_execute(b.move->reorder.get(), set.stream.get(), static_cast<int>(arguments.size()), arguments.data());
    if (status != dnnl_success) return status;
  }
  return dnnl_success;
}

krn_code VendorStep::run(const codegen::RunContext& context) const try {
  std::unique_ptr<ArgumentSet> set = take();
  point(*set, context);
  dnnl_status_t status = copy(*set, false);
  if (status == dnnl_success)
    status = dnnl_primitive_execute(primitive_.get(), set->stream.get(), static_cast<int>(set->arguments.size()), set->arguments.data());
  if (status == dnnl_success) status = copy(*set, true);
  pool_.give_back(std::move(set));
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
