// SPDX-License-Identifier: Apache-2.0
//
// One plugin, one process away: a warm keirin-worker in one role that is asked over a channel. A crash, hang, memory bomb or garbage
// there costs one question; the next one starts a fresh process. What it is not: trust in the answer, which the caller checks.
#pragma once

#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "core/base/background.h"
#include "core/host/call/session.h"
#include "core/host/find/hardware.h"
#include "core/host/worker/bell.h"
#include "core/host/worker/channel.h"
#include "core/host/worker/child_process.h"

namespace keirin {

// What the worker must find when it looks at the plugin itself.
struct WorkerPlugin {
  std::string program;  // keirin-worker
  PluginSession::Identity identity;
  std::string name;
  std::vector<HardwareItem> hardware;
  int num_threads = 1;  // of the host, so that both plan alike
  std::vector<std::string> shares;  // ManifestVariant::shares
};

struct WorkerLimits {
  std::chrono::milliseconds deadline{120000};  // of one question
  uint64_t memory_bytes = 0;                   // private memory of the process; 0: half of the machine's
  bool background = false;                     // it gives way to whatever else wants the processor
  std::chrono::microseconds looks{0};          // that host and worker look for each other's word before they sleep (bell.h); 0: never
};

class WorkerClient {
 public:
  // `role` as worker_main knows it; `place` names the process in messages: "in the compile child".
  WorkerClient(WorkerPlugin plugin, WorkerLimits limits, const char* role, const char* place);
  ~WorkerClient();

  // `crashed`, `timeout`, `exhausted` or `corrupt` with what was seen, if the worker did not answer as it should; `unsupported` with
  // `impossible` set if there can be none at all; else what the plugin said. One question at a time.
  Result<Packet> ask(const char* stage, const Packet& question, std::chrono::milliseconds deadline,
                     const std::atomic<bool>* cancel = nullptr);
  // Starts the process, if there is none, for who has to know num_started() before it asks.
  Status begin();
  // The same for a question that is a number alone, by the bell where there is one.
  Result<Packet> ask(const char* stage, uint32_t number, std::chrono::milliseconds deadline);
  // Ends the process, if there is one, after the question that it has. The next question starts another.
  void end();
  bool impossible() const { return impossible_; }
  // How many processes there have been, the one that runs included; what an earlier one was told is forgotten.
  uint64_t num_started() const { return num_started_; }
  bool running() const { return running_; }
  const WorkerPlugin& plugin() const { return plugin_; }
  const WorkerLimits& limits() const { return limits_; }

 private:
  Status start(const Patience& patience);
  Result<Packet> receive(const char* stage, std::chrono::milliseconds deadline, const Patience& patience);
  void forget();  // what is left of a process that was ended
  Result<Packet> answer_of(Packet answer, const char* stage, std::chrono::milliseconds deadline);
  Status ended(Status status, const char* stage, std::chrono::milliseconds deadline);
  uint64_t memory_limit() const;

  const WorkerPlugin plugin_;
  const WorkerLimits limits_;
  const char* const role_;
  const char* const place_;
  std::mutex mutex_;  // guards what follows
  std::optional<ChildProcess> child_;
  Descriptor channel_;
  std::unique_ptr<Bell> bell_;  // null: none
  GiveWay gives_way_ = GiveWay::kNot;  // the process there is
  pid_t owner_ = 0;  // the process that started it: a forked copy of the host starts its own
  std::atomic<uint64_t> num_started_{0};
  std::atomic<bool> running_{false}, impossible_{false};
};

}  // namespace keirin
