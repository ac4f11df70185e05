// SPDX-License-Identifier: Apache-2.0
#include "plugins/gpu/launch.h"

#include <algorithm>

#include "abi/plugin.h"
#include "plugins/kit/error.h"

namespace keirin::gpu {
namespace {

using codegen::AxisKind;
using codegen::Kernel;
using codegen::Schedule;

constexpr size_t kMaxPointers = 256;
// What a launch may pass by value.
constexpr size_t kMaxParameterBytes = 32764;

std::vector<char> pack(const Kernel& kernel, const Schedule& schedule, bool next_begins_early) {
  std::vector<int64_t> all = codegen::size_arguments(kernel);
  all.insert(all.end(), {schedule.splits, schedule.split_length, next_begins_early});
  std::vector<char> out;
  for (int64_t v : all) {
    const auto narrow = static_cast<int32_t>(v);
    const char* bytes = schedule.wide ? reinterpret_cast<const char*>(&v) : reinterpret_cast<const char*>(&narrow);
    out.insert(out.end(), bytes, bytes + (schedule.wide ? 8 : 4));
  }
  return out;
}

class KernelStep final : public codegen::Step {
 public:
  KernelStep(const Driver& driver, const Kernel& k, const Schedule& schedule, const Functions& functions)
      : driver_(driver),
        schedule_(schedule),
        functions_(functions),
        sizes_(pack(k, schedule, false)),
        sizes_and_go_(pack(k, schedule, true)) {
    for (const codegen::Buffer& b : k.buffers) buffers_.push_back(b.id);
    if (k.has_csr) buffers_.push_back(k.csr.row_ptr_buffer), buffers_.push_back(k.csr.perm_buffer);
    const size_t pointers = buffers_.size() + (schedule.split ? 1 : 0);
    parameters_[0] = {static_cast<uint32_t>(sizes_.size()), false}, parameters_[1] = {static_cast<uint32_t>(8 * pointers), true};
    if (buffers_.size() + 1 > kMaxPointers || sizes_.size() + 8 * kMaxPointers > kMaxParameterBytes)
      throw kit::Error(KRN_STATUS_unsupported, "kernel " + k.name + " has more arguments than a launch can pass");
    for (const codegen::Axis& a : k.axes) empty_ |= a.kind == AxisKind::kOuter && a.size == 0;
    empty_ |= k.column && k.axes.back().size == 0;
    for (const codegen::Access& a : k.accesses)
      for (const auto& i : a.indirects) nothing_to_index_ |= i.limit <= 0;
    if (functions_.whole && schedule.shared_bytes > 0)
      check(driver_, driver_.allow_shared(functions_.whole, schedule.shared_bytes), "shared memory of a kernel");
    text_ = "kernel " + k.name + " " + codegen::describe_schedule(k, schedule);
  }

  krn_code run(const codegen::RunContext& context) const override {
    if (empty_) return KRN_STATUS_ok;
    if (nothing_to_index_) {
      kit::set_error(context.err, KRN_STATUS_invalid_input,
                     "an index into an axis without elements in " + text_ + "; eager names the index");
      return KRN_STATUS_invalid_input;
    }
    if (!functions_.whole) {
      kit::set_error(context.err, KRN_STATUS_internal, text_ + " was compiled without a device and cannot run");
      return KRN_STATUS_internal;
    }
    void* pointers[kMaxPointers];
    size_t n = 0;
    for (uint32_t id : buffers_) pointers[n++] = context.buffers[id];
    if (schedule_.split) pointers[n++] = context.buffers[workspace_];
    void* arguments[] = {const_cast<char*>(sizes_.data()), pointers};
    const auto stream = reinterpret_cast<Stream>(context.run->stream.native);
    Result result = launch(functions_.whole, schedule_.blocks, arguments, stream);
    if (result == 0 && schedule_.split) result = launch(functions_.finish, schedule_.finish_blocks, arguments, stream);
    if (result == 0) return KRN_STATUS_ok;
    kit::set_error(context.err, driver_.status_of(result), text_ + ": its launch: " + driver_.words_of(result));
    return driver_.status_of(result);
  }

  std::string describe() const override { return text_; }
  int64_t workspace_bytes() const override { return schedule_.split ? schedule_.workspace_bytes : 0; }
  void set_workspace(uint32_t buffer) override { workspace_ = buffer; }
  void let_next_begin() override { sizes_ = sizes_and_go_; }

 private:
  Result launch(Function function, int64_t blocks, void** arguments, Stream stream) const {
    const Launch launch{.function = function,
                        .blocks = blocks,
                        .threads = schedule_.threads,
                        .shared_bytes = schedule_.shared_bytes,
                        .parameters = parameters_};
    return driver_.launch(launch, stream, arguments);
  }

  const Driver& driver_;
  Schedule schedule_;
  Functions functions_;
  std::vector<char> sizes_, sizes_and_go_;
  std::vector<uint32_t> buffers_;
  Parameter parameters_[2];
  uint32_t workspace_ = 0;
  bool empty_ = false, nothing_to_index_ = false;
  std::string text_;
};

}  // namespace

std::unique_ptr<codegen::Step> make_kernel_step(const Driver& driver, const Kernel& kernel, const Schedule& schedule,
                                                const Functions& functions) {
  return std::make_unique<KernelStep>(driver, kernel, schedule, functions);
}

}  // namespace keirin::gpu
