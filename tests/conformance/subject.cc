// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/subject.h"

#include <algorithm>

#include "core/host/call/tensor_view.h"

namespace keirin::conformance {

Result<std::unique_ptr<Subject>> Subject::open(const std::string& folder, const std::string& worker, TensorServices& services,
                                               RunIn run_in) {
  auto subject = std::unique_ptr<Subject>(new Subject(services));
  HostOptions options;
  options.paths = {folder};
  options.search = false;
  options.worker = worker;
  options.services = &services;
  options.run_in = run_in;
  options.compile_in = run_in == RunIn::kWorker ? CompileIn::kChild : CompileIn::kProcess;
  KRN_TRY_LET(subject->host_, PluginHost::open(options));
  if (const std::vector<PluginDevice*> devices = subject->host_->devices(); !devices.empty()) {
    subject->device_ = devices[0];
    // LibTorch's library for a GPU is opened before anything asks about one.
    KRN_TRY_LET(const TensorRef first, services.allocate({DType::k_u8, {1}, {1}, devices[0]->torch_device()}));
    return subject;
  }
  std::string why = "no device in " + folder;
  for (const PluginReport& report : subject->host_->reports()) {
    why += "; " + report.path + ": " + report.reason;
    for (const DeviceReport& device : report.devices) why += "; " + device.hardware + ": " + device.reason;
  }
  return Status(Code::k_unsupported, why);
}

namespace {

PluginRegion region_of(const Case& c, const Compiled& compiled, const std::vector<TensorRef>& constants) {
  PluginRegion region{compiled.bytes.bytes, compiled.bytes.hash, {}};
  for (ValueId v : compiled.bytes.weights) region.weights.push_back(constants[c.graph.values[v].index]);
  return region;
}

}  // namespace

Result<Compiled> claim_case(PluginDevice& device, const Case& c, const std::vector<TensorRef>& constants) {
  Compiled out;
  KRN_TRY_LET(out.bytes, write_region(c.graph));
  KRN_TRY_LET(const ClaimResult claims, device.claim(region_of(c, out, constants), {}));
  std::vector<bool> taken(out.bytes.nodes.size(), false);
  for (const NodeClaim& claim : claims.claims)
    for (uint32_t n : claim.nodes)
      if (n < taken.size()) taken[n] = true;
  out.claimed = std::find(taken.begin(), taken.end(), false) == taken.end();
  if (!out.claimed) out.why = claims.refusals.empty() ? "no reason given" : claims.refusals[0].why;
  return out;
}

Result<Compiled> compile_case(PluginDevice& device, const Case& c, const std::vector<TensorRef>& constants) {
  KRN_TRY_LET(Compiled out, claim_case(device, c, constants));
  if (!out.claimed) return out;
  KRN_TRY_LET(out.executable, device.compile(region_of(c, out, constants), {}, {}));
  return out;
}

Result<Compiled> Subject::compile(const Case& c, const std::vector<Lent>& constants) {
  std::vector<TensorRef> views;
  for (const Lent& each : constants) views.push_back(each.view);
  return compile_case(*device_, c, views);
}

Result<std::string> Subject::run(const Compiled& compiled, const std::vector<Fed>& inputs, const std::vector<GuardedTensor>& outputs) {
  const Device where = device_->torch_device();
  std::vector<krn_tensor> in, out;
  for (ValueId v : compiled.bytes.inputs) in.push_back(view_of(*inputs[v].lent->view));
  std::vector<Lent> results(outputs.size());
  for (size_t o = 0; o < outputs.size(); ++o) {
    KRN_TRY_LET(results[o], outputs[o].lend(services_, where));
    out.push_back(view_of(*results[o].view));
  }
  Executable& executable = *compiled.executable;
  const GuardedBlock workspace(executable.workspace_bytes());
  KRN_TRY_LET(const Lent scratch, workspace.lend(services_, where));
  Status status = executable.run(in.data(), static_cast<uint32_t>(in.size()), out.data(), static_cast<uint32_t>(out.size()), scratch.data,
                                 services_.current_stream(where));
  KRN_TRY(services_.synchronize(where));
  KRN_TRY(workspace.take_back(services_, scratch));
  if (!workspace.intact()) return std::string("memory around the workspace was written");
  for (const Fed& input : inputs) {
    if (input.tensor == nullptr) continue;
    KRN_TRY(input.tensor->take_back(services_, *input.lent));
    if (std::string damage = input.tensor->damage(); !damage.empty()) return damage;
  }
  for (size_t o = 0; o < outputs.size(); ++o) {
    KRN_TRY(outputs[o].take_back(services_, results[o]));
    if (std::string damage = outputs[o].damage(); !damage.empty()) return damage;
  }
  if (!status.ok()) return status;
  return std::string();
}

}  // namespace keirin::conformance
