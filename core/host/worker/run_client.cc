// SPDX-License-Identifier: Apache-2.0
#include "core/host/worker/run_client.h"

#include <algorithm>
#include <thread>

#include "core/base/background.h"
#include "core/base/request.h"
#include "core/host/guard/fork_count.h"

namespace keirin {
namespace {

// Who asks again gets the same answer: the region is quarantined or rests.
bool is_judged(Code code) {
  return code == Code::k_crashed || code == Code::k_timeout || code == Code::k_corrupt || code == Code::k_wrong_result ||
         code == Code::k_exhausted;
}

uint32_t bit(size_t number) { return 1u << number; }

}  // namespace

RunProcesses::RunProcesses(WorkerPlugin plugin, WorkerLimits limits, std::chrono::milliseconds run_deadline,
                           const HardwareItem* gpu)
    : run_deadline(run_deadline),
      plugin_(std::move(plugin)),
      limits_(limits),
      gpu_(gpu ? std::optional(*gpu) : std::nullopt),
      most_(gpu ? 1 : std::clamp<size_t>(std::thread::hardware_concurrency(), 1, kMost)) {
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
                                   std::optional<Artifact> artifact, const PolicyOptions& policy, const CompileOptions& options,
                                   std::shared_ptr<DeviceDriver> driver)
    : contained_(contained),
      workers_(std::move(workers)),
      bytes_(region.bytes.begin(), region.bytes.end()),
      region_{bytes_, region.hash, region.weights},
      artifact_(std::move(artifact)),
      policy_(policy),
      options_(options),
      driver_(std::move(driver)),
      forks_(fork_count()) {
  options_.cancel = nullptr;  // the caller's, who is gone when another worker is given this
  options_.dump = nullptr;
}

Result<std::shared_ptr<RemoteExecutable>> RemoteExecutable::make(ContainedDevice& contained, std::shared_ptr<RunProcesses> workers,
                                                                 const PluginRegion& region, std::optional<Artifact> artifact,
                                                                 const PolicyOptions& policy, const CompileOptions& options) {
  KRN_TRY_LET(std::shared_ptr<DeviceDriver> driver, workers->driver());
  std::shared_ptr<RemoteExecutable> made(
      new RemoteExecutable(contained, std::move(workers), region, std::move(artifact), policy, options, std::move(driver)));
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
  Place loaded;
  KRN_TRY_LET(loaded.arguments, SharedArguments::of_region(region_.bytes, driver_ ? driver_->device() : Device{}));
  for (const SharedArguments::Argument& input : loaded.arguments.inputs())
    if (input.weight != kNone && input.weight >= region_.weights.size())
      return Status(Code::k_unsupported, "the values of the weights are not at hand, which a worker needs");
  loaded.id = process.next_id++;
  PluginRegion region = region_;
  if (driver_) region.weights.clear();  // not in the memory file
  const bool in_file = !driver_ || loaded.arguments.total_bytes() <= DeviceArguments::kMostThroughHost;
  KRN_TRY_LET(Packet question, load_question(loaded.id, contained_.hardware().uid, region, artifact_ ? &*artifact_ : nullptr, policy_,
                                             options_, in_file ? loaded.arguments.total_bytes() : 0));
  if (in_file) KRN_TRY(loaded.arguments.map(question.file.get(), room_at(question)));
  if (driver_) {
    KRN_TRY(client.begin());  // which life of the process it is for
    KRN_TRY_LET(const LentRegion lent, lend(process, &loaded));
    put_lent(lent, &question);
  } else {
    loaded.arguments.mark_zones();
  }
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
  loaded.loaded_in = client.num_started();
  place = std::move(loaded);
  return {};
}

Result<LentRegion> RemoteExecutable::lend(RunProcess& process, Place* place) {
  KRN_TRY_LET(place->on_device, place->arguments.held() ? DeviceArguments::make_through_host(driver_, place->arguments)
                                                        : DeviceArguments::make(driver_, place->arguments));
  KRN_TRY_LET(place->weights, process.weights.lend(driver_, region_.weights, process.client.num_started()));
  LentRegion lent;
  if (const DeviceMemory* const block = place->on_device->block()) {
    lent.arguments.emplace().bytes = block->bytes();
    KRN_TRY_LET(lent.arguments->handle, driver_->lend(*block));
  }
  lent.event = place->on_device->inputs_are_there();
  std::vector<const DeviceMemory*> blocks;
  for (size_t i = 0; i < place->weights.size(); ++i) {
    const LentWeight& copy = *place->weights[i];
    const Tensor& weight = *region_.weights[i];
    const auto at = std::find(blocks.begin(), blocks.end(), copy.block.get());
    lent.weights.push_back({weight.dtype(), {weight.sizes(), weight.sizes() + weight.rank()},
                            {weight.strides(), weight.strides() + weight.rank()}, static_cast<uint32_t>(at - blocks.begin()), copy.offset,
                            copy.bytes});
    if (at != blocks.end()) continue;
    blocks.push_back(copy.block.get());
    lent.blocks.emplace_back();
    KRN_TRY_LET(lent.blocks.back().handle, driver_->lend(*copy.block));
    lent.blocks.back().bytes = copy.block->bytes();
  }
  return lent;
}

Status RemoteExecutable::run(const krn_tensor* inputs, uint32_t num_inputs, const krn_tensor* outputs, uint32_t num_outputs, void*,
                             uint64_t stream, bool recording) {
  if (fork_count() != forks_) return forked_copy();
  if (driver_ && (recording || driver_->is_recorded(stream)))
    return Status(Code::k_unsupported, "what runs in a worker cannot be recorded: another process launches it");
  return judged([&](RunProcess& process, Place& place, const char** function) -> Status {
    if (!process.client.running() || process.client.num_started() != place.loaded_in) KRN_TRY(load(process, place, function));
    if (num_inputs != place.arguments.inputs().size() || num_outputs != place.arguments.outputs().size())
      return Status(Code::k_invalid_input, "the call gives another number of inputs or outputs than the region has");
    *function = "krn.exec.run";
    return driver_ ? run_on_device(process, place, inputs, outputs, stream) : run_once(process, place, inputs, outputs);
  });
}

Status RemoteExecutable::run_once(RunProcess& process, Place& place, const krn_tensor* inputs, const krn_tensor* outputs) {
  place.arguments.put(inputs);
  Packet question;
  question.number = place.id;
  KRN_TRY_LET(const Packet answer, process.client.ask("run", question, workers_->run_deadline));
  (void)answer;  // that it came is what it says
  if (const std::string what = place.arguments.overrun(); !what.empty()) return Status(Code::k_wrong_result, what);
  place.arguments.take(outputs);
  return {};
}

// The stream waits for nothing of the worker's, which has waited for its own work when it answers. So whatever becomes of it, nothing that
// this process's device was given waits for it.
Status RemoteExecutable::run_on_device(RunProcess& process, Place& place, const krn_tensor* inputs, const krn_tensor* outputs,
                                       uint64_t stream) {
  KRN_TRY(place.on_device->put(inputs, stream));
  Result<Packet> answer = process.client.ask("run", place.id, workers_->run_deadline);
  if (answer.status().code() == Code::k_timeout && place.on_device->device_is_busy())
    return Status(Code::k_exhausted, "the device was busy with other work for as long as a run may take, so that none began");
  // What it has of the device's memory beyond its share goes back with it.
  if (answer.status().code() == Code::k_exhausted) process.client.end();
  KRN_TRY(std::move(answer).status());
  KRN_TRY_LET(const std::string what, place.on_device->overrun(stream));
  if (!what.empty()) return Status(Code::k_wrong_result, what);
  return place.on_device->take(outputs, stream);
}

}  // namespace keirin
