// SPDX-License-Identifier: Apache-2.0
//
// A loaded plugin in use: its session, its devices and the locks that the contract asks the host to keep. Inside core/host only;
// everyone else uses plugins.h.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/host/call/session.h"
#include "core/host/guard/fork_count.h"
#include "core/host/guard/journal.h"
#include "core/host/guard/thread_state.h"
#include "core/host/plugins.h"

namespace keirin {

class UsedDevice;

// Checks what somebody says a plugin claims of these bytes: nodes exist, are not opaque and are claimed once; sorts them.
Status check_claims(const PluginRegion& region, ClaimResult* claims);

// Shared by the PluginHost, executables and recordings: the plugin is shut down when the last of them goes.
class UsedPlugin : public std::enable_shared_from_this<UsedPlugin> {
 public:
  UsedPlugin(const Manifest& manifest, std::unique_ptr<PluginSession> session, krn_host* host,
             std::vector<HardwareItem> hardware);
  ~UsedPlugin();

  const std::string name, version, build_id, guid;
  const uint64_t forks = fork_count();
  bool in_forked_copy() const { return fork_count() != forks; }
  krn_host* const host;
  const std::vector<HardwareItem> hardware;
  const LoadedPlugin& tables() const { return session_->tables(); }
  const std::vector<FoundDevice>& found() const { return session_->devices(); }
  const std::vector<std::unique_ptr<UsedDevice>>& devices() const { return devices_; }
  std::mutex& compile_mutex() { return compile_mutex_; }
  // "cpu 0.1.0: krn.compile.claim", for messages.
  std::string where(const char* function) const { return name + " " + version + ": " + function; }
  // Where calls are noted while they last; null: nowhere.
  void keep_journal(std::shared_ptr<Journal> journal) {
    const std::lock_guard guard(journal_mutex_);
    journal_.swap(journal);
  }
  std::shared_ptr<Journal> journal() const {
    const std::lock_guard guard(journal_mutex_);
    return journal_;
  }

  // A call that is written down in the journal and must leave the thread as it was. For everything but the many runs.
  template <class F>
  Status call(const char* function, const Hash& region, F&& f) {
    settle_num_threads();
    const Journal::Entry entry(journal(), name, guid, build_id, function, region);
    CallState state;
    Status status = call_plugin(where(function), std::forward<F>(f));
    if (const std::string changed = state.restore(); !changed.empty()) strayed(function, changed);
    return status;
  }
  // Before a call. The libraries of plugins that divide their work by OpenMP share it with LibTorch, and its number of threads is one of
  // the calling thread's: the machine's until LibTorch sets it, which it does when first asked for it there.
  void settle_num_threads() const {
    if (host->services) (void)host->services->num_threads();
  }
  // The plugin left the thread changed, which was put back: counted, and said once.
  void strayed(const char* function, const std::string& changed);
  uint32_t times_strayed() const { return strayed_ + host->slices_strayed; }

 private:
  std::unique_ptr<PluginSession> session_;
  std::vector<std::unique_ptr<UsedDevice>> devices_;
  mutable std::mutex journal_mutex_;
  std::shared_ptr<Journal> journal_;
  std::atomic<uint32_t> strayed_{0};
  std::mutex compile_mutex_;  // taken where the plugin does not say that it compiles concurrently
};

class UsedDevice final : public PluginDevice {
 public:
  UsedDevice(UsedPlugin* plugin, const HardwareItem* hardware, krn_dev* dev, const krn_device_desc& desc);
  ~UsedDevice() override;

  const std::string& plugin_name() const override { return plugin_->name; }
  const std::string& plugin_version() const override { return plugin_->version; }
  const std::string& plugin_build_id() const override { return plugin_->build_id; }
  const std::string& plugin_guid() const override { return plugin_->guid; }
  uint64_t capabilities() const override { return plugin_->tables().capabilities; }
  const HardwareItem& hardware() const override { return *hardware_; }
  Device torch_device() const override { return hardware_->torch_device.value_or(Device{}); }
  const std::string& name() const override { return name_; }
  const std::string& arch() const override { return arch_; }
  const std::string& fingerprint() const override { return fingerprint_; }
  const krn_device_desc& desc() const override { return desc_; }

  Status allowed(const Hash&) override { return {}; }  // who holds this device keeps the list
  Result<ClaimResult> claim(const PluginRegion& region, const PolicyOptions& policy) override;
  Result<std::shared_ptr<Executable>> compile(const PluginRegion& region, const PolicyOptions& policy,
                                              const CompileOptions& options) override;
  Result<std::shared_ptr<Executable>> resize(const Executable& like, const PluginRegion& region) override;
  Result<Artifact> save(const Executable& executable) override;
  Result<ArtifactVerdict> check(std::string_view token) override;
  Result<std::shared_ptr<Executable>> load(const PluginRegion& region, const Artifact& artifact) override;
  bool can_record() const override { return plugin_->tables().has_replay; }
  Status begin_recording(uint64_t stream) override;
  Result<std::shared_ptr<Recording>> end_recording(uint64_t stream) override;
  Status health() override;
  DeviceCondition condition() override;
  void quarantine(const Hash&, const std::string&) override {}
  void judged_wrong(const Hash&, const std::string&) override {}
  std::set<std::string> known_wrong() const override { return {}; }

  UsedPlugin& plugin() { return *plugin_; }
  krn_stream stream_of(uint64_t native, bool recording) const;
  void note(const Status& status);  // remembers device_lost
  bool lost() const { return lost_.load(std::memory_order_relaxed); }

 private:
  Status open_once();
  Result<std::shared_ptr<Executable>> adopt(krn_exec* exec, const PluginRegion& region);

  UsedPlugin* plugin_;  // owns this
  const HardwareItem* hardware_;
  krn_dev* dev_;
  krn_device_desc desc_;
  const std::string name_, arch_, fingerprint_;
  std::mutex mutex_;  // one call into this device at a time, where the contract says so
  bool open_ = false;
  std::atomic<bool> lost_{false};
};

}  // namespace keirin
