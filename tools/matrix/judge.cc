// SPDX-License-Identifier: Apache-2.0
#include "tools/matrix/judge.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <tuple>

namespace keirin::tools::matrix {
namespace {

// The samples of one run, by (launch, block).
struct Samples {
  std::map<std::pair<int, int>, std::map<int, double>> medians;  // by slot
  std::set<std::pair<int, int>> dropped;
};

// Values are from anywhere: what is no positive number does not count. 0 for none.
double slot_value(const Record& sample) {
  const auto values = sample.fields.find("values");
  std::vector<double> ns;
  if (values != sample.fields.end() && values->is_array())
    for (const nlohmann::json& value : *values)
      if (value.is_number() && value.get<double>() > 0) ns.push_back(value.get<double>());
  return median(ns);
}

bool is_known(const std::string& measure) {
  return measure == kCallTimes.sample || std::any_of(std::begin(kStartTimes), std::end(kStartTimes),
                                                     [&](const Measure& each) { return measure == each.sample; });
}

std::map<std::string, Samples> samples_by_run(const Store& store) {
  std::map<std::string, Samples> out;
  for (const auto& [id, record] : store.records()) {
    if (!record.is("sample") || !is_known(record.text("measure"))) continue;
    const std::pair block{record.whole("launch"), record.whole("block")};
    Samples& samples = out[record.text("run")];
    if (!record.flag("kept", true))
      samples.dropped.insert(block);
    else if (const double value = slot_value(record); value > 0)
      samples.medians[block][record.whole("slot")] = value;
  }
  return out;
}

struct Blocks {
  std::vector<double> d;
  std::vector<int> launches;  // parallel
  std::vector<double> base_ns, head_ns;
  int dropped = 0;
};

// Of so many slots a side.
Blocks blocks_of(const Samples& base, const Samples& head, size_t slots) {
  Blocks out;
  out.dropped = static_cast<int>(std::max(base.dropped.size(), head.dropped.size()));
  for (const auto& [block, a] : base.medians) {
    const auto b = head.medians.find(block);
    if (b == head.medians.end() || a.size() != slots || b->second.size() != slots) continue;  // a torn one
    if (out.d.size() == kMaxBlocks) break;
    double d = 0;
    const auto n = static_cast<double>(slots);
    for (const auto& [slot, ns] : a) d -= std::log(ns) / n, out.base_ns.push_back(ns);
    for (const auto& [slot, ns] : b->second) d += std::log(ns) / n, out.head_ns.push_back(ns);
    out.d.push_back(d), out.launches.push_back(block.first);
  }
  return out;
}

void take_over(const Blocks& from, bool fresh, Verdict* v) {
  for (size_t i = 0; i < from.d.size(); ++i) v->blocks.push_back({from.launches[i], from.d[i], fresh});
  v->base_slots_ns = from.base_ns, v->head_slots_ns = from.head_ns;
  v->base_ns = median(from.base_ns), v->head_ns = median(from.head_ns);
}

// What all cells of a sitting share.
Verdict verdict_in(const Record& sitting) {
  Verdict v;
  v.sitting = sitting.text("sitting"), v.purpose = sitting.text("purpose"), v.time = sitting.number("time");
  v.threads = sitting.whole("threads"), v.machine = sitting.text("machine");
  v.machine_class = sitting.text("class"), v.fitness = sitting.text("fitness");
  v.confirms = sitting.flag("confirms", false);
  v.device = sitting.text("device"), v.imagined = sitting.text("imagined");
  return v;
}

// Why a person declared a record void, by its id.
std::map<std::string, std::string> voided(const Store& store) {
  std::map<std::string, std::string> out;
  for (const auto& [id, record] : store.records())
    if (record.is("mark") && record.text("mark") == "void") out.emplace(record.text("of"), record.text("why"));
  return out;
}

// Whether what lies beyond the gate has to be shown twice: where it fails a sitting or makes a new level to be held.
// The other rows of a `run` inform, and so does auto where it is faster, as it should be.
bool has_to_be_sure(const Verdict& v) { return v.purpose != "run" || (v.variant == "auto" && v.shift.estimate > 0); }

// What is said of a cell before its fresh blocks are looked at.
struct Cell {
  Verdict verdict;
  std::vector<double> fresh;  // of the second stage
};

// A count of two builds, run by the same candidate, that decides where times do not.
struct CountRule {
  const char* name;
  double tolerance;  // part of base's
};
// Fewer are better, all of them.
constexpr CountRule kCountRules[] = {
    {"steps", 0},    {"nodes_eager", 0},       {"nodes_opaque", 0},       {"segments", 0},        {"graphs", 0},
    {"breaks", 0},   {"kernels_generated", 0}, {"launches", 0},           {"allocations", 0},     {"spilled", 0},
    {"kernels", 0},
    {"peak_bytes", 0.01}, {"allocated_bytes", 0.01}, {"instructions", 0.005},
};

std::optional<double> count_of(const Record& run, const char* name) {
  const auto counts = run.fields.find("counts");
  if (counts == run.fields.end() || !counts->is_object()) return {};
  const auto at = counts->find(name);
  if (at == counts->end() || !at->is_number() || !(at->get<double>() >= 0)) return {};
  return at->get<double>();
}

void conclude_by_counts(Verdict* v, const Record& base, const Record& head) {
  v->label = label_name(Label::kInconclusive);
  if (base.text("candidate") != head.text("candidate")) {
    v->reasons.push_back(fmt::format("{} answers where {} did, so that counts say nothing", head.text("candidate"),
                                     base.text("candidate")));
    return;
  }
  int counted = 0, more = 0, fewer = 0;
  for (const CountRule& rule : kCountRules) {
    const std::optional<double> from = count_of(base, rule.name), to = count_of(head, rule.name);
    if (!from || !to) continue;
    ++counted;
    if (std::abs(*to - *from) <= rule.tolerance * *from) continue;
    ++(*to > *from ? more : fewer);
    v->reasons.push_back(fmt::format("{} {:.0f} -> {:.0f}", rule.name, *from, *to));
  }
  if (v->compiled_only()) v->reasons.push_back("compiled for " + v->imagined + " and not run");
  if (counted == 0)
    v->reasons.push_back("nothing that decides was counted on both sides");
  else
    v->label = label_name(more > 0 ? Label::kRegressed : fewer > 0 ? Label::kImproved : Label::kUnchanged);
}

// `base`: of the run beside it, if there is one.
void conclude(Cell* cell, const Record& run, const Record* base, const Blocks& blocks) {
  Verdict& v = cell->verdict;
  v.shift = paired_shift(blocks.d);
  v.dropped = blocks.dropped;
  take_over(blocks, false, &v);
  const std::string status = run.text("status");
  if (const auto reasons = run.fields.find("reasons"); reasons != run.fields.end() && reasons->is_array())
    for (const auto& reason : *reasons)
      if (reason.is_string()) v.reasons.push_back(reason.get<std::string>());
  if (status == "not_run") {
    v.label = "not_run";
  } else if (v.by_counts() && base && (status == "ok" || status == "contended")) {
    conclude_by_counts(&v, *base, run);
  } else if (status != "ok") {
    v.label = label_name(Label::kInvalid);
    v.head_failed = run.text("at_fault") == "head" && !is_peer(v.variant) &&
                    (status == "wrong_result" || status == "crashed" || status == "timeout" || status == "lost" ||
                     (status == "failed" && v.compiled_only()));
  } else if (v.compiled_only()) {
    v.label = "not_run";  // nothing ran, so there is no answer
    const auto count = [&](const char* name) { return count_of(run, name).value_or(0); };
    const std::string spilled = count_of(run, "spilled") ? fmt::format("{:.0f}", count("spilled")) : "an unknown number of";
    v.reasons.push_back(fmt::format(
        "compiled for {} and not run: {:.0f} kernels, {} registers spilled, {:.0f} of {:.0f} nodes left to eager", v.imagined,
        count("kernels"), spilled, count("nodes_eager"), count("nodes")));
  } else if (!v.gate) {
    v.label = label_name(Label::kInconclusive);
    v.reasons.push_back("no gate: nothing is known of the noise here");
  } else {
    v.flagged = has_to_be_sure(v) && is_flagged(blocks.d, *v.gate);
    v.label = label_name(v.flagged ? Label::kInconclusive : label_of(v.shift, *v.gate));
    std::vector<double> d = blocks.d;
    if (v.shift.estimate < 0)
      for (double& x : d) x = -x;
    v.p = signed_rank_p(d, std::log1p(*v.gate));
  }
}

}  // namespace

bool Verdict::gated() const {
  if (by_counts()) return true;
  if (gate && *gate > measure_of(item).protocol.largest_gate) return false;
  // Calls may vary by more than 5 % on a machine whose starts do not vary by more than their gate.
  if (is_start(item)) return purpose == "compare";
  return fitness == "timing" && (purpose == "compare" || (purpose == "run" && variant == "auto"));
}

std::vector<Verdict> judge(const Store& store) {
  const std::map<std::string, Samples> samples = samples_by_run(store);
  const auto of = [&](const std::string& run) {
    const auto at = samples.find(run);
    return at == samples.end() ? Samples() : at->second;
  };
  const std::map<std::string, std::string> void_records = voided(store);
  std::map<std::string, const Record*> sittings;            // by their own name
  std::map<std::string, std::vector<const Record*>> again;  // runs of the second stage, by the run that they confirm
  std::map<std::string, std::map<std::pair<std::string, std::string>, Cell>>
      cells;  // by sitting, then case and variant
  for (const auto& [id, record] : store.records()) {
    if (record.is("sitting")) sittings.emplace(record.text("sitting"), &record);
    if (record.is("run") && record.text("stage") == "confirm") again[record.text("confirms")].push_back(&record);
  }
  for (const auto& [name, sitting] : sittings) {
    const auto planned = sitting->fields.find("cells");
    if (planned == sitting->fields.end() || !planned->is_array()) continue;
    for (const nlohmann::json& pair : *planned) {
      if (!pair.is_array() || pair.size() != 2 || !pair[0].is_string() || !pair[1].is_string()) continue;
      Verdict& v = cells[name][{pair[0], pair[1]}].verdict = verdict_in(*sitting);
      v.item = pair[0], v.variant = pair[1], v.label = "not_run";
      v.reasons = {"no record: the sitting ended before"};
    }
  }
  for (const auto& [id, run] : store.records()) {
    if (!run.is("run") || run.text("side") != "head" || run.text("stage") != "screen") continue;
    Cell& cell = cells[run.text("sitting")][{run.text("case"), run.text("variant")}];
    const auto named = sittings.find(run.text("sitting"));
    cell = {};
    Verdict& v = cell.verdict = named == sittings.end() ? Verdict() : verdict_in(*named->second);
    v.sitting = run.text("sitting"), v.item = run.text("case"), v.variant = run.text("variant");
    v.candidate = run.text("candidate");
    v.head_run = id, v.base_run = run.text("base");
    const Record* const base = store.find(v.base_run);
    if (base) v.against = base->text("variant");
    if (const double gate = run.number("gate"); gate > 0) v.gate = gate;
    const Measure& measure = measure_of(v.item);
    conclude(&cell, run, base, blocks_of(of(v.base_run), of(id), measure.slots));
    bool is_void = false;
    for (const std::string& each : {id, v.base_run, named == sittings.end() ? std::string() : named->second->id}) {
      const auto at = void_records.find(each);
      if (at == void_records.end()) continue;
      is_void = true;
      v.label = label_name(Label::kInvalid), v.flagged = false, v.head_failed = false;
      v.reasons.push_back("declared void: " + at->second);
    }
    for (const Record* more : again[id]) {
      if (is_void || void_records.count(more->id)) continue;
      const Blocks fresh = blocks_of(of(more->text("base")), of(more->id), measure.slots);
      if (more->text("at_fault") == "head" &&
          (more->text("status") == "crashed" || more->text("status") == "timeout")) {
        v.label = label_name(Label::kInvalid);
        v.flagged = false;
        v.head_failed = true;
        v.reasons.push_back("head " + more->text("status") + " when it was measured once more");
      }
      if (more->text("status") != "ok" || std::ssize(fresh.d) < measure.protocol.confirm || !cell.fresh.empty()) continue;
      cell.fresh = fresh.d;
      v.confirm = more->id;
      v.dropped += fresh.dropped;
      take_over(fresh, true, &v);
    }
  }
  std::vector<Verdict> out;
  for (auto& [name, of_sitting] : cells) {
    std::vector<Cell*> confirmed;
    std::vector<std::vector<double>> fresh;
    std::vector<double> gates;
    for (auto& [key, cell] : of_sitting) {
      if (!cell.verdict.flagged) continue;
      if (cell.fresh.empty()) {
        cell.verdict.reasons.push_back("beyond the gate, and not measured once more");
        continue;
      }
      confirmed.push_back(&cell), fresh.push_back(cell.fresh), gates.push_back(*cell.verdict.gate);
    }
    const std::vector<Label> labels = confirmed_labels(fresh, gates);
    for (size_t i = 0; i < confirmed.size(); ++i) {
      Verdict& v = confirmed[i]->verdict;
      v.label = label_name(labels[i]);
      v.shift = paired_shift(fresh[i]);
      if (labels[i] == Label::kInconclusive && label_of(v.shift, gates[i]) != labels[i])
        v.reasons.push_back("beyond the gate, but among the cells measured twice it may be chance");
      if (v.shift.estimate < 0)
        for (double& x : fresh[i]) x = -x;
      v.p = signed_rank_p(fresh[i], std::log1p(gates[i]));
    }
    for (auto& [key, cell] : of_sitting) out.push_back(std::move(cell.verdict));
  }
  return out;
}

Record record_of(const Verdict& v) {
  return make_record("verdict", {{"sitting", v.sitting},
                                 {"case", v.item},
                                 {"variant", v.variant},
                                 {"against", v.against},
                                 {"base", v.base_run},
                                 {"head", v.head_run},
                                 {"confirm", v.confirm},
                                 {"method", v.by_counts() ? "counts/1" : "signed_rank/1"},
                                 {"shift", v.shift.estimate},
                                 {"low", v.shift.low},
                                 {"high", v.shift.high},
                                 {"blocks", v.shift.blocks},
                                 {"dropped", v.dropped},
                                 {"p", v.p},
                                 {"label", v.label},
                                 {"size", size_of_shift(v.shift.estimate)},
                                 {"gate", v.gate ? nlohmann::json(*v.gate) : nlohmann::json()},
                                 {"reasons", v.reasons}});
}

std::optional<double> gate_from(const std::vector<Verdict>& verdicts, const std::string& machine, int threads,
                                const std::string& item, const std::string& variant) {
  const Measure& measure = measure_of(item);
  std::vector<const Verdict*> checks;
  for (const Verdict& v : verdicts)
    if (&measure_of(v.item) == &measure && v.purpose == "selfcheck" && v.machine == machine && v.threads == threads && v.measured() &&
        v.label != label_name(Label::kInvalid))
      checks.push_back(&v);
  std::stable_sort(checks.begin(), checks.end(), [](const Verdict* a, const Verdict* b) {
    return std::tie(a->time, a->sitting) < std::tie(b->time, b->sitting);
  });
  std::vector<double> own, device;
  for (const Verdict* v : checks) {
    device.push_back(v->shift.estimate);
    if (v->item == item && v->variant == variant) own.push_back(v->shift.estimate);
  }
  return gate_of(own, device, measure.protocol);
}

}  // namespace keirin::tools::matrix
