// SPDX-License-Identifier: Apache-2.0
#include "core/host/compile_child.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>

#include "core/host/compile_words.h"
#include "core/host/worker_words.h"

namespace keirin {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr uint64_t kMaxAnswerBytes = 1ull << 30;
constexpr milliseconds kLastGasp{2000};  // for a child that closed its channel to end

}  // namespace

CompileChild::CompileChild(std::string worker, PluginSession::Identity identity, std::string plugin,
                           std::vector<HardwareItem> hardware, ChildLimits limits, int num_threads)
    : worker_(std::move(worker)),
      identity_(std::move(identity)),
      plugin_(std::move(plugin)),
      hardware_(std::move(hardware)),
      limits_(limits),
      num_threads_(num_threads) {}

CompileChild::~CompileChild() {
  if (child_ && owner_ != ::getpid()) child_->disown();
}

uint64_t CompileChild::memory_limit() const {
  if (limits_.memory_bytes) return limits_.memory_bytes;
  const auto machine = static_cast<uint64_t>(::sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(::sysconf(_SC_PAGE_SIZE));
  return std::max<uint64_t>(machine / 2, 1ull << 30);
}

// The child there is, or a fresh one that has opened the plugin.
Status CompileChild::start(const Patience& patience) {
  if (child_ && owner_ != ::getpid()) {
    child_->disown();
    child_.reset();
  }
  if (child_) return {};
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    no_child_ = true;
    return Status(Code::k_unsupported, std::string("no channel to a compile child: ") + ::strerror(errno));
  }
  channel_ = above_standard(Descriptor(ends[0]));
  const Descriptor childs_end = above_standard(Descriptor(ends[1]));
  if (channel_.get() < 0 || childs_end.get() < 0) {
    no_child_ = true;
    return Status(Code::k_unsupported, "no channel to a compile child: too many open files");
  }
  Result<ChildProcess> started = ChildProcess::start(worker_, "compile", -1, childs_end.get());
  if (!started.ok()) {
    no_child_ = true;
    return std::move(started).status();
  }
  child_.emplace(std::move(started).value());
  owner_ = ::getpid();
  Packet hello;
  hello.head = {{"library", identity_.library}, {"guid", identity_.guid_text},      {"version", identity_.version},
                {"plugin", plugin_},            {"hardware", hardware_json(hardware_)}, {"memory_bytes", memory_limit()},
                {"threads", num_threads_},     {"background", limits_.background}};
  return send_packet(channel_.get(), hello, patience);
}

// What became of a child that did not answer as it should. Its status says who is at fault; it is not asked again.
Status CompileChild::ended(Status status, const char* stage, milliseconds deadline) {
  if (!child_) return status;
  const bool hung = status.code() == Code::k_timeout, told = status.code() == Code::k_crashed;
  // One that gives way on a busy machine is not accused of hanging.
  const bool starved = hung && limits_.background && child_->waited_for_processor() > deadline / 2;
  ChildEnd end = told ? child_->finish(Clock::now() + kLastGasp) : child_->kill();
  child_.reset();
  channel_ = Descriptor();
  if (status.code() == Code::k_cancelled) return status;
  if (!told) end.timed_out = hung;
  std::string what = status.message().what;
  if (hung || told) what = describe(end, stage, deadline);
  if (starved) what = "the machine was too busy for a " + std::string(stage) + " in the background within " + std::to_string(deadline.count()) + " ms";
  // The allocator's own last words: the limit did what it is for.
  const bool memory = told && end.last_words.find("bad_alloc") != std::string::npos;
  return Status(memory || starved ? Code::k_exhausted : status.code(), Message{std::move(what), plugin_ + ", in the compile child", {}, {}});
}

Result<Packet> CompileChild::ask(const char* stage, Packet question, milliseconds deadline, const std::atomic<bool>* cancel) {
  const std::lock_guard guard(mutex_);
  const Patience patience{Clock::now() + deadline, cancel};
  Status status = start(patience);
  if (!status.ok() && no_child_) return status;
  if (status.ok()) status = send_packet(channel_.get(), question, patience);
  if (!status.ok()) return ended(std::move(status), stage, deadline);
  Result<Packet> answer = receive_packet(channel_.get(), kMaxAnswerBytes, patience);
  if (!answer.ok()) return ended(std::move(answer).status(), stage, deadline);
  try {
    if (answer->head.contains("status")) return status_from_json(answer->head.at("status"));
  } catch (const nlohmann::json::exception&) {
    return ended(Status(Code::k_corrupt, "answered what could not be read"), stage, deadline);
  }
  return answer;
}

Result<ClaimResult> CompileChild::claim(const std::string& device, const PluginRegion& region, const PolicyOptions& policy) {
  KRN_TRY_LET(const Packet answer, ask("claim", claim_question(device, region, policy), limits_.deadline, nullptr));
  ClaimResult claims;
  try {
    claims = claims_from_json(answer.head);
  } catch (const nlohmann::json::exception&) {
    return Status(Code::k_corrupt, Message{"answered claims that could not be read", plugin_ + ", in the compile child", {}, {}});
  }
  return claims;
}

Result<CompileChild::Compiled> CompileChild::compile_once(const std::string& device, const PluginRegion& region,
                                                          const PolicyOptions& policy, const CompileOptions& options,
                                                          bool with_weights, bool* weights_missed) {
  CompileOptions told = options;
  milliseconds deadline = limits_.deadline;
  // The plugin is told a little less than it has: it may stop by itself.
  if (options.deadline.count() > 0) deadline = std::chrono::ceil<milliseconds>(options.deadline) * 5 / 4 + milliseconds(200);
  else told.deadline = deadline * 9 / 10;
  Result<Packet> question = compile_question(device, region, policy, told, with_weights);
  if (!question.ok()) {
    no_child_ = true;
    return std::move(question).status();
  }
  KRN_TRY_LET(Packet answer, ask("compile", std::move(*question), deadline, options.cancel));
  Compiled made;
  std::string dump;
  try {
    *weights_missed = answer.head.at("weights_missed");
    if (answer.head.contains("refused")) return status_from_json(answer.head.at("refused"));
    made.num_codegen = answer.head.at("num_codegen");
    made.artifact = {std::move(answer.blobs.at(0)), std::move(answer.blobs.at(1))};
    dump = std::move(answer.blobs.at(2));
  } catch (const std::exception&) {
    return Status(Code::k_corrupt, Message{"answered what is no artifact", plugin_ + ", in the compile child", {}, {}});
  }
  try {
    if (options.dump) options.dump(dump);
  } catch (...) {  // the caller's, and nothing to hold against the plugin
  }
  return made;
}

Result<CompileChild::Compiled> CompileChild::compile(const std::string& device, const PluginRegion& region,
                                                     const PolicyOptions& policy, const CompileOptions& options) {
  // Without the weights first: what is packed when the artifact is loaded need not be copied here. Asked again with them where
  // that was not enough.
  bool missed = false;
  Result<Compiled> made = compile_once(device, region, policy, options, false, &missed);
  if (made.ok() || !missed || made.status().code() != Code::k_unsupported) return made;
  return compile_once(device, region, policy, options, true, &missed);
}

}  // namespace keirin
