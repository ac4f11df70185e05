// SPDX-License-Identifier: Apache-2.0
//
// The NVIDIA plugin: what the kit asks of a plugin, answered with the code generator over CudaBackend. Runs may overlap, on any
// streams; compiles may too, because the store of code locks itself. All work is done in LibTorch's primary context.
#include "plugins/kit/plugin.h"

#include <algorithm>
#include <mutex>

#include "cuda/backend.h"
#include "plugins/codegen/artifact.h"
#include "plugins/codegen/claim.h"
#include "plugins/codegen/executable.h"

namespace keirin::cuda {
namespace {

constexpr int32_t kTorchCuda = 2;  // DLPack's device type
constexpr uint32_t kNvidia = 0x10de;

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

class CudaExecutable : public kit::Executable {
 public:
  CudaExecutable(std::unique_ptr<codegen::Executable> steps, const Gpu& gpu, std::shared_ptr<const Context> context,
                 const kit::Region& region, const krn_policy& policy)
      : context_(std::move(context)), steps_(std::move(steps)), backend_(gpu, context_.get(), &policy) {
    std::copy_n(region.hash, 32, hash_);
  }
  ~CudaExecutable() override {
    const Current current(context_->handle());
    steps_.reset();
  }

  void info(krn_exec_info& out) const override {
    out.flags = KRN_EXEC_CONCURRENT | KRN_EXEC_REPLAY_SAFE | (steps_->inputs_intact() ? KRN_EXEC_INPUTS_INTACT : 0);
    out.num_kernels = steps_->num_kernels();
    out.num_anchors = steps_->num_anchors();
    out.num_codegen = steps_->num_codegen();
    out.code_bytes = code_store().code_bytes();
  }

  void needs(krn_needs& out) const override {
    out.workspace_bytes = static_cast<uint64_t>(steps_->workspace_bytes());
    out.workspace_align = codegen::Executable::kWorkspaceAlign;
  }

  krn_code run(const krn_run& run, krn_err* err) noexcept override {
    if (!(run.stream.flags & KRN_STREAM_HAS_NATIVE)) {
      kit::set_error(err, KRN_STATUS_invalid_input, "a run on a CUDA device needs a CUDA stream");
      return KRN_STATUS_invalid_input;
    }
    const Current current(context_->handle());
    const kit::Host& host = kit::host();
    return steps_->run(run, host.host, host.threads, err);
  }

  void save(std::string& token, std::string& body) const override {
    token = backend_.code_identity();
    const std::vector<uint8_t> bytes = codegen::save_artifact(*steps_, backend_, std::span<const uint8_t, 32>(hash_, 32));
    body.assign(bytes.begin(), bytes.end());
  }

 private:
  std::shared_ptr<const Context> context_;
  std::unique_ptr<codegen::Executable> steps_;
  CudaBackend backend_;
  uint8_t hash_[32];
};

class CudaDevice : public kit::Device {
 public:
  explicit CudaDevice(std::unique_ptr<Gpu> gpu) : gpu_(std::move(gpu)) {
    peaks_[0] = {2, 32, 0, 0, gpu_->info.flops_per_s};
    peaks_[1] = {2, 16, 0, 0, gpu_->matrix_flops_per_s};
    peaks_[2] = {4, 16, 0, 0, gpu_->matrix_flops_per_s};
  }

  void describe(krn_device_desc& out) const override {
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

  void open() override { (void)context(); }
  void close() override {
    std::lock_guard lock(mutex_);
    context_.reset();  // executables keep theirs
  }
  krn_code health() const override {
    std::lock_guard lock(mutex_);
    return context_ ? context_->health() : KRN_STATUS_ok;
  }

  void claim(const kit::Region& region, const krn_policy& policy, kit::ClaimSink& sink) override {
    const auto held = context();
    const CudaBackend backend(*gpu_, held.get(), &policy);
    const codegen::ClaimResult result = codegen::claim(region.graph, backend);
    if (!result.claimed.nodes.empty())
      sink.claim(result.claimed.nodes, static_cast<uint32_t>(result.claimed.nodes.size()), result.claimed.cost_ns, 0.3);
    for (const codegen::NodeRefusal& r : result.refused) sink.refuse(r.node, r.why);
  }

  std::unique_ptr<kit::Executable> compile(const kit::Region& region, const krn_policy& policy, const krn_options& options) override {
    if (options.candidate > 0) throw kit::Error(KRN_STATUS_unsupported, "there is one candidate");
    auto held = context();
    const Current current(held->handle());
    CudaBackend backend(*gpu_, held.get(), &policy);
    auto steps = codegen::Executable::compile(region.bytes, backend, compile_context(region, policy, &options));
    return std::make_unique<CudaExecutable>(std::move(steps), *gpu_, std::move(held), region, policy);
  }

  uint32_t check(std::string_view token) const override {
    for (uint32_t numerics : {KRN_NUMERICS_DEFAULT, KRN_NUMERICS_STRICT, KRN_NUMERICS_FAST})
      if (token == identity(numerics)) return KRN_VERDICT_OPTIMAL;
    return KRN_VERDICT_REJECT;
  }

  std::unique_ptr<kit::Executable> load(const kit::Region& region, std::string_view token, std::string_view body) override {
    krn_policy policy{};
    for (uint32_t numerics : {KRN_NUMERICS_STRICT, KRN_NUMERICS_FAST})
      if (token == identity(numerics)) policy.numerics = numerics;
    auto held = context();
    const Current current(held->handle());
    CudaBackend backend(*gpu_, held.get(), &policy);
    const std::span<const uint8_t> bytes(reinterpret_cast<const uint8_t*>(body.data()), body.size());
    auto steps = codegen::load_artifact(bytes, region.bytes, std::span<const uint8_t, 32>(region.hash, 32), backend,
                                        compile_context(region, policy, nullptr));
    return std::make_unique<CudaExecutable>(std::move(steps), *gpu_, std::move(held), region, policy);
  }

 private:
  std::string identity(uint32_t numerics) const {
    krn_policy policy{};
    policy.numerics = numerics;
    return CudaBackend(*gpu_, nullptr, &policy).code_identity();
  }

  std::shared_ptr<const Context> context() {
    std::lock_guard lock(mutex_);
    if (!context_) context_ = std::make_shared<const Context>(*gpu_);
    return context_;
  }

  std::unique_ptr<Gpu> gpu_;
  krn_peak peaks_[3];
  mutable std::mutex mutex_;
  std::shared_ptr<const Context> context_;
};

class CudaPlugin : public kit::Plugin {
 public:
  std::unique_ptr<kit::Device> enumerate(const krn_hw& hardware, std::string& why_not) override {
    if (hardware.torch_type != kTorchCuda && hardware.vendor_id != kNvidia) {
      why_not = "not an NVIDIA GPU";
      return nullptr;
    }
    std::string pci = kit::text(hardware.uid);
    pci = pci.rfind("pci:", 0) == 0 ? pci.substr(4) : "";
    const int index = hardware.torch_type == kTorchCuda ? hardware.torch_index : -1;
    std::unique_ptr<Gpu> gpu = look_at_gpu(pci, index, why_not);
    return gpu ? std::make_unique<CudaDevice>(std::move(gpu)) : nullptr;
  }
};

std::unique_ptr<kit::Plugin> make_plugin(const kit::Host&, const krn_config&) { return std::make_unique<CudaPlugin>(); }

}  // namespace
}  // namespace keirin::cuda

KRN_PLUGIN((keirin::kit::About{.guid = "6b726e00-6375-6461-8000-6e7669646961",
                               .version = "0.1.0",
                               .description = "compiler=nvrtc\nlibraries=cublaslt\nlicence=Apache-2.0\n",
                               .capabilities = KRN_CAP_CONCURRENT_COMPILE | KRN_CAP_DETERMINISTIC,
                               .artifacts = true}),
           keirin::cuda::make_plugin)
