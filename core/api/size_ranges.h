// SPDX-License-Identifier: Apache-2.0
//
// Sizes that nobody met before and that one choice answers all the same: between sizes at which everything was decided, nothing is
// decided, verified or raced for one of them, a plan is only made of the choice. Here is which sizes those are and how they are found out;
// who decides at each size checked is core/api/decide.h, and who makes a plan for one between is its `enter`. Internal to core/api.
//
// The invariant: a candidate that was wrong at one size checked answers no size that was not.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/api/guard.h"
#include "core/exec/report.h"

namespace keirin {

// A value for each free size of the inputs, in the order of Session::Impl::free_sizes.
using Sizes = std::vector<int64_t>;

// What the calls of a model grow with, as far as ranges are concerned: the product of its sizes.
int64_t volume_of(const Sizes& sizes);

// What runs of equal kinds are expected to have alike: which sizes are 1, and which of them are equal. There what is a view at one size may
// be none at another.
Sizes kind_of(const Sizes& sizes);

// How far two are from each other: by how many times each of them is larger or smaller. Of equal length.
double distance(const Sizes& a, const Sizes& b);

// What makes one of several sizes the nearest: of the same kind first (false), then by their distance.
std::pair<bool, double> how_near(const Sizes& a, const Sizes& b);

// Whose free sizes lie so.
struct SizeBox {
  Sizes least, most;  // inclusive
  bool holds(const Sizes& sizes) const;
};

// Where a box is checked: at its ends, at the sizes that were met, and at three that are drawn; the same ones for the same sizes.
// `met` holds at least one, inside the box.
std::vector<Sizes> sizes_to_check(const SizeBox& box, const std::vector<Sizes>& met);
// The box cut down until its largest sizes have at most `growth` times the volume of the largest that were met; those stay inside.
SizeBox cut_to_growth(SizeBox box, const std::vector<Sizes>& met, double growth);

// A whole decision at one place.
struct CheckedSizes {
  Sizes sizes;
  std::string chosen;
  bool disturbed = false;  // its race told nothing
  std::vector<CandidateReport> candidates;
  bool taken_over = false;  // the race was held before
};

// Sizes of a volume from `least` to `most`, inclusive, and the candidate that answers them.
struct SizePiece {
  int64_t least = 0, most = 0;
  std::string choice;
};

inline constexpr size_t kMostPieces = 4;
// Ascending, side by side, from the least volume checked to the largest, kMostPieces at most: where different candidates win, a cut
// lies between. A candidate answers a piece if it is right and within a twentieth of the fastest wherever the piece was checked and timed,
// or where there would be more pieces within more than that; where none is, and where there would be more pieces still, eager answers.
// Recordings are for one size and answer none.
std::vector<SizePiece> divide(const std::vector<CheckedSizes>& checks);

// Where to look next, so that a cut comes to lie where the choice changes: half way, as times grow, between the checked sizes on both sides
// of the cut that has the most sizes of which nobody knows. Nothing where no cut is that wide.
std::optional<Sizes> size_between(const SizeBox& box, const std::vector<CheckedSizes>& checks);

// One piece in service. What is counted and watched is counted and watched for all its sizes together.
struct SizeRange {
  SizePiece piece;
  std::shared_ptr<ServiceRecord> record = std::make_shared<ServiceRecord>();
};

// What another session would have to know.
struct KeptRanges {
  SizeBox box;
  std::vector<SizePiece> pieces;               // as they were made
  std::vector<CheckedSizes> checks;
  std::map<std::string, std::string> closed;   // choices that answer no sizes any more, and why
};

// Those of one session. Any thread.
class SizeRanges {
 public:
  // The range that these sizes lie in; null: none.
  std::shared_ptr<const SizeRange> find(const Sizes& sizes) const;
  // In the place of all that were there.
  void set(SizeBox box, const std::vector<SizePiece>& pieces, const std::vector<CheckedSizes>& checks);
  void set(const KeptRanges& known);
  // Without ranges: no pieces.
  KeptRanges kept() const;
  // Eager answers all sizes of ranges with this choice from now on, also of those that are set later. False if it was closed before.
  bool close(const std::string& choice, const std::string& why);
  bool is_closed(const std::string& choice) const;
  // A plan was made for one more size; `stages`: the seconds that each took. `at_once`: of what was there.
  void entered(uint32_t kernels_generated, const std::vector<std::pair<std::string, double>>& stages, bool at_once = false);
  // What the graph is at sizes of one more kind was learned (`why_not` empty), so that their plans take less than those before, or why not.
  void learned(const std::string& why_not);
  // A plan was made of a size that nobody asked for, of what was there, and let go (enter.h); how long that took.
  void rehearsed(double milliseconds);
  // What was there sufficed at these sizes, or does by now (`why_not` empty), or why it did not. From the first one on what making a plan
  // so takes is to be found out, unless that fails time and again.
  void tried_at_once(const Sizes& sizes, const std::string& why_not);
  // Eager's first call of these sizes kept its caller so long; on a device its libraries plan then.
  void eager_began(const Sizes& sizes, double milliseconds);
  // Whether a call of these sizes that waits for its plan is expected to be answered sooner than by eager: what was there sufficed at the
  // nearest sizes that were tried, such plans took less to be made, on the average, than they save by what was timed at the checked sizes,
  // and than eager's first calls took beyond that at the nearest sizes. Else eager answers it, which is counted by its reason.
  bool pays_at_once(const Sizes& sizes);
  // Eager answered a call of these sizes whose plan could not be made at once; why.
  void left_to_eager(const std::string& why);
  // What is there does not suffice for a call of these sizes, which eager answered: whether a plan is made anew, after which others find
  // what they need. So for the first one that lacks something, and where all such calls together have lost by now what that takes.
  bool have_missed_enough(const Sizes& sizes);
  void let_go(size_t plans);
  // How many calls of these sizes a plan would have to answer until it has saved the time that making one takes, on the average of those
  // that were made as this one will be, by what was timed at the checked sizes. 1 where one of the two is not known, and in no range.
  uint64_t calls_until_paid(const Sizes& sizes) const;
  // How many calls of these sizes last as long as `seconds`, by what was timed of the range's choice at the checked sizes; 0: not known.
  uint64_t calls_that_last(const Sizes& sizes, double seconds) const;
  // For reports; without ranges: empty. `names` of the free sizes.
  RangesReport report(const std::vector<std::string>& names) const;

 private:
  // Both under mutex_.
  void close_range(size_t number, const std::string& why);
  std::shared_ptr<const SizeRange> range_of(const Sizes& sizes) const;
  std::optional<double> timed_at(const std::string& candidate, int64_t volume) const;
  std::optional<double> saved_at(const SizeRange& range, int64_t volume) const;
  std::string why_not_at_once(const Sizes& sizes) const;
  void count_left(const std::string& why);
  std::string lacks(const Sizes& sizes) const;
  double began_beyond_ms(const Sizes& sizes) const;

  mutable std::mutex mutex_;  // guards what follows
  SizeBox box_;
  std::vector<SizePiece> pieces_;
  std::vector<std::shared_ptr<const SizeRange>> ranges_;  // the pieces; where one was closed, eager's
  std::vector<std::string> why_closed_;        // by range; empty: it is not
  std::map<std::string, std::string> closed_;  // choices, and why
  std::vector<CheckedSizes> checks_;
  std::vector<std::pair<std::string, double>> enter_seconds_;
  std::map<std::string, uint64_t> left_to_eager_;  // calls, by why
  std::set<std::string> not_learned_;
  uint64_t learned_ = 0, rehearsed_ = 0;
  uint64_t entered_ = 0, num_at_once_ = 0, kernels_generated_ = 0, let_go_ = 0;
  // How long plans took to be made, the last ones. What is done once in a process, by whichever is first, would make a mean say that none
  // pays, and then none is made that would say otherwise.
  struct Making {
    std::deque<double> last_ms;
    bool outdated = false;  // the next one says more than all of these, which go then
    void add(double milliseconds);
    bool known() const { return !last_ms.empty(); }
    double ms() const;  // their median; 0: not known
  };
  Making anew_, of_what_is_there_;
  int failures_ = 0;           // of tried_at_once
  double missed_ms_ = 0;       // see have_missed_enough
  std::deque<std::pair<Sizes, std::string>> tried_;  // of tried_at_once, the last ones, and why not
  std::set<std::string> lacked_;  // for which a plan was made anew
  std::set<Sizes> begun_;      // of which eager was called
  std::deque<std::pair<Sizes, double>> began_ms_;  // of eager's last first calls, beyond what is expected of a call
};

}  // namespace keirin
