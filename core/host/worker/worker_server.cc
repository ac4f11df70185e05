// SPDX-License-Identifier: Apache-2.0
#include "core/host/worker/worker_server.h"

#include <dlfcn.h>
#include <poll.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <optional>
#include <thread>

#include "core/base/background.h"
#include "core/host/worker/bell.h"
#include "core/host/worker/worker_words.h"

namespace keirin {
namespace {

using nlohmann::json;

constexpr uint64_t kMaxQuestionBytes = 1ull << 30;
constexpr uint64_t kMaxFileBytes = 256ull << 20;  // what a plugin may write into one file

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
    while (::poll(&item, 1, -1) < 0 || !(item.revents & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL))) {
    }
    ::_exit(0);
  }).detach();
}

Result<std::shared_ptr<UsedPlugin>> open_plugin(const json& hello, uint32_t role, TensorServices& services) {
  // Never freed: a plugin's thread may still hold them when the process ends.
  auto* const host = new krn_host;
  services.set_num_threads(hello.at("threads"));
  host->services = &services;
  host->log = [](int, std::string_view line) { ::fprintf(stderr, "%.*s\n", static_cast<int>(line.size()), line.data()); };
  // Before the plugin looks for them: a library that is open already is found by its name. One that does not open here is its affair.
  for (const std::string file : hello.at("held"))
    if (!::dlopen(file.c_str(), RTLD_LAZY | RTLD_LOCAL)) ::fprintf(stderr, "%s\n", ::dlerror());
  const PluginSession::Identity identity{hello.at("library"), hello.at("guid"), hello.at("version")};
  std::vector<HardwareItem> hardware = hardware_from_json(hello.at("hardware"));
  KRN_TRY_LET(std::unique_ptr<PluginSession> session,
              PluginSession::start(identity, host, role, hardware, [](const char*) {}));
  Manifest manifest;
  manifest.name = hello.at("plugin");
  manifest.version = identity.version;
  manifest.guid_text = identity.guid_text;
  return std::make_shared<UsedPlugin>(manifest, std::move(session), host, std::move(hardware));
}

Packet numbered(uint32_t number) {
  Packet packet;
  packet.number = number;
  return packet;
}

// An empty reply is a word; any other one a packet, which wakes the host by itself.
bool answer_by_bell(Bell& bell, int channel, const Packet& reply) {
  if (reply.head.is_null()) return !bell.answer(Bell::Answered::kDone) || send_packet(channel, numbered(Bell::kRings), {}).ok();
  (void)bell.answer(Bell::Answered::kPacket);
  return send_packet(channel, reply, {}).ok();
}

}  // namespace

// The worker's program links OpenMP, this library does not.
void WorkerServices::set_num_threads(int threads) {
  threads_ = threads;
  using SetThreads = void (*)(int);
  if (const auto set = reinterpret_cast<SetThreads>(::dlsym(RTLD_DEFAULT, "omp_set_num_threads"))) set(threads);
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

int serve_plugin(int channel, uint32_t role, TensorServices& services, const Answer& answer) {
  const Patience forever;
  end_with_host(channel);
  Result<Packet> hello = receive_packet(channel, kMaxQuestionBytes, forever);
  if (!hello.ok()) return 0;
  Result<std::shared_ptr<UsedPlugin>> plugin = Status(Code::k_internal, "not opened");
  try {
    limit(hello->head.at("memory_bytes"));
    give_way(static_cast<GiveWay>(hello->head.at("gives_way").get<int>()));
    std::unique_ptr<Bell> bell;
    if (const std::chrono::microseconds looks(hello->head.at("looks_us").get<int64_t>()); looks.count() > 0) {
      Result<std::unique_ptr<Bell>> opened = Bell::open(looks, hello->file.get());
      if (!opened.ok()) return 2;
      bell = std::move(*opened);
    }
    plugin = open_plugin(hello->head, role, services);
    for (;;) {
      if (const std::optional<uint32_t> number = bell ? bell->look_for_question() : std::nullopt) {
        if (!answer_by_bell(*bell, channel, plugin.ok() ? answer(**plugin, numbered(*number)) : failure(plugin.status()))) break;
        continue;
      }
      Result<Packet> question = receive_packet(channel, kMaxQuestionBytes, forever);
      if (!question.ok()) break;
      if (question->number == Bell::kRings) continue;
      const Packet reply = plugin.ok() ? answer(**plugin, *question) : failure(plugin.status());
      if (!send_packet(channel, reply, forever).ok()) break;
    }
  } catch (const json::exception&) {
    return 2;
  }
  ::_exit(0);  // a plugin's destructors are not part of the question
}

}  // namespace keirin
