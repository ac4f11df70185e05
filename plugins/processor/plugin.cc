// SPDX-License-Identifier: Apache-2.0
#include "plugins/processor/plugin.h"

#include <cstdlib>
#include <string>

#include "plugins/processor/backend.h"

namespace keirin::processor {
namespace {

constexpr int32_t kTorchCpu = 1;  // DLPack's device type

class Device final : public shell::Device {
 public:
  Device(const Vendor& vendor, std::unique_ptr<Machine> machine) : vendor_(vendor), machine_(std::move(machine)) {
    peaks_[0] = {2, 32, 0, 0, machine_->info.flops_per_s};
    peaks_[1] = {2, 64, 0, 0, machine_->info.flops_per_s / 2};
  }

  void describe(krn_device_desc& out) const override {
    out.name = kit::str(machine_->name);
    out.arch = kit::str(machine_->arch);
    out.fingerprint = kit::str(machine_->fingerprint);
    out.prior_score = 500;
    out.alignment = 64;
    out.memory_bytes = machine_->memory_bytes;
    out.bytes_per_s = machine_->info.bytes_per_s;
    out.launch_ns = machine_->info.launch_ns;
    out.peaks = peaks_;
    out.num_peaks = 2;
  }

 protected:
  const shell::Traits& traits() const override { return vendor_.traits; }
  std::unique_ptr<codegen::Backend> backend(const krn_policy& policy, uint32_t candidate, const shell::Held*) const override {
    return std::make_unique<Backend>(*machine_, &policy, vendor_.library ? vendor_.library(*machine_, policy, candidate) : nullptr);
  }

 private:
  const Vendor& vendor_;
  std::unique_ptr<Machine> machine_;
  krn_peak peaks_[2];
};

class Plugin final : public kit::Plugin {
 public:
  Plugin(const Vendor& vendor, std::string level) : vendor_(vendor), level_(std::move(level)) {}

  std::unique_ptr<kit::Device> enumerate(const krn_hw& hardware, std::string& why_not) override {
    if (hardware.torch_type != kTorchCpu) {
      why_not = "not a CPU";
      return nullptr;
    }
    std::unique_ptr<Machine> machine = make_machine(*vendor_.isa, vendor_.look(hardware), level_, why_not);
    return machine ? std::make_unique<Device>(vendor_, std::move(machine)) : nullptr;
  }

 private:
  const Vendor& vendor_;
  std::string level_;
};

}  // namespace

std::unique_ptr<kit::Plugin> make_plugin(const Vendor& vendor, const krn_config& config) {
  const char* set = std::getenv("KEIRIN_CPU_LEVEL");
  std::string level = set ? set : "";
  for (uint64_t i = 0; i < config.num_options; ++i) {
    if (kit::text(config.options[i].key) == "level") level = kit::text(config.options[i].value);
  }
  return std::make_unique<Plugin>(vendor, std::move(level));
}

}  // namespace keirin::processor
