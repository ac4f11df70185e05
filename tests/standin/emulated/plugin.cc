// SPDX-License-Identifier: Apache-2.0
//
// The AMD plugin as a plugin of the processor: all of it but the entry, over the stand-ins of this folder. Memory is LibTorch's on the
// host, and a run gets the stream that only a GPU's has; nothing else differs.
#include "plugins/gpu/device.h"
#include "plugins/kit/plugin.h"
#include "rocm/device.h"

namespace keirin::standin {
namespace {

constexpr int32_t kTorchCpu = 1;  // DLPack's device type

class Executable final : public kit::Executable {
 public:
  explicit Executable(std::unique_ptr<kit::Executable> inner) : inner_(std::move(inner)) {}
  void info(krn_exec_info& out) const override { inner_->info(out); }
  void needs(krn_needs& out) const override { inner_->needs(out); }
  void save(std::string& token, std::string& body) const override { inner_->save(token, body); }
  krn_code run(const krn_run& run, krn_err* err) noexcept override {
    krn_run with_stream = run;
    with_stream.stream.flags |= KRN_STREAM_HAS_NATIVE;
    return inner_->run(with_stream, err);
  }

 private:
  std::unique_ptr<kit::Executable> inner_;
};

class Device final : public kit::Device {
 public:
  explicit Device(std::unique_ptr<gpu::Gpu> gpu) : inner_(std::move(gpu)) {}
  void describe(krn_device_desc& out) const override { inner_.describe(out); }
  void open() override { inner_.open(); }
  void close() override { inner_.close(); }
  krn_code health() const override { return inner_.health(); }
  void claim(const kit::Region& region, const krn_policy& policy, kit::ClaimSink& sink) override { shell().claim(region, policy, sink); }
  std::unique_ptr<kit::Executable> compile(const kit::Region& region, const krn_policy& policy, const krn_options& options) override {
    return std::make_unique<Executable>(shell().compile(region, policy, options));
  }
  uint32_t check(std::string_view token) const override { return const_cast<Device*>(this)->shell().check(token); }
  std::unique_ptr<kit::Executable> load(const kit::Region& region, std::string_view token, std::string_view body) override {
    return std::make_unique<Executable>(shell().load(region, token, body));
  }

 private:
  kit::Device& shell() { return inner_; }
  gpu::PluginDevice inner_;
};

class Plugin final : public kit::Plugin {
 public:
  std::unique_ptr<kit::Device> enumerate(const krn_hw& hardware, std::string& why_not) override {
    if (hardware.torch_type != kTorchCpu) return why_not = "the emulated device is the processor", nullptr;
    std::unique_ptr<gpu::Gpu> gpu = rocm::look_at_gpu("", 0, why_not);
    return gpu ? std::make_unique<Device>(std::move(gpu)) : nullptr;
  }
};

std::unique_ptr<kit::Plugin> make_plugin(const kit::Host&, const krn_config&) { return std::make_unique<Plugin>(); }

}  // namespace
}  // namespace keirin::standin

KRN_PLUGIN((keirin::kit::About{.guid = "6b726e00-726f-636d-8001-656d756c6174",
                               .version = "0.1.0",
                               .description = "compiler=the host's\nlicence=Apache-2.0\n",
                               .capabilities = KRN_CAP_CONCURRENT_COMPILE | KRN_CAP_DETERMINISTIC,
                               .artifacts = true}),
           keirin::standin::make_plugin)
