// SPDX-License-Identifier: Apache-2.0
//
// The context of a device, made current where it is not, and the device as a plugin offers it.
#include "plugins/gpu/device.h"

#include <algorithm>
#include <cctype>

#include "plugins/gpu/backend.h"
#include "plugins/kit/error.h"

namespace keirin::gpu {
namespace {

shell::Held::Former make_current(const Driver& driver, ContextHandle context) {
  ContextHandle former = nullptr;
  if (driver.current(former) != 0 || former == context) return {};
  return {former, driver.make_current(context) == 0};
}

void put_back(const Driver& driver, const shell::Held::Former& former) {
  if (former.changed) driver.make_current(static_cast<ContextHandle>(former.handle));
}

// Lower case, without the leading zeros of the domain, which tools write with 4 or 8 digits.
std::string plain_pci(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text.substr(std::min(text.find_first_not_of('0'), text.size()));
}

}  // namespace

int device_number(int count, const std::string& pci, int index, const std::function<std::string(int)>& address_of) {
  for (int i = 0; i < count && !pci.empty(); ++i)
    if (plain_pci(address_of(i)) == plain_pci(pci)) return i;
  return index >= 0 && index < count ? index : -1;
}

CodeTarget code_target(const Gpu& gpu, const krn_policy* policy) {
  CodeTarget target;
  target.driver = gpu.driver;
  target.arch = gpu.arch;
  target.contract = !policy || policy->numerics != KRN_NUMERICS_STRICT;
  target.fast = policy && policy->numerics == KRN_NUMERICS_FAST;
  target.begins_early = gpu.begins_early;
  return target;
}

Context::Context(const Gpu& gpu) : driver_(*gpu.driver), device_(gpu.device) {
  std::string why_not;
  if (!driver_.usable(why_not)) throw kit::Error(KRN_STATUS_unsupported, "no usable driver of this GPU: " + why_not);
  check(driver_, driver_.retain(device_, handle_), "the device's context");
  const Current current(this);
  // Never recorded: a query of it says whether the context still works, and nothing else.
  if (driver_.make_event(probe_, false) != 0) probe_ = nullptr;
}

Context::~Context() {
  if (probe_) driver_.end_event(probe_);
  driver_.release(device_);
}

int32_t Context::health() const {
  if (!probe_) return KRN_STATUS_ok;
  const Current current(this);
  return driver_.is_lost(probe_) ? KRN_STATUS_device_lost : KRN_STATUS_ok;
}

Context::Former Context::enter() const { return make_current(driver_, handle_); }
void Context::leave(const Former& former) const { put_back(driver_, former); }

Current::Current(const Driver* driver, ContextHandle context) : driver_(context ? driver : nullptr) {
  if (driver_) former_ = make_current(*driver_, context);
}

Current::~Current() {
  if (driver_) put_back(*driver_, former_);
}

PluginDevice::PluginDevice(std::unique_ptr<Gpu> gpu) : gpu_(std::move(gpu)) {
  peaks_[0] = {2, 32, 0, 0, gpu_->info.flops_per_s};
  peaks_[1] = {2, 16, 0, 0, gpu_->matrix_flops_per_s};
  peaks_[2] = {4, 16, 0, 0, gpu_->matrix_flops_per_s};
}

void PluginDevice::describe(krn_device_desc& out) const {
  out.name = kit::str(gpu_->name);
  out.arch = kit::str(gpu_->arch);
  out.fingerprint = kit::str(gpu_->fingerprint);
  out.prior_score = 900;
  out.alignment = 256;
  out.memory_bytes = gpu_->memory_bytes;
  out.bytes_per_s = gpu_->info.bytes_per_s;
  out.launch_ns = gpu_->info.launch_ns;
  out.peaks = peaks_;
  out.num_peaks = 3;
}

void PluginDevice::close() {
  std::lock_guard lock(mutex_);
  context_.reset();  // executables keep theirs
}

krn_code PluginDevice::health() const {
  std::lock_guard lock(mutex_);
  return context_ ? context_->health() : KRN_STATUS_ok;
}

const shell::Traits& PluginDevice::traits() const {
  static const shell::Traits traits{.exec_flags = KRN_EXEC_CONCURRENT | KRN_EXEC_REPLAY_SAFE,
                                    .candidates = "there is one candidate",
                                    .needs_stream = "a run on a GPU needs its stream"};
  return traits;
}

std::unique_ptr<codegen::Backend> PluginDevice::backend(const krn_policy& policy, uint32_t /*candidate*/,
                                                        const shell::Held* held) const {
  return std::make_unique<GpuBackend>(*gpu_, static_cast<const Context*>(held), &policy);
}

std::shared_ptr<const shell::Held> PluginDevice::held() {
  std::lock_guard lock(mutex_);
  if (!context_) context_ = std::make_shared<const Context>(*gpu_);
  return context_;
}

}  // namespace keirin::gpu
