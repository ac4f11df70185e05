// SPDX-License-Identifier: Apache-2.0
//
// keirin cache: ls, check, sweep and explain over the cache folder; bad and forgive over the quarantine in it.
#include "core/cache/bad_records.h"

#include <fmt/format.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>

#include "core/cache/ledger.h"
#include "tools/options.h"

namespace keirin::tools {
namespace {

struct Words {
  Options options;
  std::string prefix, plugin, json;
};

// Looking at a folder does not make it.
Status check_folder(const Words& words) {
  std::error_code error;
  if (words.options.cache_dir.empty() || std::filesystem::is_directory(words.options.cache_dir, error)) return {};
  return Status(
      Code::k_invalid_input,
      {"there is no cache in " + words.options.cache_dir, {}, "nothing was made", "name a folder that `run` or `bench` kept a cache in"});
}

// Of a decision: for which model, and what was chosen.
struct Decided {
  std::string model, choice;
};

Decided decided_in(Cache& cache, const EntryInfo& entry) {
  if (entry.kind != EntryKind::kLedger || !entry.problem.empty()) return {};
  const auto body = cache.body(entry);
  const auto record = body ? parse_ledger(*body) : Result<LedgerRecord>(Status(Code::k_corrupt, "unreadable"));
  if (!record.ok()) return {};
  const auto model = record->environment.find("model");
  return {model == record->environment.end() ? "a model" : model->second, record->choice};
}

Status print(Cache& cache, const std::vector<EntryInfo>& entries, const std::string& json) {
  nlohmann::json list = nlohmann::json::array();
  for (const EntryInfo& entry : entries) {
    const Decided decided = decided_in(cache, entry);
    fmt::print(text_out(json), "{:<9} {}  {:>10} bytes{}{}\n", entry_kind_name(entry.kind), entry.key.substr(0, 16), entry.bytes,
               decided.model.empty() ? "" : fmt::format("  {}: {}", decided.model, decided.choice),
               entry.problem.empty() ? "" : "  dropped: " + entry.problem);
    list.push_back({{"kind", entry_kind_name(entry.kind)}, {"key", entry.key}, {"bytes", entry.bytes}, {"model", decided.model},
                    {"choice", decided.choice}, {"problem", entry.problem}});
  }
  if (json.empty()) return {};
  return write_text(json, nlohmann::json{{"schema", "keirin/cache/1"}, {"folder", cache.dir()}, {"entries", list}}.dump(2) + "\n");
}

Status print(const std::vector<BadRecord>& records, const std::string& json) {
  nlohmann::json list = nlohmann::json::array();
  for (const BadRecord& r : records) {
    fmt::print(text_out(json), "{:<16} {:<12}  {}\n", r.plugin, r.region.empty() ? "(all)" : r.region.substr(0, 12), r.what);
    list.push_back({{"plugin", r.plugin}, {"region", r.region}, {"what", r.what}});
  }
  fmt::print(text_out(json), "{} in quarantine\n", records.size());
  return json.empty() ? Status() : write_text(json, nlohmann::json{{"schema", "keirin/quarantine/1"}, {"records", list}}.dump(2) + "\n");
}

}  // namespace

void add_cache(CLI::App& app, int& exit_code) {
  auto words = std::make_shared<Words>();
  CLI::App* word = app.add_subcommand("cache", "look at the cache of compiled code and decisions");
  add_options(*word, words->options, {"cache_dir"});
  word->require_subcommand(1);
  const auto add = [word, words, &exit_code](const char* name, const char* help, std::function<void(Cache&)> work) {
    CLI::App* child = word->add_subcommand(name, help);
    child->fallthrough();  // `--cache` may stand behind it, too
    child->callback([words, &exit_code, work] {
      if (const Status status = check_folder(*words); !status.ok()) {
        exit_code = fail(status);
        return;
      }
      CacheOptions options;
      options.dir = words->options.cache_dir;
      options.warn = [](std::string_view text) { fmt::print(stderr, "keirin: {}\n", text); };
      Cache cache(std::move(options));
      work(cache);
    });
    return child;
  };
  const auto add_with_json = [&add, words, &exit_code](const char* name, const char* help, std::function<Status(Cache&)> work) {
    add_json(*add(name, help, [&exit_code, work](Cache& cache) {
      if (const Status status = work(cache); !status.ok()) exit_code = fail(status);
    }), words->json);
  };
  add_with_json("ls", "list the entries, and whose decisions they are",
                [words](Cache& cache) { return print(cache, cache.list(), words->json); });
  add_with_json("check", "read every entry and drop the bad ones; exit 1 if there were any", [words, &exit_code](Cache& cache) {
    const std::vector<EntryInfo> dropped = cache.check();
    if (!dropped.empty()) exit_code = kFailed;
    fmt::print(text_out(words->json), "{} bad entries\n", dropped.size());
    return print(cache, dropped, words->json);
  });
  add("sweep", "drop the least recently used entries beyond the size limit",
      [](Cache& cache) { fmt::print("{} bytes freed\n", cache.sweep()); });
  add_with_json("bad", "list the regions that plugins are not given any more",
                [words](Cache& cache) { return print(read_bad_records(cache), words->json); });
  add("forgive", "let quarantined regions be tried again", [words](Cache& cache) {
    fmt::print("{} records removed\n", forgive(cache, words->plugin));
  })->add_option("plugin", words->plugin, "only those of the plugin of this name");
  add("explain", "print what an entry depends on", [words, &exit_code](Cache& cache) {
    if (auto text = cache.explain(words->prefix)) fmt::print("{}", *text);
    else
      exit_code = fail(Status(Code::k_invalid_input, {"no entry's key starts with " + words->prefix, cache.dir(), {}, "keirin cache ls"}));
  })->add_option("key", words->prefix, "the first digits of its key")->required();
}

}  // namespace keirin::tools
