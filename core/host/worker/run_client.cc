// SPDX-License-Identifier: Apache-2.0
#include "core/host/worker/run_client.h"

#include <algorithm>
#include <thread>

#include "core/base/background.h"
#include "core/base/request.h"
#include "core/host/guard/fork_count.h"
#include "core/host/worker/compile_words.h"

namespace keirin {
namespace {

// Who asks again gets the same answer: the region is quarantined or rests.
bool is_judged(Code code) {
  return code == Code::k_crashed || code == Code::k_timeout || code == Code::k_corrupt || code == Code::k_wrong_result ||
         code == Code::k_exhausted;
}

uint32_t bit(size_t number) { return 1u << number; }

}  // namespace

RunProcesses::RunProcesses(WorkerPlugin plugin, WorkerLimits limits, std::chrono::milliseconds run_deadline)
    : run_deadline(run_deadline),
      plugin_(std::move(plugin)),
      limits_(limits),
      most_(std::clamp<size_t>(std::thread::hardware_concurrency(), 1, kMost)) {
  processes_[0] = std::make_unique<RunProcess>(plugin_, limits_);
}

RunProcesses::Held::~Held() {
  if (!all_) return;
  const std::lock_guard guard(all_->mutex_);
  all_->held_ &= ~bit(number_);
  const auto can_use = [this](const Waiter* waiter) { return (waiter->usable & bit(number_)) != 0; };
  const auto first = std::find_if(all_->waiting_.begin(), all_->waiting_.end(), can_use);
  if (first != all_->waiting_.end()) (*first)->freed.notify_one();
}

std::optional<size_t> RunProcesses::free_one(uint32_t among) const {
  for (size_t i = 0; i < most_; ++i)
    if (among & ~held_ & bit(i)) return i;
  return {};
}

RunProcesses::Held RunProcesses::hold(uint32_t usable, bool may_spread) {
  using Clock = std::chrono::steady_clock;
  std::unique_lock guard(mutex_);
  std::optional<size_t> found = free_one(usable);
  if (!found && may_spread && waited_ >= kWorthAnother && (found = free_one(~usable))) {
    waited_ = {};
    if (!processes_[*found]) processes_[*found] = std::make_unique<RunProcess>(plugin_, limits_);
  }
  if (!found) {
    const Clock::time_point begin = Clock::now();
    Waiter waiter{usable, {}};
    const auto place = waiting_.insert(waiting_.end(), &waiter);
    waiter.freed.wait(guard, [&] { return (found = free_one(usable)).has_value(); });
    waiting_.erase(place);
    waited_ += Clock::now() - begin;
  }
  held_ |= bit(*found);
  return {*this, *found};
}

RemoteExecutable::RemoteExecutable(ContainedDevice& contained, std::shared_ptr<RunProcesses> workers, const PluginRegion& region,
                                   std::optional<Artifact> artifact, const PolicyOptions& policy, const CompileOptions& options)
    : contained_(contained),
      workers_(std::move(workers)),
      bytes_(region.bytes.begin(), region.bytes.end()),
      region_{bytes_, region.hash, region.weights},
      artifact_(std::move(artifact)),
      policy_(policy),
      options_(options),
      forks_(fork_count()) {
  options_.cancel = nullptr;  // the caller's, who is gone when another worker is given this
  options_.dump = nullptr;
}

Result<std::shared_ptr<RemoteExecutable>> RemoteExecutable::make(ContainedDevice& contained, std::shared_ptr<RunProcesses> workers,
                                                                 const PluginRegion& region, std::optional<Artifact> artifact,
                                                                 const PolicyOptions& policy, const CompileOptions& options) {
  std::shared_ptr<RemoteExecutable> made(
      new RemoteExecutable(contained, std::move(workers), region, std::move(artifact), policy, options));
  KRN_TRY(made->judged([&](RunProcess& process, Place& place, const char** function) { return made->load(process, place, function); }));
  made->spreads_ = made->artifact_.has_value();  // without one, another process would compile in the middle of a call
  return made;
}

RemoteExecutable::~RemoteExecutable() {
  if (fork_count() != forks_) return;
  run_in_foreground([this] {
    for (size_t i = 0; i < places_.size(); ++i) {
      if (!(usable_ & bit(i))) continue;
      const RunProcesses::Held process = workers_->hold(bit(i), false);
      WorkerClient& client = process->client;
      if (!client.running() || client.num_started() != places_[i].loaded_in) continue;
      Packet drop;
      drop.head = {{"op", "drop"}, {"id", places_[i].id}};
      (void)client.ask("release", drop, client.limits().deadline);
    }
  });
}

// Does it with a process to itself. Who gives way does it on the thread that waits for him: held by a thread that gets no processor, the
// process would be kept from calls for as long as others are busy. What went wrong is judged after that, because judging may call the
// user's log.
Status RemoteExecutable::judged(const std::function<Status(RunProcess& process, Place& place, const char** function)>& work) {
  const char* function = "krn.exec.run";
  bool judges = false;
  Status status = in_foreground([&]() -> Status {
    for (;;) {
      const RunProcesses::Held process = workers_->hold(usable_, spreads_);
      {
        const std::lock_guard guard(lost_mutex_);
        if (!lost_.ok() && (lost_.code() != Code::k_exhausted || !contained_.allowed(region_.hash).ok())) return lost_;
      }
      Place& place = places_[process.number()];
      if (!(usable_ & bit(process.number()))) {
        // Where it cannot have another process (a device that only one may open, no memory for weights once more), it does with those that
        // it has.
        if (!load(*process, place, &function).ok()) {
          spreads_ = false;
          continue;
        }
        usable_ |= bit(process.number());
      }
      Status done = work(*process, place, &function);
      judges = is_judged(done.code());
      const std::lock_guard guard(lost_mutex_);
      const bool for_good = !lost_.ok() && lost_.code() != Code::k_exhausted;
      if (for_good && std::exchange(judges, false)) return lost_;  // another call met the same, and said so
      if (!for_good) lost_ = judges ? done : Status();
      return done;
    }
  });
  if (!judges) return status;
  return contained_.judge(function, region_.hash, std::move(status));
}

// Into the process that runs, or into a fresh one.
Status RemoteExecutable::load(RunProcess& process, Place& place, const char** function) {
  WorkerClient& client = process.client;
  KRN_TRY(contained_.allowed(region_.hash));
  KRN_TRY_LET(SharedArguments arguments, SharedArguments::of_region(region_.bytes));
  for (const SharedArguments::Argument& input : arguments.inputs())
    if (input.weight != kNone && input.weight >= region_.weights.size())
      return Status(Code::k_unsupported, "the values of the weights are not at hand, which a worker needs");
  const uint32_t id = process.next_id++;
  KRN_TRY_LET(const Packet question, load_question(id, contained_.hardware().uid, region_, artifact_ ? &*artifact_ : nullptr, policy_,
                                                   options_, arguments.total_bytes()));
  KRN_TRY(arguments.map(question.file.get(), room_at(question)));
  arguments.mark_zones();
  *function = artifact_ ? "krn.artifact.load" : "krn.compile.compile";
  if (!artifact_) note_compile();
  KRN_TRY_LET(const Packet answer, client.ask(artifact_ ? "load" : "compile", question, client.limits().deadline));
  *function = "krn.exec.run";
  if (!info_.in_worker) {  // the first load, before anybody else has this; later nothing of it changes, and others may be reading it
    try {
      info_ = info_from_json(answer.head.at("info"));
    } catch (const nlohmann::json::exception&) {
      return Status(Code::k_corrupt, "answered what could not be read");
    }
    info_.inputs_intact = info_.in_worker = true;
  }
  place = {std::move(arguments), id, client.num_started()};
  return {};
}

Status RemoteExecutable::run(const krn_tensor* inputs, uint32_t num_inputs, const krn_tensor* outputs, uint32_t num_outputs, void*,
                             uint64_t, bool) {
  if (fork_count() != forks_) return forked_copy();
  return judged([&](RunProcess& process, Place& place, const char** function) -> Status {
    if (!process.client.running() || process.client.num_started() != place.loaded_in) KRN_TRY(load(process, place, function));
    if (num_inputs != place.arguments.inputs().size() || num_outputs != place.arguments.outputs().size())
      return Status(Code::k_invalid_input, "the call gives another number of inputs or outputs than the region has");
    return run_once(process, place, inputs, outputs, function);
  });
}

Status RemoteExecutable::run_once(RunProcess& process, Place& place, const krn_tensor* inputs, const krn_tensor* outputs,
                                  const char** function) {
  *function = "krn.exec.run";
  place.arguments.put(inputs);
  Packet question;
  question.number = place.id;
  KRN_TRY_LET(const Packet answer, process.client.ask("run", question, workers_->run_deadline));
  (void)answer;  // that it came is what it says
  if (const std::string what = place.arguments.overrun(); !what.empty()) return Status(Code::k_wrong_result, what);
  place.arguments.take(outputs);
  return {};
}

}  // namespace keirin
