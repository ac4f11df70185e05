// SPDX-License-Identifier: Apache-2.0
#include "tools/matrix/sitting.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <map>
#include <tuple>

#include "core/base/sha256.h"
#include "core/cache/cache.h"
#include "tools/files.h"
#include "tools/matrix/worker.h"

namespace keirin::tools::matrix {
namespace fs = std::filesystem;
namespace {

using nlohmann::json;

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kHelloDeadline{60'000}, kLockWait{60'000};

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

const char* purpose_name(Purpose purpose) {
  switch (purpose) {
    case Purpose::kCompare:
      return "compare";
    case Purpose::kSelfcheck:
      return "selfcheck";
    case Purpose::kRun:
      return "run";
  }
  return "run";
}

std::string status_word(const Status& status) {
  switch (status.code()) {
    case Code::k_ok:
      return "ok";
    case Code::k_wrong_result:
      return "wrong_result";
    case Code::k_crashed:
      return "crashed";
    case Code::k_timeout:
      return "timeout";
    case Code::k_unsupported:
      return "not_run";  // absent, or offered nothing: never a pass; see kLost
    default:
      return "failed";
  }
}

// Head offers nothing where base, asked the same, did: a loss, however it is called.
constexpr const char* kLost = "lost";

std::string reason_of(const Status& status) {
  return status.message().what + (status.message().where.empty() ? "" : " (" + status.message().where + ")");
}

class Sitting {
 public:
  // `earlier`: what the store says of other sittings.
  Sitting(const SittingPlan& plan, std::vector<Verdict> earlier, LogWriter log, ScratchFolder caches, std::string name)
      : plan_(plan),
        earlier_(std::move(earlier)),
        log_(std::move(log)),
        caches_(std::move(caches)),
        name_(std::move(name)),
        begin_(now_seconds()) {
    if (plan_.budget_seconds > 0) {
      const std::chrono::duration<double> budget(plan_.budget_seconds);
      end_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(budget);
    }
  }

  Status hold() {
    KRN_TRY(begin());
    for (const Case& item : plan_.cases)
      if (!item.starts()) KRN_TRY(screen(item));
    std::set<std::string> done;
    for (const Case& item : plan_.cases)
      if (item.starts() && done.insert(item.warm().text()).second) KRN_TRY(screen_starts(item.warm()));
    for (const Pair& pair : flagged_) KRN_TRY(confirm(pair));
    return conclude();
  }

 private:
  // What is measured of a side, whatever the variant.
  struct Origin {
    std::string command;
    std::string stack;  // id of its record
    // Of what trains: a stack of its own, so that shards with such a case and without one are sittings of the same.
    std::string training_stack;
    std::string package;  // folder of its Python package; empty: it has none
    Status training;      // why it cannot be asked to train, if it cannot
  };

  // A cell, its gate, and head's run of the first stage.
  struct Flagged {
    Case item;
    double gate;
    std::string head_run;
  };
  // What is to be measured once more, in one go: one cell, or those of a model's starts.
  struct Pair {
    std::vector<Flagged> cells;
    Way base, head;
  };

  // All variants of a case, of which one may be what the next is measured against.
  Status screen(const Case& item) {
    const Way eager = way_of(item, base_, "eager", "eager");
    Way baseline = eager;
    for (const std::string& variant : plan_.variants) {
      if (!plan_.asks(item, variant)) continue;
      Way base = way_of(item, base_, variant);
      if (plan_.purpose == Purpose::kRun) base = variant == "auto" ? baseline : eager;
      Way head = is_peer(variant) ? Way{plan_.peers, peer_stack_, cache_of(peer_stack_), variant, {}, {}}
                                  : way_of(item, head_, variant);
      if (out_of_budget()) return {};
      KRN_TRY_LET(const std::string run, measure_cell(item, &base, &head));
      if (run.empty()) return {};
      const Verdict v = verdict_of(item, variant);
      tell_of(v);
      // Replay is what auto has to beat where it is itself faster than eager.
      const bool replay_wins = variant == "replay" && v.gate && label_of(v.shift, *v.gate) == Label::kImproved;
      if (plan_.purpose == Purpose::kRun && replay_wins) baseline = head;
      if (v.flagged && plan_.purpose != Purpose::kSelfcheck) flagged_.push_back({{{item, *v.gate, run}}, base, head});
    }
    return {};
  }

  // What the plan asks about the starts of a model: all of it is timed in the same processes.
  Status screen_starts(const Case& model) {
    for (const std::string& variant : plan_.variants) {
      std::vector<Case> asked;
      for (const Case& item : plan_.cases)
        if (item.starts() && item.warm().text() == model.text() && plan_.asks(item, variant)) asked.push_back(item);
      if (asked.empty()) continue;
      if (out_of_budget()) return {};
      Pair pair{{}, way_of(model, base_, variant), way_of(model, head_, variant)};
      PairTimes times;
      find_both(model, &pair.base, &pair.head, &times);
      // Whether all of them can be told, with the blocks so far.
      const auto enough = [&](const Case& item) {
        const std::optional<double> gate = gate_of_cell(item, variant);
        return plan_.purpose == Purpose::kSelfcheck || !gate ||
               !needs_more_blocks(shifts(times, measure_of(item.text())), *gate, kStarts);
      };
      while (times.base.failed.ok() && times.head.failed.ok() && times.contended.empty()) {
        const int have = times.taken - times.dropped;
        if (have >= kStarts.first && std::all_of(asked.begin(), asked.end(), enough)) break;
        time_starts(model, pair.base, pair.head, timing({}), have == 0 ? kStarts.first : have, &times);
      }
      if (cut_off(times)) {
        if (times.taken - times.dropped < kStarts.first) return {};
        times.base.failed = times.head.failed = Status();
      }
      for (const Case& item : asked) {
        KRN_TRY_LET(const std::string run,
                    write_runs(item, pair.base, pair.head, times, gate_of_cell(item, variant), {}));
        const Verdict v = verdict_of(item, variant);
        tell_of(v);
        if (v.flagged && plan_.purpose != Purpose::kSelfcheck) pair.cells.push_back({item, *v.gate, run});
      }
      if (!pair.cells.empty()) flagged_.push_back(std::move(pair));
    }
    return {};
  }

  Way way_of(const Case& item, const Origin& side, const std::string& variant, const std::string& candidate = {}) const {
    if (!item.trains()) return {side.command, side.stack, cache_of(side.stack), variant, candidate, {}};
    return {plan_.peers, side.training_stack, cache_of(side.training_stack), variant, candidate, side.package};
  }

  void tell_of(const Verdict& v) const {
    std::string figures;
    if (v.measured())
      figures = fmt::format(", {:.3f} [{:.3f}, {:.3f}] in {} blocks, {} dropped", std::exp(v.shift.estimate),
                            std::exp(v.shift.low), std::exp(v.shift.high), v.shift.blocks, v.dropped);
    plan_.tell(fmt::format("{} {}: {}{}", v.item, v.variant, v.flagged ? "beyond the gate" : v.label, figures));
  }

  Status confirm(const Pair& pair) {
    if (out_of_budget()) return {};
    const Case& first = pair.cells[0].item;
    for (const Flagged& cell : pair.cells)
      plan_.tell(fmt::format("once more, in fresh processes: {} {}", cell.item.text(), pair.head.variant));
    PairTimes times;
    if (first.starts())
      time_starts(first.warm(), pair.base, pair.head, timing({}), kStarts.confirm, &times);
    else
      time_blocks(first, pair.base, pair.head, timing(pair.cells[0].gate), kCalls.confirm, &times);
    if (cut_off(times)) return {};
    for (const Flagged& cell : pair.cells)
      KRN_TRY(write_runs(cell.item, pair.base, pair.head, times, cell.gate, cell.head_run).status());
    return {};
  }

  // The verdicts, and a mark on what is the new level to be held.
  Status conclude() {
    std::vector<Record> out;
    for (const Verdict& v : judge(mine_)) {
      out.push_back(record_of(v));
      if (plan_.purpose == Purpose::kCompare && v.label == label_name(Label::kImproved))
        out.push_back(make_record("mark", {{"mark", "baseline"},
                                           {"of", v.head_run},
                                           {"time", now_seconds()},
                                           {"who", "keirin matrix compare"},
                                           {"why", "shown to be faster, or to need less, than what it was compared with"}}));
    }
    return write(std::move(out));
  }

  Status write(std::vector<Record> records) {
    KRN_TRY(log_.append(records));
    for (Record& record : records) mine_.add(std::move(record));
    return {};
  }

  // Who measures what, where.
  Status begin() {
    const Record machine = make_record("machine", machine_fields(plan_.place));
    base_.command = plan_.base, head_.command = plan_.head;
    std::vector<Record> records = {machine};
    KRN_TRY(add_stacks(&base_, &records));
    if (plan_.head == plan_.base)
      head_ = base_;
    else
      KRN_TRY(add_stacks(&head_, &records));
    machine_ = machine.id;
    if (std::any_of(plan_.variants.begin(), plan_.variants.end(), is_peer)) {
      KRN_TRY_LET(const json parts, parts_of(plan_.peers, {}));
      peer_stack_ = add_stack(parts, &records);
    }
    json cells = json::array();
    std::optional<double> least;
    for (const Case& item : plan_.cases)
      for (const std::string& variant : plan_.variants) {
        if (!plan_.asks(item, variant)) continue;
        cells.push_back({item.text(), variant});
        if (const std::optional<double> gate = gate_of_cell(item, variant); gate && !item.starts())
          least = std::min(least.value_or(*gate), *gate);
      }
    const Fitness fitness = plan_.place.imagined.empty() ? fitness_of(least, plan_.counts_only) : Fitness::kCompile;
    counts_decide_ = fitness == Fitness::kCounts && plan_.purpose == Purpose::kCompare;
    for (const Case& item : plan_.cases)
      records.push_back(make_record("case", {{"case", item.text()},
                                             {"model", item.model},
                                             {"sizes", item.sizes},
                                             {"dtype", item.dtype},
                                             {"work", item.work},
                                             {"scenario", item.scenario},
                                             {"mode", item.mode}}));
    records.push_back(make_record("sitting", {{"sitting", name_},
                                              {"purpose", purpose_name(plan_.purpose)},
                                              {"time", begin_},
                                              {"machine", machine.id},
                                              {"class", machine.text("class")},
                                              {"device", plan_.place.device},
                                              {"imagined", plan_.place.imagined},
                                              {"fitness", fitness_name(fitness)},
                                              {"base", base_.stack},
                                              {"head", head_.stack},
                                              {"cells", cells},
                                              {"threads", plan_.timing.threads},
                                              {"confirms", !plan_.confirm.empty()},
                                              {"warnings", warnings_of_machine()}}));
    return write(std::move(records));
  }

  // Its id.
  static std::string add_stack(const json& parts, std::vector<Record>* records) {
    Record record = make_record("stack", {{"parts", parts}});
    if (std::none_of(records->begin(), records->end(), [&](const Record& each) { return each.id == record.id; }))
      records->push_back(record);
    return record.id;
  }

  // What a side consists of, and what of it trains if cases do.
  Status add_stacks(Origin* side, std::vector<Record>* records) {
    KRN_TRY_LET(json parts, parts_of(side->command, {}));
    side->stack = add_stack(parts, records);
    if (!plan_.trains()) return {};
    side->package = find_package(side->command);
    Result<json> python = plan_.peers.empty() ? no_trainer() : parts_of(plan_.peers, side->package);
    if (!python.ok()) {
      side->training = Status(Code::k_unsupported, "nothing trains here: " + reason_of(python.status()));
      return {};
    }
    parts.update(*python);
    side->training_stack = add_stack(parts, records);
    return {};
  }

  static Result<json> no_trainer() {
    return Status(Code::k_unsupported, "the command that trains is not known: give --peers bench/peers/worker");
  }

  // Why this way cannot be asked to train.
  static Status can_train(const Origin& side, const std::string& variant) {
    if (!side.training.ok()) return side.training;
    if (variant != "auto" || !side.package.empty()) return {};
    return Status(Code::k_unsupported, "no Python package of Keirin was built or installed with " + side.command);
  }

  Result<json> parts_of(const std::string& program, const std::string& package) {
    KRN_TRY_LET(Side side, Side::start(program));
    Result<json> hello =
        side.ask({{"ask", "hello"}, {"device", plan_.place.device}, {"package", package}}, kHelloDeadline);
    if (!hello.ok())
      return std::move(hello)
          .status()
          .at(program)
          .instead("nothing was measured")
          .advise("a keirin command that has the word `matrix` is needed");
    if (hello->value("protocol", 0) != kProtocol)
      return Status(Code::k_version, {"this command speaks another protocol of the matrix", program,
                                      "nothing was measured", "build both sides from versions that have the same"});
    return hello->value("parts", json::object());
  }

  std::optional<double> gate_of_cell(const Case& item, const std::string& variant) const {
    if (plan_.gate > 0) return item.starts() ? std::max(plan_.gate, kStarts.least_gate) : plan_.gate;
    return gate_from(earlier_, machine_, plan_.timing.threads, item.text(), variant);
  }
  bool out_of_budget() const { return Clock::now() >= end_; }
  bool cut_off(const PairTimes& times) const {
    return out_of_budget() &&
           (times.base.failed.code() == Code::k_cancelled || times.head.failed.code() == Code::k_cancelled);
  }
  PairOptions timing(std::optional<double> gate) const {
    PairOptions options = plan_.timing;
    options.device = plan_.place.device;
    options.imagine = plan_.place.imagined;
    options.agree = gate.value_or(kCalls.least_gate) / 2;
    options.end = end_;
    return options;
  }
  Verdict verdict_of(const Case& item, const std::string& variant) const {
    for (Verdict& v : judge(mine_))
      if (v.item == item.text() && v.variant == variant) return std::move(v);
    return {};
  }

  // Once in a sitting: starts are those of what answers calls.
  Status find(const Case& item, Way* way, Course* course) {
    auto [at, is_new] = found_.try_emplace({item.text(), way->variant, way->stack});
    Found& found = at->second;
    if (is_new) {
      Result<std::string> candidate = find_candidate(item, *way, timing({}), &found.course);
      if (candidate.ok())
        found.candidate = std::move(*candidate);
      else
        found.course.failed = std::move(candidate).status();
    }
    way->candidate = found.candidate;
    *course = found.course;
    return course->failed;
  }

  // What answers on both sides, verified; or what failed.
  void find_both(const Case& item, Way* base, Way* head, PairTimes* times) {
    if (item.trains()) {
      times->base.failed = can_train(base_, base->variant);
      if (times->base.failed.ok()) times->head.failed = can_train(head_, head->variant);
    }
    if (!times->base.failed.ok() || !times->head.failed.ok()) return;
    if (base->candidate.empty() && !find(item, base, &times->base).ok()) return;
    // Equal stacks run the same plan, so that the same binary twice is the same twice.
    if (head->stack == base->stack && head->variant == base->variant) {
      head->candidate = base->candidate;
      times->head = times->base;
    } else {
      (void)find(item, head, &times->head);  // the course says whether it failed
    }
  }

  // Finds what answers on both sides and times it. The id of head's run; empty, and no record, if the budget ended
  // before the first look.
  Result<std::string> measure_cell(const Case& item, Way* base, Way* head) {
    const std::optional<double> gate = gate_of_cell(item, head->variant);
    PairTimes times;
    find_both(item, base, head, &times);
    if (cut_off(times) && !plan_.place.imagined.empty()) return std::string();
    while (plan_.place.imagined.empty() && times.base.failed.ok() && times.head.failed.ok() && times.contended.empty()) {
      const int have = times.taken - times.dropped;
      const bool enough = plan_.purpose == Purpose::kSelfcheck || !gate || counts_decide_ ||
                          !needs_more_blocks(shifts(times, kCallTimes), *gate);
      if (have >= kCalls.first && enough) break;
      time_blocks(item, *base, *head, timing(gate), have == 0 ? kCalls.first : have, &times);
    }
    if (cut_off(times)) {
      if (times.taken - times.dropped < kCalls.first) return std::string();
      times.base.failed = times.head.failed = Status();  // decided by what there is
    }
    return write_runs(item, *base, *head, times, gate, {});
  }

  // The blocks so far, as the judge will see them.
  static std::vector<double> shifts(const PairTimes& times, const Measure& measure) {
    std::map<int, double> blocks;
    const double part = 1.0 / static_cast<double>(measure.slots);
    for (const TimedSlot& slot : times.slots)
      if (slot.kept && slot.measure == &measure)
        blocks[slot.block] +=
            (slot.is_base ? -part : part) * std::log(median(std::vector<double>(slot.ns.begin(), slot.ns.end())));
    std::vector<double> d;
    for (const auto& [number, shift] : blocks) d.push_back(shift);
    return d;
  }

  json run_fields(const Case& item, const Way& way, const Course& course, const char* side, const char* stage) const {
    return {{"sitting", name_},
            {"case", item.text()},
            {"variant", way.variant},
            {"candidate", way.candidate},
            {"stack", way.stack},
            {"side", side},
            {"stage", stage},
            {"build_ns", course.build_ns},
            {"first_ns", course.first_ns},
            {"cold_ns", course.cold_ns},
            {"calls_to_settle", course.calls_to_settle},
            {"settle_ns", course.settle_ns},
            {"counts", course.counts},
            {"fallbacks", course.fallbacks},
            {"errors", course.errors},
            {"time", now_seconds()},
            {"load", machine_load()}};
  }

  Result<std::string> write_runs(const Case& item, const Way& base, const Way& head, const PairTimes& times,
                                 std::optional<double> gate, const std::string& confirms) {
    const char* stage = confirms.empty() ? "screen" : "confirm";
    const Record base_run = make_record("run", run_fields(item, base, times.base, "base", stage));
    json fields = run_fields(item, head, times.head, "head", stage);
    const Status& failed = times.base.failed.ok() ? times.head.failed : times.base.failed;
    json reasons = json::array();
    if (!failed.ok()) reasons.push_back((times.base.failed.ok() ? "head: " : "base: ") + reason_of(failed));
    if (!times.contended.empty()) reasons.push_back(times.contended);
    fields["base"] = base_run.id;
    const bool lost = times.base.failed.ok() && !base.candidate.empty() && failed.code() == Code::k_unsupported &&
                      head.variant == base.variant;
    fields["status"] = lost ? kLost : !failed.ok() ? status_word(failed) : times.contended.empty() ? "ok" : "contended";
    fields["at_fault"] = failed.ok() ? "" : times.base.failed.ok() ? "head" : "base";
    fields["reasons"] = reasons;
    fields["gate"] = gate ? json(*gate) : json();
    fields["retaken"] = times.retaken;
    if (!confirms.empty()) fields["confirms"] = confirms;
    const Record head_run = make_record("run", std::move(fields));
    std::vector<Record> records = {base_run, head_run};
    const Measure& measure = measure_of(item.text());
    for (const TimedSlot& slot : times.slots) {
      if (slot.measure != &measure) continue;
      records.push_back(make_record("sample", {{"run", slot.is_base ? base_run.id : head_run.id},
                                               {"launch", slot.launch},
                                               {"block", slot.block},
                                               {"slot", slot.slot},
                                               {"measure", measure.sample},
                                               {"calls", slot.calls_per_value},
                                               {"values", slot.ns},
                                               {"kept", slot.kept}}));
    }
    KRN_TRY(write(std::move(records)));
    return head_run.id;
  }

  // Of the workers: one per stack, so that equal stacks share what they compiled and decided, and nothing of an earlier
  // sitting is taken over.
  std::string cache_of(const std::string& stack) const { return caches_.path() + "/" + stack.substr(0, 16); }

  const SittingPlan& plan_;
  const std::vector<Verdict> earlier_;
  std::vector<Pair> flagged_;
  Store mine_;  // this sitting's records
  LogWriter log_;
  ScratchFolder caches_;
  const std::string name_;
  const double begin_;
  Clock::time_point end_ = Clock::time_point::max();
  Origin base_, head_;
  struct Found {
    std::string candidate;
    Course course;
  };
  std::map<std::tuple<std::string, std::string, std::string>, Found> found_;  // by case, variant, stack
  bool counts_decide_ = false;  // no more blocks are taken than one look needs
  std::string machine_, peer_stack_;
};

// Two that measure at a time measure each other.
Result<FileLock> lock_device(const std::string& device) {
  CacheOptions options;
  const Cache cache(std::move(options));
  const std::string path = cache.dir() + "/lock/race-" + device;  // that of races, which bench holds too
  if (!cache.usable())
    return Status(Code::k_exhausted, {"no lock can be held: the cache folder cannot be used", cache.dir(),
                                      "nothing was measured", "set KEIRIN_CACHE to a folder of yours with mode 0700"});
  KRN_TRY_LET(std::optional<FileLock> lock, FileLock::take(path, kLockWait));
  if (!lock)
    return Status(Code::k_exhausted, {"another process is measuring on this device", path, "nothing was measured",
                                      "try again when it is done"});
  return std::move(*lock);
}

// Of a store that need not be there yet.
Result<std::vector<Verdict>> verdicts_so_far(const std::string& folder) {
  std::error_code error;
  if (!fs::exists(fs::path(folder) / "log", error)) return std::vector<Verdict>();
  KRN_TRY_LET(const Store store, Store::read(folder));
  return judge(store);
}

}  // namespace

Result<bool> gates_are_known(const SittingPlan& plan) {
  if (plan.gate > 0) return true;
  KRN_TRY_LET(const std::vector<Verdict> earlier, verdicts_so_far(plan.store));
  const std::string machine = make_record("machine", machine_fields(plan.place)).id;
  for (const Case& item : plan.cases)
    for (const std::string& variant : plan.variants)
      if (plan.asks(item, variant) &&
          !gate_from(earlier, machine, plan.timing.threads, item.text(), variant)) return false;
  return true;
}

Result<std::string> hold_sitting(const SittingPlan& plan) {
  KRN_TRY_LET(const FileLock lock, lock_device(plan.place.device));
  KRN_TRY_LET(ScratchFolder caches, ScratchFolder::make("matrix"));
  const std::string seed = fmt::format("{} {} {}", std::chrono::system_clock::now().time_since_epoch().count(),
                                       ::getpid(), machine_fields(plan.place).dump());
  const std::string name = hex(sha256(seed.data(), seed.size())).substr(0, 16);
  KRN_TRY_LET(std::vector<Verdict> earlier, verdicts_so_far(plan.store));
  KRN_TRY_LET(LogWriter log, LogWriter::begin(plan.store, name));
  Sitting sitting(plan, std::move(earlier), std::move(log), std::move(caches), name);
  KRN_TRY(sitting.hold());
  return name;
}

}  // namespace keirin::tools::matrix
