// SPDX-License-Identifier: Apache-2.0
#include "core/host/call/device.h"

#include <algorithm>

#include "abi/graph.h"
#include "core/host/call/executable.h"

namespace keirin {
namespace {

constexpr size_t kMaxTokenBytes = 4096;

krn_policy policy_of(const PolicyOptions& options) {
  krn_policy policy = make_struct<krn_policy>();
  policy.numerics = options.numerics;
  policy.flags = (options.deterministic ? KRN_POLICY_DETERMINISTIC : 0) | (options.replay ? KRN_POLICY_REPLAY : 0) |
                 (options.tf32_convolutions ? KRN_POLICY_TF32_CONVOLUTIONS : 0) | (options.tf32_products ? KRN_POLICY_TF32_PRODUCTS : 0) |
                 (options.tf32_recurrent ? KRN_POLICY_TF32_RECURRENT : 0);
  policy.memory_limit_bytes = options.memory_limit_bytes;
  return policy;
}

krn_region region_of(const PluginRegion& region, uint64_t weights) {
  krn_region out = make_struct<krn_region>();
  out.graph = {region.bytes.data(), region.bytes.size()};
  std::copy(region.hash.begin(), region.hash.end(), out.hash);
  out.consts = weights;
  return out;
}

// A sink into a string. A full memory ends the plugin's write, not the process.
krn_code KRN_CALL write_string(void* ctx, const void* data, uint64_t size) {
  try {
    static_cast<std::string*>(ctx)->append(static_cast<const char*>(data), size);
    return KRN_STATUS_ok;
  } catch (...) {
    return KRN_STATUS_exhausted;
  }
}

krn_code KRN_CALL write_dump(void* ctx, const void* data, uint64_t size) {
  try {
    (*static_cast<const std::function<void(std::string_view)>*>(ctx))({static_cast<const char*>(data), size});
    return KRN_STATUS_ok;
  } catch (...) {
    return KRN_STATUS_internal;
  }
}

// Takes claims as they come. A plugin that claims what is not there is believed nothing: check_claims.
struct Claims {
  uint32_t num_nodes;
  ClaimResult result;
  std::string lie;

  void take(const krn_claim& claim) {
    NodeClaim out;
    out.num_kernels = claim.num_kernels;
    out.cost_ns = claim.cost_ns > 0 && claim.cost_ns < 1e18 ? claim.cost_ns : 0;
    out.confidence = claim.confidence >= 0 && claim.confidence <= 1 ? claim.confidence : 0;
    if (claim.num_nodes > num_nodes || (claim.num_nodes && !claim.nodes)) {
      lie = "it claimed " + std::to_string(claim.num_nodes) + " nodes of a region with " + std::to_string(num_nodes);
      return;
    }
    out.nodes.assign(claim.nodes, claim.nodes + claim.num_nodes);
    if (!out.nodes.empty()) result.claims.push_back(std::move(out));
  }
};

void KRN_CALL on_claim(void* ctx, const krn_claim* claim) {
  auto* claims = static_cast<Claims*>(ctx);
  if (!claims->lie.empty()) return;
  try {
    claims->take(read_struct(claim));
  } catch (...) {
    claims->lie = "the host ran out of memory";
  }
}

void KRN_CALL on_refusal(void* ctx, const krn_refusal* refusal) {
  auto* claims = static_cast<Claims*>(ctx);
  try {
    const krn_refusal r = read_struct(refusal);
    claims->result.refusals.push_back({r.node, text_of(r.why)});
  } catch (...) {
    claims->lie = "the host ran out of memory";
  }
}

Status bad_region(const std::string& where) {
  return Status(Code::k_invalid_input, Message{"the region's bytes do not open, or are not aligned to 8", where, {}, {}});
}

bool open_region(const PluginRegion& region, krn_graph* graph) {
  if (reinterpret_cast<uintptr_t>(region.bytes.data()) % 8 != 0) return false;
  return krn_graph_open(region.bytes.data(), region.bytes.size(), graph) == 0;
}

}  // namespace

UsedPlugin::UsedPlugin(const Manifest& manifest, std::unique_ptr<PluginSession> session, krn_host* host_context,
                       std::vector<HardwareItem> items)
    : name(manifest.name),
      version(manifest.version),
      build_id(session->tables().build_id),
      guid(manifest.guid_text),
      host(host_context),
      hardware(std::move(items)),
      session_(std::move(session)) {
  for (size_t i = 0; i < hardware.size(); ++i)
    if (const FoundDevice& d = session_->devices()[i]; d.dev)
      devices_.push_back(std::make_unique<UsedDevice>(this, &hardware[i], d.dev, d.desc));
}

UsedPlugin::~UsedPlugin() {
  devices_.clear();  // closes them
  if (const Status status = session_->shutdown(); !status.ok() && host->log) host->log(1, status.text());
}

void UsedPlugin::strayed(const char* function, const std::string& changed) {
  if (strayed_.fetch_add(1) == 0 && host->log)
    host->log(1, where(function) + " left the thread with another " + changed + ", which was put back");
}

UsedDevice::UsedDevice(UsedPlugin* plugin, const HardwareItem* hardware, krn_dev* dev, const krn_device_desc& desc)
    : plugin_(plugin),
      hardware_(hardware),
      dev_(dev),
      desc_(desc),
      name_(text_of(desc.name)),
      arch_(text_of(desc.arch)),
      fingerprint_(text_of(desc.fingerprint)) {}

UsedDevice::~UsedDevice() {
  if (open_ && plugin_->tables().device.close) plugin_->tables().device.close(dev_);
}

krn_stream UsedDevice::stream_of(uint64_t native, bool recording) const {
  krn_stream stream{};
  const int kind = torch_device().kind;
  if (kind == Device::kCpu) return stream;
  stream.native = native;
  stream.native_kind = kind == Device::kCuda ? KRN_STREAM_KIND_CUDA : KRN_STREAM_KIND_HIP;
  stream.flags = KRN_STREAM_HAS_NATIVE | (recording ? KRN_STREAM_RECORDING : 0);
  return stream;
}

void UsedDevice::note(const Status& status) {
  if (status.code() == Code::k_device_lost) lost_ = true;
}

Status UsedDevice::open_once() {
  if (lost()) return Status(Code::k_device_lost, Message{"the device was lost", plugin_->where(name_.c_str()), {},
                                                         "restart the process; look at the system's log"});
  const std::lock_guard guard(mutex_);
  if (open_ || !plugin_->tables().device.open) return {};
  Status status = call_plugin(plugin_->where("krn.device.open"),
                              [&](krn_err* err) { return plugin_->tables().device.open(dev_, err); });
  note(status);
  open_ = status.ok();
  return status;
}

Status check_claims(const PluginRegion& region, ClaimResult* result) {
  krn_graph graph{};
  if (!open_region(region, &graph)) return bad_region("krn.compile.claim");
  const krn_gfunction* const function = krn_graph_function(&graph, 0);
  const auto lie = [](const std::string& what) {
    return Status(Code::k_internal, Message{what, "krn.compile.claim", "nothing is claimed for this plugin", "report it to its publisher"});
  };
  std::vector<bool> taken(function->num_nodes);
  for (NodeClaim& claim : result->claims) {
    for (const uint32_t node : claim.nodes) {
      const uint32_t at = node - function->first_node;
      if (node < function->first_node || at >= function->num_nodes)
        return lie("it claimed node " + std::to_string(node) + ", which does not exist: the region has " +
                   std::to_string(function->num_nodes));
      if (krn_graph_node(&graph, node)->op == 0) return lie("it claimed node " + std::to_string(node) + ", which is opaque");
      if (taken[at]) return lie("its claims overlap: node " + std::to_string(node) + " is claimed twice");
      taken[at] = true;
    }
    std::sort(claim.nodes.begin(), claim.nodes.end());
  }
  return {};
}

Result<ClaimResult> UsedDevice::claim(const PluginRegion& region, const PolicyOptions& policy) {
  const std::string where = plugin_->where("krn.compile.claim");
  krn_graph graph{};
  if (!open_region(region, &graph)) return bad_region(where);
  Claims claims{krn_graph_function(&graph, 0)->num_nodes, {}, {}};
  const krn_claim_sink sink{on_claim, on_refusal, &claims};
  const CallScope scope(plugin_->host, region.weights, nullptr, 0);
  const krn_region view = region_of(region, scope.weights());
  const krn_policy policy_view = policy_of(policy);
  {
    const std::lock_guard guard(mutex_);
    KRN_TRY(plugin_->call("krn.compile.claim", region.hash, [&](krn_err* err) {
      return plugin_->tables().compile.claim(dev_, &view, &policy_view, &sink, err);
    }));
  }
  if (!claims.lie.empty())
    return Status(Code::k_internal, Message{claims.lie, where, "nothing is claimed for this plugin", "report it to its publisher"});
  if (Status status = check_claims(region, &claims.result); !status.ok())
    return std::move(status).at(plugin_->name + " " + plugin_->version);
  return std::move(claims.result);
}

Result<std::shared_ptr<Executable>> UsedDevice::compile(const PluginRegion& region, const PolicyOptions& policy,
                                                        const CompileOptions& options) {
  const std::string where = plugin_->where("krn.compile.compile");
  krn_graph graph{};
  if (!open_region(region, &graph)) return bad_region(where);
  KRN_TRY(open_once());
  krn_options view = make_struct<krn_options>();
  view.deadline_ns = options.deadline.count() > 0 ? host_now_ns() + static_cast<uint64_t>(options.deadline.count()) : 0;
  view.tune_budget_ns = static_cast<uint64_t>(std::max<int64_t>(0, options.tune_budget.count()));
  view.level = options.level;
  view.candidate = options.candidate;
  const krn_sink dump{write_dump, const_cast<std::function<void(std::string_view)>*>(&options.dump)};
  view.dump = options.dump ? &dump : nullptr;
  const CallScope scope(plugin_->host, region.weights, options.cancel, view.deadline_ns);
  view.cancel_token = scope.token();
  const krn_region region_view = region_of(region, scope.weights());
  const krn_policy policy_view = policy_of(policy);
  krn_exec* exec = nullptr;
  std::unique_lock guard(plugin_->compile_mutex(), std::defer_lock);
  if (!(capabilities() & KRN_CAP_CONCURRENT_COMPILE)) guard.lock();
  Status status = plugin_->call("krn.compile.compile", region.hash, [&](krn_err* err) {
    return plugin_->tables().compile.compile(dev_, &region_view, &policy_view, &view, &exec, err);
  });
  note(status);
  KRN_TRY(std::move(status));
  return adopt(exec, region);
}

Result<std::shared_ptr<Executable>> UsedDevice::resize(const Executable& like, const PluginRegion& region) {
  const std::string where = plugin_->where("krn.compile.resize");
  const auto* used = dynamic_cast<const UsedExecutable*>(&like);
  if (!plugin_->tables().compile.resize || !used || &used->device() != this)
    return Status(Code::k_unsupported, Message{"executables are made for one size each", where, {}, {}});
  krn_graph graph{};
  if (!open_region(region, &graph)) return bad_region(where);
  const CallScope scope(plugin_->host, region.weights, nullptr, 0);
  const krn_region view = region_of(region, scope.weights());
  krn_exec* exec = nullptr;
  std::unique_lock guard(plugin_->compile_mutex(), std::defer_lock);
  if (!(capabilities() & KRN_CAP_CONCURRENT_COMPILE)) guard.lock();
  Status status = plugin_->call("krn.compile.resize", region.hash, [&](krn_err* err) {
    return plugin_->tables().compile.resize(used->handle(), &view, &exec, err);
  });
  note(status);
  KRN_TRY(std::move(status));
  return adopt(exec, region);
}

Result<std::shared_ptr<Executable>> UsedDevice::adopt(krn_exec* exec, const PluginRegion& region) {
  if (!exec)
    return Status(Code::k_internal, Message{"the plugin said ok and returned no executable", plugin_->where("krn.compile"), {},
                                            "report it to its publisher"});
  krn_graph graph{};
  if (!open_region(region, &graph)) return bad_region(plugin_->where("krn.compile"));
  const krn_gfunction* function = krn_graph_function(&graph, 0);
  auto made = std::make_shared<UsedExecutable>(plugin_->shared_from_this(), this, exec, region.hash, function->num_inputs,
                                               function->num_outputs);
  KRN_TRY(made->read_facts());
  return std::shared_ptr<Executable>(std::move(made));
}

Result<Artifact> UsedDevice::save(const Executable& executable) {
  const std::string where = plugin_->where("krn.artifact.save");
  if (!plugin_->tables().has_artifact)
    return Status(Code::k_unsupported, Message{"the plugin has no artifacts", where, "it compiles at every start", {}});
  const auto* used = dynamic_cast<const UsedExecutable*>(&executable);
  if (!used || &used->device() != this)
    return Status(Code::k_invalid_input, Message{"the executable belongs to another device", where, {}, {}});
  Artifact artifact;
  const krn_sink token{write_string, &artifact.token}, body{write_string, &artifact.body};
  KRN_TRY(call_plugin(where, [&](krn_err* err) {
    return plugin_->tables().artifact.save(used->handle(), &token, &body, err);
  }));
  if (artifact.token.size() > kMaxTokenBytes)
    return Status(Code::k_internal, Message{"the token has " + std::to_string(artifact.token.size()) + " bytes, 4096 are allowed",
                                            where, "the executable is not stored", "report it to its publisher"});
  return artifact;
}

Result<ArtifactVerdict> UsedDevice::check(std::string_view token) {
  const std::string where = plugin_->where("krn.artifact.check");
  if (!plugin_->tables().has_artifact)
    return Status(Code::k_unsupported, Message{"the plugin has no artifacts", where, {}, {}});
  if (!plugin_->tables().artifact.check) return ArtifactVerdict::kOptimal;  // load judges alone
  uint32_t verdict = KRN_VERDICT_REJECT;
  const std::lock_guard guard(mutex_);
  KRN_TRY(call_plugin(where, [&](krn_err* err) {
    return plugin_->tables().artifact.check(dev_, {token.data(), token.size()}, &verdict, err);
  }));
  return verdict <= KRN_VERDICT_OPTIMAL ? static_cast<ArtifactVerdict>(verdict) : ArtifactVerdict::kReject;
}

Result<std::shared_ptr<Executable>> UsedDevice::load(const PluginRegion& region, const Artifact& artifact) {
  const std::string where = plugin_->where("krn.artifact.load");
  if (!plugin_->tables().has_artifact)
    return Status(Code::k_unsupported, Message{"the plugin has no artifacts", where, {}, {}});
  krn_graph graph{};
  if (!open_region(region, &graph)) return bad_region(where);
  KRN_TRY(open_once());
  const CallScope scope(plugin_->host, region.weights, nullptr, 0);
  const krn_region view = region_of(region, scope.weights());
  krn_exec* exec = nullptr;
  {
    const std::lock_guard guard(mutex_);
    Status status = plugin_->call("krn.artifact.load", region.hash, [&](krn_err* err) {
      return plugin_->tables().artifact.load(dev_, &view, {artifact.token.data(), artifact.token.size()},
                                             {artifact.body.data(), artifact.body.size()}, &exec, err);
    });
    note(status);
    KRN_TRY(std::move(status));
  }
  return adopt(exec, region);
}

Status UsedDevice::begin_recording(uint64_t stream) {
  const std::string where = plugin_->where("krn.replay.begin");
  if (!can_record()) return Status(Code::k_unsupported, Message{"the plugin records no launches", where, {}, {}});
  KRN_TRY(open_once());
  const krn_stream s = stream_of(stream, false);
  return call_plugin(where, [&](krn_err* err) { return plugin_->tables().replay.begin(dev_, &s, err); });
}

Result<std::shared_ptr<Recording>> UsedDevice::end_recording(uint64_t stream) {
  const std::string where = plugin_->where("krn.replay.end");
  if (!can_record()) return Status(Code::k_unsupported, Message{"the plugin records no launches", where, {}, {}});
  const krn_stream s = stream_of(stream, true);
  krn_replay* replay = nullptr;
  KRN_TRY(call_plugin(where, [&](krn_err* err) { return plugin_->tables().replay.end(dev_, &s, &replay, err); }));
  if (!replay) return Status(Code::k_internal, Message{"the plugin said ok and returned no recording", where, {}, {}});
  return std::shared_ptr<Recording>(std::make_shared<UsedRecording>(plugin_->shared_from_this(), this, replay));
}

DeviceCondition UsedDevice::condition() {
  krn_condition told{};
  told.hdr.size = sizeof(told);
  const auto ask = plugin_->tables().device.condition;
  if (lost() || !ask || ask(dev_, &told) != KRN_STATUS_ok) return {};
  return {told.clock_mhz, (told.flags & KRN_CONDITION_SLOWED) != 0, told.others_percent};
}

Status UsedDevice::health() {
  if (!lost() && plugin_->tables().device.health && plugin_->tables().device.health(dev_) == KRN_STATUS_device_lost)
    lost_ = true;
  if (!lost()) return {};
  return Status(Code::k_device_lost, Message{"the device does not answer any more", plugin_->where(name_.c_str()), {},
                                             "restart the process; look at the system's log"});
}

}  // namespace keirin
