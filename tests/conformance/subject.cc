// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/subject.h"

#include <algorithm>

#include "core/host/tensor_view.h"

namespace keirin::conformance {

Result<std::unique_ptr<Subject>> Subject::open(const std::string& folder, const std::string& worker, TensorServices& services) {
  auto subject = std::unique_ptr<Subject>(new Subject(services));
  HostOptions options;
  options.paths = {folder};
  options.search = false;
  options.worker = worker;
  options.services = &services;
  KRN_TRY_LET(subject->host_, PluginHost::open(options));
  for (PluginDevice* device : subject->host_->devices())
    if (device->torch_device().kind == Device::kCpu) subject->device_ = device;
  if (subject->device_ != nullptr) return subject;
  std::string why = "no CPU device in " + folder;
  for (const PluginReport& report : subject->host_->reports()) why += "; " + report.path + ": " + report.reason;
  return Status(Code::k_unsupported, why);
}

Result<Subject::Compiled> Subject::compile(const Case& c, const std::vector<TensorRef>& constants) {
  Compiled out;
  KRN_TRY_LET(out.bytes, write_region(c.graph));
  PluginRegion region{out.bytes.bytes, out.bytes.hash, {}};
  for (ValueId v : out.bytes.weights) region.weights.push_back(constants[c.graph.values[v].index]);
  KRN_TRY_LET(const ClaimResult claims, device_->claim(region, {}));
  std::vector<bool> taken(out.bytes.nodes.size(), false);
  for (const NodeClaim& claim : claims.claims)
    for (uint32_t n : claim.nodes)
      if (n < taken.size()) taken[n] = true;
  out.claimed = std::find(taken.begin(), taken.end(), false) == taken.end();
  if (!out.claimed) {
    out.why = claims.refusals.empty() ? "no reason given" : claims.refusals[0].why;
    return out;
  }
  KRN_TRY_LET(out.executable, device_->compile(region, {}, {}));
  return out;
}

Result<std::string> Subject::run(const Case&, const Compiled& compiled, const std::vector<const GuardedTensor*>& inputs,
                                 const std::vector<GuardedTensor>& outputs) {
  std::vector<TensorRef> keep;
  std::vector<krn_tensor> in, out;
  for (ValueId v : compiled.bytes.inputs) {
    KRN_TRY_LET(TensorRef view, inputs[v]->view(services_));
    in.push_back(view_of(*view));
    keep.push_back(std::move(view));
  }
  for (const GuardedTensor& t : outputs) {
    KRN_TRY_LET(TensorRef view, t.view(services_));
    out.push_back(view_of(*view));
    keep.push_back(std::move(view));
  }
  Executable& executable = *compiled.executable;
  const GuardedBlock workspace(executable.workspace_bytes());
  KRN_TRY(executable.run(in.data(), static_cast<uint32_t>(in.size()), out.data(), static_cast<uint32_t>(out.size()), workspace.data(), 0));
  if (!workspace.intact()) return std::string("memory around the workspace was written");
  for (const GuardedTensor* t : inputs)
    if (t != nullptr)
      if (std::string damage = t->damage(); !damage.empty()) return damage;
  for (const GuardedTensor& t : outputs)
    if (std::string damage = t.damage(); !damage.empty()) return damage;
  return std::string();
}

}  // namespace keirin::conformance
