// SPDX-License-Identifier: Apache-2.0
#include "core/host/worker/compile_server.h"

#include "core/host/call/executable.h"
#include "core/host/worker/compile_words.h"
#include "core/host/worker/worker_server.h"
#include "core/host/worker/worker_words.h"

namespace keirin {
namespace {

Packet answer_compile(UsedDevice& device, const Question& q) {
  krn_host& host = *device.plugin().host;
  host.weights_missed = false;
  CompileOptions options = q.options;
  std::string dump;
  if (q.dump) options.dump = [&](std::string_view text) { dump.append(text); };
  Packet packet;
  Status status;
  if (Result<std::shared_ptr<Executable>> made = device.compile(q.region, q.policy, options); made.ok()) {
    if (Result<Artifact> artifact = device.save(**made); artifact.ok()) {
      packet.blobs = {std::move(artifact->token), std::move(artifact->body), std::move(dump)};
      packet.head["num_codegen"] = (*made)->info().num_codegen;
      if ((*made)->info().weights_baked && host.weights_missed)
        status = Status(Code::k_unsupported, "the executable holds weights, whose values are not at hand");
    } else {
      status = artifact.status();
    }
  } else {
    status = made.status();
  }
  packet.head["weights_missed"] = host.weights_missed.load();
  if (!status.ok()) packet.head["refused"] = status_json(status);
  return packet;
}

Packet answer(UsedPlugin& plugin, const Packet& question) {
  const Question q = read_question(question);
  UsedDevice* const device = device_of(plugin, q.device);
  if (!device) return failure(Status(Code::k_unsupported, "the plugin does not drive " + q.device + " in the compile child"));
  if (q.op == "compile") return answer_compile(*device, q);
  Result<ClaimResult> claims = device->claim(q.region, q.policy);
  if (!claims.ok()) return failure(claims.status());
  Packet packet;
  packet.head = claims_json(*claims);
  return packet;
}

}  // namespace

int serve_compile(int channel) {
  static WorkerServices services;
  return serve_plugin(channel, KRN_ROLE_COMPILE, services, answer);
}

}  // namespace keirin
