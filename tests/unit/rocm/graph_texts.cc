// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/rocm/graph_texts.h"

#include <stdexcept>

#include "core/ir/bytes.h"
#include "core/partition/partition.h"
#include "plugins/codegen/plan/compiled_region.h"
#include "plugins/codegen/region/claim.h"
#include "plugins/codegen/text/c_printer.h"
#include "plugins/gpu/backend.h"
#include "plugins/gpu/choose.h"
#include "plugins/gpu/csr.h"
#include "plugins/kit/error.h"
#include "rocm/device.h"

namespace keirin::test {
namespace {

constexpr size_t kKernelsOfModule = 64;  // what a compiler does once for a text takes as long as some dozen kernels

class NoStep final : public codegen::Step {
 public:
  krn_code run(const codegen::RunContext&) const override { return KRN_STATUS_internal; }
  std::string describe() const override { return "nothing"; }
};

}  // namespace

// The plugin's, but that texts are kept and not compiled.
class GraphTexts::Backend final : public gpu::GpuBackend {
 public:
  explicit Backend(GraphTexts& out) : GpuBackend(out.gpu_, nullptr, nullptr), out_(out), target_(gpu::code_target(out.gpu_, nullptr)) {}

  std::vector<std::unique_ptr<codegen::Step>> lower_kernels(std::span<const codegen::Together> of_steps, const codegen::CompileContext&,
                                                            uint32_t&) override {
    std::vector<std::unique_ptr<codegen::Step>> steps;
    for (const codegen::Together& kernels : of_steps) {
      for (const gpu::Room& room : gpu::rooms_of(kernels, out_.gpu_.facts)) {
        const std::string name = gpu::CodeNames(*kernels[0], target_).of(room.schedule);
        out_.add_kernel(name, codegen::print_kernel(*kernels[0], room.schedule, out_.gpu_.driver->words().dialect, name));
      }
      steps.push_back(std::make_unique<NoStep>());
    }
    return steps;
  }
  std::unique_ptr<codegen::Step> lower_anchor(const codegen::ChosenAnchor& anchor, const codegen::CompileContext&) override {
    if (const auto& kernel = static_cast<const gpu::Choice&>(*anchor.choice).kernel) out_.add_own(*kernel);
    return std::make_unique<NoStep>();
  }
  std::unique_ptr<codegen::Step> lower_joined(std::span<const codegen::AnchorDesc* const> anchors,
                                              const codegen::CompileContext&) override {
    std::string why_not;
    const auto kernel = gpu::joined_kernel(anchors, out_.gpu_, why_not);
    if (!kernel) throw kit::Error(KRN_STATUS_internal, why_not);
    out_.add_own(*kernel);
    return std::make_unique<NoStep>();
  }
  std::unique_ptr<codegen::Step> lower_csr(const codegen::Csr&, const codegen::CompileContext&) override {
    return std::make_unique<NoStep>();
  }

 private:
  GraphTexts& out_;
  gpu::CodeTarget target_;
};

GraphTexts::GraphTexts(const std::string& arch) : gpu_(rocm::imagine_gpu(arch)) {}

struct GraphTexts::Claimed {
  RegionBytes whole;
  Claim claim;
};

template <class T>
static T need(Result<T> result) {
  if (!result.ok()) throw std::runtime_error(result.status().text());
  return std::move(*result);
}

GraphTexts::Claimed GraphTexts::claimed(const Graph& graph, Backend& backend) const {
  Claimed out{need(write_region(graph)), {}};
  krn_graph region;
  if (krn_graph_open(out.whole.bytes.data(), out.whole.bytes.size(), &region) != 0) throw std::runtime_error("a graph's bytes do not open");
  for (uint32_t node : codegen::claim(region, backend).claimed.nodes) out.claim.ops.push_back(out.whole.nodes[node]);
  return out;
}

void GraphTexts::add_model(const Graph& graph) {
  Backend backend(*this);
  for (const auto& part : need(partition(graph, {claimed(graph, backend).claim})).regions)
    codegen::CompiledRegion::compile(need(write_region(part.cut.graph)).bytes, backend, {});
}

bool GraphTexts::add_case(const Graph& graph) {
  Backend backend(*this);
  const Claimed all = claimed(graph, backend);
  if (all.claim.ops.size() < all.whole.nodes.size()) return false;
  codegen::CompiledRegion::compile(all.whole.bytes, backend, {});
  return true;
}

void GraphTexts::add_kernel(const std::string& name, const std::string& text) {
  if (!seen_.insert(name).second) return;
  if (modules_.empty() || !modules_.back().generated || modules_.back().symbols.size() >= kKernelsOfModule)
    modules_.push_back({codegen::print_prelude(gpu_.driver->words().dialect), {}, true});
  modules_.back().symbols.push_back(name);
  modules_.back().text += text;
}

void GraphTexts::add_own(const gpu::TextKernel& kernel) {
  ModuleText module{gpu::whole_text(kernel, *gpu_.driver), {}, false};
  if (!seen_.insert(module.text).second) return;
  for (const auto& launch : kernel.launches) module.symbols.push_back(launch.symbol);
  modules_.push_back(std::move(module));
}

std::vector<ModuleText> GraphTexts::take() { return std::exchange(modules_, {}); }

}  // namespace keirin::test
