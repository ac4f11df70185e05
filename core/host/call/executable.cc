// SPDX-License-Identifier: Apache-2.0
#include "core/host/call/executable.h"

#include "abi/planted.h"

namespace keirin {
namespace {

// What crashes, mostly crashes early: these are in the journal and have the whole thread state looked at. Later ones cost two
// reads of a register, unless the plugin has left a thread changed before.
constexpr uint64_t kWatchedRuns = 16;

}  // namespace

UsedExecutable::UsedExecutable(std::shared_ptr<UsedPlugin> plugin, UsedDevice* device, krn_exec* exec, const Hash& region,
                               uint32_t num_inputs, uint32_t num_outputs)
    : plugin_(std::move(plugin)),
      device_(device),
      exec_(exec),
      region_(region),
      num_inputs_(num_inputs),
      num_outputs_(num_outputs),
      where_(plugin_->where("krn.exec.run")) {}

UsedExecutable::~UsedExecutable() { plugin_->tables().compile.release(exec_); }

Status UsedExecutable::read_facts() {
  krn_exec_info info = make_struct<krn_exec_info>();
  KRN_TRY(call_plugin(plugin_->where("krn.exec.info"),
                      [&](krn_err* err) { return plugin_->tables().exec.info(exec_, &info, err); }));
  info_.num_kernels = info.num_kernels;
  info_.num_anchors = info.num_anchors;
  info_.num_codegen = info.num_codegen;
  info_.code_bytes = info.code_bytes;
  info_.constant_bytes = info.constant_bytes;
  info_.concurrent = info.flags & KRN_EXEC_CONCURRENT;
  info_.replay_safe = info.flags & KRN_EXEC_REPLAY_SAFE;
  info_.weights_baked = info.flags & KRN_EXEC_WEIGHTS_BAKED;
  info_.inputs_intact = info.flags & KRN_EXEC_INPUTS_INTACT;
  krn_needs needs = make_struct<krn_needs>();
  KRN_TRY(call_plugin(plugin_->where("krn.exec.needs"),
                      [&](krn_err* err) { return plugin_->tables().exec.needs(exec_, nullptr, 0, &needs, err); }));
  if (needs.workspace_align & (needs.workspace_align - 1))
    return Status(Code::k_internal, Message{"the workspace's alignment is not a power of two", plugin_->where("krn.exec.needs"), {},
                                            "report it to its publisher"});
  workspace_bytes_ = needs.workspace_bytes;
  workspace_align_ = needs.workspace_align ? needs.workspace_align : 64;
  return {};
}

Status UsedExecutable::run(const krn_tensor* inputs, uint32_t num_inputs, const krn_tensor* outputs, uint32_t num_outputs,
                           void* workspace, uint64_t stream, bool recording) {
  if (num_inputs != num_inputs_ || num_outputs != num_outputs_)
    return Status(Code::k_invalid_input,
                  Message{"the region has " + std::to_string(num_inputs_) + " inputs and " + std::to_string(num_outputs_) +
                              " outputs, the call gives " + std::to_string(num_inputs) + " and " + std::to_string(num_outputs),
                          where_, {}, {}});
  krn_run run = make_struct<krn_run>();
  run.stream = device_->stream_of(stream, recording);
  run.inputs = inputs;
  run.outputs = outputs;
  run.workspace = workspace;
  run.workspace_bytes = workspace_bytes_;
  run.run_id = run_id_.fetch_add(1, std::memory_order_relaxed) + 1;
  run.num_inputs = num_inputs;
  run.num_outputs = num_outputs;
  if (hung_.load(std::memory_order_acquire)) return hang_;
  std::unique_lock turn(mutex_, std::defer_lock);
  if (!info_.concurrent) KRN_TRY(in_turn(turn));
  const auto enter = [&](krn_err* err) { return plugin_->tables().exec.run(exec_, &run, err); };
  Status status;
  if (run.run_id <= kWatchedRuns || plugin_->times_strayed() > 0) {
    status = plugin_->call("krn.exec.run", region_, enter);
  } else {
    plugin_->settle_num_threads();
    const FloatMode mode;
    status = call_plugin(where_, enter);
    if (mode.restore()) plugin_->strayed("krn.exec.run", "floating-point mode");
  }
  if (!status.ok()) device_->note(status);
  return KRN_PLANTED(swallowed_status) ? Status() : status;
}

// Not the wait without end that a lock is: the thread that has the turn may hang.
Status UsedExecutable::in_turn(std::unique_lock<std::timed_mutex>& turn) {
  if (turn.try_lock()) return {};
  if (plugin_->in_forked_copy()) return forked_copy();  // held by a thread that is not here
  // By the clock that the thread sanitizer knows; a wait that is off by an hour asks again.
  while (!turn.try_lock_until(std::chrono::system_clock::now() + std::chrono::seconds(1)))
    if (hung_.load(std::memory_order_acquire)) return hang_;
  return {};
}

void UsedExecutable::judge_hangs(std::chrono::milliseconds deadline, std::function<Status(Status)> judge) {
  run_deadline_ = deadline;
  judge_hang_ = std::move(judge);
}

void UsedExecutable::still_running(std::chrono::milliseconds at_least) {
  if (!judge_hang_ || at_least < run_deadline_ || hung_) return;
  hang_ = judge_hang_(
      Status(Code::k_timeout, Message{"hung in run (no end within " + std::to_string(run_deadline_.count()) + " ms)", where_, {}, {}}));
  hung_.store(true, std::memory_order_release);
}

Status UsedRecording::launch(uint64_t stream) {
  const krn_stream s = device_->stream_of(stream, false);
  Status status =
      call_plugin(where_, [&](krn_err* err) { return plugin_->tables().replay.launch(replay_, &s, err); });
  if (!status.ok()) device_->note(status);
  return status;
}

}  // namespace keirin
