// SPDX-License-Identifier: Apache-2.0
#include "core/api/enter.h"

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <set>
#include <utility>

#include "core/api/deciding.h"
#include "core/api/decision_thread.h"
#include "core/api/free_sizes.h"
#include "core/api/sized_capture.h"
#include "core/api/verification.h"
#include "core/eager/program/later_writes.h"
#include "core/host/guard/quarantine.h"
#include "core/ir/text.h"

namespace keirin {
namespace {

constexpr size_t kMostPatterns = 16;
constexpr size_t kMostKinds = 16;             // whose graphs are learned
constexpr int kMostCuts = 3;                  // of their sizes, in turn, to where the graph has one structure
constexpr size_t kMostTriedPatterns = 3;      // of one size
constexpr double kLeastDecidingSeconds = 2;  // where it was not seen yet in this process, or found in the cache

// What eager returns for a graph whose outputs are new tensors, laid out row by row. None where they are anything else.
std::optional<OutputForms> plain_forms(const Graph& captured, Device device) {
  OutputForms out;
  for (const Output& output : captured.outputs) {
    if (output.updates != kNone || output.alias_of != kNone) return std::nullopt;
    const Type& type = captured.type(output.value);
    out.specs.push_back({type.dtype, type.sizes.vec(), contiguous_strides(type.sizes).vec(), device});
  }
  return out;
}

bool same_forms(const OutputForms& a, const OutputForms& b) {
  const auto same = [](const TensorSpec& x, const TensorSpec& y) { return spec_text(x) == spec_text(y) && x.device == y.device; };
  return a.views.empty() && b.views.empty() && std::ranges::equal(a.specs, b.specs, same);
}

// Of a graph without its sizes: operators, what they read, and dtypes.
Hash structure_of(const Graph& graph) {
  std::vector<uint32_t> words;
  const auto add = [&](const auto& list) {
    words.push_back(static_cast<uint32_t>(list.size()));
    words.insert(words.end(), list.begin(), list.end());
  };
  for (const Value& value : graph.values)
    words.push_back(static_cast<uint32_t>(value.kind) << 16 | static_cast<uint32_t>(value.type.dtype) << 8 |
                    static_cast<uint32_t>(value.type.rank()));
  for (const Op& op : graph.ops) {
    words.push_back(static_cast<uint32_t>(op.code));
    add(op.operands), add(op.results);
  }
  for (const Output& output : graph.outputs) add(std::to_array({output.value, output.updates, output.alias_of}));
  return sha256(words.data(), words.size() * sizeof(uint32_t));
}

// But for the strides of axes of size 1, which lead nowhere.
std::string text_of(Graph graph) {
  for (Value& value : graph.values)
    for (size_t d = 0; d < value.type.strides.size(); ++d)
      if (value.type.sizes[d] == 1) value.type.strides[d] = 0;
  return print(graph);
}

// Whether memory is written that a value shares which is a view or a copy as its sizes and strides will have it: then what was seen at one
// size says too little of another.
bool writes_what_may_be_a_copy(const pt2::Program& program) {
  const std::vector<pt2::Node>& nodes = program.graph.nodes;
  const LaterWrites later(program.graph, {});
  for (size_t i = 0; i < nodes.size(); ++i) {
    const auto is = [&](const char* word) { return nodes[i].target.find(word) != std::string::npos; };
    if (!is("reshape") && !is("flatten") && !is("ravel") && !is("contiguous") && !is("aten.to.")) continue;
    for (const pt2::Argument& output : nodes[i].outputs)
      for (const std::string& name : output.names())
        if (later.of(name, i)) return true;
  }
  return false;
}

// Whether somebody sees what is a view at some sizes and a copy at others: who writes, or who gets an output that shares memory with
// another one, an input or a weight.
bool shows_views(const pt2::Graph& graph) {
  if (std::ranges::any_of(graph.nodes, [](const pt2::Node& node) { return writes(node); })) return true;
  const LaterWrites memory(graph, {});
  std::vector<std::string> others;
  for (const pt2::Argument& input : graph.inputs)
    for (std::string& name : input.names()) others.push_back(std::move(name));
  for (const pt2::Argument& output : graph.outputs)
    for (const std::string& name : output.names()) {
      if (std::ranges::any_of(others, [&](const std::string& other) { return memory.share(name, other); })) return true;
      others.push_back(name);
    }
  return false;
}

// Whether what eager's run showed of this program is all that there is to say of it at other sizes: it writes nothing and returns new
// tensors, and with what was seen taken as of other sizes the file gives the same graph.
bool is_plain(const Deciding& d) {
  const ObservedRun& seen = d.seen;
  if (!seen.overlapping_writes.empty() || !seen.written_weights.empty() || !seen.written_inputs.empty() || seen.reads_storage ||
      seen.draws_random)
    return false;
  if (writes_what_may_be_a_copy(d.session.model->program)) return false;
  const std::optional<OutputForms> plain = plain_forms(d.prepared->captured.graph, d.session.device);
  if (!plain || !same_forms(d.forms, *plain)) return false;
  const Result<Prepared> again = capture(d.session, d.specs, &seen, SeenAt::kOtherSizes);
  return again.ok() && text_of(again->graph) == text_of(d.prepared->captured.graph);
}

}  // namespace

void remember_pattern(Deciding& d, const Candidate& candidate) {
  const BuiltPlan& built = candidate.built;
  const Sizes sizes = d.session.range_sizes(d.specs);
  if (!d.session.decisions || !d.session.options.ranges || sizes.empty()) return;
  if (!candidate.is_plan() || !built.lost.empty() || built.repaired || !is_plain(d)) return;
  auto pattern = std::make_shared<SizePattern>(SizePattern{built.name, sizes, d.seen, shows_views(d.session.model->program.graph),
                                                           structure_of(d.prepared->graph), built.claimed, {}, d.prepared});
  for (const BuiltRegion& region : built.regions) pattern->executables.push_back(built.plan->steps()[region.step].executable);
  auto& patterns = d.session.patterns;
  if (patterns.size() >= kMostPatterns) patterns.erase(patterns.begin());
  patterns.push_back(std::move(pattern));
  d.session.has_pattern = true;
  d.session.ranges.tried_at_once(sizes, {});
}

namespace {

// Of this choice, those of sizes of this kind first, the nearest first of them: a plugin may fuse otherwise where sizes are small. Of other
// kinds too where nobody sees what is a view and what is a copy.
std::vector<std::shared_ptr<const SizePattern>> patterns_for(const Session::Impl& session, const Sizes& sizes, const std::string& choice) {
  std::vector<std::pair<std::pair<bool, double>, std::shared_ptr<const SizePattern>>> found;
  for (const auto& each : session.patterns) {
    const auto near = how_near(each->sizes, sizes);
    if (each->choice == choice && (!each->shows_views || !near.first)) found.emplace_back(near, each);
  }
  std::ranges::stable_sort(found, {}, [](const auto& each) { return each.first; });
  std::vector<std::shared_ptr<const SizePattern>> out;
  for (auto& [near, pattern] : found) out.push_back(std::move(pattern));
  return out;
}

// Of the first of these patterns that suffices for the graph.
Result<BuiltPlan> resized(Session::Impl& session, Prepared& prepared, const std::string& choice,
                          const std::vector<std::shared_ptr<const SizePattern>>& patterns) {
  const std::optional<PlanChoice> how = find_choice(session, choice);
  if (!how) return Status(Code::k_unsupported, "the choice is not a plan");
  const Hash structure = structure_of(prepared.graph);
  Result<BuiltPlan> built = Status(Code::k_unsupported, "the graph has another structure at this size");
  size_t tried = 0;
  for (size_t i = 0; i < patterns.size() && !built.ok() && tried < kMostTriedPatterns; ++i)
    if (patterns[i]->structure == structure && ++tried) built = build_plan(session, prepared, *how, patterns[i].get());
  return built;
}

// The same for d's graph.
Result<Candidate> resized(Deciding& d, const std::string& choice, const std::vector<std::shared_ptr<const SizePattern>>& patterns) {
  Candidate candidate;
  candidate.report.name = choice;
  KRN_TRY_LET(candidate.built, resized(d.session, *d.prepared, choice, patterns));
  candidate.report.plugin = candidate.built.plugin;
  d.make_calls(candidate);
  return candidate;
}

// The graph of inputs that eager was not observed on, after the passes: plain.
Result<Prepared> prepared_between(Session::Impl& session, const std::vector<TensorSpec>& specs, const ObservedRun& seen) {
  KRN_TRY_LET(Prepared prepared, capture(session, specs, &seen, SeenAt::kOtherSizes));
  const std::optional<OutputForms> forms = plain_forms(prepared.graph, session.device);
  if (!forms) return Status(Code::k_unsupported, "outputs share memory");
  KRN_TRY(optimise(session, prepared, forms->specs, session.folded, true));
  return prepared;
}

// The same as it was learned of graphs at other sizes, if it was.
std::optional<Prepared> prepared_as_learned(Session::Impl& session, const std::vector<TensorSpec>& specs) {
  const Sizes sizes = session.range_sizes(specs);
  for (const auto& each : session.learned) {
    if (!each->holds(sizes)) continue;
    const double start = now_s();
    Result<Prepared> prepared = each->at(sizes, session.weights, session.runtime.tensors(), session.device, session.folded);
    if (!prepared.ok()) continue;
    prepared->stage_seconds.emplace_back("graph of sizes", now_s() - start);
    return std::move(*prepared);
  }
  return std::nullopt;
}

Result<Candidate> of_pattern(Deciding& d) {
  const auto unsupported = [](const char* why) { return Status(Code::k_unsupported, why); };
  const std::string& choice = d.range->piece.choice;
  const std::vector<std::shared_ptr<const SizePattern>> patterns = patterns_for(d.session, d.session.range_sizes(d.specs), choice);
  if (patterns.empty()) return unsupported("no size like it has a plan yet");
  std::optional<Prepared> prepared = prepared_as_learned(d.session, d.specs);
  if (!prepared) {
    KRN_TRY_LET(prepared, prepared_between(d.session, d.specs, patterns[0]->seen));
  }
  std::optional<OutputForms> forms = plain_forms(prepared->graph, d.session.device);
  if (!forms) return unsupported("outputs share memory");
  d.forms = std::move(*forms);
  d.prepared = std::make_shared<Prepared>(std::move(*prepared));
  if (why_only_eager(d)) return unsupported("eager answers such calls");
  d.report.stage_seconds = d.prepared->stage_seconds;
  const double start = now_s();
  KRN_TRY_LET(Candidate candidate, resized(d, choice, patterns));
  d.stage("plan", now_s() - start);
  return candidate;
}

Result<Candidate> try_pattern(Deciding& d) {
  Result<Candidate> made = of_pattern(d);
  if (!d.session.patterns.empty()) d.session.ranges.tried_at_once(d.session.range_sizes(d.specs), made.status().message().what);
  return made;
}

// The range's candidate at these inputs' sizes, without a call where eager is to answer them. `looked`: at a run of eager, and compiled.
Result<Candidate> candidate_of_range(Deciding& d, bool& looked) {
  const std::string& choice = d.range->piece.choice;
  if (choice == "eager") return Candidate();
  if (Result<Candidate> quick = try_pattern(d); quick.ok()) return quick;
  d.forms = {};
  d.prepared.reset();
  double start = now_s();
  KRN_TRY(prepare(d, std::nullopt));
  if (!d.prepared || why_only_eager(d)) return Candidate();
  double observing = now_s() - start;
  for (const auto& [name, seconds] : d.report.stage_seconds) observing -= seconds;
  d.stage("eager", observing);
  start = now_s();
  if (choice == "replay") {
    add_replay(d);
    return std::move(d.candidates.back());
  }
  const std::optional<PlanChoice> how = find_choice(d.session, choice);
  if (!how) return Candidate();
  Candidate candidate;
  candidate.report.name = choice;
  KRN_TRY_LET(candidate.built, build_plan(d.session, *d.prepared, *how));
  if (is_forbidden(d, candidate.built)) return Candidate();
  candidate.report.plugin = candidate.built.plugin;
  d.make_calls(candidate);
  d.stage("plan", now_s() - start);
  remember_pattern(d, candidate);
  looked = true;
  return candidate;
}

// A size is hot whose calls have lasted as long as it takes to decide about it: then no more than twice the least was spent, whatever
// comes.
uint64_t calls_until_hot(const Deciding& d) {
  double seconds = 0;
  {
    const std::lock_guard lock(d.session.report_mutex);
    for (const ModelReport& report : d.session.reports) {
      double all = 0;
      for (const auto& [stage, each] : report.stage_seconds) all += each;
      seconds = std::max(seconds, all);
    }
  }
  return d.session.ranges.calls_that_last(d.session.range_sizes(d.specs), std::max(seconds, kLeastDecidingSeconds));
}

// From the first plan of a kind on, graphs of more sizes of it are learned, so that they need not be captured.
void want_graphs(Session::Impl& session, const Sizes& sizes) {
  if (session.kinds_to_learn.size() < kMostKinds && session.kinds_to_learn.insert(kind_of(sizes)).second) session.decisions->learn(sizes);
}

void put_in_service(Deciding& d, Candidate candidate, bool at_once) {
  std::shared_ptr<PlanGuard> guard = service_guard(d, candidate.report.name, candidate.report.plugin);
  d.session.ranges.entered(candidate.built.kernels_generated, d.report.stage_seconds, at_once);
  if (at_once) want_graphs(d.session, d.session.range_sizes(d.specs));
  d.hot_after = calls_until_hot(d);
  d.publish(std::move(candidate.call), std::move(guard), candidate.built.plan);
}

}  // namespace

std::optional<Candidate> made_of_other_sizes(Deciding& d, const std::string& choice) {
  const Sizes own = d.session.range_sizes(d.specs);
  auto patterns = patterns_for(d.session, own, choice);
  std::erase_if(patterns, [&](const auto& each) { return each->sizes == own; });
  Result<Candidate> made = resized(d, choice, patterns);
  if (!made.ok()) return std::nullopt;
  made->of_other_sizes = true;
  return std::move(*made);
}

namespace {

// What capture and the passes make of the program, by sizes.
class Graphs {
 public:
  Graphs(Session::Impl& session, std::vector<std::shared_ptr<const SizePattern>> patterns)
      : session_(session), patterns_(std::move(patterns)) {
    // At sizes that were decided the graph is the one that was verified.
    for (const auto& pattern : patterns_) known_[pattern->sizes] = pattern->prepared;
  }

  // At all sizes that the box is learned at, and at those that are known by now.
  Status find(const SizeBox& box, const Sizes& kind, const std::atomic<bool>& stop) {
    for (const Sizes& each : SizedCapture::sizes_to_learn(box, kind)) {
      if (stop) return Status(Code::k_cancelled, "the session is being closed");
      if (!known_.contains(each)) KRN_TRY(add(each));
    }
    sizes.clear(), prepared.clear();
    for (const auto& [at, graph] : known_) {
      if (!box.holds(at) || kind_of(at) != kind) continue;
      sizes.push_back(at);
      prepared.push_back(graph.get());
    }
    return {};
  }
  std::vector<Sizes> sizes;
  std::vector<const Prepared*> prepared;

 private:
  Status add(const Sizes& at) {
    const auto nearest = std::ranges::min_element(patterns_, {}, [&](const auto& pattern) { return how_near(pattern->sizes, at); });
    KRN_TRY_LET(ExampleShapes shapes, example_shapes(session_.model->program, at));
    for (TensorSpec& spec : shapes.specs) spec.device = session_.device;
    KRN_TRY_LET(Prepared found, prepared_between(session_, shapes.specs, (*nearest)->seen));
    found.captured = {};
    known_[at] = std::make_shared<const Prepared>(std::move(found));
    return {};
  }

  Session::Impl& session_;
  const std::vector<std::shared_ptr<const SizePattern>> patterns_;
  std::map<Sizes, std::shared_ptr<const Prepared>> known_;
};

}  // namespace

Status learn_graphs(Session::Impl& session, const Sizes& like, const std::atomic<bool>& stop) {
  const SizeBox box = session.ranges.kept().box;
  const Sizes kind = kind_of(like);
  std::vector<std::shared_ptr<const SizePattern>> patterns;
  {
    const std::lock_guard lock(session.compile_mutex);
    patterns = session.patterns;
  }
  if (patterns.empty() || !box.holds(like)) return Status(Code::k_unsupported, "its sizes lie in no range any more");
  Graphs graphs(session, std::move(patterns));
  Status why;
  bool any = false;
  const std::function<Status(const SizeBox&, int)> learn = [&](const SizeBox& in, int times_cut) -> Status {
    KRN_TRY(graphs.find(in, kind, stop));
    const std::vector<SizeBox> pieces = SizedCapture::pieces_of(in, graphs.sizes, graphs.prepared);
    const bool is_one = pieces.size() == 1 && pieces[0].least == in.least && pieces[0].most == in.most;
    if (!is_one && times_cut < kMostCuts) {
      if (pieces.empty()) why = Status(Code::k_unsupported, "the graph has too many structures");
      for (const SizeBox& piece : pieces) KRN_TRY(learn(piece, times_cut + 1));
      return {};
    }
    Result<SizedCapture> learned = SizedCapture::of(in, graphs.sizes, graphs.prepared, session.weights.size());
    if (!learned.ok()) {
      why = learned.status();
      return {};
    }
    any = true;
    const std::lock_guard lock(session.compile_mutex);
    session.learned.push_back(std::make_shared<const SizedCapture>(std::move(*learned)));
    return {};
  };
  KRN_TRY(learn(box, 0));
  return any ? Status() : why;
}

void rehearse(Session::Impl& session, const Sizes& like, const std::atomic<bool>& stop) {
  std::vector<std::shared_ptr<const SizedCapture>> graphs;
  {
    const std::lock_guard lock(session.compile_mutex);
    graphs = session.learned;
  }
  std::erase_if(graphs, [kind = kind_of(like)](const auto& each) { return each->kind() != kind; });
  for (const auto& each : graphs)
    for (const Sizes& sizes : each->sizes_to_rehearse()) {
      if (stop) return;
      const std::lock_guard lock(session.compile_mutex);
      const std::shared_ptr<const SizeRange> range = session.ranges.find(sizes);
      if (!range) continue;
      const auto patterns = patterns_for(session, sizes, range->piece.choice);
      if (patterns.empty()) continue;
      const double start = now_s();
      Result<Prepared> prepared = each->at(sizes, session.weights, session.runtime.tensors(), session.device, session.folded);
      if (prepared.ok() && resized(session, *prepared, range->piece.choice, patterns).ok())
        session.ranges.rehearsed((now_s() - start) * 1e3);
    }
}

void learn_checked_kinds(Session::Impl& session) {
  const std::lock_guard lock(session.compile_mutex);
  std::vector<Sizes> found;
  for (const CheckedSizes& check : session.ranges.kept().checks) {
    const std::shared_ptr<const SizeRange> range = session.ranges.find(check.sizes);
    const auto is_like = [&](const auto& pattern) { return !how_near(pattern->sizes, check.sizes).first; };
    if (range && std::ranges::any_of(patterns_for(session, check.sizes, range->piece.choice), is_like)) found.push_back(check.sizes);
  }
  // The kind that holds the most sizes first.
  std::ranges::stable_sort(found, std::greater(), [](const Sizes& sizes) {
    std::set<int64_t> free;  // that are not 1, each once
    for (const int64_t each : sizes)
      if (each != 1) free.insert(each);
    return free.size();
  });
  for (const Sizes& sizes : found) want_graphs(session, sizes);
}

Status enter(Session::Impl& session, const std::shared_ptr<const SizeRange>& range, const std::vector<TensorRef>& inputs) {
  Deciding d(session, inputs);
  d.range = range;
  d.for_range = true;
  const uint64_t rested = session.runtime.quarantine().times_rested();
  bool looked = false;
  Result<Candidate> candidate = d.step([&] { return candidate_of_range(d, looked); });
  KRN_TRY(d.go_on());
  if (session.runtime.quarantine().times_rested() != rested)
    return Status(Code::k_exhausted, "a worker was killed, or memory or disk ran out; the size is entered when it is met later");
  if (candidate.ok() && candidate->call) {
    put_in_service(d, std::move(*candidate), !looked);
    return {};
  }
  d.publish({}, {});  // what cannot be made is not asked for again
  return candidate.ok() ? Status() : candidate.status();
}

Status enter_at_once(Session::Impl& session, const std::shared_ptr<const SizeRange>& range, const std::vector<TensorRef>& inputs) {
  Deciding d(session, inputs);
  d.range = range;
  d.for_range = true;
  KRN_TRY_LET(Candidate candidate, try_pattern(d));
  put_in_service(d, std::move(candidate), true);
  return {};
}

}  // namespace keirin
