// SPDX-License-Identifier: Apache-2.0
//
// The x86-64 plugin: what the kit asks of a plugin, answered with the shell over CpuBackend. Runs may overlap; compiles
// may too, because the code cache locks itself.
#include <cstdlib>

#include "cpu/backend.h"
#include "plugins/shell/shell.h"

namespace keirin::cpu {
namespace {

constexpr int32_t kTorchCpu = 1;  // DLPack's device type

// Candidate 0 keeps constant weights in oneDNN's layouts, a second copy; candidate 1 reads them as they are.
const shell::Traits kTraits{.exec_flags = KRN_EXEC_CONCURRENT,
                            .num_candidates = 2,
                            .candidates = "there are two candidates: packed and plain weights",
                            .keeps_constants = true};

class CpuDevice : public shell::Device {
 public:
  explicit CpuDevice(std::unique_ptr<Machine> machine) : machine_(std::move(machine)) {
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
  const shell::Traits& traits() const override { return kTraits; }
  std::unique_ptr<codegen::Backend> backend(const krn_policy& policy, uint32_t candidate, const shell::Held*) const override {
    return std::make_unique<CpuBackend>(*machine_, &policy, candidate == 0);
  }

 private:
  std::unique_ptr<Machine> machine_;
  krn_peak peaks_[2];
};

class CpuPlugin : public kit::Plugin {
 public:
  explicit CpuPlugin(uint32_t features) : features_(features) {}

  std::unique_ptr<kit::Device> enumerate(const krn_hw& hardware, std::string& why_not) override {
    if (hardware.torch_type != kTorchCpu) {
      why_not = "not a CPU";
      return nullptr;
    }
    std::unique_ptr<Machine> machine = look_at_machine(features_, why_not);
    return machine ? std::make_unique<CpuDevice>(std::move(machine)) : nullptr;
  }

 private:
  uint32_t features_;
};

// Option `level`, else KEIRIN_CPU_LEVEL: "avx2" leaves newer features unused, so that one machine can test both.
std::unique_ptr<kit::Plugin> make_plugin(const kit::Host&, const krn_config& config) {
  const char* level = std::getenv("KEIRIN_CPU_LEVEL");
  std::string_view wanted = level ? level : "";
  for (uint64_t i = 0; i < config.num_options; ++i) {
    if (kit::text(config.options[i].key) == "level") wanted = kit::text(config.options[i].value);
  }
  return std::make_unique<CpuPlugin>(wanted == "avx2" ? usable_features() & kAvx2 : usable_features());
}

}  // namespace
}  // namespace keirin::cpu

KRN_PLUGIN((keirin::kit::About{.guid = "6b726e00-6370-7538-8000-783836363401",
                               .version = "0.1.0",
                               .description = "llvm=19.1\nonednn=3.2\nlicence=Apache-2.0\n",
                               .capabilities = KRN_CAP_CONCURRENT_COMPILE | KRN_CAP_DETERMINISTIC,
                               .artifacts = true}),
           keirin::cpu::make_plugin)
