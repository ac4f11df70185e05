// SPDX-License-Identifier: Apache-2.0
//
// What libraries that plan have alike, whosever they are. A plan's candidates are timed on memory of their own; the fastest that is
// right for large numbers, infinities and NaN is taken and remembered. Answers and choices hold for a release of the library and a kind
// of device, and travel with artifacts. What a library is asked for, and how it is called, its vendor writes.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "plugins/gpu/alike.h"
#include "plugins/gpu/plan_cache.h"

namespace keirin::gpu {

// A candidate is a number of the library's own, not negative.
class RacedPlan : public TimedPlan {
 public:
  // Throws kit::Error where no candidate runs and is right.
  void settle() final;
  // What does not start at a multiple of 16 bytes is copied for the run.
  int32_t run(Stream stream, std::span<void* const> addresses, void* workspace, std::string& why_not) const final;
  int64_t workspace_bytes() const final { return workspace_bytes_; }
  double seconds() const final { return seconds_; }
  std::string name() const final { return name_; }
  // Whether the library compiled code for what was chosen: another of that name would take as long to be made.
  virtual bool is_compiled() const { return false; }

  struct Choice {
    double seconds = 0;
    int64_t candidate = -1;
    std::string name;  // without spaces
  };

 protected:

  // `key`: RacedLibrary::key("plan", problem). `fenced`: a fill goes before each run, for libraries whose first kernel begins early.
  template <class Problem>
  RacedPlan(const Driver& driver, const char* library, const Problem& problem, std::string key, bool fenced)
      : driver_(driver),
        library_(library),
        key_(std::move(key)),
        fed_(fed_of(problem)),
        result_(result_of(problem)),
        edges_(edge_cases(problem)),
        fenced_(fenced) {
    for (const ConvTensor* t : tensors_of(problem)) tensors_.push_back(*t);
  }

  // What was chosen for this problem before, perhaps by another process.
  std::optional<Choice> recalled() const;
  // Nothing is timed any more. For constructors that built what was chosen before.
  void take(const Choice& choice) { chosen_ = choice; }

  // In the order in which they are timed; built.
  virtual std::vector<int64_t> candidates() const = 0;
  virtual int64_t workspace_of(int64_t candidate) const = 0;
  virtual std::string name_of(int64_t candidate) const = 0;
  // Enqueues. Concurrent calls are fine.
  virtual int32_t execute(int64_t candidate, Stream stream, std::span<void* const> addresses, void* workspace,
                          std::string& why_not) const = 0;
  // A race ended so: for libraries that keep more of it than its number and name.
  virtual void remember_more(int64_t) {}

 private:
  void race();
  int32_t execute_chosen(Stream stream, std::span<void* const> addresses, void* workspace, std::string& why_not) const;

  const Driver& driver_;
  const char* const library_;
  const std::string key_;
  std::vector<ConvTensor> tensors_;
  const size_t fed_, result_;
  const std::vector<EdgeCase> edges_;
  const bool fenced_;
  Choice chosen_;
  int64_t workspace_bytes_ = 0;
  int64_t fence_at_ = -1;  // in the workspace, behind the plan's own
  double seconds_ = 0;
  std::string name_;
};

class RacedLibrary : public PlanLibrary {
 public:
  const PlanLibrary& at_once() const override { return at_once_; }
  bool supports(const ConvProblem& problem, std::string& why_not) const override { return supported(problem, why_not); }
  bool supports(const HeadsProblem& problem, std::string& why_not) const override { return supported(problem, why_not); }
  void prepare(std::span<const ConvProblem> convs, std::span<const HeadsProblem> heads) const override;
  std::shared_ptr<const LibraryPlan> plan(const ConvProblem& problem) const override { return plan_for(problem); }
  std::shared_ptr<const LibraryPlan> plan(const HeadsProblem& problem) const override { return plan_for(problem); }

 protected:
  virtual const Driver& driver() const = 0;
  // Empty, or why the library cannot be used here, in one line. Any thread.
  virtual std::string missing() const = 0;
  // The library's release and the kind of the current device. Only where nothing is missing.
  virtual std::string kind() const = 0;
  // Empty, or why it has no engine, which is remembered. kit::Error: it cannot be asked now. Unless overridden it plans no attention.
  virtual std::string refusal(const ConvProblem& problem) const = 0;
  virtual std::string refusal(const HeadsProblem& problem) const;
  // Builds the candidates; `problem` outlives the call, not the plan. Throws.
  virtual std::shared_ptr<RacedPlan> make(const ConvProblem& problem) const = 0;
  virtual std::shared_ptr<RacedPlan> make(const HeadsProblem& problem) const;
  // One whose choice has the name of that which was taken for a problem of the same family, and no time. Unless overridden it is refused.
  virtual std::shared_ptr<RacedPlan> make_named(const ConvProblem& problem, const std::string& name) const;

  // The name under which `what` is remembered of a problem.
  template <class Problem>
  std::string key(const char* what, const Problem& problem) const {
    return remembered_as(what, problem.key());
  }

 private:
  class AtOnce final : public PlanLibrary {
   public:
    explicit AtOnce(const RacedLibrary& library) : library_(library) {}
    const char* name() const override { return library_.name(); }
    bool supports(const ConvProblem& problem, std::string& why_not) const override;
    bool supports(const HeadsProblem& problem, std::string& why_not) const override;
    void prepare(std::span<const ConvProblem>, std::span<const HeadsProblem>) const override {}
    std::shared_ptr<const LibraryPlan> plan(const ConvProblem& problem) const override;
    std::shared_ptr<const LibraryPlan> plan(const HeadsProblem& problem) const override;

   private:
    const RacedLibrary& library_;
    mutable std::mutex mutex_;
    mutable std::map<PlanCache::Key, std::weak_ptr<const LibraryPlan>> plans_;  // that somebody has, or had; as the next under mutex_
    mutable size_t sweep_at_ = 0;
  };

  // For others of its family: whether it is supported; what was chosen.
  void remember_answer(const ConvProblem& problem, bool supported) const;
  void remember_answer(const HeadsProblem&, bool) const {}
  void remember_engine(const ConvProblem& problem, const RacedPlan& plan) const;
  void remember_engine(const HeadsProblem&, const RacedPlan&) const {}
  std::string remembered_as(const char* what, const std::string& problem) const;
  template <class Problem>
  bool supported(const Problem& problem, std::string& why_not) const;
  template <class Problem>
  std::shared_ptr<const LibraryPlan> plan_for(const Problem& problem) const;

  mutable PlanCache cache_;
  mutable Alike<bool> answers_;
  mutable Alike<std::string> engines_;  // the name of what was chosen; empty: it was compiled for its sizes
  AtOnce at_once_{*this};
};

}  // namespace keirin::gpu
