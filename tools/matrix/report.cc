// SPDX-License-Identifier: Apache-2.0
#include "tools/matrix/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstring>
#include <deque>
#include <map>
#include <set>
#include <tuple>

#include "tools/exits.h"

namespace keirin::tools::matrix {
namespace {

using nlohmann::json;

constexpr size_t kMaxFallbacks = 20;  // of a cell

// Median of what a run's launches took, ms; null for none.
json median_ms(const Record* run, const char* field) {
  std::vector<double> ns;
  if (const auto at = run->fields.find(field); at != run->fields.end() && at->is_array())
    for (const json& value : *at)
      if (value.is_number()) ns.push_back(value.get<double>());
  return ns.empty() ? json() : json(median(ns) / 1e6);
}

// What came before calls were steady, of one side.
json times_of(const Store& store, const std::string& id) {
  const Record* run = store.find(id);
  if (!run) return json::object();
  json out = {{"start_ms", median_ms(run, "build_ns")},
              {"first_ms", median_ms(run, "first_ns")},
              {"settle_ms", median_ms(run, "settle_ns")}};
  if (const double cold_ns = run->number("cold_ns"); cold_ns > 0) out["cold_ms"] = cold_ns / 1e6;
  if (const json calls = median_ms(run, "calls_to_settle"); calls.is_number())
    out["settle_calls"] = std::llround(calls.get<double>() * 1e6);
  return out;
}

json counts_of(const Store& store, const std::string& id) {
  json out = json::object();
  const Record* run = store.find(id);
  if (run && run->fields.contains("counts") && run->fields["counts"].is_object())
    for (const auto& [name, value] : run->fields["counts"].items())
      if (value.is_number()) out[clean(name)] = value;
  return out;
}

json fallbacks_of(const Store& store, const std::string& id) {
  json out = json::array();
  const Record* run = store.find(id);
  if (run && run->fields.contains("fallbacks") && run->fields["fallbacks"].is_array())
    for (const json& each : run->fields["fallbacks"])
      if (each.is_string() && out.size() < kMaxFallbacks) out.push_back(clean(each.get<std::string>()));
  return out;
}

// One that a shell takes as it stands.
std::string quoted(const std::string& text) {
  const auto plain = [](unsigned char c) { return c < 0x80 && (std::isalnum(c) || std::strchr("-_./:,=", c)); };
  if (!text.empty() && std::all_of(text.begin(), text.end(), plain)) return text;
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

// The command that measures a cell once more.
std::string again(const Verdict& v) {
  std::string out =
      fmt::format("keirin matrix {} {}--cases {} --variants {}", v.purpose.empty() ? "run" : quoted(v.purpose),
                  v.purpose == "compare" ? "--base BASE " : "", quoted(v.item), quoted(v.variant));
  if (is_start(v.item)) out += " --cold";
  if (v.device != "cpu" && !v.device.empty()) out += " --device " + quoted(v.device);
  if (!v.imagined.empty()) out += " --imagine " + quoted(v.imagined);
  if (v.threads > 0) out += fmt::format(" --threads {}", v.threads);
  if (is_peer(v.variant)) out += " --peers bench/peers/worker";
  return clean(out);
}

json cell_json(const Store& store, const Verdict& v) {
  json reasons = json::array(), shifts = json::array();
  for (const std::string& reason : v.reasons) reasons.push_back(clean(reason));
  for (const BlockShift& block : v.blocks)
    shifts.push_back({block.launch, std::round(block.d * 1e6) / 1e6, block.fresh ? 1 : 0});
  return {{"case", clean(v.item)},
          {"variant", clean(v.variant)},
          {"against", clean(v.against)},
          {"candidate", clean(v.candidate)},
          {"base_ms", v.base_ns / 1e6},
          {"head_ms", v.head_ns / 1e6},
          {"ratio", v.measured() ? json(std::exp(v.shift.estimate)) : json()},
          {"ratio_ci", v.measured() ? json{std::exp(v.shift.low), std::exp(v.shift.high)} : json()},
          {"gate", v.gate ? json(*v.gate) : json()},
          {"blocks", v.shift.blocks},
          {"shifts", shifts},
          {"dropped", v.dropped},
          {"p", v.p},
          {"label", v.label},
          {"size", size_of_shift(v.shift.estimate)},
          {"confirmed", !v.confirm.empty()},
          {"gated", v.gated()},
          {"by_counts", v.by_counts()},
          {"failed", v.head_failed},
          {"run", v.head_run},
          {"base_times", times_of(store, v.base_run)},
          {"head_times", times_of(store, v.head_run)},
          {"base_counts", counts_of(store, v.base_run)},
          {"head_counts", counts_of(store, v.head_run)},
          {"base_slots_ns", v.base_slots_ns},
          {"head_slots_ns", v.head_slots_ns},
          {"fallbacks", fallbacks_of(store, v.head_run)},
          {"again", again(v)},
          {"reasons", reasons}};
}

// Of a run's answers, before the referee.
json errors_of(const Store& store, const std::string& id) {
  json out = json::object();
  const Record* run = store.find(id);
  if (run && run->fields.contains("errors") && run->fields["errors"].is_object())
    for (const char* of : {"answer", "eager"})
      if (const auto at = run->fields["errors"].find(of); at != run->fields["errors"].end() && at->is_number())
        out[of] = *at;
  return out;
}

using Cells = std::map<std::pair<std::string, std::string>, const Verdict*>;

// The fastest of the peers whose answers were right in this case; null where none was.
const Verdict* best_peer(const Cells& cells, const std::string& item) {
  const Verdict* best = nullptr;
  for (auto at = cells.lower_bound({item, ""}); at != cells.end() && at->first.first == item; ++at) {
    const Verdict& v = *at->second;
    if (is_peer(v.variant) && v.measured() && v.label != "invalid" && (!best || v.shift.estimate < best->shift.estimate)) best = &v;
  }
  return best;
}

// Whether what `auto` was timed against is the better of eager and replay: replay was timed, too, or could not be made. On a GPU that is
// eager's recording; some builds timed the graph without one there, which says nothing of the baseline.
bool baseline_was_tried(const Verdict* replay) {
  if (!replay || (replay->label == "not_run" && replay->head_run.empty())) return false;
  const bool on_gpu = replay->device.starts_with("cuda") || replay->device.starts_with("rocm");
  return !on_gpu || replay->candidate != "replay";
}

// A `run` as people know tables of compilers: a row a case, what answers beside eager, the better of eager and replay, and the best peer.
// Only cases whose `auto` was measured; over eager through replay's own cell where replay was the baseline, over a peer
// (whose cells are against eager) through eager.
json snapshot_of(const Store& store, const Cells& cells) {
  json rows = json::array();
  for (const auto& [key, v] : cells) {
    if (v->purpose != "run" || v->variant != "auto" || !v->measured() || v->label == "invalid") continue;
    const auto at = cells.find({v->item, "replay"});
    const Verdict* const replay = at != cells.end() && at->second->measured() ? at->second : nullptr;
    const bool against_replay = v->against == "replay";
    if (against_replay && !replay) continue;
    const json times = times_of(store, v->head_run);
    const double over_eager = std::exp(-v->shift.estimate - (against_replay ? replay->shift.estimate : 0));
    rows.push_back({{"case", clean(v->item)},
                    {"eager_ms", (against_replay ? replay : v)->base_ns / 1e6},
                    {"replay_ms", replay ? json(replay->head_ns / 1e6) : json()},
                    {"ms", v->head_ns / 1e6},
                    {"over_eager", over_eager},
                    {"answers", clean(v->candidate)},
                    {"cold_ms", times.contains("cold_ms") ? times["cold_ms"] : json()},
                    {"errors", errors_of(store, v->head_run)},
                    {"label", v->label}});
    if (baseline_was_tried(at != cells.end() ? at->second : nullptr))
      rows.back().update({{"over_baseline", std::exp(-v->shift.estimate)},
                          {"over_baseline_ci", {std::exp(-v->shift.high), std::exp(-v->shift.low)}}});
    if (const Verdict* const peer = best_peer(cells, v->item))
      rows.back().update({{"best_peer", clean(peer->variant.substr(peer->variant.find(':') + 1))},
                          {"best_peer_ms", peer->head_ns / 1e6},
                          {"over_best_peer", std::exp(peer->shift.estimate) * over_eager}});
  }
  return rows;
}

json parts_of(const Store& store, const std::string& stack) {
  const Record* record = store.find(stack);
  json out = json::object();
  if (record && record->fields.contains("parts") && record->fields["parts"].is_object())
    for (const auto& [name, value] : record->fields["parts"].items())
      if (value.is_string()) out[clean(name)] = clean(value.get<std::string>());
  return out;
}

json changed_parts(const json& base, const json& head) {
  json out = json::array();
  json all = base;
  all.update(head);
  for (const auto& [name, unused] : all.items()) {
    const std::string from = base.value(name, "none"), to = head.value(name, "none");
    if (from != to) out.push_back(name + " " + from + " -> " + to);
  }
  return out;
}

// Sittings that ask the same: shards of one, or one repeated.
struct Group {
  const Record* last = nullptr;
  std::set<std::string> names;
};

// The newest group first.
std::vector<Group> groups_of(const Store& store) {
  std::vector<const Record*> sittings;
  for (const auto& [id, record] : store.records())
    if (record.is("sitting")) sittings.push_back(&record);
  std::sort(sittings.begin(), sittings.end(), [](const Record* a, const Record* b) {
    return std::pair(a->number("time"), a->id) > std::pair(b->number("time"), b->id);
  });
  std::vector<Group> groups;
  std::map<std::tuple<std::string, std::string, std::string, std::string, int>, size_t> known;
  for (const Record* s : sittings) {
    const std::tuple key(s->text("purpose"), s->text("class"), s->text("base"), s->text("head"), s->whole("threads"));
    const auto [at, added] = known.emplace(key, groups.size());
    if (added) groups.push_back({s, {}});
    groups[at->second].names.insert(s->text("sitting"));
  }
  return groups;
}

Status no_sitting(const std::string& sitting, const std::string& machine_class) {
  if (!sitting.empty() || !machine_class.empty())
    return Status(Code::k_invalid_input,
                  {"the store holds no sitting " + (sitting.empty() ? "of the class \"" + machine_class : "\"" + sitting) + "\"",
                   {},
                   "nothing was reported",
                   {}});
  return Status(
      Code::k_invalid_input,
      {"the store holds no sitting", {}, "nothing was reported", "keirin matrix run, compare or selfcheck writes one"});
}

bool is_changed(const std::string& label) { return label == "regressed" || label == "improved"; }

// What one host called changed, after another was asked: a host that is slow for reasons of its own is slow in all its
// blocks, so that only a second one tells.
Verdict after_second_host(const Verdict& first, const Verdict& second) {
  Verdict v = first;
  if (!second.measured()) return v;
  const std::string seen = fmt::format("{:.3f} [{:.3f}, {:.3f}] on a second host", std::exp(second.shift.estimate),
                                       std::exp(second.shift.low), std::exp(second.shift.high));
  if (second.label == v.label) {
    v.reasons.push_back("confirmed: " + seen);
  } else {
    v.reasons.push_back(fmt::format("{} here, but {}: {}", v.label, second.label, seen));
    v.label = label_name(Label::kInconclusive);
  }
  return v;
}

// Each cell of a group as it was measured last. `verdicts` by time.
json report_of(const Store& store, const std::vector<Verdict>& verdicts, const Group& group) {
  const Record& last = *group.last;
  Cells cells;
  std::deque<Verdict> confirmed;
  for (const Verdict& v : verdicts) {
    if (!group.names.count(v.sitting)) continue;
    const std::pair cell(v.item, v.variant);
    const auto before = cells.find(cell);
    if (v.label == "not_run" && before != cells.end()) continue;
    const bool second = v.confirms && before != cells.end() && before->second->machine != v.machine;
    if (second && is_changed(before->second->label))
      cells[cell] = &confirmed.emplace_back(after_second_host(*before->second, v));
    else if (!second)
      cells[cell] = &v;
  }
  const json base = parts_of(store, last.text("base")), head = parts_of(store, last.text("head"));
  json names = json::array();
  for (const std::string& name : group.names) names.push_back(clean(name));
  json report = {{"schema", "keirin/matrix/1"},
                 {"purpose", clean(last.text("purpose"))},
                 {"class", clean(last.text("class"))},
                 {"fitness", clean(last.text("fitness"))},
                 {"threads", last.whole("threads")},
                 {"time", last.number("time")},
                 {"sittings", names},
                 {"base", base},
                 {"head", head},
                 {"changed", changed_parts(base, head)},
                 {"warnings", clean(last.text("warnings"))},
                 {"cells", json::array()},
                 {"totals", json::object()},
                 {"skipped", json::array()}};
  const bool emulated = last.text("class").ends_with("-emulated");  // where times say nothing of any machine
  if (json snapshot = snapshot_of(store, cells); !snapshot.empty() && !emulated) report["snapshot"] = std::move(snapshot);
  std::vector<json> rows;
  for (const auto& [name, v] : cells) rows.push_back(cell_json(store, *v));
  std::stable_sort(rows.begin(), rows.end(), [](const json& a, const json& b) { return rank_of(a) < rank_of(b); });
  for (json& row : rows) {
    json& total = report["totals"][row["label"].get<std::string>()];
    total = total.is_null() ? 1 : total.get<int>() + 1;
    report["cells"].push_back(std::move(row));
  }
  for (const StoreProblem& problem : store.problems())
    report["skipped"].push_back(clean(fmt::format("{}:{}: {}", problem.file, problem.line, problem.what)));
  report["exit"] = exit_code(report);
  return report;
}

std::vector<Verdict> verdicts_by_time(const Store& store) {
  std::vector<Verdict> verdicts = judge(store);
  std::stable_sort(verdicts.begin(), verdicts.end(), [](const Verdict& a, const Verdict& b) {
    return std::tie(a.time, a.sitting) < std::tie(b.time, b.sitting);
  });
  return verdicts;
}

// Those that a report is about: the named sitting alone, or every group (of that class).
Result<std::vector<Group>> chosen_groups(const Store& store, const std::string& sitting, const std::string& machine_class) {
  std::vector<Group> groups = groups_of(store);
  if (!machine_class.empty())
    std::erase_if(groups, [&](const Group& group) { return group.last->text("class") != machine_class; });
  if (!sitting.empty()) {
    groups.clear();
    for (const auto& [id, record] : store.records())
      if (groups.empty() && record.is("sitting") && record.text("sitting") == sitting)
        groups.push_back({&record, {sitting}});
  }
  if (groups.empty()) return no_sitting(sitting, machine_class);
  return groups;
}

}  // namespace

std::string clean(const std::string& text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = [&](size_t at) { return at < text.size() ? static_cast<unsigned char>(text[at]) : 0u; };
    const unsigned c = byte(i), next = byte(i + 1), last = byte(i + 2);
    const bool control = c < 0x20 || c == 0x7f;
    const bool control_of_two = (c == 0xc2 && next >= 0x80 && next < 0xa0) || (c == 0xd8 && next == 0x9c);
    const bool turns_text =
        (c == 0xe2 && next == 0x80 && ((last >= 0xaa && last <= 0xae) || last == 0x8e || last == 0x8f)) ||
        (c == 0xe2 && next == 0x81 && last >= 0xa6 && last <= 0xa9);
    const bool no_character = c == 0xef && next == 0xbf && last >= 0xbe;  // U+FFFE, U+FFFF: XML has none
    i += control_of_two ? 1 : turns_text || no_character ? 2 : 0;
    out += control || control_of_two || turns_text || no_character ? '?' : static_cast<char>(c);
  }
  return out;
}

int rank_of(const json& cell) {
  if (cell["failed"].get<bool>()) return -1;
  const auto at = std::find(kLabels.begin(), kLabels.end(), cell["label"].get<std::string>());
  return static_cast<int>(at - kLabels.begin());
}

Result<json> report_json(const Store& store, const std::string& sitting, const std::string& machine_class) {
  KRN_TRY_LET(const std::vector<Group> groups, chosen_groups(store, sitting, machine_class));
  return report_of(store, verdicts_by_time(store), groups[0]);
}

Result<std::set<std::pair<std::string, std::string>>> changed_cells(const json& report) {
  std::set<std::pair<std::string, std::string>> out;
  const auto cells = report.is_object() ? report.find("cells") : report.end();
  if (cells == report.end() || !cells->is_array() || report.value("schema", json()) != "keirin/matrix/1")
    return Status(Code::k_corrupt, "this is not a report of the matrix as JSON");
  for (const json& cell : *cells) {
    const auto text = [&](const char* field) {
      const json value = cell.is_object() ? cell.value(field, json()) : json();
      return value.is_string() ? value.get<std::string>() : std::string();
    };
    if (is_changed(text("label"))) out.emplace(text("case"), text("variant"));
  }
  return out;
}

Result<json> page_json(const Store& store, const std::string& sitting, const std::string& machine_class) {
  KRN_TRY_LET(const std::vector<Group> groups, chosen_groups(store, sitting, machine_class));
  const std::vector<Verdict> verdicts = verdicts_by_time(store);
  json page = {{"schema", "keirin/matrix-page/1"},
               {"reports", json::array()},
               {"history", history_json(store, verdicts, "", "")}};
  std::set<std::pair<std::string, std::string>> shown;
  for (const Group& group : groups) {
    if (!shown.emplace(group.last->text("purpose"), group.last->text("class")).second) continue;
    json report = report_of(store, verdicts, group);
    for (json& cell : report["cells"])
      for (const char* field : {"base_slots_ns", "head_slots_ns", "p", "run"})
        cell.erase(field);  // of which the page shows none
    page["reports"].push_back(std::move(report));
  }
  return page;
}

int exit_code(const json& report) {
  bool undecided = false, asked = false, answered = false;
  for (const json& cell : report["cells"]) {
    if (is_peer(cell["variant"].get<std::string>())) continue;
    if (cell["failed"].get<bool>()) return kFailed;
    const bool gated = cell["gated"].get<bool>();
    const json& label = cell["label"];
    if (gated && label == "regressed") return kFailed;
    undecided |= label == "invalid" || (gated && label == "inconclusive");
    // Of a plugin that is not here there is a record which says so; of what a budget or a kill cut off there is none.
    undecided |= gated && label == "not_run" && cell["run"] == "";
    asked |= gated;
    answered |= gated && label != "not_run";
  }
  return undecided || (asked && !answered) ? kUndecided : kOk;
}

}  // namespace keirin::tools::matrix
