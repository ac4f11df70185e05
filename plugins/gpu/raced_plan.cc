// SPDX-License-Identifier: Apache-2.0
#include "plugins/gpu/raced_plan.h"

#include <algorithm>
#include <map>
#include <sstream>

#include "plugins/gpu/aligned_copies.h"
#include "plugins/gpu/code_store.h"
#include "plugins/gpu/timer.h"
#include "plugins/kit/error.h"
#include "plugins/kit/tables.h"

namespace keirin::gpu {
namespace {

constexpr size_t kLeastSwept = 64;  // plans at once, before those that nobody has any more are looked for
constexpr size_t kMostEngines = 3;  // that are tried for a problem at once
constexpr int kRuns = 4;  // the first also loads the library's code; of the others the best counts

// A plan's tensors and workspaces on a device, for timing.
class Bench {
 public:
  Bench(const Driver& driver, const std::vector<ConvTensor>& tensors) : driver_(driver), tensors_(tensors), timer_(driver) {
    for (const ConvTensor& t : tensors) addresses_.push_back(allocate(bytes_of(t)));
  }

  void* allocate(int64_t bytes) {
    void* const p = timer_.memory(static_cast<size_t>(bytes / 16 * 16 + 16));
    if (!timer_.ok()) throw kit::Error(KRN_STATUS_exhausted, "no memory to time plans with");
    return p;
  }
  Stream stream() const { return timer_.stream(); }
  std::span<void* const> addresses() const { return addresses_; }

  // Whether a plan of a convolution is right where the tensor at `fed` is full of one value.
  template <class Run>
  bool answers(const EdgeCase& edge, size_t fed, size_t result, const Run& run) {
    const ConvTensor &x = tensors_[fed], &y = tensors_[result];
    driver_.fill_words(stream(), addresses_[fed], edge.bits(x.dtype), static_cast<size_t>(bytes_of(x) + 3) / 4);
    if (run() != KRN_STATUS_ok) return false;
    const int64_t size = y.dtype == kit::kDType_f32 ? 4 : 2;
    for (const int64_t at : {int64_t{0}, bytes_of(y) - size}) {
      uint32_t bits = 0;
      driver_.copy_out(stream(), &bits, static_cast<char*>(addresses_[result]) + at, static_cast<size_t>(size));
      if (driver_.wait(stream()) != 0 || !edge.shown_by(bits, y.dtype)) return false;
    }
    return true;
  }

  // The best of a few runs, or a negative number.
  template <class Run>
  double seconds_of(const Run& run) {
    double best = -1;
    for (int i = 0; i < kRuns; ++i) {
      const float ms = timer_.milliseconds_of([&] { return run() == KRN_STATUS_ok; });
      if (ms < 0) return -1;
      if (i > 0 && (best < 0 || ms * 1e-3 < best)) best = ms * 1e-3;
    }
    return best;
  }

 private:
  const Driver& driver_;
  const std::vector<ConvTensor>& tensors_;
  Timer timer_;
  std::vector<void*> addresses_;
};

}  // namespace

std::optional<RacedPlan::Choice> RacedPlan::recalled() const {
  const std::vector<char> bytes = code_store().recall(key_);
  std::istringstream words(std::string(bytes.begin(), bytes.end()));
  Choice choice;
  if (!(words >> choice.seconds >> choice.candidate >> choice.name)) return std::nullopt;
  return choice;
}

void RacedPlan::settle() {
  if (!name_.empty()) return;
  if (chosen_.candidate < 0) race();
  workspace_bytes_ = workspace_of(chosen_.candidate);
  if (fenced_) fence_at_ = (workspace_bytes_ + 255) / 256 * 256, workspace_bytes_ = fence_at_ + 16;
  seconds_ = chosen_.seconds;
  name_ = chosen_.name;
}

void RacedPlan::race() {
  const std::vector<int64_t> built = candidates();
  try {
    Bench bench(driver_, tensors_);
    for (const int64_t candidate : built) {
      void* workspace = bench.allocate(workspace_of(candidate));
      std::string ignored;
      const auto run = [&] { return execute(candidate, bench.stream(), bench.addresses(), workspace, ignored); };
      const double seconds = bench.seconds_of(run);
      if (seconds <= 0 || (chosen_.candidate >= 0 && seconds >= chosen_.seconds)) continue;
      const auto right = [&](const EdgeCase& edge) { return bench.answers(edge, fed_, result_, run); };
      if (std::all_of(edges_.begin(), edges_.end(), right)) chosen_ = {seconds, candidate, name_of(candidate)};
    }
  } catch (const kit::Error&) {  // no memory to time with: the library's own first choice
    if (chosen_.candidate < 0 && !built.empty()) chosen_ = {0, built[0], name_of(built[0])};
  }
  if (chosen_.candidate < 0)
    throw kit::Error(KRN_STATUS_unsupported, "none of " + std::string(library_) +
                                                 "'s plans runs and is right for infinities, NaN and large numbers");
  const std::string choice = std::to_string(chosen_.seconds) + " " + std::to_string(chosen_.candidate) + " " + chosen_.name;
  code_store().remember(key_, {choice.begin(), choice.end()});
  remember_more(chosen_.candidate);
}

int32_t RacedPlan::execute_chosen(Stream stream, std::span<void* const> addresses, void* workspace, std::string& why_not) const {
  if (fence_at_ < 0 || driver_.fill(stream, static_cast<char*>(workspace) + fence_at_, 0, 1) == 0)
    return execute(chosen_.candidate, stream, addresses, workspace, why_not);
  why_not = "the fill before it";
  return KRN_STATUS_internal;
}

int32_t RacedPlan::run(Stream stream, std::span<void* const> addresses, void* workspace, std::string& why_not) const {
  const auto whole = [](void* address) { return reinterpret_cast<uintptr_t>(address) % 16 == 0; };
  if (std::all_of(addresses.begin(), addresses.end(), whole)) return execute_chosen(stream, addresses, workspace, why_not);
  AlignedCopies copies(driver_, addresses, stream);
  std::vector<const ConvTensor*> tensors;
  for (const ConvTensor& t : tensors_) tensors.push_back(&t);
  if (!copies.make(tensors)) {
    why_not = "no copy of a tensor that does not start at a multiple of 16 bytes";
    return KRN_STATUS_internal;
  }
  const int32_t code = execute_chosen(stream, copies.addresses(), workspace, why_not);
  if (code != KRN_STATUS_ok || copies.give_back(result_)) return code;
  why_not = "the copy of its result";
  return KRN_STATUS_internal;
}

std::string RacedLibrary::remembered_as(const char* what, const std::string& problem) const {
  return kChoicePrefix + std::string(what) + " " + kind() + " " + problem;
}

// The answer travels with artifacts: asking takes milliseconds, and a start asks for every convolution and epilogue.
template <class Problem>
bool RacedLibrary::supported(const Problem& problem, std::string& why_not) const {
  if (why_not = missing(); !why_not.empty()) return false;
  constexpr char kYes[] = "yes";
  const std::string name = key("support", problem);
  std::vector<char> answer = code_store().recall(name);
  if (answer.empty()) {
    std::string text;
    try {
      text = refusal(problem);
    } catch (const kit::Error& error) {  // of this moment: not remembered
      return why_not = error.what(), false;
    } catch (const std::exception& error) {
      text = std::string(this->name()) + ": " + error.what();
    }
    if (text.empty()) text = kYes;
    answer.assign(text.begin(), text.end());
    code_store().remember(name, answer);
  }
  if (const std::string text(answer.begin(), answer.end()); text != kYes) why_not = text;
  remember_answer(problem, why_not.empty());
  return why_not.empty();
}

void RacedLibrary::prepare(std::span<const ConvProblem> convs, std::span<const HeadsProblem> heads) const {
  if (!missing().empty()) return;
  std::map<PlanCache::Key, PlanCache::Wanted> wanted;
  const auto want = [&](const auto& problem) {
    const auto at = PlanCache::key_here(driver(), problem.key());
    if (cache_.knows(at) || wanted.count(at)) return;
    wanted[at] = {code_store().recall(key("plan", problem)).empty(), [this, &problem] { return make(problem); }};
  };
  for (const HeadsProblem& problem : heads) want(problem);
  for (const ConvProblem& problem : convs) want(problem);
  cache_.prepare(driver(), wanted);
}

template <class Problem>
std::shared_ptr<const LibraryPlan> RacedLibrary::plan_for(const Problem& problem) const {
  if (const std::string why = missing(); !why.empty()) throw kit::Error(KRN_STATUS_unsupported, why);
  try {
    auto plan = cache_.get(PlanCache::key_here(driver(), problem.key()), [&] { return make(problem); });
    remember_engine(problem, static_cast<const RacedPlan&>(*plan));
    return plan;
  } catch (const kit::Error&) {
    throw;
  } catch (const std::exception& error) {
    throw kit::Error(KRN_STATUS_unsupported, std::string(name()) + ": " + error.what());
  }
}

void RacedLibrary::remember_answer(const ConvProblem& problem, bool supported) const {
  answers_.remember(kind() + problem.family(), problem.volume(), supported);
}

void RacedLibrary::remember_engine(const ConvProblem& problem, const RacedPlan& plan) const {
  engines_.remember(kind() + problem.family(), problem.volume(), plan.is_compiled() ? "" : plan.name());
}

bool RacedLibrary::AtOnce::supports(const ConvProblem& problem, std::string& why_not) const {
  if (why_not = library_.missing(); !why_not.empty()) return false;
  const std::optional<bool> answer = library_.answers_.nearest(library_.kind() + problem.family(), problem.volume());
  if (!answer) why_not = "the library was not asked about such a convolution of other sizes";
  else if (!*answer) why_not = "the library refused such a convolution of other sizes";
  return why_not.empty();
}

bool RacedLibrary::AtOnce::supports(const HeadsProblem&, std::string& why_not) const {
  why_not = "attention is planned for its sizes";
  return false;
}

std::shared_ptr<const LibraryPlan> RacedLibrary::AtOnce::plan(const ConvProblem& problem) const {
  const PlanCache::Key key = PlanCache::key_here(library_.driver(), problem.key());
  const std::lock_guard lock(mutex_);
  if (const auto known = plans_.find(key); known != plans_.end())
    if (auto plan = known->second.lock()) return plan;
  const std::vector<std::string> engines = library_.engines_.by_distance(library_.kind() + problem.family(), problem.volume());
  if (engines.empty()) throw kit::Error(KRN_STATUS_unsupported, "the library planned no such convolution of other sizes");
  if (engines[0].empty()) throw kit::Error(KRN_STATUS_unsupported, "the library would have to compile the convolution for its sizes");
  std::string why_not;
  for (size_t i = 0; i < std::min(engines.size(), kMostEngines); ++i) {
    if (engines[i].empty()) continue;
    try {
      const std::shared_ptr<RacedPlan> plan = library_.make_named(problem, engines[i]);
      plan->settle();
      if (plans_.size() >= sweep_at_) {
        std::erase_if(plans_, [](const auto& each) { return each.second.expired(); });
        sweep_at_ = 2 * plans_.size() + kLeastSwept;
      }
      plans_[key] = plan;
      return plan;
    } catch (const std::exception& error) {
      why_not = error.what();
    }
  }
  throw kit::Error(KRN_STATUS_unsupported, why_not);
}

std::shared_ptr<const LibraryPlan> RacedLibrary::AtOnce::plan(const HeadsProblem& problem) const {
  std::string why_not;
  (void)supports(problem, why_not);
  throw kit::Error(KRN_STATUS_unsupported, why_not);
}

std::shared_ptr<RacedPlan> RacedLibrary::make_named(const ConvProblem&, const std::string&) const {
  throw kit::Error(KRN_STATUS_unsupported, std::string(name()) + " makes no plan by its name");
}

std::string RacedLibrary::refusal(const HeadsProblem&) const { return std::string(name()) + " plans no attention"; }

std::shared_ptr<RacedPlan> RacedLibrary::make(const HeadsProblem& problem) const {
  throw kit::Error(KRN_STATUS_unsupported, refusal(problem));
}

template bool RacedLibrary::supported(const ConvProblem&, std::string&) const;
template bool RacedLibrary::supported(const HeadsProblem&, std::string&) const;
template std::shared_ptr<const LibraryPlan> RacedLibrary::plan_for(const ConvProblem&) const;
template std::shared_ptr<const LibraryPlan> RacedLibrary::plan_for(const HeadsProblem&) const;

}  // namespace keirin::gpu
