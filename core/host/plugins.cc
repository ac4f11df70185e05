// SPDX-License-Identifier: Apache-2.0
//
// From manifests to devices: each step either lets a plugin pass or writes the line of the report that says why not.
#include "core/host/plugins.h"

#include <sys/stat.h>

#include <algorithm>
#include <condition_variable>
#include <map>
#include <thread>

#include "core/base/files.h"
#include "core/host/call/device.h"
#include "core/host/find/allowed.h"
#include "core/host/find/discovery.h"
#include "core/host/find/manifest.h"
#include "core/host/find/probe.h"
#include "core/host/guard/contained_device.h"
#include "core/host/worker/run_client.h"

namespace keirin {
namespace {

// A plugin's context and the plugin in use, per library and process. Contexts are never destroyed: a plugin may keep the
// address that it was offered. A second PluginHost shares the plugin of the first.
struct Slot {
  std::unique_ptr<krn_host> host = std::make_unique<krn_host>();
  std::weak_ptr<UsedPlugin> used;
  bool open = false;  // also while the last one who used it is still shutting it down
};
struct Slots {
  std::mutex mutex;
  std::condition_variable closed;
  std::map<std::string, Slot> by_library;
};
Slots& slots() {
  static Slots* const s = new Slots;
  return *s;
}

// One plugin on its way through the checks.
struct Candidate {
  FoundManifest found;
  Manifest manifest;
  const ManifestVariant* variant = nullptr;
  size_t report = 0;
  std::string build_id;  // as the probe child heard it
  bool refused = false;
};

class Host final : public PluginHost {
 public:
  explicit Host(const HostOptions& options)
      : options_(options), hardware_(options.hardware ? *options.hardware : find_hardware()) {
    if (options_.worker.empty()) options_.worker = find_worker();
    if (!options_.quarantine) options_.quarantine = std::make_shared<Quarantine>();
    if (options_.log)
      options_.log = [log = options_.log](int level, std::string_view text) {
        try {
          log(level, text);
        } catch (...) {  // a user's callback does not throw into the core
        }
      };
  }

  const std::vector<PluginReport>& reports() const override { return reports_; }
  const std::vector<HardwareItem>& hardware() const override { return hardware_; }
  std::vector<PluginDevice*> devices() const override {
    std::vector<PluginDevice*> all;
    for (const auto& device : devices_) all.push_back(device.get());
    std::stable_sort(all.begin(), all.end(), [](const PluginDevice* a, const PluginDevice* b) {
      return a->desc().prior_score > b->desc().prior_score;
    });
    return all;
  }

  std::vector<std::string> take_incidents() override {
    const std::lock_guard guard(incidents_mutex_);
    return std::exchange(incidents_, {});
  }

  void release_devices() override {
    for (const auto& device : devices_)
      if (device->torch_device().kind != Device::kCpu) device->end_child();
  }

  void find() {
    for (const BadRecord& record : Journal::collect(options_.cache_dir)) {
      options_.quarantine->add(record);
      tell(record.plugin + ": " + record.what + (record.region.empty() ? "; it is not used any more" : "; the region is quarantined"));
    }
    const Discovery discovery = find_manifests(options_.paths, options_.search);
    for (const auto& [path, why] : discovery.empty_paths) {
      PluginReport report;
      report.path = path;
      report.reason = "no plugin found: " + why;
      report.advice = "correct the path, or KEIRIN_PLUGIN_PATH";
      reports_.push_back(std::move(report));
    }
    std::vector<Candidate> candidates;
    for (const FoundManifest& found : discovery.manifests) candidates.push_back(read(found));
    refuse_twins(&candidates);
    const VerdictStore verdicts(options_.cache_dir, hardware_);
    for (Candidate& c : candidates) {
      if (c.refused) continue;
      Status status = probe(c, verdicts);
      if (status.ok()) status = allowed(c);
      if (status.ok()) status = load(c);
      if (!status.ok()) refuse(&c, status);
    }
  }

 private:
  PluginReport& report_of(const Candidate& c) { return reports_[c.report]; }

  void refuse(Candidate* c, const Status& status) {
    c->refused = true;
    PluginReport& report = report_of(*c);
    report.used = false;
    report.reason = status.message().what;
    if (!status.message().where.empty() && report.reason.find(status.message().where) == std::string::npos)
      report.reason += " (" + status.message().where + ")";
    report.advice = status.message().advice;
    if (options_.log)
      options_.log(2, "plugin " + (report.name.empty() ? report.path : report.name) + " is not used: " + report.reason);
  }

  // Everything that is decided before any code of the plugin runs.
  Candidate read(const FoundManifest& found) {
    Candidate c;
    c.found = found;
    c.report = reports_.size();
    reports_.emplace_back();
    report_of(c).path = found.path;
    const Status status = check_manifest(&c);
    PluginReport& report = report_of(c);
    report.name = c.manifest.name;
    report.version = c.manifest.version;
    report.support = c.manifest.support;
    report.guid = c.manifest.guid_text;
    if (c.variant) report.library = c.variant->library;
    if (!status.ok()) refuse(&c, status);
    return c;
  }

  Status check_manifest(Candidate* c) {
    KRN_TRY(check_owned_path(c->found.path));
    KRN_TRY(read_manifest(c->found.path, &c->manifest));
    if (!options_.only.empty() &&
        std::find(options_.only.begin(), options_.only.end(), c->manifest.name) == options_.only.end())
      return Status(Code::k_unsupported, Message{"left out: the caller asked for other plugins", {}, {}, {}});
    const HardwareItem* cpu = &hardware_.front();
    for (const HardwareItem& item : hardware_)
      if (item.uid == "cpu:0") cpu = &item;
    KRN_TRY_LET(c->variant, choose_variant(c->manifest, *cpu));
    KRN_TRY(check_owned_path(c->variant->library));
    KRN_TRY(check_library_file(c->variant->library));
    if (!c->found.trusted) KRN_TRY(check_allowed(*c));
    if (c->variant->sha256.empty()) return {};
    KRN_TRY_LET(const std::string digest, hash_library(c->variant->library));
    if (digest == c->variant->sha256) return {};
    return Status(Code::k_corrupt, Message{"the library is not the one that the manifest names: its SHA-256 is " + digest,
                                           c->variant->library, {}, "install the plugin again"});
  }

  // A plugin that nobody named runs only if this user allowed these very bytes.
  Status check_allowed(const Candidate& c) {
    const std::string& library = c.variant->library;
    const std::string command = "if you trust its publisher: keirin plugin allow " + library;
    KRN_TRY_LET(const AllowedPlugins allowed, AllowedPlugins::read(default_allowed_file()));
    const AllowedPlugin* const known = allowed.find(c.manifest.guid_text);
    if (!known)
      return Status(Code::k_unsupported,
                    Message{"nobody named it and you have not allowed it, so nothing of it was loaded", library, {}, command});
    KRN_TRY_LET(const std::string digest, hash_library(library));
    if (digest == known->sha256) return {};
    return Status(Code::k_unsupported, Message{"its library is not the one that you allowed: its SHA-256 is " + digest + ", it was " +
                                                   known->sha256 + "; nothing of it was loaded",
                                               library, {}, command});
  }

  // The same guid twice: of copies of one library one is used. Of different ones the one that was named exactly wins over those that were
  // only found; else none is used.
  void refuse_twins(std::vector<Candidate>* candidates) {
    std::map<std::string, std::vector<Candidate*>> by_guid;
    for (Candidate& c : *candidates)
      if (!c.refused) by_guid[c.manifest.guid_text].push_back(&c);
    for (auto& [guid, twins] : by_guid) {
      if (twins.size() > 1) refuse_copies(&twins);
      const auto exact = std::count_if(twins.begin(), twins.end(), [](Candidate* c) { return c->found.exact; });
      if (twins.size() < 2) continue;
      for (Candidate* c : twins) {
        if (exact == 1 && c->found.exact) continue;
        const Candidate* other = twins[0] == c ? twins[1] : twins[0];
        refuse(c, Status(Code::k_invalid_input, Message{"another plugin has the same guid: " + other->found.path, {}, {},
                                                        "remove one of them, or name one exactly"}));
      }
    }
  }

  void refuse_copies(std::vector<Candidate*>* twins) {
    std::stable_partition(twins->begin(), twins->end(), [](Candidate* c) { return c->found.exact; });
    std::map<std::string, Candidate*> first;
    std::erase_if(*twins, [&](Candidate* c) {
      const Result<std::string> digest = hash_library(c->variant->library);
      if (!digest.ok()) return false;
      const auto [one, fresh] = first.emplace(*digest, c);
      if (!fresh)
        refuse(c,
               Status(Code::k_invalid_input, Message{"a copy of the library is found before it: " + one->second->found.path, {}, {}, {}}));
      return !fresh;
    });
  }

  Status probe(Candidate& c, const VerdictStore& store) {
    const PluginSession::Identity identity{c.variant->library, c.manifest.guid_text, c.manifest.version};
    KRN_TRY_LET(const ProbeVerdict verdict, look_at(identity, store));
    if (!verdict.passed) return Status(Code::k_unsupported, Message{verdict.reason, c.variant->library, {}, verdict.advice});
    c.build_id = verdict.build_id;
    std::string reasons;
    bool usable = false;
    for (size_t i = 0; i < hardware_.size(); ++i) {
      const ProbedDevice& d = verdict.devices[i];
      report_of(c).devices.push_back({hardware_[i].uid, d.used, d.name, d.reason});
      usable = usable || d.used;
      if (!d.used) reasons += (reasons.empty() ? "" : "; ") + hardware_[i].uid + ": " + d.reason;
    }
    if (!usable) return Status(Code::k_unsupported, Message{"no device here that it can use: " + reasons, {}, {}, {}});
    return {};
  }

  // The remembered verdict, or a new one.
  Result<ProbeVerdict> look_at(const PluginSession::Identity& identity, const VerdictStore& store) {
    if (!options_.probe_again)
      if (std::optional<ProbeVerdict> known = store.recall(identity);
          known && (!known->passed || known->devices.size() == hardware_.size()))
        return std::move(*known);
    if (options_.worker.empty())
      return Status(Code::k_unsupported, Message{"the program of the probe child (keirin-worker) was not found", {}, {},
                                                 "install it beside the library, or give HostOptions::worker"});
    Result<ProbeVerdict> fresh = probe_plugin(options_.worker, identity, hardware_, options_.probe_deadline);
    if (fresh.ok()) store.remember(identity, *fresh);
    return fresh;
  }

  // Decided by the past of the plugin's build, before any of its code runs here.
  Status allowed(Candidate& c) {
    const std::string& guid = c.manifest.guid_text;
    if (const auto why = options_.quarantine->why_not(guid, c.build_id))
      return Status(Code::k_crashed, Message{*why, {}, {}, "update the plugin, or `keirin cache forgive` to let it try again"});
    for (const BadRecord& record : options_.quarantine->of_plugin(guid, c.build_id))
      report_of(c).quarantined.push_back("region " + record.region.substr(0, 12) + ": " + record.what + " (" + record.function + ")");
    return {};
  }

  void tell(const std::string& text) {
    if (options_.log) options_.log(1, text);
    const std::lock_guard guard(incidents_mutex_);
    incidents_.push_back(text);
  }

  WorkerPlugin worker_plugin(const Candidate& c) const {
    return {options_.worker, {c.variant->library, c.manifest.guid_text, c.manifest.version}, c.manifest.name, hardware_,
            options_.services ? options_.services->num_threads() : 1, c.variant->shares};
  }

  std::shared_ptr<CompileClient> child_for(const Candidate& c) const {
    if (options_.compile_in == CompileIn::kProcess || options_.worker.empty()) return nullptr;
    return std::make_shared<CompileClient>(
        worker_plugin(c), WorkerLimits{options_.compile_deadline, options_.compile_memory_bytes, options_.background});
  }

  std::shared_ptr<RunProcesses> run_worker_for(const Candidate& c, const UsedDevice& device) {
    if (options_.run_in == RunIn::kProcess) return nullptr;
    WorkerLimits limits{options_.compile_deadline, options_.compile_memory_bytes, false};
    const HardwareItem* const gpu = device.torch_device().kind == Device::kCpu ? nullptr : &device.hardware();
    // Waking a thread can take as long as ten short runs. On the processor the threads that look would stand in the way of those that
    // compute, and so they do where there are few.
    if (gpu) limits.looks = std::chrono::microseconds(std::thread::hardware_concurrency() >= 4 ? 200 : 20);
    return std::make_shared<RunProcesses>(worker_plugin(c), limits, options_.run_deadline, gpu);
  }

  Status load(const Candidate& c) {
    Slots& s = slots();
    std::shared_ptr<UsedPlugin> used;  // before the lock: closing a plugin takes it
    std::unique_lock guard(s.mutex);
    Slot& slot = s.by_library[c.variant->library];
    s.closed.wait(guard, [&] { return (used = slot.used.lock()) || !slot.open; });
    if (used && used->hardware != hardware_)
      return Status(Code::k_unsupported, Message{"this process uses the plugin already, with another list of hardware", {}, {},
                                                 "close the other PluginHost first"});
    const std::shared_ptr<Journal> journal = Journal::open(options_.cache_dir);
    if (!used) {
      slot.host->services = options_.services;
      slot.host->log = options_.log;
      slot.host->plugin = c.manifest.name;
      // A death in here is held against the plugin, whatever the region.
      const Journal::Entry entry(journal, c.manifest.name, c.manifest.guid_text, c.build_id, "krn.plugin.initialize", Hash{});
      const PluginSession::Identity identity{c.variant->library, c.manifest.guid_text, c.manifest.version};
      KRN_TRY_LET(std::unique_ptr<PluginSession> session,
                  PluginSession::start(identity, slot.host.get(), KRN_ROLE_RUN, hardware_, [](const char*) {}));
      slot.open = true;
      used = std::shared_ptr<UsedPlugin>(new UsedPlugin(c.manifest, std::move(session), slot.host.get(), hardware_),
                                         [&s, &slot](UsedPlugin* plugin) {
                                           if (plugin->in_forked_copy()) return;  // not even to close it
                                           delete plugin;
                                           const std::lock_guard lock(s.mutex);
                                           slot.open = false;
                                           s.closed.notify_all();
                                         });
      slot.used = used;
    }
    used->keep_journal(journal);
    report_of(c).used = true;
    const std::shared_ptr<CompileClient> child = child_for(c);
    for (const auto& device : used->devices())
      devices_.push_back(std::make_unique<ContainedDevice>(used, *device, child, run_worker_for(c, *device), options_.quarantine,
                                                           options_.run_deadline, [this](const std::string& text) { tell(text); }));
    return {};
  }

  HostOptions options_;
  const std::vector<HardwareItem> hardware_;
  std::vector<PluginReport> reports_;
  std::mutex incidents_mutex_;
  std::vector<std::string> incidents_;
  std::vector<std::unique_ptr<ContainedDevice>> devices_;
};

}  // namespace

Result<std::unique_ptr<PluginHost>> PluginHost::open(const HostOptions& options) {
  if (options.hardware && options.hardware->empty())
    return Status(Code::k_invalid_input, Message{"the list of hardware is empty", "HostOptions::hardware", {},
                                                 "leave it out, or list at least the processor"});
  auto host = std::make_unique<Host>(options);
  host->find();
  return std::unique_ptr<PluginHost>(std::move(host));
}

}  // namespace keirin
