// SPDX-License-Identifier: Apache-2.0
#include "core/api/size_ranges.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <utility>

#include "abi/planted.h"

namespace keirin {
namespace {

constexpr double kClearlyFaster = 1.1;  // than eager, by times that the race took of both but did not compare
// A candidate so near the fastest is as good: below the first, choices flip from race to race; the next where there would be too many
// pieces.
constexpr double kNearFastest[] = {1.05, 1.15, 1.4, 2};
constexpr uint32_t kSeed = 1;          // of the sizes drawn: the next process finds the decisions of this one
constexpr int kDrawn = 3;
constexpr double kWideCut = 8;         // times the volume on its other side
constexpr size_t kMostReasons = 16;
constexpr size_t kMostTried = 64;         // sizes that are remembered of tried_at_once
constexpr int kMostFailures = 8;          // until nobody tries to find out what making a plan of what is there takes
constexpr size_t kMostBegun = 4096;       // sizes of which is remembered that eager was called
constexpr size_t kLastMade = 15;          // plans of which the median time counts
constexpr size_t kFirstCalls = 64;        // of eager's that are remembered,
constexpr size_t kNearest = 5;            // of which the median of so many counts

constexpr const char* kEager = "eager";

bool is_recording(const CandidateReport& candidate) { return candidate.name.ends_with("launch_replay"); }

// What may answer at one volume: a candidate and its milliseconds there, which are 0 where the race told nothing.
using Answers = std::map<std::string, double>;

// Candidates that were wrong somewhere, or right there only without what was known to be wrong.
std::set<std::string> distrusted(const std::vector<CheckedSizes>& checks) {
  std::set<std::string> out;
  for (const CheckedSizes& check : checks)
    for (const CandidateReport& candidate : check.candidates)
      if (candidate.repaired || !candidate.wrong_of_others.empty() || candidate.reason == "wrong_result") out.insert(candidate.name);
  return out;
}

Answers answers_at(const CheckedSizes& check, const std::set<std::string>& distrusted, double near) {
  Answers out;
  double fastest = std::numeric_limits<double>::infinity();
  const auto eager = std::ranges::find(check.candidates, kEager, &CandidateReport::name);
  // Of no range's size is there a recording: where a recording was what the race compared with, eager's own time is what counts.
  const bool against_recording = eager != check.candidates.end() && eager->reason != "baseline" && eager->milliseconds > 0;
  const auto may_answer = [&](const CandidateReport& c) {
    if (is_recording(c) || (distrusted.count(c.name) > 0 && !KRN_PLANTED(range_trusts))) return false;
    if (c.name == "replay") return check.chosen == c.name || check.disturbed;
    if (c.plugin.empty() || !c.verified) return false;
    if (check.disturbed || c.reason == "faster" || c.reason == "forced") return true;
    const bool was_timed = c.milliseconds > 0 && (c.reason == "slower" || c.reason == "inside_noise" || c.reason == "not_raced");
    return against_recording && was_timed && c.milliseconds * kClearlyFaster < eager->milliseconds;
  };
  for (const CandidateReport& c : check.candidates)
    if (may_answer(c)) {
      out[c.name] = check.disturbed ? 0 : c.milliseconds;
      if (!check.disturbed && c.milliseconds > 0) fastest = std::min(fastest, c.milliseconds);
    }
  std::erase_if(out, [&](const auto& each) { return each.second > near * fastest; });
  if (out.empty() || check.disturbed) out[kEager] = 0;
  return out;
}

Answers both(const Answers& a, const Answers& b) {
  Answers out;
  for (const auto& [name, ms] : a)
    if (const auto other = b.find(name); other != b.end()) out[name] = ms + other->second;
  return out;
}

struct Growing {
  int64_t first = 0, last = 0;  // volumes checked
  Answers answers;
  bool timed = false;           // somewhere a race told something
};

std::string fastest_of(const Growing& piece) {
  if (!piece.timed) return kEager;
  const auto least = std::min_element(piece.answers.begin(), piece.answers.end(), [](const auto& a, const auto& b) {
    return std::pair(a.first == kEager, a.second) < std::pair(b.first == kEager, b.second);
  });
  return least == piece.answers.end() ? kEager : least->first;
}

int64_t between(int64_t a, int64_t b) {
  return std::clamp(static_cast<int64_t>(std::sqrt(static_cast<double>(a)) * std::sqrt(static_cast<double>(b))), a, b - 1);
}

void join_equal(std::vector<SizePiece>& pieces) {
  for (size_t i = 1; i < pieces.size();) {
    if (pieces[i].choice == pieces[i - 1].choice) {
      pieces[i - 1].most = pieces[i].most;
      pieces.erase(pieces.begin() + static_cast<ptrdiff_t>(i));
    } else {
      ++i;
    }
  }
}

}  // namespace

int64_t volume_of(const Sizes& sizes) {
  int64_t volume = 1;
  for (const int64_t size : sizes)
    if (__builtin_mul_overflow(volume, size, &volume)) return std::numeric_limits<int64_t>::max();
  return volume;
}

double distance(const Sizes& a, const Sizes& b) {
  double sum = 0;
  for (size_t k = 0; k < a.size() && k < b.size(); ++k)
    sum += std::fabs(std::log(static_cast<double>(a[k] + 1) / static_cast<double>(b[k] + 1)));
  return sum;
}

std::pair<bool, double> how_near(const Sizes& a, const Sizes& b) {
  bool other_kind = a.size() != b.size();  // as kind_of says, which makes a list: calls wait for this
  for (size_t k = 0; k < a.size() && k < b.size(); ++k) {
    other_kind |= (a[k] == 1) != (b[k] == 1);
    for (size_t j = 0; j < k; ++j) other_kind |= (a[j] == a[k]) != (b[j] == b[k]);
  }
  return {other_kind, distance(a, b)};
}

bool SizeBox::holds(const Sizes& sizes) const {
  if (sizes.size() != least.size()) return false;
  for (size_t k = 0; k < sizes.size(); ++k)
    if (sizes[k] < least[k] || sizes[k] > most[k]) return false;
  return true;
}

Sizes kind_of(const Sizes& sizes) {
  Sizes out;
  for (const int64_t size : sizes) out.push_back(size == 1 ? -1 : std::ranges::find(sizes, size) - sizes.begin());
  return out;
}

std::vector<Sizes> sizes_to_check(const SizeBox& box, const std::vector<Sizes>& met) {
  std::vector<Sizes> out(met);
  out.push_back(box.least);
  out.push_back(box.most);
  std::mt19937 random(kSeed);
  for (int i = 0; i < kDrawn; ++i) {
    Sizes drawn;
    for (size_t k = 0; k < box.least.size(); ++k) {
      const double low = std::log(static_cast<double>(std::max<int64_t>(1, box.least[k])));
      const double high = std::log(static_cast<double>(std::max<int64_t>(1, box.most[k])));
      const double at = low + (high - low) * static_cast<double>(random()) / static_cast<double>(std::mt19937::max());
      drawn.push_back(std::clamp(static_cast<int64_t>(std::lround(std::exp(at))), box.least[k], box.most[k]));
    }
    out.push_back(std::move(drawn));
  }
  std::set<Sizes> seen;
  std::erase_if(out, [&](const Sizes& sizes) { return !seen.insert(sizes).second; });
  return out;
}

SizeBox cut_to_growth(SizeBox box, const std::vector<Sizes>& met, double growth) {
  Sizes reached(box.least);  // by calls
  int64_t largest = 1;
  for (const Sizes& sizes : met) {
    largest = std::max(largest, volume_of(sizes));
    for (size_t k = 0; k < sizes.size(); ++k) reached[k] = std::max(reached[k], sizes[k]);
  }
  const double most = static_cast<double>(largest) * std::max(growth, 1.0);
  while (static_cast<double>(volume_of(box.most)) > most) {
    // The size that goes furthest beyond what was met is the one to be halved.
    size_t furthest = 0;
    const auto beyond = [&](size_t k) { return static_cast<double>(box.most[k]) / static_cast<double>(std::max<int64_t>(1, reached[k])); };
    for (size_t k = 1; k < reached.size(); ++k)
      if (beyond(k) > beyond(furthest)) furthest = k;
    if (box.most[furthest] <= reached[furthest]) break;
    box.most[furthest] = std::max(reached[furthest], box.most[furthest] / 2);
  }
  return box;
}

namespace {

std::vector<SizePiece> pieces_of(const std::vector<CheckedSizes>& checks, double near) {
  const std::set<std::string> out_at_all = distrusted(checks);
  std::map<int64_t, std::pair<Answers, bool>> at;  // by volume: what may answer; whether something was timed
  for (const CheckedSizes& check : checks) {
    Answers answers = answers_at(check, out_at_all, near);
    const auto [found, added] = at.try_emplace(volume_of(check.sizes), answers, !check.disturbed);
    if (added) continue;
    // No cut lies between equal volumes: what is not fastest for both answers neither.
    found->second.first = both(found->second.first, answers);
    if (found->second.first.empty()) found->second.first[kEager] = 0;
    found->second.second |= !check.disturbed;
  }
  std::vector<Growing> growing;
  for (const auto& [volume, known] : at) {
    const auto& [answers, timed] = known;
    if (!growing.empty()) {
      Growing& last = growing.back();
      if (Answers common = both(last.answers, answers); !common.empty()) {
        last.answers = std::move(common);
        last.last = volume;
        last.timed |= timed;
        continue;
      }
    }
    growing.push_back({volume, volume, answers, timed});
  }
  std::vector<SizePiece> pieces;
  for (size_t i = 0; i < growing.size(); ++i) {
    const int64_t least = i == 0 ? growing[i].first : pieces.back().most + 1;
    const int64_t most = i + 1 == growing.size() ? growing[i].last : between(growing[i].last, growing[i + 1].first);
    pieces.push_back({least, most, fastest_of(growing[i])});
  }
  join_equal(pieces);
  return pieces;
}

}  // namespace

std::vector<SizePiece> divide(const std::vector<CheckedSizes>& checks) {
  std::vector<SizePiece> pieces;
  for (const double near : kNearFastest)
    if (pieces.empty() || pieces.size() > kMostPieces) pieces = pieces_of(checks, near);
  while (pieces.size() > kMostPieces) {
    // Two pieces become eager's: those that reach least far, of which the fewest calls will be.
    size_t narrowest = 1;
    const auto reach = [&](size_t i) {
      return static_cast<double>(pieces[i].most) / static_cast<double>(std::max<int64_t>(1, pieces[i - 1].least));
    };
    for (size_t i = 2; i < pieces.size(); ++i)
      if (reach(i) < reach(narrowest)) narrowest = i;
    pieces[narrowest - 1].choice = pieces[narrowest].choice = kEager;
    join_equal(pieces);
  }
  return pieces;
}

std::optional<Sizes> size_between(const SizeBox& box, const std::vector<CheckedSizes>& checks) {
  const std::vector<SizePiece> pieces = divide(checks);
  const auto volume = [](const CheckedSizes* check) { return static_cast<double>(volume_of(check->sizes)); };
  double widest = kWideCut;
  std::optional<Sizes> out;
  for (size_t i = 0; i + 1 < pieces.size(); ++i) {
    const CheckedSizes *below = nullptr, *above = nullptr;
    for (const CheckedSizes& check : checks) {
      const bool is_below = volume_of(check.sizes) <= pieces[i].most;
      if (is_below && (!below || volume(&check) > volume(below))) below = &check;
      if (!is_below && (!above || volume(&check) < volume(above))) above = &check;
    }
    if (!below || !above || volume(above) < widest * volume(below)) continue;
    Sizes between;
    for (size_t k = 0; k < box.least.size(); ++k) {
      const double middle = std::sqrt(static_cast<double>(below->sizes[k]) * static_cast<double>(above->sizes[k]));
      between.push_back(std::clamp<int64_t>(std::lround(middle), box.least[k], box.most[k]));
    }
    const auto known = [&](const CheckedSizes& check) { return check.sizes == between; };
    if (std::ranges::any_of(checks, known)) continue;
    widest = volume(above) / volume(below);
    out = std::move(between);
  }
  return out;
}

std::shared_ptr<const SizeRange> SizeRanges::find(const Sizes& sizes) const {
  const std::lock_guard lock(mutex_);
  return range_of(sizes);
}

std::shared_ptr<const SizeRange> SizeRanges::range_of(const Sizes& sizes) const {
  if (!box_.holds(sizes)) return nullptr;
  const int64_t volume = volume_of(sizes);
  for (const auto& range : ranges_)
    if (volume >= range->piece.least && volume <= range->piece.most) return range;
  return nullptr;
}

void SizeRanges::set(SizeBox box, const std::vector<SizePiece>& pieces, const std::vector<CheckedSizes>& checks) {
  const std::lock_guard lock(mutex_);
  box_ = std::move(box);
  pieces_ = pieces;
  ranges_.clear();
  for (const SizePiece& piece : pieces) ranges_.push_back(std::make_shared<const SizeRange>(SizeRange{piece}));
  why_closed_.assign(ranges_.size(), {});
  checks_ = checks;
  for (size_t i = 0; i < ranges_.size(); ++i)
    if (const auto closed = closed_.find(ranges_[i]->piece.choice); closed != closed_.end()) close_range(i, closed->second);
}

void SizeRanges::set(const KeptRanges& known) {
  for (const auto& [choice, why] : known.closed) close(choice, why);
  set(known.box, known.pieces, known.checks);
}

KeptRanges SizeRanges::kept() const {
  const std::lock_guard lock(mutex_);
  return {box_, pieces_, checks_, closed_};
}

bool SizeRanges::close(const std::string& choice, const std::string& why) {
  const std::lock_guard lock(mutex_);
  if (!closed_.emplace(choice, why).second) return false;
  for (size_t i = 0; i < ranges_.size(); ++i)
    if (ranges_[i]->piece.choice == choice) close_range(i, why);
  return true;
}

bool SizeRanges::is_closed(const std::string& choice) const {
  const std::lock_guard lock(mutex_);
  return closed_.contains(choice);
}

void SizeRanges::close_range(size_t number, const std::string& why) {
  SizePiece piece = ranges_[number]->piece;
  piece.choice = kEager;
  ranges_[number] = std::make_shared<const SizeRange>(SizeRange{std::move(piece)});
  why_closed_[number] = why;
}

void SizeRanges::entered(uint32_t kernels_generated, const std::vector<std::pair<std::string, double>>& stages, bool at_once) {
  const std::lock_guard lock(mutex_);
  ++entered_;
  if (at_once) ++num_at_once_;
  double all = 0;
  for (const auto& [name, seconds] : stages) {
    all += seconds;
    const auto found = std::ranges::find(enter_seconds_, name, &std::pair<std::string, double>::first);
    if (found == enter_seconds_.end()) enter_seconds_.emplace_back(name, seconds);
    else found->second += seconds;
  }
  (at_once ? of_what_is_there_ : anew_).add(all * 1e3);
  kernels_generated_ += kernels_generated;
}

void SizeRanges::Making::add(double milliseconds) {
  if (std::exchange(outdated, false)) last_ms.clear();
  last_ms.push_back(milliseconds);
  if (last_ms.size() > kLastMade) last_ms.pop_front();
}

double SizeRanges::Making::ms() const {
  if (last_ms.empty()) return 0;
  std::vector<double> sorted(last_ms.begin(), last_ms.end());
  const auto middle = sorted.begin() + static_cast<ptrdiff_t>(sorted.size() / 2);
  std::ranges::nth_element(sorted, middle);
  return *middle;
}

void SizeRanges::tried_at_once(const Sizes& sizes, const std::string& why_not) {
  const std::lock_guard lock(mutex_);
  if (!why_not.empty()) ++failures_;
  std::erase_if(tried_, [&](const auto& each) { return each.first == sizes; });
  tried_.emplace_back(sizes, why_not);
  if (tried_.size() > kMostTried) tried_.pop_front();
}

void SizeRanges::eager_began(const Sizes& sizes, double milliseconds) {
  const std::lock_guard lock(mutex_);
  if (begun_.size() >= kMostBegun) begun_.clear();
  begun_.insert(sizes);
  const std::optional<double> expected = timed_at(kEager, volume_of(sizes));
  if (!expected) return;
  began_ms_.emplace_back(sizes, milliseconds - *expected);
  if (began_ms_.size() > kFirstCalls) began_ms_.pop_front();
}

bool SizeRanges::pays_at_once(const Sizes& sizes) {
  const std::lock_guard lock(mutex_);
  const std::shared_ptr<const SizeRange> range = range_of(sizes);
  if (!range || range->piece.choice == kEager) return false;
  const std::string why_not = why_not_at_once(sizes);
  if (!why_not.empty()) count_left(why_not);
  return why_not.empty();
}

std::string SizeRanges::why_not_at_once(const Sizes& sizes) const {
  const std::shared_ptr<const SizeRange> range = range_of(sizes);
  if (!of_what_is_there_.known()) return "it is not known yet how long making a plan takes";
  if (!lacks(sizes).empty()) return "what was there did not suffice at the nearest sizes";
  const std::optional<double> saved = saved_at(*range, volume_of(sizes));
  if (!saved) return "it is not known what a plan saves";
  return of_what_is_there_.ms() < *saved + began_beyond_ms(sizes) ? "" : "making a plan takes longer than it saves a call";
}

void SizeRanges::left_to_eager(const std::string& why) {
  const std::lock_guard lock(mutex_);
  count_left(why);
}

void SizeRanges::count_left(const std::string& why) {
  const bool has_room = left_to_eager_.size() < kMostReasons || left_to_eager_.contains(why);
  ++left_to_eager_[has_room ? why : "other reasons"];
}

// What those lacked that are nearest to it, of the sizes that were tried: of its kind, where some were.
std::string SizeRanges::lacks(const Sizes& sizes) const {
  const std::pair<Sizes, std::string>* nearest = nullptr;
  std::pair<bool, double> least;
  for (const auto& each : tried_)
    if (const auto near = how_near(each.first, sizes); !nearest || near < least) nearest = &each, least = near;
  return nearest ? nearest->second : "";
}

bool SizeRanges::have_missed_enough(const Sizes& sizes) {
  const std::lock_guard lock(mutex_);
  const std::shared_ptr<const SizeRange> range = range_of(sizes);
  const std::string what = lacks(sizes);
  if (!range || what.empty()) return false;
  if (lacked_.size() < kMostReasons && lacked_.insert(what).second) return true;
  const double first = begun_.contains(sizes) ? 0 : began_beyond_ms(sizes) - of_what_is_there_.ms();
  missed_ms_ += std::max(0.0, saved_at(*range, volume_of(sizes)).value_or(0) + first);
  if (!anew_.known() || missed_ms_ < anew_.ms()) return false;
  missed_ms_ = 0;
  return true;
}

void SizeRanges::rehearsed(double milliseconds) {
  const std::lock_guard lock(mutex_);
  ++rehearsed_;
  of_what_is_there_.add(milliseconds);
}

void SizeRanges::learned(const std::string& why_not) {
  const std::lock_guard lock(mutex_);
  if (!why_not.empty()) {
    if (not_learned_.size() < kMostReasons) not_learned_.insert(why_not);
    return;
  }
  ++learned_;
  of_what_is_there_.outdated = true;
}

void SizeRanges::let_go(size_t plans) {
  const std::lock_guard lock(mutex_);
  let_go_ += plans;
}

// What eager's libraries plan at a first call depends on the sizes: of small attention, nothing. Nor at a second call.
double SizeRanges::began_beyond_ms(const Sizes& sizes) const {
  if (begun_.contains(sizes)) return 0;
  std::vector<std::pair<double, double>> nearest;  // distance, milliseconds
  for (const auto& [at, ms] : began_ms_) nearest.emplace_back(distance(at, sizes), ms);
  const size_t count = std::min(kNearest, nearest.size());
  if (count == 0) return 0;
  std::ranges::partial_sort(nearest, nearest.begin() + static_cast<ptrdiff_t>(count));
  nearest.resize(count);
  std::ranges::sort(nearest, {}, &std::pair<double, double>::second);
  return std::max(0.0, nearest[count / 2].second);
}

// Between the checked sizes as if time grew evenly with the volume, outside of them as at the nearest.
std::optional<double> SizeRanges::timed_at(const std::string& candidate, int64_t volume) const {
  std::map<double, double> timed;  // by volume
  for (const CheckedSizes& check : checks_) {
    const auto found = std::ranges::find(check.candidates, candidate, &CandidateReport::name);
    if (!check.disturbed && found != check.candidates.end() && found->milliseconds > 0)
      timed[static_cast<double>(volume_of(check.sizes))] = found->milliseconds;
  }
  if (timed.empty()) return std::nullopt;
  const auto at = static_cast<double>(volume);
  const auto above = timed.lower_bound(at);
  if (above == timed.begin()) return above->second;
  const auto below = std::prev(above);
  if (above == timed.end()) return below->second;
  return below->second + (above->second - below->second) * (at - below->first) / (above->first - below->first);
}

std::optional<double> SizeRanges::saved_at(const SizeRange& range, int64_t volume) const {
  const std::optional<double> eager = timed_at(kEager, volume), own = timed_at(range.piece.choice, volume);
  return eager && own && range.piece.choice != kEager ? std::optional(*eager - *own) : std::nullopt;
}

uint64_t SizeRanges::calls_until_paid(const Sizes& sizes) const {
  const std::lock_guard lock(mutex_);
  const std::shared_ptr<const SizeRange> range = range_of(sizes);
  if (!range) return 1;
  if ((!of_what_is_there_.known() || of_what_is_there_.outdated) && !tried_.empty() && failures_ <= kMostFailures) return 1;
  const Making& making = of_what_is_there_.known() && lacks(sizes).empty() ? of_what_is_there_ : anew_;
  const double saved = saved_at(*range, volume_of(sizes)).value_or(0);
  return making.known() && saved > 0 ? static_cast<uint64_t>(std::max(1.0, std::ceil(making.ms() / saved))) : 1;
}

uint64_t SizeRanges::calls_that_last(const Sizes& sizes, double seconds) const {
  const std::lock_guard lock(mutex_);
  const std::shared_ptr<const SizeRange> range = range_of(sizes);
  const std::optional<double> own = range ? timed_at(range->piece.choice, volume_of(sizes)) : std::nullopt;
  return own && *own > 0 ? static_cast<uint64_t>(std::ceil(std::max(1.0, seconds * 1e3 / *own))) : 0;
}

RangesReport SizeRanges::report(const std::vector<std::string>& names) const {
  const std::lock_guard lock(mutex_);
  RangesReport out;
  if (ranges_.empty()) return out;
  for (size_t k = 0; k < box_.least.size() && k < names.size(); ++k)
    out.sizes.push_back({names[k], box_.least[k], box_.least[k], box_.most[k]});
  for (size_t i = 0; i < ranges_.size(); ++i) {
    const SizePiece& piece = ranges_[i]->piece;
    out.ranges.push_back({piece.least, piece.most, piece.choice, why_closed_[i]});
  }
  for (const CheckedSizes& check : checks_) {
    std::string sizes;
    for (const int64_t size : check.sizes) sizes += (sizes.empty() ? "" : ",") + std::to_string(size);
    out.checked.push_back({sizes, check.chosen, check.disturbed, {}});
    for (const CandidateReport& candidate : check.candidates)
      if (!candidate.wrong_of_others.empty()) out.checked.back().wrong = candidate.wrong_of_others;
  }
  out.entered = entered_;
  out.at_once = num_at_once_;
  out.left_to_eager.assign(left_to_eager_.begin(), left_to_eager_.end());
  out.enter_seconds = enter_seconds_;
  out.kernels_generated = kernels_generated_;
  out.let_go = let_go_;
  out.at_once_ms = of_what_is_there_.ms();
  out.learned = learned_;
  out.rehearsed = rehearsed_;
  out.not_learned.assign(not_learned_.begin(), not_learned_.end());
  return out;
}

}  // namespace keirin
