// SPDX-License-Identifier: Apache-2.0
//
// The first look at a plugin, one process away: a child loads it, initialises it, asks for its devices and shuts it down, within
// a deadline. Whatever happens there is a verdict here. What it is not: trust, which is decided before (files.h).
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "core/host/call/session.h"
#include "core/host/find/hardware.h"

namespace keirin {

struct ProbedDevice {
  bool used = false;
  std::string name, reason;
};

struct ProbeVerdict {
  bool passed = false;
  bool hung = false;     // such verdicts are forgotten at the next boot
  std::string reason;    // "the plugin crashed in initialize (signal 11, Segmentation fault)"
  std::string advice;
  std::string build_id;  // the plugin's, if passed
  std::vector<ProbedDevice> devices;  // parallel to the hardware list, if passed
};

// `unsupported` if no child can be started; a verdict in every other case.
Result<ProbeVerdict> probe_plugin(const std::string& worker, const PluginSession::Identity& identity,
                                  const std::vector<HardwareItem>& hardware, std::chrono::milliseconds deadline);

// The child's side: reads the request from `request_fd`, answers line by line on `reply_fd`. Returns the exit status.
int serve_probe(int request_fd, int reply_fd);

// Verdicts by identity of the library's file, the hardware and what the environment says to plugins, so that an unchanged plugin is probed
// once. Wrong or torn files count as none.
class VerdictStore {
 public:
  VerdictStore(std::string cache_dir, const std::vector<HardwareItem>& hardware);
  std::optional<ProbeVerdict> recall(const PluginSession::Identity& identity) const;
  void remember(const PluginSession::Identity& identity, const ProbeVerdict& verdict) const;

 private:
  std::string path_of(const PluginSession::Identity& identity) const;  // empty: the file cannot be looked at
  std::string dir_;  // empty: nothing is remembered
  std::string hardware_text_;
  std::string environment_hash_;  // of what the environment says to plugins
};

}  // namespace keirin
