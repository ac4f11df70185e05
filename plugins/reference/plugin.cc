// SPDX-License-Identifier: Apache-2.0
//
// The reference plugin: claims every row of the op table on CPU tensors and interprets. It never wins a race and is not
// meant to: verifier, certify and tests load it as the oracle.
#include "plugins/kit/plugin.h"

#include <string>

#include "plugins/reference/interpreter.h"

namespace keirin::reference {
namespace {

constexpr int32_t kCpu = 1;  // DLPack

krn_str str(std::string_view s) { return {s.data(), s.size()}; }

class Interpreted final : public kit::Executable {
 public:
  explicit Interpreted(std::span<const uint8_t> bytes) : interpreter_({bytes.data(), bytes.size()}) {}

  void info(krn_exec_info& out) const override {
    out.flags = KRN_EXEC_CONCURRENT | KRN_EXEC_INPUTS_INTACT;
    out.num_kernels = interpreter_.num_nodes();
  }
  void needs(krn_needs& out) const override { out.workspace_align = 1; }
  krn_code run(const krn_run& run, krn_err* err) noexcept override {
    return kit::barrier(err, [&] { interpreter_.run(run.inputs, run.num_inputs, run.outputs, run.num_outputs); });
  }

 private:
  Interpreter interpreter_;
};

class CpuDevice final : public kit::Device {
 public:
  void describe(krn_device_desc& out) const override {
    out.name = str("reference interpreter");
    out.arch = str("portable");
    out.fingerprint = str("double");
    out.alignment = 8;
  }

  void claim(const kit::Region& region, const krn_policy&, kit::ClaimSink& sink) override {
    std::vector<uint32_t> nodes;
    const krn_gfunction* f = krn_graph_function(&region.graph, 0);
    for (uint32_t node = f->first_node; node < f->first_node + f->num_nodes; ++node) {
      if (computes(krn_graph_node(&region.graph, node)->op))
        nodes.push_back(node);
      else
        sink.refuse(node, "no row of the op table");
    }
    if (!nodes.empty()) sink.claim(nodes, static_cast<uint32_t>(nodes.size()), 0, 0);
  }

  std::unique_ptr<kit::Executable> compile(const kit::Region& region, const krn_policy&,
                                           const krn_options& options) override {
    if (options.candidate > 0) throw kit::Error(KRN_STATUS_unsupported, "there is one way to interpret a region");
    return std::make_unique<Interpreted>(region.bytes);
  }
};

class ReferencePlugin final : public kit::Plugin {
 public:
  std::unique_ptr<kit::Device> enumerate(const krn_hw& hardware, std::string& why_not) override {
    if (hardware.torch_type == kCpu) return std::make_unique<CpuDevice>();
    why_not = "the reference interpreter runs on CPU tensors only";
    return nullptr;
  }
};

std::unique_ptr<kit::Plugin> make(const kit::Host&, const krn_config&) { return std::make_unique<ReferencePlugin>(); }

}  // namespace
}  // namespace keirin::reference

KRN_PLUGIN((keirin::kit::About{.guid = "6b726e00-7265-6640-8000-6f7261636c65",
                               .version = KEIRIN_VERSION,
                               .description = "name=reference\nopset=1..1\nlicence=Apache-2.0\n",
                               .capabilities = KRN_CAP_CONCURRENT_COMPILE | KRN_CAP_DETERMINISTIC}),
           keirin::reference::make)
