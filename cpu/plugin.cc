// SPDX-License-Identifier: Apache-2.0
//
// The x86-64 plugin: what the kit asks of a plugin, answered with the code generator over CpuBackend. Runs may overlap; compiles
// may too, because the code cache locks itself.
#include "plugins/kit/plugin.h"

#include <cstdlib>

#include "cpu/backend.h"
#include "cpu/vendor.h"
#include "plugins/codegen/artifact.h"
#include "plugins/codegen/claim.h"
#include "plugins/codegen/executable.h"

namespace keirin::cpu {
namespace {

constexpr int32_t kTorchCpu = 1;  // DLPack's device type

codegen::CompileContext compile_context(const kit::Region& region, const krn_policy& policy, const krn_options* options) {
  const kit::Host& host = kit::host();
  codegen::CompileContext context;
  context.core = host.core;
  context.consts = host.consts;
  context.memory = host.memory;
  context.threads = host.threads;
  context.host = host.host;
  context.weights = region.weights;
  context.policy = &policy;
  context.options = options;
  return context;
}

std::span<const uint8_t, 32> hash_of(const kit::Region& region) { return std::span<const uint8_t, 32>(region.hash, 32); }

class CpuExecutable : public kit::Executable {
 public:
  CpuExecutable(std::unique_ptr<codegen::Executable> steps, const CpuBackend& backend, const kit::Region& region)
      : steps_(std::move(steps)), backend_(backend), token_(backend.token()) {
    std::copy_n(region.hash, 32, hash_);
  }

  void info(krn_exec_info& out) const override {
    out.flags = KRN_EXEC_CONCURRENT | (steps_->inputs_intact() ? KRN_EXEC_INPUTS_INTACT : 0);
    out.num_kernels = steps_->num_kernels();
    out.num_anchors = steps_->num_anchors();
    out.num_codegen = steps_->num_codegen();
    out.code_bytes = code_cache().code_bytes();
    out.constant_bytes = static_cast<uint64_t>(steps_->constant_bytes());
  }

  void needs(krn_needs& out) const override {
    out.workspace_bytes = static_cast<uint64_t>(steps_->workspace_bytes());
    out.workspace_align = codegen::Executable::kWorkspaceAlign;
  }

  krn_code run(const krn_run& run, krn_err* err) noexcept override {
    const kit::Host& host = kit::host();
    return steps_->run(run, host.host, host.threads, err);
  }

  void save(std::string& token, std::string& body) const override {
    token = token_;
    const std::vector<uint8_t> bytes = codegen::save_artifact(*steps_, backend_, std::span<const uint8_t, 32>(hash_, 32));
    body.assign(bytes.begin(), bytes.end());
  }

 private:
  std::unique_ptr<codegen::Executable> steps_;
  CpuBackend backend_;
  std::string token_;
  uint8_t hash_[32];
};

class CpuDevice : public kit::Device {
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

  void claim(const kit::Region& region, const krn_policy& policy, kit::ClaimSink& sink) override {
    const CpuBackend backend(*machine_, &policy);
    const codegen::ClaimResult result = codegen::claim(region.graph, backend);
    if (!result.claimed.nodes.empty()) {
      sink.claim(result.claimed.nodes, static_cast<uint32_t>(result.claimed.nodes.size()), result.claimed.cost_ns, 0.3);
    }
    for (const codegen::NodeRefusal& r : result.refused) sink.refuse(r.node, r.why);
  }

  // Candidate 0 keeps constant weights in oneDNN's layouts, a second copy; candidate 1 reads them as they are.
  std::unique_ptr<kit::Executable> compile(const kit::Region& region, const krn_policy& policy, const krn_options& options) override {
    if (options.candidate > 1) throw kit::Error(KRN_STATUS_unsupported, "there are two candidates: packed and plain weights");
    CpuBackend backend(*machine_, &policy, options.candidate == 0);
    auto steps = codegen::Executable::compile(region.bytes, backend, compile_context(region, policy, &options));
    return std::make_unique<CpuExecutable>(std::move(steps), backend, region);
  }

  // Code runs where the features it may use are.
  uint32_t check(std::string_view token) const override {
    return backend_of(token) ? KRN_VERDICT_OPTIMAL : KRN_VERDICT_REJECT;
  }

  std::unique_ptr<kit::Executable> load(const kit::Region& region, std::string_view token, std::string_view body) override {
    std::unique_ptr<CpuBackend> backend = backend_of(token);
    if (!backend) throw kit::Error(KRN_STATUS_version, "the artifact was made for another CPU, library or build");
    const std::span<const uint8_t> bytes(reinterpret_cast<const uint8_t*>(body.data()), body.size());
    krn_policy policy{};
    auto steps = codegen::load_artifact(bytes, region.bytes, hash_of(region), *backend, compile_context(region, policy, nullptr));
    return std::make_unique<CpuExecutable>(std::move(steps), *backend, region);
  }

 private:
  // The backend whose executables have this token; null if none of this machine's has.
  std::unique_ptr<CpuBackend> backend_of(std::string_view token) const {
    for (uint32_t numerics : {KRN_NUMERICS_DEFAULT, KRN_NUMERICS_STRICT, KRN_NUMERICS_FAST})
      for (bool packed : {true, false}) {
        krn_policy policy{};
        policy.numerics = numerics;
        auto backend = std::make_unique<CpuBackend>(*machine_, &policy, packed);
        if (token == backend->token()) return backend;
      }
    return nullptr;
  }

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
