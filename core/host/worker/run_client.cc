// SPDX-License-Identifier: Apache-2.0
#include "core/host/worker/run_client.h"

#include <utility>

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

}  // namespace

RemoteExecutable::RemoteExecutable(ContainedDevice& contained, std::shared_ptr<RunClient> worker, const PluginRegion& region,
                                   std::optional<Artifact> artifact, const PolicyOptions& policy, const CompileOptions& options)
    : contained_(contained),
      worker_(std::move(worker)),
      bytes_(region.bytes.begin(), region.bytes.end()),
      region_{bytes_, region.hash, region.weights},
      artifact_(std::move(artifact)),
      policy_(policy),
      options_(options),
      forks_(fork_count()) {
  options_.cancel = nullptr;  // the caller's, who is gone when another worker is given this
  options_.dump = nullptr;
}

Result<std::shared_ptr<RemoteExecutable>> RemoteExecutable::make(ContainedDevice& contained, std::shared_ptr<RunClient> worker,
                                                                 const PluginRegion& region, std::optional<Artifact> artifact,
                                                                 const PolicyOptions& policy, const CompileOptions& options) {
  std::shared_ptr<RemoteExecutable> made(
      new RemoteExecutable(contained, std::move(worker), region, std::move(artifact), policy, options));
  KRN_TRY(made->judged([&](const char** function) { return made->load(function); }));
  return made;
}

RemoteExecutable::~RemoteExecutable() {
  if (fork_count() != forks_) return;
  run_in_foreground([this] {
    const std::lock_guard guard(worker_->mutex);
    if (!worker_->process.running() || worker_->process.num_started() != loaded_in_) return;
    Packet drop;
    drop.head = {{"op", "drop"}, {"id", id_}};
    (void)worker_->process.ask("release", drop, worker_->process.limits().deadline);
  });
}

// Does it with the worker to itself. Who gives way does it on the thread that waits for him: held by a thread that gets no processor, the
// worker would be kept from calls for as long as others are busy. What went wrong is judged after that, because judging may call the
// user's log.
Status RemoteExecutable::judged(const std::function<Status(const char** function)>& work) {
  const char* function = "krn.exec.run";
  bool judges = false;
  Status status = in_foreground([&]() -> Status {
    const std::lock_guard guard(worker_->mutex);
    if (!lost_.ok() && (lost_.code() != Code::k_exhausted || !contained_.allowed(region_.hash).ok())) return lost_;
    lost_ = work(&function);
    judges = is_judged(lost_.code());
    return judges ? lost_ : std::exchange(lost_, Status());
  });
  if (!judges) return status;
  return contained_.judge(function, region_.hash, std::move(status));
}

// Into the process that runs, or into a fresh one.
Status RemoteExecutable::load(const char** function) {
  WorkerClient& process = worker_->process;
  KRN_TRY(contained_.allowed(region_.hash));
  KRN_TRY_LET(SharedArguments arguments, SharedArguments::of_region(region_.bytes));
  for (const SharedArguments::Argument& input : arguments.inputs())
    if (input.weight != kNone && input.weight >= region_.weights.size())
      return Status(Code::k_unsupported, "the values of the weights are not at hand, which a worker needs");
  const uint32_t id = worker_->next_id++;
  KRN_TRY_LET(const Packet question, load_question(id, contained_.hardware().uid, region_, artifact_ ? &*artifact_ : nullptr, policy_,
                                                   options_, arguments.total_bytes()));
  KRN_TRY(arguments.map(question.file.get(), room_at(question)));
  arguments.mark_zones();
  *function = artifact_ ? "krn.artifact.load" : "krn.compile.compile";
  if (!artifact_) note_compile();
  KRN_TRY_LET(const Packet answer, process.ask(artifact_ ? "load" : "compile", question, process.limits().deadline));
  *function = "krn.exec.run";
  if (loaded_in_ == 0) {  // later nothing of it changes, and others may be reading it
    try {
      info_ = info_from_json(answer.head.at("info"));
    } catch (const nlohmann::json::exception&) {
      return Status(Code::k_corrupt, "answered what could not be read");
    }
    info_.inputs_intact = info_.in_worker = true;
  }
  arguments_ = std::move(arguments);
  id_ = id;
  loaded_in_ = process.num_started();
  return {};
}

Status RemoteExecutable::run(const krn_tensor* inputs, uint32_t num_inputs, const krn_tensor* outputs, uint32_t num_outputs, void*,
                             uint64_t, bool) {
  if (fork_count() != forks_) return forked_copy();
  return judged([&](const char** function) -> Status {
    if (num_inputs != arguments_.inputs().size() || num_outputs != arguments_.outputs().size())
      return Status(Code::k_invalid_input, "the call gives another number of inputs or outputs than the region has");
    return run_once(inputs, outputs, function);
  });
}

Status RemoteExecutable::run_once(const krn_tensor* inputs, const krn_tensor* outputs, const char** function) {
  WorkerClient& process = worker_->process;
  if (!process.running() || process.num_started() != loaded_in_) KRN_TRY(load(function));
  arguments_.put(inputs);
  Packet question;
  question.number = id_;
  KRN_TRY_LET(const Packet answer, process.ask("run", question, worker_->run_deadline));
  (void)answer;  // that it came is what it says
  if (const std::string what = arguments_.overrun(); !what.empty()) return Status(Code::k_wrong_result, what);
  arguments_.take(outputs);
  return {};
}

}  // namespace keirin
