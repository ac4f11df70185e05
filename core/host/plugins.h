// SPDX-License-Identifier: Apache-2.0
//
// Plugins as the core uses them: found, judged, loaded, and called through one seam. It knows the contract of abi/plugin.h
// and no vendor. What it protects: a plugin that crashes, hangs or lies while it is looked at costs a verdict in the report
// and nothing else; what a plugin says is checked before the core acts on it; no plugin call throws into the core.
//
// Lifetimes: a PluginHost owns its PluginDevices; an Executable or Recording keeps what it needs alive, but must go before the
// PluginHost closes. Libraries stay mapped until the process ends. Threads: every function may be called by any thread.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "abi/plugin.h"
#include "core/base/services.h"
#include "core/base/sha256.h"
#include "core/host/find/hardware.h"

namespace keirin {

class PluginDevice;
class Quarantine;

// Where plugins claim and compile: in this process, or in a keirin-worker, whose death costs an attempt.
enum class CompileIn { kProcess, kChild };

// Where what they compiled runs. kWorker: in a keirin-worker, whose death costs one call's time; its arguments are copied, on a GPU by the
// device. Where a driver shares no memory between processes nothing of it runs, and eager answers.
enum class RunIn { kProcess, kWorker };

struct HostOptions {
  // Plugin folders, folders of plugin folders, manifests or libraries. What is named here exactly (not found by searching a
  // folder) wins over another plugin with the same guid; of copies of one library the first is used.
  std::vector<std::string> paths;
  // Also KEIRIN_PLUGIN_PATH, the folder of the plugins that came with this build, and the folders whose plugins have to be allowed
  // (find/discovery.h).
  bool search = true;
  std::vector<std::string> only;   // plugin names; empty: all
  std::string cache_dir;           // where verdicts of the probe are remembered; empty: nowhere
  // Threads and device memory of the plugins; null: one thread, CPU memory only. A plugin that several PluginHosts of the process use
  // has those (and the log) of the first one until the last one closes.
  TensorServices* services = nullptr;
  std::optional<std::vector<HardwareItem>> hardware;  // instead of find_hardware()
  std::string worker;              // program of the probe child; empty: found beside the library
  std::chrono::milliseconds probe_deadline{20000};
  bool probe_again = false;        // ignore remembered verdicts
  CompileIn compile_in = CompileIn::kProcess;  // a Runtime asks for the child
  std::chrono::milliseconds compile_deadline{120000};  // of one claim or compile in the child
  uint64_t compile_memory_bytes = 0;                   // private memory of child and worker; 0: half of the machine's
  RunIn run_in = RunIn::kProcess;
  std::chrono::milliseconds run_deadline{60000};       // of one run; here what takes longer gets no more calls, a worker is ended
  bool background = false;                             // the child gives way to whatever else wants the processor
  std::shared_ptr<Quarantine> quarantine;  // what is not tried again; null: known to this PluginHost only
  std::function<void(int level, std::string_view text)> log;  // 0 error 1 warning 2 info 3 debug; called by any thread
};

struct DeviceReport {
  std::string hardware;  // uid
  bool used = false;
  std::string name;      // the plugin's name for it, if used
  std::string reason;    // why not, in words
};

// One plugin that was found: nothing is dropped silently.
struct PluginReport {
  std::string name, version, guid, path;  // path: of the manifest; name and the rest may be empty if it could not be read
  std::string library;
  std::string support;  // Manifest::support
  bool used = false;
  std::string reason;  // why it was refused, naming the stage; empty if used
  std::string advice;  // what to do about it
  std::vector<std::string> quarantined;  // regions that it is not given any more, one sentence each
  std::vector<DeviceReport> devices;
};

struct PolicyOptions {
  uint32_t numerics = KRN_NUMERICS_DEFAULT;
  bool deterministic = false;
  bool replay = false;  // the plan will be recorded
  uint64_t memory_limit_bytes = 0;
  bool tf32_convolutions = false, tf32_products = false, tf32_recurrent = false;  // eager rounds their f32 operands so
};

struct CompileOptions {
  uint32_t candidate = 0;  // 0: the plugin's best guess; k: its next one, `unsupported` past the last
  uint32_t level = 1;      // 0 quick, 1 default, 2 best
  std::chrono::nanoseconds deadline{0};     // from now; 0: none
  std::chrono::nanoseconds tune_budget{0};  // device time the plugin may spend trying
  std::atomic<bool>* cancel = nullptr;      // the work stops soon after it becomes true
  std::function<void(std::string_view bytes)> dump;  // receives the generated code as the plugin frames it
};

// What one region is to a plugin. Borrowed for the call; the bytes are aligned to 8.
struct PluginRegion {
  std::span<const uint8_t> bytes;  // RegionBytes::bytes
  Hash hash{};                     // RegionBytes::hash
  std::vector<TensorRef> weights;  // by weight id; empty: the values are not at hand
};

struct NodeClaim {
  std::vector<uint32_t> nodes;  // of the region, ascending; RegionBytes::nodes gives the ops
  uint32_t num_kernels = 0;
  double cost_ns = 0;           // 0: no idea
  double confidence = 0;
};

struct NodeRefusal {
  uint32_t node = 0;
  std::string why;
};

struct ClaimResult {
  std::vector<NodeClaim> claims;  // disjoint, every node exists and is not opaque; convexity is for partition to settle
  std::vector<NodeRefusal> refusals;
};

struct ExecutableInfo {
  uint32_t num_kernels = 0, num_anchors = 0, num_codegen = 0;  // num_codegen: generated by this compile
  uint64_t code_bytes = 0, constant_bytes = 0;
  bool concurrent = false, replay_safe = false, weights_baked = false, inputs_intact = false;
  bool in_worker = false;  // it runs in a process of its own
};

class Executable {
 public:
  virtual ~Executable() = default;
  virtual const ExecutableInfo& info() const = 0;
  virtual uint64_t workspace_bytes() const = 0;
  virtual uint64_t workspace_align() const = 0;
  // Enqueues on the stream (CUstream or hipStream_t of the device; ignored on the CPU, where it returns when done). Tensors as
  // view_of makes them, in the region's order, outputs allocated. Allocates nothing on success. Serialised here unless the
  // plugin says that it may be entered by several threads.
  virtual Status run(const krn_tensor* inputs, uint32_t num_inputs, const krn_tensor* outputs, uint32_t num_outputs,
                     void* workspace, uint64_t stream, bool recording = false) = 0;
  virtual PluginDevice& device() const = 0;
  // A run has lasted so long and goes on: core/host/guard/watchdog.h, which says it again at each look. By another thread than the run's.
  virtual void still_running(std::chrono::milliseconds) {}
};

// A launch sequence recorded on a stream.
class Recording {
 public:
  virtual ~Recording() = default;
  virtual Status launch(uint64_t stream) = 0;
};

// An executable as bytes. The token is what check() judges without building anything.
struct Artifact {
  std::string token;
  std::string body;
};

enum class ArtifactVerdict : uint32_t { kReject = 0, kRecompile = 1, kOptimal = 2 };

// One device under one plugin. Opened on first compile, load or recording.
class PluginDevice {
 public:
  virtual ~PluginDevice() = default;
  virtual const std::string& plugin_name() const = 0;
  virtual const std::string& plugin_version() const = 0;
  virtual const std::string& plugin_build_id() const = 0;
  virtual const std::string& plugin_guid() const = 0;
  virtual uint64_t capabilities() const = 0;  // KRN_CAP_*
  virtual const HardwareItem& hardware() const = 0;
  virtual Device torch_device() const = 0;    // where tensors of this device live in LibTorch
  virtual const std::string& name() const = 0;
  virtual const std::string& arch() const = 0;
  virtual const std::string& fingerprint() const = 0;
  virtual const krn_device_desc& desc() const = 0;  // figures; its strings live as long as this object

  // Why the plugin is not given this region, if it was quarantined; ok otherwise. All that follows asks this itself.
  virtual Status allowed(const Hash& region) = 0;
  virtual Result<ClaimResult> claim(const PluginRegion& region, const PolicyOptions& policy) = 0;
  virtual Result<std::shared_ptr<Executable>> compile(const PluginRegion& region, const PolicyOptions& policy,
                                                      const CompileOptions& options) = 0;
  // What compile would make of a region that has the nodes of `like`'s, an executable of this device, at other sizes: of what is there,
  // in about a millisecond, so that a call may wait for it. `unsupported` where that does not suffice.
  virtual Result<std::shared_ptr<Executable>> resize(const Executable& /*like*/, const PluginRegion& /*region*/) {
    return Status(Code::k_unsupported, "executables are made for one size each");
  }
  // All three answer `unsupported` if the plugin has no artifacts.
  virtual Result<Artifact> save(const Executable& executable) = 0;
  virtual Result<ArtifactVerdict> check(std::string_view token) = 0;
  virtual Result<std::shared_ptr<Executable>> load(const PluginRegion& region, const Artifact& artifact) = 0;

  virtual bool can_record() const = 0;
  virtual Status begin_recording(uint64_t stream) = 0;
  virtual Result<std::shared_ptr<Recording>> end_recording(uint64_t stream) = 0;

  virtual Status health() = 0;  // ok or device_lost, which is sticky; never waits
  virtual DeviceCondition condition() = 0;  // now; takes microseconds and waits for nothing
  // The plugin is not given this region again, in this process and the next ones. `what`: "answered wrong in service".
  virtual void quarantine(const Hash& region, const std::string& what) = 0;
  // The plugin's code for this region ran to its end and the judge found its answer wrong: remembered for this process and the next
  // ones, by build of the plugin. It still may compile it; who builds plans leaves it out.
  virtual void judged_wrong(const Hash& region, const std::string& what) = 0;
  virtual std::set<std::string> known_wrong() const = 0;  // hex hashes of those regions
};

class PluginHost {
 public:
  // Finds, judges and loads. Fails only if the host itself cannot work; a refused plugin is a line of reports().
  static Result<std::unique_ptr<PluginHost>> open(const HostOptions& options);
  virtual ~PluginHost() = default;  // closes devices and shuts the plugins down; not called at process exit
  virtual const std::vector<PluginReport>& reports() const = 0;
  virtual std::vector<PluginDevice*> devices() const = 0;  // by prior score, best first
  virtual const std::vector<HardwareItem>& hardware() const = 0;
  // What went wrong with plugins, for the next report that is written: each thing is given out once.
  virtual std::vector<std::string> take_incidents() = 0;
  // Ends the compile children that opened a GPU, where a process holds 0.6 GB as long as it lives. The next compile starts another.
  virtual void release_devices() = 0;
};

}  // namespace keirin
