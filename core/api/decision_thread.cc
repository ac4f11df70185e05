// SPDX-License-Identifier: Apache-2.0
#include "core/api/decision_thread.h"

#include <unistd.h>

#include <algorithm>
#include <exception>
#include <optional>
#include <system_error>
#include <utility>

#include "core/api/enter.h"
#include "core/api/events.h"
#include "core/api/kept_ranges.h"
#include "core/base/background.h"
#include "core/base/end_flag.h"
#include "core/base/thread_name.h"
#include "core/eager/teams.h"
#include "core/host/guard/fork_count.h"
#include "core/ir/graph.h"
#include "core/tune/inputs.h"

namespace keirin {
namespace {

using namespace std::chrono_literals;
using Tensors = std::vector<TensorRef>;

constexpr int kAttempts = 5;               // where others have the machine
constexpr auto kFirstRest = 5s;            // between them; doubles
constexpr auto kRestUntilIdle = 10s;       // between looks whether the processors are
constexpr int kMostBetween = 2;            // sizes checked to find where the choice changes (size_between)
constexpr size_t kMetFirst = 2;            // of the sizes checked, those that brought a range about (sizes_to_check)
constexpr size_t kMostWaiting = 256;       // sizes that wait for their plans; more ask again when they are met again
constexpr size_t kMostLeft = 4096;         // sizes of which is remembered that eager is to answer them
constexpr double kShareOfMemory = 0.25;    // of what is free, that a call of the largest size checked may take
constexpr int64_t kLeastBytes = 1 << 20;   // a call's memory that is not told apart from nothing
constexpr double kLongestCallMs = 500;     // of eager, at the largest size checked, if calls grow as sizes do
constexpr double kGrowthUntimed = 16;
constexpr int64_t kOpenGrowth = 16;        // of a size for which the export states no end

// Others had the processor, or another process is measuring: the same question may have an answer later.
bool may_be_tried_again(const Result<ModelReport>& report) {
  return report.ok() ? !report->disturbed.empty() : report.status().code() == Code::k_exhausted;
}

}  // namespace

DecisionThread::DecisionThread(Session::Impl& session)
    : session_(session), forks_(fork_count()), refused_(session.why_not_beside_calls()),
      may_have_ranges_(session.options.ranges && !session.never_compiles() && session.options.force != "eager"),
      met_(static_cast<size_t>(session.options.max_shapes)) {
  if (!refused_.empty())
    refused_ = "not decided beside calls, whose state it would disturb: " + refused_ +
               "; eager answers until compile() is called for such inputs";
}

DecisionThread::~DecisionThread() {
  end();
  if (!thread_.joinable()) return;
  thread_.detach();  // it stayed in the process that was forked, perhaps with the lock
  static_cast<void>(queue_.release());
}

void DecisionThread::end() {
  if (fork_count() != forks_) return;
  std::thread ending;
  {
    const std::lock_guard lock(queue_->mutex);  // or a thread about to wait would miss it
    queue_->stop = true;
    std::swap(ending, thread_);
  }
  queue_->more.notify_all();
  queue_->idle.notify_all();
  if (ending.joinable()) ending.join();
}

void DecisionThread::begin() {
  if (refused_.empty() && may_have_ranges_ && !session_.chain && read_kept_ranges(session_)) add({.call = {}, .kept = true});
}

bool DecisionThread::waits_for_range(const Sizes& sizes, bool* bring_about) {
  if (first_.empty()) first_ = sizes;
  if (taken_over_) return true;
  if (sizes == first_) return false;
  *bring_about = second_.empty();
  if (*bring_about) second_ = sizes;
  return true;
}

void DecisionThread::meet(const Tensors& inputs, double eager_ms) {
  if (fork_count() != forks_) return;
  Task task;
  bool bring_about = false;
  {
    const std::unique_lock lock(met_mutex_, std::try_to_lock);
    if (!lock.owns_lock() || said_refused_ || (said_full_ && !refused_.empty())) return;
    std::vector<TensorSpec> specs;
    for (const TensorRef& input : inputs) specs.push_back(spec_of(*input));
    if (refused_.empty()) {
      if (may_have_ranges_) task.sizes = session_.range_sizes(specs);
      task.counted = task.sizes.empty() || !waits_for_range(task.sizes, &bring_about);
      if (!task.counted) {
        if (left_.contains(task.sizes) || waiting_.size() >= kMostWaiting) return;  // of the latter the next call asks again
        if (!is_paid(task.sizes, eager_ms)) return;
        if (!waiting_.insert(task.sizes).second) return;
      }
    }
    const MetSizes::Answer answer = task.counted ? met_.meet(inputs) : MetSizes::Answer::kNew;
    if (answer == MetSizes::Answer::kKnown) return;
    if (!refused_.empty()) {
      said_refused_ = true;
      return session_.note_undecided(specs, refused_);
    }
    if (answer == MetSizes::Answer::kTooMany) return say_full(specs);
  }
  Result<MetCall> call = keep_call(inputs, session_.runtime.tensors());
  if (!call.ok()) return done_with(task);  // no memory: nothing is decided about such calls
  if (bring_about) add({.call = {call->specs, {}, {}}, .check = true});
  task.call = std::move(*call);
  add(std::move(task));
}

// Under met_mutex_. Processors may have nothing else to do than to make a plan, but a GPU makes it beside the calls that it answers: there
// a size that is met once or twice would cost the others more than it gains. One whose plan would have paid by now gets it: whatever
// comes, eager's calls and the plan together cost no more than twice the least. So does one of several that find nothing to be made of.
bool DecisionThread::is_paid(const Sizes& sizes, double eager_ms) {
  if (session_.device.kind == Device::kCpu || session_.options.force == "compiled") return true;
  if (unpaid_.size() >= kMostLeft) unpaid_.clear();
  const uint64_t calls = ++unpaid_[sizes];
  const bool paid = calls >= session_.ranges.calls_until_paid(sizes) || session_.ranges.have_missed_enough(sizes);
  if (calls == 1 && eager_ms > 0) session_.ranges.eager_began(sizes, eager_ms);
  if (!paid) return false;
  unpaid_.erase(sizes);
  return true;
}

// Under met_mutex_.
void DecisionThread::say_full(const std::vector<TensorSpec>& specs) {
  if (std::exchange(said_full_, true)) return;
  session_.note_undecided(specs, "not decided: " + std::to_string(session_.options.max_shapes) +
                                     " kinds of calls were met before (max_shapes); eager answers all others");
}

bool DecisionThread::counts(const Task& task) {
  const std::lock_guard lock(met_mutex_);
  const MetSizes::Answer answer = met_.meet(task.call);
  if (answer == MetSizes::Answer::kTooMany) say_full(task.call.specs);
  if (answer != MetSizes::Answer::kNew && left_.size() < kMostLeft) left_.insert(task.sizes);
  return answer == MetSizes::Answer::kNew;
}

void DecisionThread::done_with(const Task& task) {
  const std::lock_guard lock(met_mutex_);
  waiting_.erase(task.sizes);
}

void DecisionThread::decide_again(const MetCall& call) {
  if (!refused_.empty()) return session_.note_undecided(call.specs, refused_);
  {
    const std::lock_guard lock(met_mutex_);
    (void)met_.meet(call);
    if (first_.empty()) first_ = session_.range_sizes(call.specs);
  }
  add({.call = call, .counted = true});
}

void DecisionThread::decide_hot(const Tensors& inputs) {
  if (!refused_.empty() || fork_count() != forks_) return;
  Result<MetCall> call = keep_call(inputs, session_.runtime.tensors());
  if (call.ok()) add({.call = std::move(*call), .hot = true, .counted = true});
}

void DecisionThread::learn(const Sizes& like) {
  if (fork_count() == forks_) add({.call = {}, .sizes = like, .learn = true});
}

// A decision of the last kinds that were met is not forgotten for it.
bool DecisionThread::has_room_for_hot() const {
  const auto decisions = session_.table.now();
  return std::ranges::count_if(*decisions, [](const auto& each) { return each->bytes == 0; }) < session_.options.max_shapes;
}

void DecisionThread::decide_when_idle(const MetCall& call) {
  if (refused_.empty() && fork_count() == forks_) add({.call = call, .attempts = 1, .when_idle = true, .counted = true});
}

void DecisionThread::add(Task task) {
  const std::lock_guard lock(queue_->mutex);  // held for moments only
  if (queue_->stop) return;
  // Sizes that wait for their plans get them sooner once graphs of their kind are known.
  if (!task.learn) task.due = Clock::now() + (task.when_idle ? kRestUntilIdle : 0s);
  queue_->tasks.push_back(std::move(task));
  if (!thread_.joinable()) {
    try {
      run_in_foreground([this] { thread_ = std::thread([this] { work(); }); });  // the model may be opened beside calls
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
    const auto is_new = [](const Task& task) { return task.attempts == 0; };
    return queue_->stop || (!queue_->busy && std::ranges::none_of(queue_->tasks, is_new));
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

// Under the queue's mutex.
void DecisionThread::put_back(std::unique_ptr<Task> task, Clock::time_point due) {
  task->due = due;
  queue_->tasks.push_back(std::move(*task));
}

void DecisionThread::work() {
  name_thread("keirin-decide");
  end_when(&queue_->stop);
  std::unique_lock lock(queue_->mutex);
  while (std::unique_ptr<Task> task = next(lock)) {
    if (task->when_idle) {
      lock.unlock();
      const bool idle = processors_are_idle();
      lock.lock();
      if (!idle) {
        put_back(std::move(task), Clock::now() + kRestUntilIdle);
        continue;
      }
    }
    queue_->busy = true;
    lock.unlock();
    const bool again = decide(*task);
    let_go_of_team();
    if (!again) done_with(*task);
    lock.lock();
    if (again) {
      const auto rest = kFirstRest * (1 << task->attempts++);
      put_back(std::move(task), Clock::now() + rest);
    }
    queue_->busy = false;
    queue_->idle.notify_all();
  }
  lock.unlock();
  leave_memory();
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
  std::string failed;
  try {
    if (task.kept) {
      take_over_kept();
      return false;
    }
    if (task.learn) {
      const Status learned = in_background([&] { return learn_graphs(session_, task.sizes, queue_->stop); });
      if (queue_->stop) return false;
      session_.ranges.learned(learned.message().what);
      if (learned.ok()) run_in_background([&] { rehearse(session_, task.sizes, queue_->stop); });
      return false;
    }
    if (!task.sizes.empty()) {
      take_over_ranges(task.call);
      if (const Entered entered = enter(task); entered != Entered::kInNoRange) return entered == Entered::kToTryAgain;
      if (!task.counted && !counts(task)) return false;
      done_with(task);
      task.sizes.clear();  // it counts once, however often it is tried
    }
    if (task.check) take_over_ranges(task.call);
    if (task.check && taken_over_) return false;
    if (task.check) return check_sizes(task);
    if (task.hot && !has_room_for_hot()) return false;
    if (task.attempts == 0 && !task.when_idle) {  // over in a moment, and no race: it waits for nobody's turn
      (void)session_.runtime.tensors().synchronize(session_.device);
      const Result<Tensors> inputs = inputs_of(task.call);
      if (inputs.ok() && (task.hot || !session_.find(*inputs))) {
        const Result<ModelReport> taken = session_.take_over(*inputs);
        if (taken.ok()) return task.when_idle = !taken->disturbed.empty();
      }
    }
    if (!session_.runtime.decision_turn().lock_unless(queue_->stop)) return false;
    const std::lock_guard turn(session_.runtime.decision_turn(), std::adopt_lock);
    // The copies were enqueued on their callers' streams.
    (void)session_.runtime.tensors().synchronize(session_.device);
    Result<Tensors> inputs = inputs_of(task.call);
    if (task.attempts == 0 && !task.hot && inputs.ok() && session_.find(*inputs)) return false;  // somebody had them compiled meanwhile
    const Result<ModelReport> report = inputs.ok() ? session_.compile(*inputs, true, task.attempts > 0) : inputs.status();
    if (queue_->stop) return false;
    // Of what others disturbed: what is chosen serves until then, and what a disturbed race of before chose was raced under load.
    task.when_idle = report.ok() && (report->chosen != "eager" || report->warm_start_seconds > 0);
    if (may_be_tried_again(report) && task.attempts + 1 < kAttempts) return true;
    if (!report.ok()) failed = report.status().message().what;
  } catch (const std::exception& error) {  // memory that ran out; there is nobody to tell but the report
    failed = error.what();
  }
  if (!failed.empty()) session_.note_undecided(task.call.specs, "not decided: " + failed);
  return false;
}

void DecisionThread::take_over_kept() {
  const std::optional<KeptRanges> known = read_kept_ranges(session_);
  for (size_t i = 0; known && i < std::min(known->checks.size(), kMetFirst) && !queue_->stop; ++i) {
    Task task{.call = {}, .sizes = known->checks[i].sizes};
    const Result<Tensors> inputs = session_.draw(1, task.sizes);
    Result<MetCall> call = inputs.ok() ? keep_call(*inputs, session_.runtime.tensors()) : inputs.status();
    if (!call.ok()) continue;  // no memory: as if nothing had been kept
    task.call = std::move(*call);
    take_over_ranges(task.call);
    (void)enter(task);  // what has to be tried again is, by the calls that meet it
  }
}

void DecisionThread::take_over_ranges(const MetCall& call) {
  if (std::exchange(looked_, true)) return;
  const Sizes sizes = session_.range_sizes(call.specs);
  const std::optional<KeptRanges> known = read_kept_ranges(session_);
  if (!known || known->box.least.size() != sizes.size()) return;
  session_.ranges.set(*known);
  {
    const std::lock_guard lock(met_mutex_);
    taken_over_ = true;
  }
  const std::shared_ptr<const SizeRange> range = session_.ranges.find(sizes);
  const std::string what =
      "ranges of sizes are those of an earlier process, which checked " + std::to_string(known->checks.size()) + " sizes";
  session_.tell(Event::Kind::kDecided, kNote, what);
  session_.note(call.specs, range ? range->piece.choice : "eager", what);
}

DecisionThread::Entered DecisionThread::enter(const Task& task) {
  const std::shared_ptr<const SizeRange> range = session_.ranges.find(task.sizes);
  if (!range) return Entered::kInNoRange;
  (void)session_.runtime.tensors().synchronize(session_.device);
  Result<Tensors> inputs = inputs_of(task.call);
  if (inputs.ok() && session_.find(*inputs)) return Entered::kDone;  // it was checked there
  const Status status = inputs.ok() ? session_.enter(range, *inputs) : inputs.status();
  if (status.code() == Code::k_exhausted && task.attempts + 1 < kAttempts && !queue_->stop) return Entered::kToTryAgain;
  if (!status.ok() && !queue_->stop)
    session_.tell(Event::Kind::kChanged, kNote, "eager answers sizes of a range, whose plan could not be made: " + status.message().what);
  return Entered::kDone;
}

std::optional<ModelReport> DecisionThread::report_at(const Sizes& sizes) const {
  const std::lock_guard lock(session_.report_mutex);
  for (size_t i = session_.reports.size(); i-- > 0;) {
    const ModelReport& report = session_.reports[i];
    const auto same = [](const SizeReport& size, int64_t value) { return size.value == value; };
    if (!report.candidates.empty() && std::ranges::equal(report.sizes, sizes, same)) return report;
  }
  return std::nullopt;
}

// How many times the work of the sizes that were met a check may be: it is a hundred calls or so, in fp64 too, and a call's memory.
double DecisionThread::growth_of(const ModelReport& met) {
  const int64_t pages = sysconf(_SC_AVPHYS_PAGES), page = sysconf(_SC_PAGE_SIZE);
  const double memory = static_cast<double>(pages) * static_cast<double>(page) * kShareOfMemory /
                        static_cast<double>(std::max({met.eager_peak_bytes, met.peak_bytes, kLeastBytes}));
  const double time = met.eager_ms > 0 ? kLongestCallMs / met.eager_ms : kGrowthUntimed;
  return std::min(memory, time);
}

Result<CheckedSizes> DecisionThread::check_at(const Sizes& sizes, const Task& task) {
  if (const auto known = report_at(first_); known && sizes == first_ && known->disturbed.empty())
    return CheckedSizes{sizes, known->chosen, false, known->candidates};
  // One after the other: another model's decisions do not wait for all of them.
  if (!session_.runtime.decision_turn().lock_unless(queue_->stop)) return Status(Code::k_cancelled, "the session is being closed");
  const std::lock_guard turn(session_.runtime.decision_turn(), std::adopt_lock);
  return session_.check(sizes, task.attempts > 0);
}

// Which candidate is fastest where is the same for all weights of a program, and whether its code is right at other sizes than at these
// two, too: what these weights do to roundings shows at any size. So where both sizes that were met are answered as the ranges say that
// were found with other weights, the ranges hold for these.
bool DecisionThread::take_ranges_of_other_weights(const std::vector<Sizes>& met, const Task& task) {
  std::optional<KeptRanges> known = read_kept_ranges(session_, RangesOf::kAnyWeights);
  if (!known || known->box.least.size() != met[0].size()) return false;
  std::vector<CheckedSizes> checks;
  for (const Sizes& sizes : met) {
    const auto piece = std::ranges::find_if(
        known->pieces, [volume = volume_of(sizes)](const SizePiece& p) { return p.least <= volume && volume <= p.most; });
    if (!known->box.holds(sizes) || piece == known->pieces.end()) return false;
    Result<CheckedSizes> check = check_at(sizes, task);
    if (!check.ok()) return false;
    const bool agrees = check->chosen == piece->choice || piece->choice == "eager";
    checked_.push_back(*check);
    checks.push_back(std::move(*check));
    if (!agrees) return false;
  }
  known->checks = std::move(checks);  // whose sizes have their plans first in the next process
  session_.ranges.set(*known);
  keep_ranges(session_);
  {
    const std::lock_guard lock(met_mutex_);
    left_.clear();
  }
  session_.tell(Event::Kind::kDecided, kNote,
                "ranges of sizes are those that were found with other weights, checked at two sizes with these");
  return true;
}

bool DecisionThread::check_sizes(Task& task) {
  std::vector<Sizes> met;
  {
    const std::lock_guard lock(met_mutex_);
    met = {first_, second_};
  }
  // Inputs of the sizes between are drawn. A processor's eager raises where they are none that the model takes; a GPU's is lost with all
  // that the process has on it.
  if (session_.device.kind != Device::kCpu) {
    const Result<std::vector<std::string>> unknown = session_.unknown_inputs(met[0]);
    if (unknown.ok() && !unknown->empty()) {
      session_.tell(Event::Kind::kDecided, kNote,
                    "no ranges of sizes: which integers are valid is not known of " + unknown->front() + ", so none are drawn on a GPU");
      return false;
    }
  }
  if (task.attempts == 0 && take_ranges_of_other_weights(met, task)) return false;
  if (queue_->stop) return false;
  SizeBox box = session_.bounds(task.call.specs);
  for (size_t k = 0; k < box.most.size(); ++k) {
    const int64_t larger = std::max(met[0][k], met[1][k]);
    if (box.most[k] == 0) box.most[k] = kOpenGrowth * larger;
    box.most[k] = std::max(box.most[k], larger);
    box.least[k] = std::clamp<int64_t>(box.least[k], 1, std::max<int64_t>(1, std::min(met[0][k], met[1][k])));
  }
  const std::optional<ModelReport> known = report_at(first_);
  box = cut_to_growth(std::move(box), met, known ? growth_of(*known) : 1);
  // Other sizes were met first by a session before this one, which was closed before all were checked: that is gone on with.
  if (const auto begun = read_kept_ranges(session_, RangesOf::kBegun);
      begun && begun->box.least.size() == met[0].size() && begun->box.holds(met[0]) && begun->box.holds(met[1])) {
    box = begun->box;
    met.clear();
    for (const CheckedSizes& check : begun->checks) met.push_back(check.sizes);
  } else {
    keep_begun_ranges(session_, box, met);
  }
  bool again = false, raced = false;
  const auto look_at = [&](const Sizes& sizes) {
    const auto at = std::find_if(checked_.begin(), checked_.end(), [&](const CheckedSizes& c) { return c.sizes == sizes; });
    if (at != checked_.end() && !at->disturbed) return;
    Result<CheckedSizes> check = check_at(sizes, task);
    if (queue_->stop) return;
    if (!check.ok()) {
      // Eager refuses these sizes, although the export allows them, or memory does not suffice for them: eager answers there.
      session_.tell(Event::Kind::kChanged, kNote, "a range is not checked everywhere: " + check.status().message().what);
      CheckedSizes none{sizes, "eager", false, {}};
      if (check.status().code() == Code::k_wrong_result) {  // of the one candidate that was asked for
        CandidateReport& wrong = none.candidates.emplace_back();
        wrong.name = session_.options.only_candidate;
        wrong.reason = "wrong_result";
      }
      lasting_ &= check.status().code() == Code::k_wrong_result || check.status().cause() != nullptr;
      check = std::move(none);
    }
    again |= check->disturbed;
    raced |= check->disturbed && !check->taken_over;
    if (at != checked_.end()) *at = std::move(*check);
    else checked_.push_back(std::move(*check));
  };
  for (const Sizes& sizes : sizes_to_check(box, met))
    if (!queue_->stop) look_at(sizes);
  for (int i = 0; i < kMostBetween && !queue_->stop; ++i)
    if (const std::optional<Sizes> sizes = size_between(box, checked_)) look_at(*sizes);
  if (queue_->stop) return false;
  session_.ranges.set(std::move(box), divide(checked_), checked_);
  if (lasting_ && !again) keep_ranges(session_);
  learn_checked_kinds(session_);
  {
    const std::lock_guard lock(met_mutex_);
    left_.clear();
  }
  session_.tell(Event::Kind::kDecided, kNote, "sizes between " + std::to_string(checked_.size()) + " that were checked are in ranges");
  task.when_idle = again && !raced;  // under load they were raced before
  return again && task.attempts + 1 < kAttempts;
}

}  // namespace keirin
