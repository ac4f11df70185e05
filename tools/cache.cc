// SPDX-License-Identifier: Apache-2.0
//
// keirin cache: ls, check, sweep and explain over the cache folder; bad and forgive over the quarantine in it.
#include "core/cache/bad_records.h"

#include <fmt/format.h>

#include <memory>

#include "tools/options.h"

namespace keirin::tools {
namespace {

struct Words {
  Options options;
  std::string prefix, plugin;
};

Cache open_cache(const Words& words) {
  CacheOptions options;
  options.dir = words.options.cache_dir;
  options.warn = [](std::string_view text) { fmt::print(stderr, "keirin: {}\n", text); };
  return Cache(std::move(options));
}

void print(const EntryInfo& entry) {
  fmt::print("{:<9} {}  {:>10} bytes{}\n", entry_kind_name(entry.kind), entry.key.substr(0, 16), entry.bytes,
             entry.problem.empty() ? "" : "  dropped: " + entry.problem);
}

}  // namespace

void add_cache(CLI::App& app, int& exit_code) {
  auto words = std::make_shared<Words>();
  CLI::App* word = app.add_subcommand("cache", "look at the cache of compiled code and decisions");
  add_options(*word, words->options, {"cache_dir"});
  word->require_subcommand(1);
  word->add_subcommand("ls", "list the entries")->callback([words] {
    Cache cache = open_cache(*words);
    for (const EntryInfo& entry : cache.list()) print(entry);
  });
  word->add_subcommand("check", "read every entry and drop the bad ones; exit 1 if there were any")->callback([words, &exit_code] {
    Cache cache = open_cache(*words);
    std::vector<EntryInfo> dropped = cache.check();
    for (const EntryInfo& entry : dropped) print(entry);
    fmt::print("{} bad entries\n", dropped.size());
    if (!dropped.empty()) exit_code = kFailed;
  });
  word->add_subcommand("sweep", "drop the least recently used entries beyond the size limit")->callback([words] {
    Cache cache = open_cache(*words);
    fmt::print("{} bytes freed\n", cache.sweep());
  });
  word->add_subcommand("bad", "list the regions that plugins are not given any more")->callback([words] {
    Cache cache = open_cache(*words);
    const std::vector<BadRecord> records = read_bad_records(cache);
    for (const BadRecord& r : records)
      fmt::print("{:<16} {:<12}  {}\n", r.plugin, r.region.empty() ? "(all)" : r.region.substr(0, 12), r.what);
    fmt::print("{} in quarantine\n", records.size());
  });
  CLI::App* pardon = word->add_subcommand("forgive", "let quarantined regions be tried again");
  pardon->add_option("plugin", words->plugin, "only those of the plugin of this name");
  pardon->callback([words] {
    Cache cache = open_cache(*words);
    fmt::print("{} records removed\n", forgive(cache, words->plugin));
  });
  CLI::App* explain = word->add_subcommand("explain", "print what an entry depends on");
  explain->add_option("key", words->prefix, "the first digits of its key")->required();
  explain->callback([words, &exit_code] {
    Cache cache = open_cache(*words);
    if (auto text = cache.explain(words->prefix)) fmt::print("{}", *text);
    else exit_code = fail(Status(Code::k_invalid_input, {"no entry's key starts with " + words->prefix, cache.dir(), {}, "keirin cache ls"}));
  });
}

}  // namespace keirin::tools
