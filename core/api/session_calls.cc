// SPDX-License-Identifier: Apache-2.0
//
// What answers a call: a plan, eager in its place, or both, one beside the other (option `plans`).
#include <chrono>

#include "abi/planted.h"
#include "core/api/decision_thread.h"
#include "core/api/events.h"
#include "core/api/session_impl.h"
#include "core/base/request.h"

namespace keirin {
namespace {

// The plugin is not given the region again, so the plan cannot succeed.
bool is_final(Code code) {
  return code == Code::k_crashed || code == Code::k_timeout || code == Code::k_corrupt || code == Code::k_wrong_result;
}

}  // namespace

Result<std::vector<TensorRef>> Session::Impl::answer(const Decision& decision, const std::vector<TensorRef>& inputs,
                                                     const std::shared_ptr<const void>& keep, const std::vector<TensorRef>* given) {
  PlanGuard& guard = *decision.guard;
  ServiceRecord& record = *guard.record;
  // LibTorch tells a thread how many threads it may use when it first asks. Libraries that a plan calls do not ask: without this, a
  // thread's first call would run on all processors, and sum in another order than its second.
  (void)runtime.tensors().num_threads();
  Result<std::vector<TensorRef>> outputs = given && decision.into ? decision.into(inputs, *given) : decision.call(inputs);
  if (outputs.ok()) {
    record.breaker.succeeded();
    if (guard.takes_sample()) {
      using Kept = std::pair<std::shared_ptr<const void>, std::shared_ptr<PlanGuard>>;
      const std::shared_ptr<PlanGuard> watched(std::make_shared<Kept>(keep, decision.guard), &guard);
      checks->submit(watched, inputs, *outputs, runtime.tensors());
    }
    return outputs;
  }
  if (outputs.status().code() == Code::k_device_lost || outputs.status().code() == Code::k_half_done) return outputs;
  eager_instead.fetch_add(1, std::memory_order_relaxed);
  by_plan.fetch_sub(1, std::memory_order_relaxed);
  // Inputs and state are intact after a failed run: eager answers, or raises the error that the user knows.
  Result<std::vector<TensorRef>> answer = eager->run(inputs);
  if (answer.ok() || is_final(outputs.status().code())) note_failure(decision, outputs.status());
  if (!answer.ok()) record.breaker.succeeded();  // the inputs' fault: a caller with bad ones may not take the plan from the others
  return answer;
}

void Session::Impl::note_failure(const Decision& decision, const Status& status) {
  ServiceRecord& record = *decision.guard->record;
  if (is_final(status.code())) {
    if (record.revoked.exchange(true)) return;
    const std::string why = "a call of the plan failed: " + status.message().what;
    if (decision.range) revoke(decision.range, why);
    else revoke(decision.admits, why);
  } else if (record.breaker.failed(std::chrono::steady_clock::now())) {
    add_reason(decision.admits.specs(), "eager answers for a while: the plan failed " + std::to_string(CircuitBreaker::kFailures) +
                                            " times, last with: " + status.message().what);
  }
}

void Session::Impl::shadow(const std::shared_ptr<const Decision>& decision, const std::vector<TensorRef>& inputs) {
  PlanGuard* const guard = decision->guard.get();
  if (decision->is_chain || !guard->check) {  // nothing is compared of what writes, draws or runs in segments
    shadow_not_compared.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  if (!guard->takes_shadow()) return;
  const auto answer = [this, decision](const std::vector<TensorRef>& copies) -> Result<std::vector<TensorRef>> {
    Result<std::vector<TensorRef>> outputs = decision->call(copies);
    if (outputs.ok()) {
      decision->guard->record->breaker.succeeded();
    } else {
      shadow_failed.fetch_add(1, std::memory_order_relaxed);
      note_failure(*decision, outputs.status());
    }
    return outputs;
  };
  const auto judged = [this](const std::string& wrong) {
    (wrong.empty() ? shadow_right : shadow_wrong).fetch_add(1, std::memory_order_relaxed);
  };
  if (!checks->submit(decision->guard, inputs, answer, judged, runtime.tensors())) shadow_dropped.fetch_add(1, std::memory_order_relaxed);
}

Result<std::optional<PaddedCall>> Session::Impl::pad(const std::vector<TensorRef>& inputs) const {
  if (!buckets) return std::optional<PaddedCall>();
  return buckets->pad(inputs);
}

void Session::Impl::look_at_bucket(const std::shared_ptr<const Decision>& decision, const Sizes& to, const std::vector<TensorRef>& inputs) {
  if (!buckets->ask(to)) return;
  const auto close = [this](const std::string& wrong) {
    const std::string why = "sizes are not padded any more: a padded call answered otherwise than eager: " + wrong;
    tell(Event::Kind::kChanged, kWarning, why);
    const std::lock_guard lock(report_mutex);
    if (!reports.empty()) reports.back().reasons.push_back(why);
  };
  auto guard = std::make_shared<PlanGuard>();
  guard->check = decision->guard->check;
  guard->revoke = [](const std::string&) {};  // the plan is right at its own sizes: it is padding that is not
  if (!guard->check) return (void)buckets->judged(to, std::string());  // not verified, as the options say
  const auto answer = [this, decision, to](const std::vector<TensorRef>& copies) -> Result<std::vector<TensorRef>> {
    Result<std::optional<PaddedCall>> padded = pad(copies);
    if (padded.ok() && *padded && (*padded)->to == to) {
      Result<std::vector<TensorRef>> outputs = decision->call((*padded)->inputs);
      if (!outputs.ok()) note_failure(*decision, outputs.status());
      else if (Result<std::vector<TensorRef>> kept = buckets->cut(*outputs, (*padded)->from); kept.ok()) return kept;
    }
    (void)buckets->judged(to, std::nullopt);
    return Status(Code::k_unsupported, "the call could not be padded again");
  };
  const auto judged = [this, to, close](const std::string& wrong) {
    if (buckets->judged(to, wrong) && buckets->trust(to) == Buckets::Trust::kClosed) close(wrong);
  };
  if (!checks->submit(guard, inputs, answer, judged, runtime.tensors())) (void)buckets->judged(to, std::nullopt);
}

Result<std::vector<TensorRef>> Session::Impl::answer_padded(const std::shared_ptr<const Decision>& decision, const PaddedCall& padded,
                                                            const std::vector<TensorRef>& inputs) {
  const auto trust = buckets->trust(padded.to);
  if (trust != Buckets::Trust::kRight) {
    (trust == Buckets::Trust::kClosed ? eager_instead : eager_undecided).fetch_add(1, std::memory_order_relaxed);
    Result<std::vector<TensorRef>> outputs = eager->run(inputs);
    if (outputs.ok() && trust == Buckets::Trust::kUnknown) look_at_bucket(decision, padded.to, inputs);
    return outputs;
  }
  const uint64_t number = by_plan.fetch_add(1, std::memory_order_relaxed) + 1;
  if (decision->bytes > 0) decision->guard->last_used.store(number, std::memory_order_relaxed);
  Result<std::vector<TensorRef>> outputs = answer(*decision, padded.inputs);
  if (outputs.ok()) {
    Result<std::vector<TensorRef>> kept = buckets->cut(*outputs, padded.from);
    if (kept.ok()) {
      buckets->count(padded);
      return kept;
    }
    eager_instead.fetch_add(1, std::memory_order_relaxed);
    by_plan.fetch_sub(1, std::memory_order_relaxed);
  } else if (outputs.status().code() == Code::k_device_lost || outputs.status().code() == Code::k_half_done) {
    return outputs;
  }
  return eager->run(inputs);  // the padded sizes may want memory that the call itself does not
}

Result<std::vector<TensorRef>> Session::Impl::call(const std::vector<TensorRef>& inputs, const std::vector<TensorRef>* given) {
  const RequestScope scope;
  const Plans use = plans->load(std::memory_order_acquire);  // once: the call ends as it began
  if (use == Plans::kOff) {
    eager_off.fetch_add(1, std::memory_order_relaxed);
    return eager->run(inputs);
  }
  std::optional<PaddedCall> padded;
  if (buckets)
    if (Result<std::optional<PaddedCall>> call = buckets->pad(inputs); call.ok()) padded = std::move(*call);  // else no memory: as it is
  const std::vector<TensorRef>& asked = padded ? padded->inputs : inputs;
  std::shared_ptr<const Decision> decision = find(asked);
  if (!decision && use == Plans::kOn && !padded && decisions) decision = enter_at_once(inputs);
  if (!decision && !table.now()->empty()) calls_unadmitted.fetch_add(1, std::memory_order_relaxed);
  const auto count = [](std::atomic<uint64_t>& counter) { return counter.fetch_add(1, std::memory_order_relaxed); };
  if (!decision) {
    count(eager_undecided);
    const auto start = std::chrono::steady_clock::now();
    Result<std::vector<TensorRef>> outputs = eager->run(inputs);
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
    if (outputs.ok() && options.compile != When::kNow && decisions) decisions->meet(asked, took.count());  // not about what eager refuses
    return outputs;
  }
  if (!decision->call || !decision->guard->record->breaker.admits()) {
    count(decision->call ? eager_instead : eager_chosen);
    return eager->run(inputs);
  }
  if (use == Plans::kShadow) {
    count(eager_shadow);
    Result<std::vector<TensorRef>> outputs = eager->run(inputs);
    if (outputs.ok()) shadow(decision, asked);
    return outputs;
  }
  if (padded && !padding_pays(decision->gain, padded->share)) {
    count(eager_chosen);
    buckets->count_left();
    return eager->run(inputs);
  }
  if (padded) return answer_padded(decision, *padded, inputs);
  const uint64_t number = count(by_plan) + 1;
  if (decision->bytes > 0) decision->guard->last_used.store(number, std::memory_order_relaxed);
  if (decision->hot_after > 0 && count(decision->guard->calls) + 1 == decision->hot_after && decisions) decisions->decide_hot(inputs);
  if (decision->is_chain) return decision->call(inputs);
  return answer(*decision, inputs, nullptr, given);
}

}  // namespace keirin
