// SPDX-License-Identifier: Apache-2.0
#include "core/host/guard/contained_device.h"

#include "abi/planted.h"
#include "core/host/call/executable.h"
#include "core/host/worker/run_client.h"
#include "core/host/worker/worker_words.h"

namespace keirin {
namespace {

// A plugin that leaves threads changed so often is not asked for more.
constexpr uint32_t kMaxStrayed = 3;

constexpr char kRests[] = "the region runs eagerly for a while";
constexpr char kAdvice[] = "update the plugin; `keirin cache forgive` lets it try again";

}  // namespace

ContainedDevice::ContainedDevice(std::shared_ptr<UsedPlugin> plugin, UsedDevice& inner, std::shared_ptr<CompileClient> child,
                                 std::shared_ptr<RunProcesses> worker, std::shared_ptr<Quarantine> quarantine,
                                 std::chrono::milliseconds run_deadline, Tell tell)
    : plugin_(std::move(plugin)),
      inner_(inner),
      child_(std::move(child)),
      worker_(std::move(worker)),
      quarantine_(std::move(quarantine)),
      run_deadline_(run_deadline),
      tell_(std::move(tell)) {}

bool ContainedDevice::in_child() {
  if (!child_) return false;
  // What the child makes must come back as bytes. Said when it is first asked: a plugin that nobody asks endangers nobody.
  if (!plugin_->tables().has_artifact) leave_child("it has no krn.artifact");
  return !left_child_;
}

void ContainedDevice::leave_child(const std::string& why) {
  left_child_ = true;
  if (told_left_.exchange(true)) return;
  // A plugin without artifacts compiles where it runs.
  const bool here = !worker_ || plugin_->tables().has_artifact;
  tell_(plugin_name() + (here ? " compiles in this process, where a crash would end it: " : " compiles in its worker: ") + why);
}

Status ContainedDevice::allowed(const Hash& region) {
  if (plugin_->in_forked_copy()) return forked_copy();
  const uint32_t strayed = plugin_->times_strayed();
  if (strayed > 0 && !told_strayed_.exchange(true))
    tell_(plugin_name() + ": left a thread with another floating-point mode, locale, signal mask or folder, which was put back");
  if (strayed >= kMaxStrayed)
    return Status(Code::k_wrong_result, Message{"quarantined: " + plugin_name() + " left threads changed " +
                                                    std::to_string(strayed) + " times", {}, {}, "update the plugin"});
  if (const auto why = quarantine_->why_not(plugin_guid(), plugin_build_id(), region))
    return Status(Code::k_crashed, Message{*why, {}, {}, kAdvice});
  if (const auto why = quarantine_->why_rests(plugin_guid(), plugin_build_id(), region))
    return Status(Code::k_exhausted, Message{*why, {}, kRests, {}});
  return {};
}

Status ContainedDevice::may_begin(const Hash& region) {
  Status status = allowed(region);
  if (status.code() == Code::k_exhausted) quarantine_->note_refusal();
  return status;
}

void ContainedDevice::quarantine(const Hash& region, const std::string& what) {
  quarantine_->add({plugin_name(), plugin_guid(), plugin_build_id(), hex(region), "krn.exec.run", what, {}});
  tell_(plugin_name() + ": " + what + "; the region is quarantined");
}

void ContainedDevice::judged_wrong(const Hash& region, const std::string& what) {
  quarantine_->add({plugin_name(), plugin_guid(), plugin_build_id(), hex(region), kJudgedWrong, what, {}}, !KRN_PLANTED(wrong_forgotten));
}

Status ContainedDevice::judge(const char* function, const Hash& region, Status status) {
  // The machine's fault and not the plugin's: the disk or the memory was full, or somebody killed the process.
  const bool machine = status.code() == Code::k_exhausted;
  const bool plugin = status.code() == Code::k_crashed || status.code() == Code::k_timeout || status.code() == Code::k_corrupt ||
                      status.code() == Code::k_wrong_result;
  if (!machine && !plugin) return status;
  const std::string& what = status.message().what;
  const BadRecord record{plugin_name(), plugin_guid(), plugin_build_id(), hex(region), function, what,
                         status.code() == Code::k_timeout ? boot_id() : std::string()};
  if (machine) {
    quarantine_->rest(record);
    tell_(plugin_name() + ": " + what + "; its region runs eagerly for a while");
    return std::move(status).instead(kRests);
  }
  quarantine_->add(record);
  tell_(plugin_name() + ": " + what + "; its region runs eagerly and is not tried again");
  return std::move(status).instead("the region runs eagerly and is not tried again").advise(kAdvice);
}

Result<ClaimResult> ContainedDevice::claim(const PluginRegion& region, const PolicyOptions& policy) {
  KRN_TRY(may_begin(region.hash));
  if (!in_child()) return inner_.claim(region, policy);
  Result<ClaimResult> claims = child_->claim(hardware().uid, region, policy);
  if (claims.ok()) {
    KRN_TRY(judge("krn.compile.claim", region.hash, check_claims(region, &*claims)));
    return claims;
  }
  if (child_->no_child()) {
    leave_child(claims.status().message().what);
    return inner_.claim(region, policy);
  }
  return judge("krn.compile.claim", region.hash, std::move(claims).status());
}

Result<std::shared_ptr<Executable>> ContainedDevice::watched(Result<std::shared_ptr<Executable>> made, const Hash& region) {
  if (made.ok())
    static_cast<UsedExecutable&>(**made).judge_hangs(run_deadline_, [this, region](Status hung) {
      return judge("krn.exec.run", region, std::move(hung));
    });
  return made;
}

Result<std::shared_ptr<Executable>> ContainedDevice::compile_in_child(const PluginRegion& region, const PolicyOptions& policy,
                                                                      const CompileOptions& options) {
  KRN_TRY_LET(const CompileClient::Compiled made, child_->compile(hardware().uid, region, policy, options));
  const Result<ArtifactVerdict> verdict = inner_.check(made.artifact.token);
  if (!verdict.ok() || *verdict == ArtifactVerdict::kReject)
    return Status(Code::k_corrupt, Message{"made an artifact in the compile child that it refuses here", plugin_name(), {}, {}});
  if (worker_) return load_in_worker(region, made.artifact, policy, options, made.num_codegen);
  Result<std::shared_ptr<Executable>> loaded = inner_.load(region, made.artifact);
  if (!loaded.ok()) {
    // This process and the child see different libraries: here it is as it was before there was a child.
    if (loaded.status().code() != Code::k_unsupported && loaded.status().code() != Code::k_version) return loaded;
    leave_child("what the child made cannot be used here: " + loaded.status().message().what);
    return watched(inner_.compile(region, policy, options), region.hash);
  }
  static_cast<UsedExecutable&>(**loaded).add_codegen(made.num_codegen);
  return watched(std::move(loaded), region.hash);
}

Result<std::shared_ptr<Executable>> ContainedDevice::load_in_worker(const PluginRegion& region, std::optional<Artifact> artifact,
                                                                    const PolicyOptions& policy, const CompileOptions& options,
                                                                    uint32_t num_codegen) {
  KRN_TRY_LET(std::shared_ptr<RemoteExecutable> made,
              RemoteExecutable::make(*this, worker_, region, std::move(artifact), policy, options));
  made->add_codegen(num_codegen);
  return std::shared_ptr<Executable>(std::move(made));
}

Result<std::shared_ptr<Executable>> ContainedDevice::compile_here(const PluginRegion& region, const PolicyOptions& policy,
                                                                  const CompileOptions& options) {
  if (worker_ && !plugin_->tables().has_artifact) return load_in_worker(region, std::nullopt, policy, options, 0);
  Result<std::shared_ptr<Executable>> made = inner_.compile(region, policy, options);
  if (!worker_ || !made.ok()) return watched(std::move(made), region.hash);
  KRN_TRY_LET(Artifact artifact, inner_.save(**made));
  return load_in_worker(region, std::move(artifact), policy, options, (*made)->info().num_codegen);
}

Result<Artifact> ContainedDevice::save(const Executable& executable) {
  const auto* remote = dynamic_cast<const RemoteExecutable*>(&executable);
  if (!remote) return inner_.save(executable);
  if (remote->artifact()) return *remote->artifact();
  return Status(Code::k_unsupported, Message{"the plugin has no artifacts", plugin_name(), "it compiles at every start", {}});
}

Result<std::shared_ptr<Executable>> ContainedDevice::compile(const PluginRegion& region, const PolicyOptions& policy,
                                                             const CompileOptions& options) {
  KRN_TRY(may_begin(region.hash));
  if (in_child()) {
    Result<std::shared_ptr<Executable>> made = compile_in_child(region, policy, options);
    if (made.ok()) return made;
    // A device that one process may open, or that has no memory left for a second one.
    const bool shut = made.status().message().where.find("krn.device.open") != std::string::npos;
    if (!child_->no_child() && !shut) return judge("krn.compile.compile", region.hash, std::move(made).status());
    leave_child(made.status().message().what);
  }
  return compile_here(region, policy, options);
}

// In this process, as load: what is made comes of code that the child has made.
Result<std::shared_ptr<Executable>> ContainedDevice::resize(const Executable& like, const PluginRegion& region) {
  KRN_TRY(may_begin(region.hash));
  return watched(inner_.resize(like, region), region.hash);
}

Result<std::shared_ptr<Executable>> ContainedDevice::load(const PluginRegion& region, const Artifact& artifact) {
  KRN_TRY(may_begin(region.hash));
  if (worker_) return load_in_worker(region, artifact, {}, {}, 0);
  return watched(inner_.load(region, artifact), region.hash);
}

}  // namespace keirin
