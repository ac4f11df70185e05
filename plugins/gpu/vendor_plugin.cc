// SPDX-License-Identifier: Apache-2.0
#include "plugins/gpu/vendor_plugin.h"

#include <cstdlib>

#include "plugins/gpu/imagined_driver.h"
#include "plugins/gpu/written_device.h"

namespace keirin::gpu {
namespace {

constexpr int32_t kTorchCpu = 1;  // whose memory an imagined device uses

std::string variable(const char* name) {
  const char* value = secure_getenv(name);
  return value ? value : "";
}

class VendorPlugin final : public kit::Plugin {
 public:
  explicit VendorPlugin(const Vendor& vendor) : vendor_(vendor) {}

  std::unique_ptr<kit::Device> enumerate(const krn_hw& hardware, std::string& why_not) override {
    const std::string folder = variable("KEIRIN_DUMP_LAUNCHES"), arch = variable("KEIRIN_IMAGINE");
    const bool imagined = !arch.empty() && hardware.torch_type == kTorchCpu;
    std::unique_ptr<Gpu> gpu = imagined ? vendor_.imagine(arch, why_not) : look(hardware, why_not);
    if (!gpu) return nullptr;
    if (imagined) gpu->driver = &imagine_driver(*gpu->driver);
    if (!imagined && folder.empty()) return std::make_unique<PluginDevice>(std::move(gpu));
    return write_device(std::move(gpu), folder, imagined);
  }

 private:
  std::unique_ptr<Gpu> look(const krn_hw& hardware, std::string& why_not) const {
    if (hardware.torch_type != vendor_.torch_type && hardware.vendor_id != vendor_.pci_vendor) {
      std::string missing;
      if (vendor_.could_look && vendor_.could_look(missing)) missing.clear();
      why_not = std::string("not ") + vendor_.gpu + (missing.empty() ? "" : "; " + missing);
      return nullptr;
    }
    std::string pci = kit::text(hardware.uid);
    pci = pci.rfind("pci:", 0) == 0 ? pci.substr(4) : "";
    return vendor_.look(pci, hardware.torch_type == vendor_.torch_type ? hardware.torch_index : -1, why_not);
  }

  const Vendor& vendor_;
};

}  // namespace

std::unique_ptr<kit::Plugin> make_vendor_plugin(const Vendor& vendor) { return std::make_unique<VendorPlugin>(vendor); }

}  // namespace keirin::gpu
