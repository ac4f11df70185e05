// SPDX-License-Identifier: Apache-2.0
#include "core/host/worker/worker_client.h"

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "core/host/worker/worker_words.h"

namespace keirin {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr uint64_t kMaxAnswerBytes = 1ull << 30;
constexpr milliseconds kLastGasp{2000};  // for a worker that closed its channel to end

// Nobody here sends it to a worker that still answers: the kernel, short of memory, or the machine's owner did.
bool killed_from_outside(const ChildEnd& end) {
  return !end.timed_out && end.status_known && WIFSIGNALED(end.status) && WTERMSIG(end.status) == SIGKILL;
}

// The files of those libraries that this process holds.
std::vector<std::string> held_copies(const std::vector<std::string>& names) {
  std::vector<std::string> files;
  for (const std::string& name : names) {
    void* const library = ::dlopen(name.c_str(), RTLD_LAZY | RTLD_LOCAL | RTLD_NOLOAD);
    if (!library) continue;
    link_map* map = nullptr;
    if (::dlinfo(library, RTLD_DI_LINKMAP, &map) == 0 && map->l_name && *map->l_name) files.emplace_back(map->l_name);
    ::dlclose(library);
  }
  return files;
}

}  // namespace

WorkerClient::WorkerClient(WorkerPlugin plugin, WorkerLimits limits, const char* role, const char* place)
    : plugin_(std::move(plugin)), limits_(limits), role_(role), place_(place) {}

WorkerClient::~WorkerClient() {
  if (child_ && owner_ != ::getpid()) child_->disown();
}

uint64_t WorkerClient::memory_limit() const {
  if (limits_.memory_bytes) return limits_.memory_bytes;
  const auto machine = static_cast<uint64_t>(::sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(::sysconf(_SC_PAGE_SIZE));
  return std::max<uint64_t>(machine / 2, 1ull << 30);
}

// The process there is, or a fresh one that has opened the plugin.
Status WorkerClient::start(const Patience& patience) {
  if (child_ && owner_ != ::getpid()) {
    child_->disown();
    child_.reset();
  }
  // One that gives way to all would not end what must end now.
  GiveWay how = limits_.background ? GiveWay::kToAll : GiveWay::kNot;
  if (limits_.background && giving_way() == GiveWay::kButForAShare) how = GiveWay::kButForAShare;
  if (child_ && how == GiveWay::kButForAShare && gives_way_ == GiveWay::kToAll) {
    (void)child_->kill();
    forget();
  }
  if (child_) return {};
  gives_way_ = how;
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    impossible_ = true;
    return Status(Code::k_unsupported, std::string("no channel to a worker: ") + ::strerror(errno));
  }
  channel_ = above_standard(Descriptor(ends[0]));
  const Descriptor childs_end = above_standard(Descriptor(ends[1]));
  if (channel_.get() < 0 || childs_end.get() < 0) {
    impossible_ = true;
    return Status(Code::k_unsupported, "no channel to a worker: too many open files");
  }
  // It says itself how it gives way, and inherits it from nobody.
  Result<ChildProcess> started = in_foreground([&] { return ChildProcess::start(plugin_.program, role_, -1, childs_end.get()); });
  if (!started.ok()) {
    impossible_ = true;
    return std::move(started).status();
  }
  child_.emplace(std::move(started).value());
  owner_ = ::getpid();
  running_ = true;
  ++num_started_;
  Packet hello;
  hello.head = {{"library", plugin_.identity.library}, {"guid", plugin_.identity.guid_text},
                {"version", plugin_.identity.version}, {"plugin", plugin_.name},
                {"hardware", hardware_json(plugin_.hardware)}, {"memory_bytes", memory_limit()},
                {"threads", plugin_.num_threads},      {"gives_way", static_cast<int>(how)},
                {"looks_us", limits_.looks.count()},   {"held", held_copies(plugin_.shares)}};
  if (limits_.looks.count() > 0) {
    KRN_TRY_LET(bell_, Bell::make(limits_.looks, &hello.file));
  }
  return send_packet(channel_.get(), hello, patience);
}

void WorkerClient::forget() {
  child_.reset();
  bell_.reset();
  channel_ = Descriptor();
  running_ = false;
}

Status WorkerClient::begin() {
  const std::lock_guard guard(mutex_);
  Status status = start({Clock::now() + limits_.deadline, nullptr});
  if (status.ok() || impossible_) return status;
  return ended(std::move(status), "start", limits_.deadline);
}

void WorkerClient::end() {
  const std::lock_guard guard(mutex_);
  if (!child_ || owner_ != ::getpid()) return;
  (void)child_->kill();
  forget();
}

// What became of a worker that did not answer as it should. Its status says who is at fault; it is not asked again.
Status WorkerClient::ended(Status status, const char* stage, milliseconds deadline) {
  if (!child_) return status;
  const bool hung = status.code() == Code::k_timeout, told = status.code() == Code::k_crashed;
  // One that gives way on a busy machine is not accused of hanging.
  const bool starved = hung && limits_.background && child_->waited_for_processor() > deadline / 2;
  ChildEnd end = told ? child_->finish(Clock::now() + kLastGasp) : child_->kill();
  forget();
  if (status.code() == Code::k_cancelled) return status;
  // The allocator's own last words, or OpenMP's: the limit did what it is for, and another region may have used it up.
  const auto said = [&](const char* words) { return end.last_words.find(words) != std::string::npos; };
  const bool machine = told && (killed_from_outside(end) || said("bad_alloc") || said("Thread creation failed"));
  if (!told) end.timed_out = hung;
  std::string what = status.message().what;
  if (hung || told) what = describe(end, stage, deadline);
  if (starved)
    what = "the machine was too busy for a " + std::string(stage) + " in the background within " + std::to_string(deadline.count()) + " ms";
  return Status(machine || starved ? Code::k_exhausted : status.code(), Message{std::move(what), plugin_.name + ", " + place_, {}, {}});
}

Result<Packet> WorkerClient::ask(const char* stage, const Packet& question, milliseconds deadline, const std::atomic<bool>* cancel) {
  const std::lock_guard guard(mutex_);
  const Patience patience{Clock::now() + deadline, cancel};
  Status status = start(patience);
  if (!status.ok() && impossible_) return status;
  if (status.ok()) status = send_packet(channel_.get(), question, patience);
  if (!status.ok()) return ended(std::move(status), stage, deadline);
  return receive(stage, deadline, patience);
}

Result<Packet> WorkerClient::ask(const char* stage, uint32_t number, milliseconds deadline) {
  Packet question;
  question.number = number;
  {
    const std::lock_guard guard(mutex_);
    if (bell_ && child_ && owner_ == ::getpid()) {
      const Patience patience{Clock::now() + deadline, nullptr};
      Packet ring;
      ring.number = Bell::kRings;
      if (bell_->ask(number)) {
        if (Status status = send_packet(channel_.get(), ring, patience); !status.ok()) return ended(std::move(status), stage, deadline);
      }
      for (std::optional<Bell::Answered> how = bell_->look_for_answer();; how = bell_->answer()) {
        if (how == Bell::Answered::kDone) return Packet();
        Result<Packet> packet = receive_packet(channel_.get(), kMaxAnswerBytes, patience);
        if (!packet.ok()) return ended(std::move(packet).status(), stage, deadline);
        if (packet->number == Bell::kRings) continue;
        return answer_of(std::move(*packet), stage, deadline);
      }
    }
  }
  return ask(stage, question, deadline);
}

// What comes through the channel; who rings about an answer that was seen is not meant.
Result<Packet> WorkerClient::receive(const char* stage, milliseconds deadline, const Patience& patience) {
  for (;;) {
    Result<Packet> answer = receive_packet(channel_.get(), kMaxAnswerBytes, patience);
    if (!answer.ok()) return ended(std::move(answer).status(), stage, deadline);
    if (answer->number != Bell::kRings) return answer_of(std::move(*answer), stage, deadline);
  }
}

Result<Packet> WorkerClient::answer_of(Packet answer, const char* stage, milliseconds deadline) {
  try {
    if (answer.head.contains("status")) return status_from_json(answer.head.at("status"));
  } catch (const nlohmann::json::exception&) {
    return ended(Status(Code::k_corrupt, "answered what could not be read"), stage, deadline);
  }
  return answer;
}

}  // namespace keirin
