// SPDX-License-Identifier: Apache-2.0
#include "core/api/decision_thread.h"

#include <algorithm>
#include <exception>
#include <optional>
#include <system_error>

#include "core/base/end_flag.h"
#include "core/host/fork_count.h"
#include "core/ir/graph.h"
#include "core/tune/inputs.h"

namespace keirin {
namespace {

using namespace std::chrono_literals;
using Tensors = std::vector<TensorRef>;

constexpr int kAttempts = 5;               // where others have the machine
constexpr auto kFirstRest = 5s;            // between them; doubles
constexpr auto kLook = 50ms;               // how long whoever waits does not look whether he is to end

// Others had the processor, or another process is measuring: the same question may have an answer later.
bool may_be_tried_again(const Result<ModelReport>& report) {
  return report.ok() ? !report->disturbed.empty() : report.status().code() == Code::k_exhausted;
}

}  // namespace

DecisionThread::DecisionThread(Session::Impl& session)
    : session_(session), forks_(fork_count()), refused_(session.why_not_beside_calls()), met_(static_cast<size_t>(session.options.max_shapes)) {
  if (!refused_.empty())
    refused_ = "not decided beside calls, whose state it would disturb: " + refused_ +
               "; eager answers until compile() is called for such inputs";
}

DecisionThread::~DecisionThread() {
  if (!thread_.joinable()) return;
  if (fork_count() != forks_) {  // the thread stayed in the process that was forked, perhaps with the lock
    thread_.detach();
    static_cast<void>(queue_.release());
    return;
  }
  queue_->stop = true;
  {
    const std::lock_guard lock(queue_->mutex);  // or a thread about to wait would miss it
  }
  queue_->more.notify_all();
  thread_.join();
}

void DecisionThread::meet(const Tensors& inputs) {
  if (fork_count() != forks_) return;
  {
    const std::unique_lock lock(met_mutex_, std::try_to_lock);
    if (!lock.owns_lock() || said_refused_ || (said_full_ && !refused_.empty())) return;
    const MetSizes::Answer answer = met_.meet(inputs);
    if (answer == MetSizes::Answer::kKnown) return;
    std::vector<TensorSpec> specs;
    for (const TensorRef& input : inputs) specs.push_back(spec_of(*input));
    if (!refused_.empty()) {
      said_refused_ = true;
      return session_.note_undecided(specs, refused_);
    }
    if (answer == MetSizes::Answer::kTooMany) {
      if (!said_full_)
        session_.note_undecided(specs, "not decided: " + std::to_string(session_.options.max_shapes) +
                                           " kinds of calls were met before (max_shapes); eager answers all others");
      said_full_ = true;
      return;
    }
  }
  Result<MetCall> call = keep_call(inputs, session_.runtime.tensors());
  if (call.ok()) add(std::move(*call));  // else no memory: nothing is decided about such calls
}

void DecisionThread::decide_again(const MetCall& call) {
  if (!refused_.empty()) return session_.note_undecided(call.specs, refused_);
  if (std::find(call.inputs.begin(), call.inputs.end(), nullptr) == call.inputs.end()) {
    const std::lock_guard lock(met_mutex_);
    (void)met_.meet(call.inputs);
  }
  add(call);
}

void DecisionThread::add(MetCall call) {
  const std::lock_guard lock(queue_->mutex);  // held for moments only
  queue_->tasks.push_back({std::move(call), 0, Clock::now()});
  if (!thread_.joinable()) {
    try {
      thread_ = std::thread([this] { work(); });
    } catch (const std::system_error&) {  // no thread to be had: eager goes on answering
      queue_->tasks.clear();
      return;
    }
  }
  queue_->more.notify_one();
}

bool DecisionThread::settle(std::chrono::nanoseconds most) {
  if (fork_count() != forks_) return true;
  std::unique_lock lock(queue_->mutex);
  return queue_->idle.wait_for(lock, most, [this] {
    return !queue_->busy && std::none_of(queue_->tasks.begin(), queue_->tasks.end(),
                                         [](const Task& task) { return task.attempts == 0; });
  });
}

std::unique_ptr<DecisionThread::Task> DecisionThread::next(std::unique_lock<std::mutex>& lock) {
  Queue& queue = *queue_;
  for (;;) {
    if (queue.stop) return nullptr;
    const auto first = std::min_element(queue.tasks.begin(), queue.tasks.end(),
                                        [](const Task& a, const Task& b) { return a.due < b.due; });
    if (first == queue.tasks.end()) {
      queue.more.wait(lock);
    } else if (first->due > Clock::now()) {
      queue.more.wait_until(lock, first->due);
    } else {
      auto task = std::make_unique<Task>(std::move(*first));
      queue.tasks.erase(first);
      return task;
    }
  }
}

void DecisionThread::work() {
  end_when(&queue_->stop);
  std::unique_lock lock(queue_->mutex);
  while (const std::unique_ptr<Task> task = next(lock)) {
    queue_->busy = true;
    lock.unlock();
    const bool again = decide(*task);
    lock.lock();
    if (again) {
      task->due = Clock::now() + kFirstRest * (1 << task->attempts++);
      queue_->tasks.push_back(std::move(*task));
    }
    queue_->busy = false;
    queue_->idle.notify_all();
  }
}

Result<Tensors> DecisionThread::inputs_of(const MetCall& call) {
  Tensors inputs = call.inputs;
  if (std::find(inputs.begin(), inputs.end(), nullptr) == inputs.end()) return inputs;
  std::vector<int64_t> sizes;
  for (const SizeReport& size : session_.free_sizes(call.specs)) sizes.push_back(size.value);
  const Result<Tensors> drawn = session_.draw(1, sizes);
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i]) continue;
    const TensorSpec& spec = call.specs[i];
    if (drawn.ok() && i < drawn->size() && spec_text(spec_of(*(*drawn)[i])) == spec_text(spec)) {
      inputs[i] = (*drawn)[i];
    } else {
      const Type type{spec.dtype, spec.sizes, spec.strides};
      KRN_TRY_LET(inputs[i], make_tensor(type, {}, session_.runtime.tensors(), session_.device, i));
    }
    KRN_TRY_LET(inputs[i], aligned_copy(session_.runtime.tensors(), inputs[i], call.alignment[i]));
  }
  return inputs;
}

bool DecisionThread::decide(Task& task) {
  std::unique_lock turn(session_.runtime.decision_turn(), std::defer_lock);
  while (!turn.try_lock_for(kLook))
    if (queue_->stop) return false;
  std::string failed;
  try {
    // The copies were enqueued on their callers' streams.
    (void)session_.runtime.tensors().synchronize(session_.device);
    Result<Tensors> inputs = inputs_of(task.call);
    const Result<ModelReport> report = inputs.ok() ? session_.compile(*inputs, true) : inputs.status();
    if (queue_->stop) return false;
    if (may_be_tried_again(report) && task.attempts + 1 < kAttempts) return true;
    if (!report.ok()) failed = report.status().message().what;
  } catch (const std::exception& error) {  // memory that ran out; there is nobody to tell but the report
    failed = error.what();
  }
  if (!failed.empty()) session_.note_undecided(task.call.specs, "not decided: " + failed);
  return false;
}

}  // namespace keirin
