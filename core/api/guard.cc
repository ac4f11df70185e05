// SPDX-License-Identifier: Apache-2.0
#include "core/api/guard.h"

#include <algorithm>
#include <functional>
#include <system_error>
#include <utility>

#include "abi/planted.h"
#include "core/base/background.h"
#include "core/base/thread_name.h"

namespace keirin {
namespace {

constexpr size_t kMaxWaiting = 4;

// Nothing if one could not be copied.
std::vector<TensorRef> copies(const std::vector<TensorRef>& tensors, TensorServices& services) {
  std::vector<TensorRef> out;
  for (const TensorRef& tensor : tensors) {
    Result<TensorRef> copy = tensor ? services.clone(tensor) : Result<TensorRef>(TensorRef());
    if (!copy.ok()) return {};
    out.push_back(std::move(*copy));
  }
  return out;
}

}  // namespace

bool CircuitBreaker::admits_slowly(Time now) {
  const std::lock_guard lock(mutex_);
  if (!open_) return true;
  if (trying_ || now < open_until_) return false;
  trying_ = true;
  return true;
}

bool CircuitBreaker::failed(Time now) {
  const std::lock_guard lock(mutex_);
  troubled_ = true;
  if (open_) {
    if (trying_) {
      trying_ = false;
      wait_ = std::min(wait_ * 2, kLongestWait);
      open_until_ = now + wait_;
    }
    return false;
  }
  while (!failures_.empty() && now - failures_.front() > kWindow) failures_.pop_front();
  failures_.push_back(now);
  if (failures_.size() < kFailures) return false;
  open_ = !KRN_PLANTED(breaker_stays_closed);
  open_until_ = now + wait_;
  return true;
}

// A success between failures does not forget them: a plan that fails every other call is open soon.
void CircuitBreaker::close() {
  const std::lock_guard lock(mutex_);
  if (!open_ || !trying_) return;
  open_ = trying_ = false;
  wait_ = kFirstWait;
  failures_.clear();
  troubled_ = false;
}

CallChecker::~CallChecker() {
  if (!thread_.joinable()) return;
  if (in_forked_copy()) {  // the queue's condition would wait for the thread to leave it
    thread_.detach();
    static_cast<void>(queue_.release());
    return;
  }
  {
    const std::lock_guard lock(queue_->mutex);
    queue_->stop = true;
  }
  queue_->more.notify_one();
  thread_.join();
}

bool CallChecker::has_room() {
  if (in_forked_copy()) return false;
  const std::lock_guard lock(queue_->mutex);
  return queue_->samples.size() < kMaxWaiting;
}

void CallChecker::submit(std::shared_ptr<PlanGuard> guard, const std::vector<TensorRef>& inputs,
                         const std::vector<TensorRef>& outputs, TensorServices& services) {
  if (!has_room()) return;
  Sample sample{std::move(guard), copies(inputs, services), copies(outputs, services)};
  if (sample.inputs.size() == inputs.size() && sample.outputs.size() == outputs.size()) add(std::move(sample), services);
}

bool CallChecker::submit(std::shared_ptr<PlanGuard> guard, const std::vector<TensorRef>& inputs, Answer answer,
                         std::function<void(const std::string& wrong)> judged, TensorServices& services) {
  if (!has_room()) return false;
  Sample sample{std::move(guard), copies(inputs, services), {}, std::move(answer), std::move(judged)};
  return sample.inputs.size() == inputs.size() && add(std::move(sample), services);
}

bool CallChecker::add(Sample sample, TensorServices& services) {
  const std::lock_guard lock(queue_->mutex);
  if (!thread_.joinable()) {
    try {
      thread_ = std::thread(&CallChecker::work, std::ref(*queue_), std::ref(services));
    } catch (const std::system_error&) {  // no thread to be had: the call is answered all the same
      return false;
    }
  }
  queue_->samples.push_back(std::move(sample));
  queue_->more.notify_one();
  return true;
}

void CallChecker::drain() {
  if (in_forked_copy()) return;
  std::unique_lock lock(queue_->mutex);
  queue_->idle.wait(lock, [this] { return queue_->samples.empty() && !queue_->busy; });
}

void CallChecker::check(Sample& sample) {
  PlanGuard& guard = *sample.guard;
  if (guard.record->revoked) return;
  if (sample.answer) {
    Result<std::vector<TensorRef>> outputs = sample.answer(sample.inputs);
    if (!outputs.ok()) return;  // who answers has taken note of it
    sample.outputs = std::move(*outputs);
  }
  const std::string wrong = guard.check(sample.inputs, sample.outputs);
  if (sample.judged) sample.judged(wrong);
  if (!wrong.empty() && !KRN_PLANTED(sample_ignored) && !guard.record->revoked.exchange(true)) guard.revoke(wrong);
}

void CallChecker::work(Queue& queue, TensorServices& services) {
  name_thread("keirin-check");
  services.keep_to_this_thread();
  std::unique_lock lock(queue.mutex);
  for (;;) {
    queue.more.wait(lock, [&] { return queue.stop || !queue.samples.empty(); });
    if (queue.stop) break;
    Sample sample = std::move(queue.samples.front());
    queue.samples.pop_front();
    queue.busy = true;
    lock.unlock();
    check(sample);
    sample = {};
    lock.lock();
    queue.busy = false;
    if (queue.samples.empty()) queue.idle.notify_all();
  }
  lock.unlock();
  leave_memory();
}

}  // namespace keirin
