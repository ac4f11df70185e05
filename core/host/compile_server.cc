// SPDX-License-Identifier: Apache-2.0
//
// The compile child's side: one plugin, opened once, asked until the host goes. It may crash at any time; whoever wrote the
// question notices that by the end of the channel.
#include <poll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <thread>

#include "core/host/background.h"
#include "core/host/compile_child.h"
#include "core/host/compile_words.h"
#include "core/host/device.h"
#include "core/host/executable.h"
#include "core/host/worker_words.h"

namespace keirin {
namespace {

using nlohmann::json;

constexpr uint64_t kMaxQuestionBytes = 1ull << 30;
constexpr uint64_t kMaxFileBytes = 256ull << 20;  // what a plugin may write into one file

// The number of threads that the host's plugin will see, so that both plan alike; all work is done by the caller.
class ChildServices final : public TensorServices {
 public:
  explicit ChildServices(int threads) : threads_(threads) {}
  Result<TensorRef> allocate(const TensorSpec&) override { return none(); }
  bool unshared(const TensorRef&) override { return false; }
  Result<TensorRef> wrap(const TensorSpec&, void*, std::shared_ptr<void>) override { return none(); }
  Result<TensorRef> clone(const TensorRef&) override { return none(); }
  Status copy(const TensorRef&, const TensorRef&) override { return none(); }
  Result<TensorRef> cast(const TensorRef&, DType) override { return none(); }
  Result<TensorRef> to_device(const TensorRef&, Device) override { return none(); }
  void parallel_for(int64_t n, int64_t, const std::function<void(int64_t, int64_t)>& fn) override { fn(0, n); }
  int num_threads() override { return threads_; }
  void set_num_threads(int threads) override { threads_ = threads; }
  Status synchronize(Device) override { return none(); }
  uint64_t current_stream(Device) override { return 0; }
  int64_t peak_bytes(Device) override { return 0; }
  void reset_peak(Device) override {}

 private:
  static Status none() { return Status(Code::k_unsupported, "the compile child has no tensors"); }
  int threads_;
};

// Private memory is what a bomb takes. Reserved address space, of which GPU drivers take terabytes, is not counted.
void limit(uint64_t memory_bytes) {
  const rlimit memory{memory_bytes, memory_bytes}, file{kMaxFileBytes, kMaxFileBytes};
  if (sanitizer_kind() == 0) ::setrlimit(RLIMIT_DATA, &memory);  // a sanitizer's shadow memory would count
  ::setrlimit(RLIMIT_FSIZE, &file);
  ::signal(SIGXFSZ, SIG_IGN);  // the write fails instead
}

// A host that is gone closes the channel; a plugin that hangs must not outlive it.
void end_with_host(int channel) {
  std::thread([channel] {
    pollfd item{channel, POLLRDHUP, 0};
    while (::poll(&item, 1, -1) < 0 || !(item.revents & (POLLRDHUP | POLLHUP | POLLERR))) {
    }
    ::_exit(0);
  }).detach();
}

UsedDevice* device_of(UsedPlugin& plugin, const std::string& uid) {
  for (const auto& device : plugin.devices())
    if (device->hardware().uid == uid) return device.get();
  return nullptr;
}

Packet failure(const Status& status) {
  Packet packet;
  packet.head = {{"status", status_json(status)}};
  return packet;
}

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

Packet answer(UsedPlugin& plugin, Packet question) {
  const Question q = read_question(std::move(question));
  UsedDevice* const device = device_of(plugin, q.device);
  if (!device) return failure(Status(Code::k_unsupported, "the plugin does not drive " + q.device + " in the compile child"));
  if (q.op == "compile") return answer_compile(*device, q);
  Result<ClaimResult> claims = device->claim(q.region, q.policy);
  if (!claims.ok()) return failure(claims.status());
  Packet packet;
  packet.head = claims_json(*claims);
  return packet;
}

Result<std::shared_ptr<UsedPlugin>> open_plugin(const json& hello) {
  // Never freed: a plugin's thread may still hold them when the process ends.
  auto* const host = new krn_host;
  host->services = new ChildServices(hello.at("threads"));
  host->log = [](int, std::string_view line) { ::fprintf(stderr, "%.*s\n", static_cast<int>(line.size()), line.data()); };
  const PluginSession::Identity identity{hello.at("library"), hello.at("guid"), hello.at("version")};
  std::vector<HardwareItem> hardware = hardware_from_json(hello.at("hardware"));
  KRN_TRY_LET(std::unique_ptr<PluginSession> session,
              PluginSession::start(identity, host, KRN_ROLE_COMPILE, hardware, [](const char*) {}));
  Manifest manifest;
  manifest.name = hello.at("plugin");
  manifest.version = identity.version;
  manifest.guid_text = identity.guid_text;
  return std::make_shared<UsedPlugin>(manifest, std::move(session), host, std::move(hardware));
}

}  // namespace

int serve_compile(int channel) {
  const Patience forever;
  end_with_host(channel);
  Result<Packet> hello = receive_packet(channel, kMaxQuestionBytes, forever);
  if (!hello.ok()) return 0;
  Result<std::shared_ptr<UsedPlugin>> plugin = Status(Code::k_internal, "not opened");
  try {
    limit(hello->head.at("memory_bytes"));
    if (hello->head.at("background")) give_way();
    plugin = open_plugin(hello->head);
    for (;;) {
      Result<Packet> question = receive_packet(channel, kMaxQuestionBytes, forever);
      if (!question.ok()) break;
      const Packet reply = plugin.ok() ? answer(**plugin, std::move(*question)) : failure(plugin.status());
      if (!send_packet(channel, reply, forever).ok()) break;
    }
  } catch (const json::exception&) {
    return 2;
  }
  ::_exit(0);  // a plugin's destructors are not part of the question
}

}  // namespace keirin
