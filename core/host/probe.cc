// SPDX-License-Identifier: Apache-2.0
#include "core/host/probe.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "core/base/sha256.h"
#include "core/host/files.h"

extern char** environ;

namespace keirin {
namespace {

using nlohmann::json;
using Clock = std::chrono::steady_clock;

constexpr size_t kMaxReplyBytes = 1 << 20;
constexpr int kReplyFd = 3;

json hardware_json(const std::vector<HardwareItem>& items) {
  json list = json::array();
  for (const HardwareItem& item : items)
    list.push_back({{"uid", item.uid},
                    {"description", item.description},
                    {"vendor_id", item.vendor_id},
                    {"device_id", item.device_id},
                    {"torch_type", item.torch_device ? item.torch_device->kind : -1},
                    {"torch_index", item.torch_device ? item.torch_device->index : -1},
                    {"driver", item.driver},
                    {"cpu_features", item.cpu_features}});
  return list;
}

std::vector<HardwareItem> hardware_from_json(const json& list) {
  std::vector<HardwareItem> items;
  for (const json& j : list) {
    HardwareItem item;
    item.uid = j.at("uid");
    item.description = j.at("description");
    item.vendor_id = j.at("vendor_id");
    item.device_id = j.at("device_id");
    if (j.at("torch_type") != -1) item.torch_device = Device{j.at("torch_type"), j.at("torch_index")};
    item.driver = j.at("driver");
    item.cpu_features = j.at("cpu_features");
    items.push_back(std::move(item));
  }
  return items;
}

// Text from a plugin may be no UTF-8: replaced, because a throw here would lose the verdict.
std::string dump_line(const json& j) { return j.dump(-1, ' ', false, json::error_handler_t::replace); }

json verdict_json(const ProbeVerdict& v) {
  json devices = json::array();
  for (const ProbedDevice& d : v.devices) devices.push_back({{"used", d.used}, {"name", d.name}, {"reason", d.reason}});
  return {{"passed", v.passed}, {"hung", v.hung}, {"reason", v.reason}, {"advice", v.advice}, {"devices", devices}};
}

ProbeVerdict verdict_from_json(const json& j) {
  ProbeVerdict v;
  v.passed = j.at("passed");
  v.hung = j.at("hung");
  v.reason = j.at("reason");
  v.advice = j.at("advice");
  for (const json& d : j.at("devices")) v.devices.push_back({d.at("used"), d.at("name"), d.at("reason")});
  return v;
}

struct Pipe {
  int read = -1, write = -1;
  ~Pipe() {
    close_read();
    close_write();
  }
  bool open() {
    int fds[2];
    if (::pipe2(fds, O_CLOEXEC) != 0) return false;
    read = fds[0];
    write = fds[1];
    return true;
  }
  void close_read() {
    if (read >= 0) ::close(std::exchange(read, -1));
  }
  void close_write() {
    if (write >= 0) ::close(std::exchange(write, -1));
  }
};

// A child that was started, with its answers; killed with its group if it is still there at the end.
struct Child {
  pid_t pid = -1;
  Pipe reply, errors;
  std::string reply_text, error_text;
  bool timed_out = false;
  int status = 0;
  bool status_known = false;
};

Status spawn(const std::string& worker, const std::string& request, Child* child) {
  const auto failed = [&](const char* what, int error) {
    return Status(Code::k_unsupported, Message{std::string(what) + ": " + ::strerror(error), worker, {}, {}});
  };
  if (!child->reply.open() || !child->errors.open()) return failed("no pipe for the probe child", errno);
  const int memory = ::memfd_create("keirin-probe", MFD_CLOEXEC);
  if (memory < 0) return failed("no memory file for the probe child", errno);
  if (::write(memory, request.data(), request.size()) != static_cast<ssize_t>(request.size()) ||
      ::lseek(memory, 0, SEEK_SET) != 0) {
    ::close(memory);
    return failed("no memory file for the probe child", errno);
  }
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawnattr_init(&attributes);
  ::posix_spawn_file_actions_adddup2(&actions, memory, 0);
  ::posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
  ::posix_spawn_file_actions_adddup2(&actions, child->errors.write, 2);
  ::posix_spawn_file_actions_adddup2(&actions, child->reply.write, kReplyFd);
#if defined(__GLIBC__) && (__GLIBC__ > 2 || __GLIBC_MINOR__ >= 34)
  ::posix_spawn_file_actions_addclosefrom_np(&actions, kReplyFd + 1);
#endif
  // Its own group, so that a plugin's helpers die with it; default handlers, so that a crash is a crash.
  sigset_t all, none;
  ::sigfillset(&all);
  ::sigemptyset(&none);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK);
  ::posix_spawnattr_setpgroup(&attributes, 0);
  ::posix_spawnattr_setsigdefault(&attributes, &all);
  ::posix_spawnattr_setsigmask(&attributes, &none);
  const char* const argv[] = {worker.c_str(), "probe", nullptr};
  const int error = ::posix_spawn(&child->pid, worker.c_str(), &actions, &attributes, const_cast<char**>(argv), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  ::posix_spawnattr_destroy(&attributes);
  ::close(memory);
  child->reply.close_write();
  child->errors.close_write();
  if (error != 0) {
    child->pid = -1;
    return failed("the probe child cannot be started", error);
  }
  return {};
}

// Takes what is there; false at the end of the stream.
bool drain(int fd, std::string* text) {
  char buffer[4096];
  const ssize_t n = ::read(fd, buffer, sizeof(buffer));
  if (n < 0) return errno == EINTR || errno == EAGAIN;
  if (text->size() < kMaxReplyBytes) text->append(buffer, static_cast<size_t>(n));
  return n > 0;
}

// Waits for the child to end without a signal handler: the host's SIGCHLD is not ours to touch.
void reap(Child* child, Clock::time_point end) {
  for (;;) {
    const pid_t got = ::waitpid(child->pid, &child->status, WNOHANG);
    if (got == child->pid) {
      child->status_known = true;
      break;
    }
    if (got < 0 && errno != EINTR) break;  // the host reaps its children itself
    if (Clock::now() >= end) {
      child->timed_out = true;
      ::kill(-child->pid, SIGKILL);
      while (::waitpid(child->pid, &child->status, 0) < 0 && errno == EINTR) {
      }
      return;
    }
    ::usleep(500);
  }
  ::kill(-child->pid, SIGKILL);  // what it may have left behind in its group
}

void collect(Child* child, Clock::time_point end) {
  bool reply_open = true, errors_open = true;
  while (reply_open) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now()).count();
    if (left <= 0) break;
    pollfd fds[2] = {{child->reply.read, POLLIN, 0}, {errors_open ? child->errors.read : -1, POLLIN, 0}};
    if (::poll(fds, 2, static_cast<int>(left)) < 0 && errno != EINTR) break;
    if (fds[0].revents) reply_open = drain(child->reply.read, &child->reply_text);
    if (fds[1].revents) errors_open = drain(child->errors.read, &child->error_text);
  }
  reap(child, end);
  ::fcntl(child->errors.read, F_SETFL, O_NONBLOCK);
  while (errors_open && child->error_text.size() < kMaxReplyBytes) {
    const size_t before = child->error_text.size();
    errors_open = drain(child->errors.read, &child->error_text) && child->error_text.size() > before;
  }
}

std::string last_line(const std::string& text) {
  size_t end = text.find_last_not_of(" \n\r\t");
  if (end == std::string::npos) return {};
  const size_t begin = text.find_last_of('\n', end);
  std::string line = text.substr(begin == std::string::npos ? 0 : begin + 1, 300);
  line.resize(std::min(line.size(), line.find_last_not_of(" \n\r\t") + 1));
  return line;
}

ProbeVerdict judge_child(const Child& child, std::chrono::milliseconds deadline) {
  ProbeVerdict verdict;
  std::string stage = "start";
  std::istringstream lines(child.reply_text);
  for (std::string line; std::getline(lines, line);) {
    const json j = json::parse(line, nullptr, false);
    if (!j.is_object()) break;  // cut off by the end of the child
    if (j.contains("stage")) stage = j["stage"].get<std::string>();
    if (j.contains("verdict")) return verdict_from_json(j["verdict"]);
  }
  const std::string said = last_line(child.error_text);
  const std::string heard = said.empty() ? "" : "; its last words: " + said;
  const std::string again = "update or remove the plugin; it is looked at again when its file changes";
  verdict.advice = again;
  if (child.timed_out) {
    verdict.hung = true;
    verdict.reason = "the plugin hung in " + stage + " (no end within " + std::to_string(deadline.count()) + " ms)" + heard;
    verdict.advice = "update or remove the plugin; it is looked at again after a reboot or when its file changes";
  } else if (child.status_known && WIFSIGNALED(child.status)) {
    const int signal = WTERMSIG(child.status);
    verdict.reason = "the plugin crashed in " + stage + " (signal " + std::to_string(signal) + ", " + ::strsignal(signal) + ")" + heard;
  } else if (child.status_known) {
    verdict.reason = "the plugin ended the process in " + stage + " (exit status " +
                     std::to_string(WEXITSTATUS(child.status)) + ")" + heard;
  } else {
    verdict.reason = "the probe child ended in " + stage + heard;
  }
  return verdict;
}

std::string boot_id() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(file, id);
  return id;
}

void say(int fd, const json& j) {
  const std::string line = dump_line(j) + "\n";
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
  Child child;
  const auto end = Clock::now() + deadline;
  KRN_TRY(spawn(worker, dump_line(request), &child));
  collect(&child, end);
  ProbeVerdict verdict;
  try {
    verdict = judge_child(child, deadline);
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
  hardware_text_ = dump_line(hardware_json(hardware));
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
                    {"abi", {KRN_ABI_MAJOR, KRN_ABI_MINOR}}};
  const std::string text = dump_line(key);
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
  (void)publish_file(path, dump_line({{"schema", 1}, {"boot", boot_id()}, {"verdict", verdict_json(verdict)}}));
}

}  // namespace keirin
