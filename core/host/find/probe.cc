// SPDX-License-Identifier: Apache-2.0
#include "core/host/find/probe.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <sstream>
#include <string_view>

#include "core/base/files.h"
#include "core/base/sha256.h"
#include "core/host/worker/channel.h"
#include "core/host/worker/child_process.h"
#include "core/host/worker/worker_words.h"

extern char** environ;

namespace keirin {
namespace {

using nlohmann::json;
using Clock = std::chrono::steady_clock;

constexpr size_t kMaxReplyBytes = 1 << 20;

json verdict_json(const ProbeVerdict& v) {
  json devices = json::array();
  for (const ProbedDevice& d : v.devices) devices.push_back({{"used", d.used}, {"name", d.name}, {"reason", d.reason}});
  return {{"passed", v.passed}, {"hung", v.hung}, {"reason", v.reason}, {"advice", v.advice},
          {"build", v.build_id}, {"devices", devices}};
}

ProbeVerdict verdict_from_json(const json& j) {
  ProbeVerdict v;
  v.passed = j.at("passed");
  v.hung = j.at("hung");
  v.reason = j.at("reason");
  v.advice = j.at("advice");
  v.build_id = j.at("build");
  for (const json& d : j.at("devices")) v.devices.push_back({d.at("used"), d.at("name"), d.at("reason")});
  return v;
}

// The request as a file that the child reads to its end.
Result<Descriptor> request_file(const std::string& request) {
  Descriptor memory(::memfd_create("keirin-probe", MFD_CLOEXEC));
  if (memory.get() < 0 || ::write(memory.get(), request.data(), request.size()) != static_cast<ssize_t>(request.size()) ||
      ::lseek(memory.get(), 0, SEEK_SET) != 0)
    return Status(Code::k_unsupported, std::string("no memory file for the probe child: ") + ::strerror(errno));
  return memory;
}

// Takes what is there; false at the end of the stream.
bool drain(int fd, std::string* text) {
  char buffer[4096];
  const ssize_t n = ::read(fd, buffer, sizeof(buffer));
  if (n < 0) return errno == EINTR || errno == EAGAIN;
  if (text->size() < kMaxReplyBytes) text->append(buffer, static_cast<size_t>(n));
  return n > 0;
}

// What the child says until it closes the pipe or the deadline passes.
std::string listen(int fd, Clock::time_point end) {
  std::string text;
  for (bool open = true; open;) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now()).count();
    if (left <= 0) break;
    pollfd item{fd, POLLIN, 0};
    if (::poll(&item, 1, static_cast<int>(left)) < 0 && errno != EINTR) break;
    if (item.revents) open = drain(fd, &text);
  }
  return text;
}

ProbeVerdict judge_child(const std::string& reply, const ChildEnd& end, std::chrono::milliseconds deadline) {
  std::string stage = "start";
  std::istringstream lines(reply);
  for (std::string line; std::getline(lines, line);) {
    const json j = json::parse(line, nullptr, false);
    if (!j.is_object()) break;  // cut off by the end of the child
    if (j.contains("stage")) stage = j["stage"].get<std::string>();
    if (j.contains("verdict")) return verdict_from_json(j["verdict"]);
  }
  ProbeVerdict verdict;
  verdict.hung = end.timed_out;
  verdict.reason = "the plugin " + describe(end, stage, deadline);
  verdict.advice = verdict.hung ? "update or remove the plugin; it is looked at again after a reboot or when its file changes"
                                : "update or remove the plugin; it is looked at again when its file changes";
  return verdict;
}

void say(int fd, const json& j) {
  const std::string line = json_text(j) + "\n";
  for (size_t done = 0; done < line.size();) {
    const ssize_t n = ::write(fd, line.data() + done, line.size() - done);
    if (n <= 0) ::_exit(3);  // nobody listens any more
    done += static_cast<size_t>(n);
  }
}

}  // namespace

Result<ProbeVerdict> probe_plugin(const std::string& worker, const PluginSession::Identity& identity,
                                  const std::vector<HardwareItem>& hardware, std::chrono::milliseconds deadline) {
  const json request = {{"library", identity.library},
                        {"guid", identity.guid_text},
                        {"version", identity.version},
                        {"hardware", hardware_json(hardware)}};
  const auto end = Clock::now() + deadline;
  KRN_TRY_LET(Descriptor asked, request_file(json_text(request)));
  const Descriptor file = above_standard(std::move(asked));
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0)
    return Status(Code::k_unsupported, std::string("no pipe for the probe child: ") + ::strerror(errno));
  const Descriptor answers(ends[0]);
  Descriptor childs_end = above_standard(Descriptor(ends[1]));
  if (file.get() < 0 || childs_end.get() < 0) return Status(Code::k_unsupported, "no pipe for the probe child: too many open files");
  KRN_TRY_LET(ChildProcess child, ChildProcess::start(worker, "probe", file.get(), childs_end.get()));
  childs_end = Descriptor();  // the child's copy is the only one: its end is the end of the stream
  const std::string reply = listen(answers.get(), end);
  ProbeVerdict verdict;
  try {
    verdict = judge_child(reply, child.finish(end), deadline);
  } catch (const json::exception&) {
    verdict.reason = "the probe child's answer could not be read";
  }
  if (verdict.passed && verdict.devices.size() != hardware.size()) {
    verdict = {};
    verdict.reason = "the probe child's answer could not be read";
  }
  return verdict;
}

int serve_probe(int request_fd, int reply_fd) {
  std::string text;
  while (drain(request_fd, &text)) {
  }
  const json request = json::parse(text, nullptr, false);
  if (!request.is_object()) return 2;
  std::vector<HardwareItem> hardware;
  PluginSession::Identity identity;
  try {
    hardware = hardware_from_json(request.at("hardware"));
    identity = {request.at("library"), request.at("guid"), request.at("version")};
  } catch (const json::exception&) {
    return 2;
  }
  // Never freed: a plugin's thread may still hold it when the process ends.
  auto* const host = new krn_host;
  host->log = [](int, std::string_view line) { ::fprintf(stderr, "%.*s\n", static_cast<int>(line.size()), line.data()); };
  const auto on_stage = [&](const char* stage) { say(reply_fd, {{"stage", stage}}); };
  Result<std::unique_ptr<PluginSession>> session =
      PluginSession::start(identity, host, KRN_ROLE_PROBE, hardware, on_stage);
  ProbeVerdict verdict;
  Status status = session.ok() ? Status() : session.status();
  if (session.ok()) {
    verdict.build_id = (*session)->tables().build_id;
    for (const FoundDevice& d : (*session)->devices())
      verdict.devices.push_back({d.dev != nullptr, d.dev ? text_of(d.desc.name) : std::string(), d.why_not});
    on_stage("shutdown");
    status = (*session)->shutdown();
  }
  verdict.passed = status.ok();
  if (!status.ok()) {
    verdict.devices.clear();
    verdict.reason = std::string(code_name(status.code())) + ": " + status.message().what;
    verdict.advice = status.message().advice;
  }
  say(reply_fd, {{"verdict", verdict_json(verdict)}});
  ::_exit(0);  // a plugin's destructors are not part of the question
}

VerdictStore::VerdictStore(std::string cache_dir, const std::vector<HardwareItem>& hardware) {
  hardware_text_ = json_text(hardware_json(hardware));
  // What plugins read there: the level of a processor, where a compiler lies. What none of them reads costs one more probe.
  std::vector<std::string> said;
  for (char** each = environ; each != nullptr && *each != nullptr; ++each)  // null: clearenv
    if (const std::string_view variable = *each; variable.starts_with("KEIRIN_") || variable.starts_with("LD_LIBRARY_PATH="))
      said.emplace_back(variable);
  std::sort(said.begin(), said.end());
  std::string all;
  for (const std::string& variable : said) all += variable + '\0';
  environment_hash_ = hex(sha256(all.data(), all.size()));
  if (cache_dir.empty()) return;
  std::string dir = std::move(cache_dir) + "/probe";
  if (make_private_dir(dir).ok()) dir_ = std::move(dir);
}

std::string VerdictStore::path_of(const PluginSession::Identity& identity) const {
  struct stat info {};
  if (dir_.empty() || ::stat(identity.library.c_str(), &info) != 0) return {};
  // The change time cannot be set by a program: together with the inode it stands for the content.
  const json key = {{"library", identity.library}, {"guid", identity.guid_text},
                    {"version", identity.version}, {"bytes", info.st_size},
                    {"inode", info.st_ino},        {"written_s", info.st_mtim.tv_sec},
                    {"written_ns", info.st_mtim.tv_nsec}, {"changed_s", info.st_ctim.tv_sec},
                    {"changed_ns", info.st_ctim.tv_nsec}, {"hardware", hardware_text_},
                    {"environment", environment_hash_},
                    {"abi", {KRN_ABI_MAJOR, KRN_ABI_MINOR}}};
  const std::string text = json_text(key);
  return dir_ + "/" + hex(sha256(text.data(), text.size()));
}

std::optional<ProbeVerdict> VerdictStore::recall(const PluginSession::Identity& identity) const {
  const std::string path = path_of(identity);
  if (path.empty()) return {};
  const Result<std::string> text = read_private_file(path, kMaxReplyBytes);
  if (!text.ok()) return {};
  const json j = json::parse(*text, nullptr, false);
  try {
    if (!j.is_object() || j.at("schema") != 1) return {};
    ProbeVerdict verdict = verdict_from_json(j.at("verdict"));
    if (verdict.hung && j.at("boot") != boot_id()) return {};
    return verdict;
  } catch (const json::exception&) {
    return {};
  }
}

void VerdictStore::remember(const PluginSession::Identity& identity, const ProbeVerdict& verdict) const {
  const std::string path = path_of(identity);
  if (path.empty()) return;
  // A verdict that is not kept costs a probe at the next start, no more.
  (void)publish_file(path, json_text({{"schema", 1}, {"boot", boot_id()}, {"verdict", verdict_json(verdict)}}));
}

}  // namespace keirin
