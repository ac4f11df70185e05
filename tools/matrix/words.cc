// SPDX-License-Identifier: Apache-2.0
#include "tools/matrix/words.h"

#include <fmt/format.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <memory>
#include <set>

#include "core/api/devices.h"
#include "core/exec/report.h"
#include "core/host/plugins.h"
#include "core/tune/instructions.h"
#include "tools/matrix/bisect.h"
#include "tools/matrix/imagined.h"
#include "tools/matrix/machine_class.h"
#include "tools/matrix/report.h"
#include "tools/matrix/sitting.h"
#include "tools/matrix/worker.h"
#include "tools/options.h"
#include "tools/page/page.h"

namespace keirin::tools {
namespace {

using namespace matrix;
namespace fs = std::filesystem;

struct Words {
  SittingPlan plan;
  std::string set = "smoke", pattern, confirm, shard = "1/1", device = "cpu", budget, base, head;
  std::vector<std::string> variants, shapes;
  std::vector<int> callers;
  bool list = false, quiet = false, once = false, cold = false;
  double gate_percent = 0;
  // Of the words that read.
  std::string store = "keirin-matrix", sitting, machine_class, text = "-", markdown, json, junit, html, google,
              google_base, imagine;
  std::string of, mark, why, who = "a person";
  BisectPlan bisect;
  int shards = 0;
  std::vector<std::string> sources;
};

// "90", "90s", "10m", "2h".
Result<double> parse_seconds(const std::string& text) {
  double value = 0;
  const auto [at, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const std::string_view unit(at, text.data() + text.size());
  const double factor = unit.empty() || unit == "s" ? 1 : unit == "m" ? 60 : unit == "h" ? 3600 : 0;
  if (error != std::errc() || factor == 0 || !(value > 0 && value * factor < 1e9))
    return Status(Code::k_invalid_input,
                  {"\"" + text + "\" is not a time", "--budget", "nothing was measured", "give seconds, or 10m, or 2h"});
  return value * factor;
}

std::string own_command() {
  std::error_code error;
  return fs::read_symlink("/proc/self/exe", error).string();
}

// compiled:<plugin> for each plugin that drives this device here.
Result<std::vector<std::string>> compiled_variants(const std::string& device) {
  Options options;
  options.use_cache = false;
  KRN_TRY_LET(const auto runtime, Runtime::open(options));
  KRN_TRY_LET(const NamedDevice named, find_device(device, runtime->plugins()));
  std::vector<std::string> out;
  for (PluginDevice* each : runtime->plugins().devices())
    if (each->torch_device() == named.device && each->plugin_name() != "reference")
      out.push_back(std::string(kCompiled) + each->plugin_name());
  return out;
}

Status report(const Words& words, const std::string& sitting, int* exit) {
  KRN_TRY_LET(const Store store, Store::read(words.store));
  KRN_TRY_LET(const nlohmann::json report, report_json(store, sitting, words.machine_class));
  // What reads JSON or JUnit on standard output reads nothing else.
  const std::string* const files[] = {&words.json, &words.markdown, &words.junit,
                                      &words.html, &words.google,   &words.google_base};
  const bool taken =
      std::any_of(std::begin(files), std::end(files), [](const std::string* file) { return *file == "-"; });
  if (words.text == "-" && taken)
    fmt::print(stderr, "{}", report_text(report));
  else if (!words.text.empty())
    KRN_TRY(write_text(words.text, report_text(report)));
  if (!words.markdown.empty()) KRN_TRY(write_text(words.markdown, report_markdown(report)));
  if (!words.json.empty()) KRN_TRY(write_text(words.json, report.dump(2) + "\n"));
  if (!words.junit.empty()) KRN_TRY(write_text(words.junit, report_junit(report)));
  if (!words.google.empty()) KRN_TRY(write_text(words.google, report_google_benchmark(report, true)));
  if (!words.google_base.empty()) KRN_TRY(write_text(words.google_base, report_google_benchmark(report, false)));
  if (!words.html.empty()) {
    KRN_TRY_LET(const nlohmann::json page, page_json(store, words.sitting, words.machine_class));
    KRN_TRY(write_text(words.html, page_html("Keirin: regression matrix", View::kMatrix, page)));
  }
  *exit = matrix::exit_code(report);
  return {};
}

// The shards that have a cell, as GitHub's `strategy.matrix` takes them: {"include": [{"shard": "1/8", "cases": 3}]}.
nlohmann::json shard_list(const std::vector<Case>& cases, const std::string& pattern, int count) {
  nlohmann::json include = nlohmann::json::array();
  for (uint64_t number = 1; number <= static_cast<uint64_t>(count); ++number) {
    const Shard shard{number, static_cast<uint64_t>(count)};
    const auto in = std::count_if(cases.begin(), cases.end(),
                                  [&](const Case& item) { return in_shard(item, shard) && matches(item, pattern); });
    if (in > 0) include.push_back({{"shard", fmt::format("{}/{}", number, count)}, {"cases", in}});
  }
  return {{"include", include}};
}

// What another host's report calls changed: there has to be something.
Result<std::set<CellName>> cells_to_confirm(const std::string& path) {
  std::ifstream file(path);
  Result<std::set<CellName>> cells = changed_cells(nlohmann::json::parse(file, nullptr, false));
  if (cells.ok() && !cells->empty()) return cells;
  return Status(Code::k_invalid_input,
                {cells.ok() ? "the report calls nothing changed" : cells.status().message().what, path,
                 "nothing was measured", "give what `keirin matrix compare --json FILE` wrote on the other host"});
}

// Cases and variants of those cells in the place of a set's.
Status ask_only(const std::set<CellName>& cells, SittingPlan* plan) {
  plan->cases.clear(), plan->variants.clear();
  std::set<std::string> cases, variants;
  for (const auto& [item, variant] : cells) cases.insert(item), variants.insert(variant);
  for (const std::string& item : cases) {
    KRN_TRY_LET(plan->cases.emplace_back(), parse_case(item));
  }
  plan->variants.assign(variants.begin(), variants.end());
  return {};
}

Status measure(Words& words, Purpose purpose, int* exit) {
  SittingPlan& plan = words.plan;
  plan.purpose = purpose;
  plan.store = words.store;
  plan.gate = words.gate_percent / 100;
  // An emulator's times mean nothing.
  plan.counts_only |= InstructionCount::of_environment().has_value() || is_emulated(machine_json());
  KRN_TRY_LET(std::vector<Case> set, read_case_set(words.set));
  // The name of a case, as a report's command to measure it once more gives, needs no set that holds it.
  if (const Result<Case> named = parse_case(words.pattern);
      named.ok() && words.pattern.find_first_of("*?[\\") == std::string::npos &&
      std::none_of(set.begin(), set.end(), [&](const Case& item) { return item.text() == named->text(); }))
    set.push_back(*named);
  KRN_TRY_LET(std::vector<Case> all, grid_of(set, words.shapes, words.callers));
  if (words.cold && plan.counts_only)
    return Status(Code::k_invalid_input, {"starts are times, and where counts decide there are none", "--cold", "nothing was measured",
                                          "leave --cold away, or --counts-only"});
  if (words.cold) all = with_starts(all);
  if (words.shards > 0) {
    fmt::print("{}\n", shard_list(all, words.pattern, words.shards).dump());
    return {};
  }
  KRN_TRY_LET(const Shard shard, parse_shard(words.shard));
  for (const Case& item : all)
    if (in_shard(item, shard) && matches(item, words.pattern)) plan.cases.push_back(item);
  plan.variants = words.variants;
  if (!words.confirm.empty()) {
    KRN_TRY_LET(plan.confirm, cells_to_confirm(words.confirm));
    KRN_TRY(ask_only(plan.confirm, &plan));
  }
  if (!words.imagine.empty()) {
    KRN_TRY_LET(const std::vector<std::string> plugins, plugins_that_imagine(words.imagine));
    if (plan.variants.empty())
      for (const std::string& plugin : plugins) plan.variants.push_back(std::string(kCompiled) + plugin);
  }
  if (plan.variants.empty()) {
    KRN_TRY_LET(plan.variants, compiled_variants(words.device));
    if (purpose == Purpose::kRun) plan.variants.insert(plan.variants.begin(), "replay");
    plan.variants.push_back("auto");
  }
  // auto is measured against the better of eager and replay, so replay's cell comes before.
  std::stable_partition(plan.variants.begin(), plan.variants.end(), [](const std::string& v) { return v == "replay"; });
  if (words.list) {
    for (const Case& item : plan.cases)
      for (const std::string& variant : plan.variants)
        if (plan.asks(item, variant)) fmt::print("{} {}\n", item.text(), variant);
    return {};
  }
  const bool asks = std::any_of(plan.cases.begin(), plan.cases.end(), [&](const Case& item) {
    return std::any_of(plan.variants.begin(), plan.variants.end(),
                       [&](const std::string& variant) { return plan.asks(item, variant); });
  });
  if (!asks && shard.count == 1)
    return Status(Code::k_invalid_input, {"no case of the set is called so and has such a variant", words.pattern, "nothing was measured",
                                          "keirin matrix run --list"});
  KRN_TRY_LET(plan.place, find_place(words.device));
  plan.place.imagined = words.imagine;
  if (!words.budget.empty()) {
    KRN_TRY_LET(plan.budget_seconds, parse_seconds(words.budget));
  }
  if (words.once) {
    KRN_TRY_LET(const bool known, gates_are_known(plan));
    if (known) {
      fmt::print(stderr, "  these cells have a gate: nothing was measured\n");
      return {};
    }
  }
  KRN_TRY_LET(plan.head, words.head.empty() ? Result<std::string>(own_command()) : find_command(words.head));
  KRN_TRY_LET(plan.base, words.base.empty() ? Result<std::string>(plan.head) : find_command(words.base));
  std::error_code error;
  const fs::path worker = data_folder("peers") / "worker";  // in a build folder
  if (plan.peers.empty() && fs::exists(worker, error)) plan.peers = worker;
  const auto peer = std::find_if(plan.variants.begin(), plan.variants.end(), is_peer);
  if (peer != plan.variants.end()) {
    if (plan.peers.empty() || purpose != Purpose::kRun)
      return Status(Code::k_invalid_input,
                    {"a peer is measured against eager by `keirin matrix run`, with the command that runs it", *peer,
                     "nothing was measured", "give --peers bench/peers/worker"});
  }
  if (!plan.peers.empty()) {
    KRN_TRY_LET(plan.peers, find_command(plan.peers));
  }
  plan.tell = [&words](const std::string& line) {
    if (!words.quiet) fmt::print(stderr, "  {}\n", line);
  };
  if (const std::string warnings = warnings_of_machine(); !warnings.empty()) plan.tell("warning: " + warnings);
  KRN_TRY_LET(const std::string sitting, hold_sitting(plan));
  return report(words, sitting, exit);
}

Status set_mark(const Words& words) {
  KRN_TRY_LET(const Store store, Store::read(words.store));
  if (!store.find(words.of))
    return Status(Code::k_invalid_input, {"the store holds no record of that id", words.of, "nothing was marked",
                                          "ids of runs are in keirin matrix report --json -"});
  const Record mark = make_record("mark", {{"mark", words.mark},
                                           {"of", words.of},
                                           {"why", words.why},
                                           {"time", static_cast<int64_t>(::time(nullptr))},
                                           {"who", words.who}});
  KRN_TRY_LET(LogWriter log, LogWriter::begin(words.store, mark.id.substr(0, 16)));
  return log.append({mark});
}

void add_reports(CLI::App& word, Words& words) {
  word.add_option("--text", words.text, "the report as text, to this file; - is standard output")
      ->capture_default_str();
  word.add_option("--md", words.markdown, "as Markdown");
  word.add_option("--json", words.json, "as JSON");
  word.add_option("--junit", words.junit, "as JUnit's XML");
  word.add_option("--html", words.html, "as one page with plots, of all purposes and classes of the store");
  word.add_option("--google-benchmark", words.google, "head's times as Google Benchmark's JSON");
  word.add_option("--google-benchmark-base", words.google_base, "base's times alike, for its compare.py");
}

void add_measuring(CLI::App& word, Words& words) {
  word.add_option("--head", words.head, "what is measured, as --base of compare; else this command");
  word.add_option("--set", words.set, "smoke, ci, full, shapes, or a file of cases")->capture_default_str();
  word.add_option("--shapes", words.shapes, "free sizes for each case: 1x16,8x128; for models that have as many")->delimiter(',');
  word.add_option("--callers", words.callers, "threads that call at once, for each case: 1,2,4")->delimiter(',');
  word.add_option("--cases", words.pattern,
                  "only those that match this shell pattern; the name of a case, whether the set holds it or not");
  word.add_option("--variants", words.variants, "eager, replay, auto, compiled:PLUGIN, peer:NAME; apart by commas")
      ->delimiter(',');
  word.add_option("--peers", words.plan.peers,
                  "the command that trains and runs peer:NAME: bench/peers/worker, or one that speaks its words; "
                  "known where this command was built");
  word.add_option("--shard", words.shard, "a part of the set, as 3/8; auto: as Slurm or Kubernetes say")
      ->capture_default_str();
  word.add_option("--shards", words.shards,
                  "print the shards of so many that have a case, as JSON for GitHub's strategy.matrix")
      ->check(CLI::Range(1, 1000));
  word.add_option("--device", words.device, "cpu, cuda, cuda:1, rocm: where the models run")->capture_default_str();
  word.add_option("--threads", words.plan.timing.threads, "CPU threads; 0: as many as LibTorch has")
      ->capture_default_str();
  word.add_option("--budget", words.budget, "stop after this time, as 10m: what is left is shown as not run");
  word.add_option("--gate", words.gate_percent, "per cent, for all cells, instead of what the store's selfchecks say")
      ->check(CLI::Range(0.1, 100.0));
  word.add_flag("--counts-only", words.plan.counts_only, "this machine is shared: times inform, and decide nothing");
  word.add_flag("--list", words.list, "print the cells and measure nothing");
  word.add_flag("--quiet", words.quiet, "no progress");
  add_reports(word, words);
}

}  // namespace

void add_matrix(CLI::App& app, int& exit_code) {
  auto words = std::make_shared<Words>();
  CLI::App* matrix = app.add_subcommand("matrix", "is what Keirin runs right, never slower, and no worse than before?");
  matrix->require_subcommand(1);
  const auto add = [&](const char* name, const char* help, auto run) {
    CLI::App* word = matrix->add_subcommand(name, help);
    word->add_option("--store", words->store, "the folder of records")->capture_default_str();
    word->callback([words, run, &exit_code] {
      const Status status = run(*words, &exit_code);
      if (status.ok()) return;
      exit_code = fail(status);
      if (status.code() == Code::k_unsupported) exit_code = kEnvironment;  // a device that is not here is no verdict
    });
    return word;
  };
  CLI::App* run = add("run", "measure this machine's cells: each variant against eager, auto against the better of eager and replay",
                      [](Words& w, int* exit) { return measure(w, Purpose::kRun, exit); });
  add_measuring(*run, *words);
  const auto add_imagine = [&](CLI::App& word) {
    word.add_option("--imagine", words->imagine,
                    "an instruction set (gfx1100) whose device is not here: its plugin compiles, nothing runs, code is counted");
  };
  add_imagine(*run);
  CLI::App* selfcheck = add("selfcheck", "measure the same binary twice: what is the noise here? Gates are made of it",
                            [](Words& w, int* exit) { return measure(w, Purpose::kSelfcheck, exit); });
  selfcheck->add_flag("--once", words->once, "measure nothing where these cells have a gate already");
  const auto add_cold = [&](CLI::App& word) {
    word.add_flag("--cold", words->cold,
                  "also what a new process takes on an empty cache: to start, to compile, for its first call; for each case");
  };
  add_cold(*selfcheck);
  add_measuring(*selfcheck, *words);
  CLI::App* compare = add("compare", "measure two builds against each other",
                          [](Words& w, int* exit) { return measure(w, Purpose::kCompare, exit); });
  compare->add_option("--base", words->base, "an install prefix, a build folder or a keirin command")->required();
  compare->add_option("--confirm", words->confirm,
                      "another host's report (--json): measure what it calls changed, in place of a set");
  add_cold(*compare);
  add_imagine(*compare);
  add_measuring(*compare, *words);
  CLI::App* bisected = add("bisect", "find the commit that made something slower", [](Words& w, int*) -> Status {
    w.bisect.command = own_command();
    w.bisect.store = w.store;
    return bisect(w.bisect);
  });
  bisected->add_option("--good", words->bisect.good, "a commit that was fast enough")->required();
  bisected->add_option("--bad", words->bisect.bad, "one after it that is slower")->capture_default_str();
  bisected->add_option("--repository", words->bisect.repository, "of git")->capture_default_str();
  bisected->add_option("--build", words->bisect.build, "a command that a shell runs in a checkout of each commit")
      ->required();
  bisected->add_option("--built", words->bisect.built, "where it leaves the keirin command, as --base takes it")
      ->capture_default_str();
  bisected->add_option("words", words->bisect.words,
                       "for `keirin matrix compare`, after --: --set, --cases, --gate and so on");
  CLI::App* merged = add("merge", "put the records of other stores into one", [](Words& w, int*) -> Status {
    KRN_TRY_LET(const MergeResult result, merge(w.store, w.sources));
    for (const StoreProblem& problem : result.problems)
      fmt::print(stderr, "keirin: skipped {}:{}: {}\n", problem.file, problem.line, problem.what);
    fmt::print("{} records added, {} known before, {} skipped\n", result.added, result.known, result.problems.size());
    return {};
  });
  merged->add_option("--into", words->store, "the store that takes them");
  merged->add_option("sources", words->sources, "stores")->required();
  CLI::App* reported = add("report", "say again what a store holds: its latest sitting, with the shards beside it",
                           [](Words& w, int* exit) { return report(w, w.sitting, exit); });
  CLI::Option* const alone = reported->add_option("--sitting", words->sitting, "this one alone");
  reported->add_option("--class", words->machine_class, "the latest of this class of machines")->excludes(alone);
  add_reports(*reported, *words);
  CLI::App* history =
      add("history", "series over sittings of `run`, with steps and marks", [](Words& w, int*) -> Status {
        KRN_TRY_LET(const Store store, Store::read(w.store));
        fmt::print("{}", history_text(history_json(store, judge(store), w.pattern, w.machine_class)));
        return {};
      });
  history->add_option("--cases", words->pattern, "only those that match this shell pattern");
  history->add_option("--class", words->machine_class, "of machines");
  CLI::App* marked = add("mark", "leave a person's word on a record", [](Words& w, int*) { return set_mark(w); });
  marked->add_option("id", words->of, "of the record")->required();
  marked->add_option("--as", words->mark, "what it is")
      ->required()
      ->check(CLI::IsMember({"baseline", "step_accepted", "known_noise", "void"}));
  marked->add_option("--why", words->why, "the reason")->required();
  marked->add_option("--who", words->who, "whose word it is")->capture_default_str();
  app.add_subcommand(kWorkerWord)->group("")->callback([&exit_code] { exit_code = serve(); });
}

}  // namespace keirin::tools
