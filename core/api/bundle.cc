// SPDX-License-Identifier: Apache-2.0
#include "core/api/bundle.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <sstream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/api/kept_decision.h"
#include "core/api/session_impl.h"
#include "core/cache/bad_records.h"
#include "core/cache/cache.h"
#include "core/capture/pt2/add_records.h"
#include "core/host/plugins.h"

namespace keirin {
namespace {

using nlohmann::json;

constexpr const char* kSchema = "keirin/bundle/1";
constexpr const char* kList = "keirin_bundle.json";
constexpr const char* kEntries = "keirin_bundle/";  // and their numbers, from 0 on
constexpr const char* kRecords = "keirin_bundle";   // what both begin with
constexpr int kAttempts = 5;                        // where others had the machine

// The lines of a key's text by name.
std::map<std::string, std::string> fields_of(const std::string& key_text) {
  std::map<std::string, std::string> out;
  std::istringstream lines(key_text);
  for (std::string line; std::getline(lines, line);)
    if (const size_t at = line.find('='); at != std::string::npos) out[line.substr(0, at)] = line.substr(at + 1);
  return out;
}

// What of two keys is not the same, for people; empty if nothing is that a person could change.
std::string difference(const std::string& theirs, const std::string& ours) {
  const auto there = fields_of(theirs), here = fields_of(ours);
  const auto value = [](const auto& fields, const std::string& name) {
    const auto at = fields.find(name);
    return at == fields.end() ? std::string("nothing") : "\"" + at->second + "\"";
  };
  std::set<std::string> names;
  for (const auto& [name, unused] : there) names.insert(name);
  for (const auto& [name, unused] : here) names.insert(name);
  names.erase("graph");
  for (const std::string& name : names)
    if (value(there, name) != value(here, name)) {
      const std::string called = name.rfind("fingerprint ", 0) == 0 ? name.substr(name.find(' ') + 1) : name;
      return called + " is " + value(here, name) + " here and was " + value(there, name) + " where it was made";
    }
  return {};
}

bool is_word(const std::string& text) { return !text.empty() && text.size() < 4096; }

}  // namespace

std::string sizes_text(const std::vector<int64_t>& sizes) {
  std::string text;
  for (const int64_t size : sizes) text += (text.empty() ? "" : ",") + std::to_string(size);
  return text.empty() ? "the sizes of the export" : text;
}

std::string speedup_text(const BundledKind& kind) {
  return kind.chosen == "eager" ? std::string() : fmt::format("{:.2f}x", kind.speedup);
}

std::string bundle_text(const BundleList& list) {
  json kinds = json::array();
  for (const BundledKind& kind : list.kinds)
    kinds.push_back({{"device", kind.device},
                     {"sizes", kind.sizes},
                     {"chosen", kind.chosen},
                     {"speedup", kind.speedup},
                     {"known", kind.known}});
  return json{{"schema", kSchema}, {"made_by", list.made_by}, {"kinds", kinds}, {"entries", list.num_entries}}.dump(1) + "\n";
}

Result<std::optional<BundleList>> bundle_of(const pt2::Pt2File& file) {
  const auto found = file.extra.find(kList);
  if (found == file.extra.end()) return std::optional<BundleList>();
  const auto refuse = [&](Code code, const std::string& what) {
    return Status(code, {what, file.path + ", record extra/" + kList, "nothing was loaded", "build the bundle again from its .pt2 file"});
  };
  const json j = json::parse(found->second, nullptr, false);
  try {
    if (!j.is_object()) return refuse(Code::k_corrupt, "the bundle's list is no JSON");
    if (j.at("schema") != kSchema) return refuse(Code::k_version, "this version of Keirin does not know the bundle's form");
    BundleList list;
    list.made_by = j.at("made_by");
    list.num_entries = j.at("entries");
    for (const json& k : j.at("kinds")) {
      BundledKind kind{k.at("device"), k.at("sizes").get<std::vector<int64_t>>(), k.at("chosen"), k.at("speedup"), k.at("known")};
      if (!is_word(kind.device) || !is_word(kind.chosen) || kind.known.size() != 64)
        return refuse(Code::k_corrupt, "a kind of the bundle's list is none");
      list.kinds.push_back(std::move(kind));
    }
    for (size_t i = 0; i < list.num_entries; ++i)
      if (!file.extra.contains(kEntries + std::to_string(i)))
        return refuse(Code::k_corrupt, "entry " + std::to_string(i) + " of the bundle is missing");
    return std::optional(std::move(list));
  } catch (const json::exception& error) {
    return refuse(Code::k_corrupt, std::string("the bundle's list has another shape: ") + error.what());
  }
}

namespace {

// Hands all entries to the cache, or none; why none, or nothing. `keys`: the texts of those of kind known, by hex.
std::string adopt(Session::Impl& session, const BundleList& list, std::map<std::string, std::string>& keys) {
  Cache& cache = *session.runtime.cache();
  std::vector<Cache::ForeignEntry> entries;
  for (size_t i = 0; i < list.num_entries; ++i) {
    Result<Cache::ForeignEntry> entry = cache.check_foreign(session.file.extra.find(kEntries + std::to_string(i))->second);
    if (!entry.ok()) return "an entry cannot be used: " + entry.status().message().what;
    if (!entry->own && session.options.trust != Trust::kNative)
      return "its code was made by another user, or for another cache: give the option trust native if you know who made it";
    entries.push_back(std::move(*entry));
  }
  for (Cache::ForeignEntry& entry : entries) {
    if (entry.kind == EntryKind::kKnown) keys[entry.key] = entry.key_text;
    if (entry.kind == EntryKind::kBad) {
      if (const auto record = parse_bad_record(entry.body)) session.runtime.quarantine().add(*record, false);
    } else {
      cache.adopt(std::move(entry));
    }
  }
  return {};
}

// The session's own key of such a call, as text.
std::string own_key(Session::Impl& session, const std::vector<TensorRef>& inputs) {
  const auto key = known_run_key(session, inputs);
  return key ? key->text() : std::string();
}

}  // namespace

Result<std::optional<OpenedBundle>> open_bundle(Session::Impl& session) {
  KRN_TRY_LET(std::optional<BundleList> list, bundle_of(session.file));
  if (!list) return std::optional<OpenedBundle>();
  OpenedBundle out{std::move(*list), 0, {}};
  std::map<std::string, std::string> keys;
  const Options& options = session.options;
  const bool asked = !options.measure_again && options.verify && options.force.empty() && options.only_candidate.empty() &&
                     options.imagine.empty();
  if (asked && !session.runtime.cache()) out.why_not = "the cache is switched off";
  else if (asked) out.why_not = adopt(session, out.list, keys);
  // The copies in the cache are enough.
  for (size_t i = 0; i < out.list.num_entries; ++i) session.file.extra.erase(kEntries + std::to_string(i));
  std::erase_if(out.list.kinds, [&](const BundledKind& kind) { return kind.device != device_name(session.device); });
  if (!asked || !out.why_not.empty()) return std::optional(std::move(out));
  if (out.list.kinds.empty()) out.why_not = "it was made for no kinds of calls on " + device_name(session.device);
  for (const BundledKind& kind : out.list.kinds) {
    const Result<std::vector<TensorRef>> inputs = session.draw(1, kind.sizes);
    const Result<ModelReport> report = inputs.ok() ? session.take_over(*inputs) : inputs.status();
    if (report.ok()) {
      ++out.taken;
      continue;
    }
    if (!out.why_not.empty()) continue;  // the first one is said
    const std::string why = inputs.ok() ? difference(keys[kind.known], own_key(session, *inputs)) : std::string();
    out.why_not = why.empty() ? report.status().message().what : why;
  }
  return std::optional(std::move(out));
}

namespace {

Status in_kind(Status status, const std::string& path, const std::string& device, const std::vector<int64_t>& sizes) {
  return std::move(status).at(path + " at " + sizes_text(sizes) + " on " + device).instead("no bundle was written");
}

// What others did to its race, or to that of a candidate alone: then nobody keeps it, whoever won. Empty: nothing.
std::string disturbance_of(const ModelReport& report) {
  if (!report.disturbed.empty()) return report.disturbed;
  for (const CandidateReport& candidate : report.candidates)
    if (candidate.reason == "disturbed") return candidate.note;
  return {};
}

Result<ModelReport> decide_undisturbed(Session& session, const std::vector<int64_t>& sizes) {
  KRN_TRY_LET(const std::vector<TensorRef> inputs, session.example_inputs(1, sizes));
  Result<ModelReport> report = session.compile(inputs);
  for (int i = 1; i < kAttempts && report.ok() && !disturbance_of(*report).empty(); ++i) report = session.compile(inputs);
  if (report.ok() && !report->segments.empty())
    return Status(Code::k_unsupported,
                  {"the model runs in segments, which a bundle does not hold", {}, {}, "serve the .pt2 file with --warm"});
  if (report.ok() && !disturbance_of(*report).empty())
    return Status(Code::k_exhausted, {"others had the machine, so that nothing could be decided: " + disturbance_of(*report),
                                      {}, {}, "build it on a quiet machine"});
  return report;
}

}  // namespace

Result<BuiltBundle> build_bundle(Runtime& runtime, const std::string& path, const std::vector<std::vector<int64_t>>& kinds,
                                 const std::vector<std::string>& devices, const Options& options, const std::string& to) {
  Cache* cache = runtime.cache();
  if (!cache || !cache->usable())
    return Status(Code::k_invalid_input, {"a bundle is made of a cache's entries, and there is no cache", path, "no bundle was written",
                                          "leave out --no-cache, or give --cache a folder that can be written"});
  BuiltBundle out;
  std::vector<EntryInfo> needed;
  for (const std::string& device : devices) {
    Options there = options;
    there.device = device;
    there.compile = When::kNow;
    const auto open = [&]() -> Result<std::unique_ptr<Session>> {
      KRN_TRY_LET(pt2::Pt2File file, pt2::read_pt2(path));
      file.extra.erase(kList);  // of a bundle, what it was made of is made again
      return Session::open(runtime, std::move(file), std::filesystem::path(path).stem().string(), {}, there);
    };
    KRN_TRY_LET(const auto session, open());
    for (const std::vector<int64_t>& sizes : kinds) {
      Result<ModelReport> report = decide_undisturbed(*session, sizes);
      if (!report.ok()) return in_kind(std::move(report).status(), path, device, sizes);
      out.list.kinds.push_back({device_name(session->device()), sizes, report->chosen, report->speedup, {}});
    }
    // What a process needs is what one reads: a rehearsal.
    KRN_TRY_LET(const auto reader, open());
    for (size_t i = 0; i < kinds.size(); ++i) {
      KRN_TRY_LET(const std::vector<TensorRef> inputs, reader->example_inputs(1, kinds[i]));
      cache->begin_noting();
      const Result<ModelReport> taken = reader->take_over(inputs);
      std::vector<EntryInfo> noted = cache->end_noting();
      if (!taken.ok()) return in_kind(taken.status(), path, device, kinds[i]);
      BundledKind& kind = out.list.kinds[out.list.kinds.size() - kinds.size() + i];
      for (const EntryInfo& entry : noted)
        if (entry.kind == EntryKind::kKnown) kind.known = entry.key;
      if (kind.known.empty()) return in_kind(Status(Code::k_internal, "what was decided was not read again"), path, device, kinds[i]);
      needed.insert(needed.end(), noted.begin(), noted.end());
    }
  }
  // What was found wrong has a part in what the plans hold.
  for (const EntryInfo& entry : cache->list())
    if (entry.kind == EntryKind::kBad) needed.push_back(entry);
  std::vector<std::pair<std::string, std::string>> records;
  std::set<std::string> seen;
  for (const EntryInfo& entry : needed) {
    if (!seen.insert(std::string(entry_kind_name(entry.kind)) + entry.key).second) continue;
    std::optional<std::string> file = cache->file_of(entry);
    if (!file) continue;  // of the quarantine: forgiven meanwhile
    out.entry_bytes += file->size();
    records.emplace_back(kEntries + std::to_string(records.size()), std::move(*file));
  }
  out.list.num_entries = records.size();
  out.list.made_by = "torch " KEIRIN_TORCH_VERSION;
  records.emplace_back(kList, bundle_text(out.list));
  KRN_TRY(pt2::add_records(path, to, kRecords, records));
  return out;
}

}  // namespace keirin
