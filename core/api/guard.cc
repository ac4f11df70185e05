// SPDX-License-Identifier: Apache-2.0
#include "core/api/guard.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include "abi/planted.h"

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
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  if (thread_.joinable()) thread_.join();
}

void CallChecker::submit(std::shared_ptr<PlanGuard> guard, const std::vector<TensorRef>& inputs,
                         const std::vector<TensorRef>& outputs, TensorServices& services) {
  {
    const std::lock_guard lock(mutex_);
    if (samples_.size() >= kMaxWaiting) return;
  }
  Sample sample{std::move(guard), copies(inputs, services), copies(outputs, services)};
  if (sample.inputs.size() != inputs.size() || sample.outputs.size() != outputs.size()) return;
  std::thread ended;
  {
    const std::lock_guard lock(mutex_);
    samples_.push_back(std::move(sample));
    if (!running_) {
      try {
        ended = std::exchange(thread_, std::thread([this] { work(); }));
        running_ = true;
      } catch (const std::system_error&) {  // no thread to be had: the call is answered all the same
        samples_.clear();
      }
    }
  }
  if (ended.joinable()) ended.join();
}

void CallChecker::drain() {
  std::unique_lock lock(mutex_);
  idle_.wait(lock, [this] { return !running_; });
}

void CallChecker::work() {
  std::unique_lock lock(mutex_);
  while (!stop_ && !samples_.empty()) {
    Sample sample = std::move(samples_.front());
    samples_.pop_front();
    lock.unlock();
    PlanGuard& guard = *sample.guard;
    if (!guard.revoked) {
      const std::string wrong = guard.check(sample.inputs, sample.outputs);
      if (!wrong.empty() && !KRN_PLANTED(sample_ignored) && !guard.revoked.exchange(true)) guard.revoke(wrong);
    }
    sample = {};
    lock.lock();
  }
  running_ = false;
  idle_.notify_all();
}

}  // namespace keirin
