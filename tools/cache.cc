// SPDX-License-Identifier: Apache-2.0
//
// keirin cache: ls, check, sweep and explain over the cache folder; bad and forgive over the quarantine in it.
#include "core/cache/bad_records.h"

#include <fmt/format.h>

#include <filesystem>
#include <functional>
#include <memory>

#include "core/cache/ledger.h"
#include "tools/options.h"

namespace keirin::tools {
namespace {

struct Words {
  Options options;
  std::string prefix, plugin;
};

// Looking at a folder does not make it.
Status check_folder(const Words& words) {
  std::error_code error;
  if (words.options.cache_dir.empty() || std::filesystem::is_directory(words.options.cache_dir, error)) return {};
  return Status(Code::k_invalid_input, {"there is no cache in " + words.options.cache_dir, {}, "nothing was made", "name a folder that `run` or `bench` kept a cache in"});
}

std::string model_of(Cache& cache, const EntryInfo& entry) {
  if (entry.kind != EntryKind::kLedger || !entry.problem.empty()) return {};
  const auto body = cache.body(entry);
  const auto record = body ? parse_ledger(*body) : Result<LedgerRecord>(Status(Code::k_corrupt, "unreadable"));
  if (!record.ok()) return {};
  const auto model = record->environment.find("model");
  return fmt::format("  {}: {}", model == record->environment.end() ? "a model" : model->second, record->choice);
}

void print(Cache& cache, const EntryInfo& entry) {
  fmt::print("{:<9} {}  {:>10} bytes{}{}\n", entry_kind_name(entry.kind), entry.key.substr(0, 16), entry.bytes, model_of(cache, entry),
             entry.problem.empty() ? "" : "  dropped: " + entry.problem);
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
  add("ls", "list the entries, and whose decisions they are", [](Cache& cache) {
    for (const EntryInfo& entry : cache.list()) print(cache, entry);
  });
  add("check", "read every entry and drop the bad ones; exit 1 if there were any", [&exit_code](Cache& cache) {
    const std::vector<EntryInfo> dropped = cache.check();
    for (const EntryInfo& entry : dropped) print(cache, entry);
    fmt::print("{} bad entries\n", dropped.size());
    if (!dropped.empty()) exit_code = kFailed;
  });
  add("sweep", "drop the least recently used entries beyond the size limit", [](Cache& cache) { fmt::print("{} bytes freed\n", cache.sweep()); });
  add("bad", "list the regions that plugins are not given any more", [](Cache& cache) {
    const std::vector<BadRecord> records = read_bad_records(cache);
    for (const BadRecord& r : records)
      fmt::print("{:<16} {:<12}  {}\n", r.plugin, r.region.empty() ? "(all)" : r.region.substr(0, 12), r.what);
    fmt::print("{} in quarantine\n", records.size());
  });
  add("forgive", "let quarantined regions be tried again", [words](Cache& cache) {
    fmt::print("{} records removed\n", forgive(cache, words->plugin));
  })->add_option("plugin", words->plugin, "only those of the plugin of this name");
  add("explain", "print what an entry depends on", [words, &exit_code](Cache& cache) {
    if (auto text = cache.explain(words->prefix)) fmt::print("{}", *text);
    else exit_code = fail(Status(Code::k_invalid_input, {"no entry's key starts with " + words->prefix, cache.dir(), {}, "keirin cache ls"}));
  })->add_option("key", words->prefix, "the first digits of its key")->required();
}

}  // namespace keirin::tools
