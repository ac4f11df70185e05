// SPDX-License-Identifier: Apache-2.0
//
// One plugin's claim and compile, one process away: a warm keirin-worker that is asked over a channel and answers with claims or an
// artifact. A crash, hang, memory bomb or garbage there costs one attempt; the next question starts a fresh child. What it is not:
// trust in the answer, which the caller checks. One question at a time.
#pragma once

#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "core/host/channel.h"
#include "core/host/child_process.h"
#include "core/host/plugins.h"
#include "core/host/session.h"

namespace keirin {

struct ChildLimits {
  std::chrono::milliseconds deadline{120000};  // of one question
  uint64_t memory_bytes = 0;                   // private memory of the child; 0: half of the machine's
  bool background = false;                     // it gives way to whatever else wants the processor
};

class CompileChild {
 public:
  // What the worker must find when it looks at the plugin itself.
  CompileChild(std::string worker, PluginSession::Identity identity, std::string plugin, std::vector<HardwareItem> hardware,
               ChildLimits limits, int num_threads);
  ~CompileChild();

  struct Compiled {
    Artifact artifact;
    uint32_t num_codegen = 0;  // kernels generated for it
  };
  // `crashed`, `timeout`, `exhausted` or `corrupt` with what was seen, if the child did not answer as it should; `unsupported`
  // with `no_child` set if there can be no child at all; else what the plugin said. `device` is the uid of its hardware.
  Result<ClaimResult> claim(const std::string& device, const PluginRegion& region, const PolicyOptions& policy);
  Result<Compiled> compile(const std::string& device, const PluginRegion& region, const PolicyOptions& policy,
                           const CompileOptions& options);
  // There is none, or it cannot be given what the plugin needs.
  bool no_child() const { return no_child_; }

 private:
  Status start(const Patience& patience);
  Result<Packet> ask(const char* stage, Packet question, std::chrono::milliseconds deadline, const std::atomic<bool>* cancel);
  Status ended(Status status, const char* stage, std::chrono::milliseconds deadline);
  Result<Compiled> compile_once(const std::string& device, const PluginRegion& region, const PolicyOptions& policy,
                                const CompileOptions& options, bool with_weights, bool* weights_missed);
  uint64_t memory_limit() const;

  const std::string worker_;
  const PluginSession::Identity identity_;
  const std::string plugin_;
  const std::vector<HardwareItem> hardware_;
  const ChildLimits limits_;
  const int num_threads_;
  std::mutex mutex_;  // guards what follows
  std::optional<ChildProcess> child_;
  Descriptor channel_;
  pid_t owner_ = 0;   // the process that started it: a forked copy of the host starts its own
  std::atomic<bool> no_child_{false};
};

// The child's side: answers questions on `channel` until it closes. Returns the exit status.
int serve_compile(int channel);

}  // namespace keirin
