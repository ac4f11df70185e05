// SPDX-License-Identifier: Apache-2.0
//
// Recorded PyTorch programs (README.md) through the whole river, from the model file to the answer, against what
// Python's eager module answered. Cases run in child processes, a batch each: one that crashes or hangs is named, and
// costs no other.
//
//   programs --cases=FOLDER|ARCHIVE --cpu=FOLDER | --reference=FOLDER | --cuda=FOLDER | --rocm=FOLDER [--device=cpu|cuda|rocm]
//   [--only=NAME] [--first=N]
//            [--count=N] [--every=N] [--jobs=N] [--threads=N] [--contiguous-only] [--wrapped] [--shown=N] [--kind=NAME]
//            [--list=FILE]
//            [--table] [--explain] [--times]
//
// With --contiguous-only a program is compiled for its first layout only, though still called with all of them. --list
// writes a line for each program that is wrong or was refused. Ends with 1 if a program is wrong or crashed, or if the
// judge refused more than one in fifty of many: then it is the judge that is wrong.
#include <dirent.h>
#include <execinfo.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "tests/programs/case_file.h"
#include "tests/programs/trial.h"
#include "tests/support/temp_folder.h"
#include "tests/support/trust_count.h"

extern char** environ;

namespace keirin::programs {
namespace {

constexpr size_t kBatch = 48;
constexpr unsigned kMostSeconds = 120;  // of one case; a hang is a crash

struct Arguments {
  std::string cases, cpu, reference, cuda, rocm, device = "cpu", only, first = "0", count = "1000000", every = "1",
                                           jobs = "1", threads = "1", shown = "10", kind = "programs", list, batch,
                                           results;
  bool contiguous_only = false, wrapped = false, table = false, explain = false, times = false;
};

bool read_option(const std::string& arg, const std::string& key, std::string& to) {
  if (arg.rfind("--" + key + "=", 0) != 0) return false;
  to = arg.substr(key.size() + 3);
  return true;
}

// One line of the file through which a child tells: words up to a tab, then text.
std::string one_line(std::string text) {
  for (char& c : text)
    if (c == '\n' || c == '\t') c = ' ';
  return text;
}

std::vector<std::pair<std::string, std::string>> plugins_of(const Arguments& a) {
  std::vector<std::pair<std::string, std::string>> out;
  for (const auto& [name, folder] :
       {std::pair{"cpu", a.cpu}, std::pair{"reference", a.reference}, std::pair{"cuda", a.cuda}, std::pair{"rocm", a.rocm}})
    if (!folder.empty()) out.emplace_back(name, folder);
  return out;
}

// --- the child: runs the cases of a batch in this process ---

// Where a crash was, as offsets into this program and its libraries.
void tell_where(int number) {
  void* frames[64];
  const char text[] = "programs: crashed at\n";
  (void)!::write(STDERR_FILENO, text, sizeof text - 1);
  ::backtrace_symbols_fd(frames, ::backtrace(frames, 64), STDERR_FILENO);
  ::signal(number, SIG_DFL);
  ::raise(number);
}

int run_batch(const Arguments& a) {
  for (int number : {SIGSEGV, SIGABRT, SIGBUS, SIGFPE, SIGILL}) ::signal(number, tell_where);
  std::ofstream results(a.results, std::ios::app);
  Settings settings;
  Options& options = settings.options;
  options.device = a.device;
  options.threads = std::atoi(a.threads.c_str());
  options.use_cache = false;
  options.compile_in = "process";
  options.force = "compiled";
  options.race_seconds = 0;  // what is right is asked, not what is fast
  options.sample_rate = 0;     // the samples' judge would hide what is to be seen here
  options.memory_limit = 100;  // a tensor of 64 elements is small whatever a plan takes
  for (const auto& [name, folder] : plugins_of(a))
    options.plugins.push_back(name), options.plugin_paths.push_back(std::filesystem::absolute(folder));
  settings.all_layouts = !a.contiguous_only;
  settings.wrapped = a.wrapped;
  auto runtime = Runtime::open(options);
  if (!runtime.ok()) return std::fprintf(stderr, "programs: %s\n", runtime.status().text().c_str()), 2;
  std::ifstream batch(a.batch);
  for (std::string name; std::getline(batch, name);) {
    results << "begin\t" << name << std::endl;
    ::alarm(kMostSeconds);
    const auto program = read_case(a.cases, name, (*runtime)->tensors());
    Outcome outcome;
    if (program.ok())
      outcome = try_case(*program, **runtime, settings);
    else
      outcome.differences.push_back({"case", "read", program.status().text()});
    ::alarm(0);
    for (const Difference& d : outcome.differences)
      results << "differs\t" << name << '\t' << d.kind << '\t' << d.where << '\t' << one_line(d.what) << '\n';
    for (const std::string& refused : outcome.refused)
      results << "refused\t" << name << '\t' << one_line(refused) << '\n';
    for (const std::string& reason : outcome.reasons) results << "reason\t" << name << '\t' << one_line(reason) << '\n';
    for (const auto& [stage, seconds] : outcome.seconds) results << "seconds\t" << name << '\t' << stage << '\t' << seconds << '\n';
    if (outcome.other_eager > 0) results << "other\t" << name << '\t' << outcome.other_eager << '\n';
    results << "end\t" << name << '\t' << outcome.compiled << '\t' << outcome.nodes << '\t' << outcome.nodes_compiled
            << std::endl;
  }
  return 0;
}

// --- the parent: knows no LibTorch, only children and what they tell ---

std::vector<std::string> split(const std::string& line) {
  std::vector<std::string> out;
  std::istringstream words(line);
  for (std::string word; std::getline(words, word, '\t');) out.push_back(word);
  out.resize(std::max<size_t>(out.size(), 5));
  return out;
}

pid_t start(std::vector<std::string> arguments) {
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  pid_t child = -1;
  if (::posix_spawnp(&child, argv[0], nullptr, nullptr, argv.data(), environ) != 0) return -1;
  return child;
}

int wait_for(pid_t child) {
  int status = -1;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return status;
}

struct Told {
  bool compiled = false, crashed = false;
  int nodes = 0, nodes_compiled = 0, other_eager = 0;
  std::vector<Difference> differences;
  std::vector<std::string> refused, reasons;
};

class Parent {
 public:
  explicit Parent(Arguments a) : a_(std::move(a)) {}
  int run() {
    if (!find_folder()) return 2;
    std::vector<std::string> names = cases();
    if (names.empty()) return std::fprintf(stderr, "programs: there is no case in %s\n", a_.cases.c_str()), 2;
    run_all(names);
    return tell(names);
  }

 private:
  bool find_folder() {
    folder_ = a_.cases;
    if (std::filesystem::is_directory(a_.cases)) return true;
    folder_ = scratch_.path() + "/cases";
    std::filesystem::create_directory(folder_);
    const pid_t tar = start({"tar", "-xJf", a_.cases, "-C", folder_});
    if (tar > 0 && wait_for(tar) == 0) return true;
    std::fprintf(stderr, "programs: tar cannot unpack %s\n", a_.cases.c_str());
    return false;
  }

  std::vector<std::string> cases() const {
    std::vector<std::string> all, out;
    for (const auto& entry : std::filesystem::directory_iterator(folder_))
      if (entry.path().extension() == ".json") all.push_back(entry.path().stem().string());
    std::sort(all.begin(), all.end());
    if (!a_.only.empty()) {
      std::istringstream wanted(a_.only);
      for (std::string name; std::getline(wanted, name, ',');)
        if (std::find(all.begin(), all.end(), name) != all.end()) out.push_back(name);
      return out;
    }
    const size_t first = std::strtoull(a_.first.c_str(), nullptr, 10),
                 every = std::max<size_t>(1, std::strtoull(a_.every.c_str(), nullptr, 10));
    const size_t count = std::strtoull(a_.count.c_str(), nullptr, 10);
    for (size_t i = first; i < all.size() && out.size() < count; i += every) out.push_back(all[i]);
    return out;
  }

  struct Batch {
    pid_t child = -1;
    std::vector<std::string> names;
    std::string results;
  };

  Batch begin(std::vector<std::string> names) {
    const std::string stem = scratch_.path() + "/" + std::to_string(++batches_);
    Batch batch{-1, std::move(names), stem + ".results"};
    std::ofstream list(stem + ".batch");
    for (const std::string& name : batch.names) list << name << '\n';
    list.close();
    std::vector<std::string> arguments = {
        "/proc/self/exe",     "--batch=" + stem + ".batch", "--results=" + batch.results,
        "--cases=" + folder_, "--device=" + a_.device,      "--threads=" + a_.threads};
    for (const auto& [name, folder] : plugins_of(a_)) arguments.push_back("--" + name + "=" + folder);
    if (a_.contiguous_only) arguments.push_back("--contiguous-only");
    if (a_.wrapped) arguments.push_back("--wrapped");
    batch.child = start(std::move(arguments));
    return batch;
  }

  void run_all(std::vector<std::string> names) {
    const size_t jobs = std::max<size_t>(1, std::strtoull(a_.jobs.c_str(), nullptr, 10));
    std::vector<Batch> running;
    while (!names.empty() || !running.empty()) {
      while (running.size() < jobs && !names.empty()) {
        const size_t n = std::min(kBatch, names.size());
        running.push_back(begin({names.begin(), names.begin() + static_cast<std::ptrdiff_t>(n)}));
        names.erase(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(n));
        if (running.back().child < 0) {
          std::perror("programs: a child cannot be started");
          ::exit(2);
        }
      }
      int status = 0;
      const pid_t child = ::waitpid(-1, &status, 0);
      const auto done = std::find_if(running.begin(), running.end(), [&](const Batch& b) { return b.child == child; });
      if (done == running.end()) continue;
      const Batch batch = std::move(*done);
      running.erase(done);
      std::vector<std::string> rest = take(batch, status);
      names.insert(names.begin(), rest.begin(), rest.end());
    }
  }

  // What the child told; the cases that it did not come to.
  std::vector<std::string> take(const Batch& batch, int status) {
    std::ifstream file(batch.results);
    std::string open;
    std::map<std::string, bool> done;
    for (std::string line; std::getline(file, line);) {
      const std::vector<std::string> words = split(line);
      Told& told = told_[words[1]];
      if (words[0] == "begin")
        open = words[1];
      else if (words[0] == "differs")
        told.differences.push_back({words[2], words[3], words[4]});
      else if (words[0] == "refused")
        told.refused.push_back(words[2]);
      else if (words[0] == "reason")
        told.reasons.push_back(words[2]);
      else if (words[0] == "seconds")
        seconds_[words[2]] += std::atof(words[3].c_str());
      else if (words[0] == "other")
        told.other_eager = std::atoi(words[2].c_str());
      else if (words[0] == "end") {
        told.compiled = words[2] == "1", told.nodes = std::atoi(words[3].c_str()),
        told.nodes_compiled = std::atoi(words[4].c_str());
        done[words[1]] = true;
        open.clear();
      }
    }
    std::vector<std::string> rest;
    if (!open.empty()) {
      Told& told = told_[open];
      told = {};
      told.crashed = true;
      const std::string how = WIFSIGNALED(status) ? std::string("signal ") + ::strsignal(WTERMSIG(status))
                                                  : "exit status " + std::to_string(WEXITSTATUS(status));
      told.differences.push_back({"crash", "in its process",
                                  WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM
                                      ? "no end after " + std::to_string(kMostSeconds) + " s"
                                      : how});
      done[open] = true;
    } else if (done.size() < batch.names.size() && done.empty()) {  // not even the first began: no case's fault
      std::fprintf(stderr, "programs: a child ended before its first case\n");
      ::exit(2);
    }
    for (const std::string& name : batch.names)
      if (!done.count(name)) rest.push_back(name);
    // A process that died at its end, between cases, is the last one's crash.
    if (open.empty() && status != 0 && rest.empty()) {
      Told& told = told_[batch.names.back()];
      told.crashed = true;
      told.differences.push_back({"crash", "at the end of its process", "status " + std::to_string(status)});
    }
    return rest;
  }

  // The first words of the lines of known.txt.
  static std::set<std::string> read_known() {
    std::set<std::string> out;
    std::ifstream file(std::string(KEIRIN_SOURCE_DIR) + "/tests/programs/known.txt");
    for (std::string line; std::getline(file, line);)
      if (!line.empty() && line[0] != '#') out.insert(line.substr(0, line.find(' ')));
    return out;
  }

  int tell(const std::vector<std::string>& names) {
    const std::set<std::string> known = read_known();
    size_t num_known = 0;
    size_t compiled = 0, wrong = 0, crashes = 0, refused = 0, whole = 0, other = 0;
    std::map<std::string, size_t> kinds;
    std::ofstream list;
    if (!a_.list.empty()) list.open(a_.list);
    const size_t most_shown = std::strtoull(a_.shown.c_str(), nullptr, 10);
    for (const std::string& name : names) {
      const Told& told = told_[name];
      compiled += told.compiled;
      other += told.other_eager > 0;
      whole += told.compiled && told.nodes_compiled == told.nodes;
      if (told.crashed) ++crashes;
      if (a_.explain) {
        std::printf("%s: %d of %d operators compiled%s\n", name.c_str(), told.nodes_compiled, told.nodes,
                    told.compiled ? "" : ", eager answers");
        for (const std::string& reason : told.reasons) std::printf("  %s\n", reason.c_str());
      }
      if (!told.refused.empty()) {
        ++refused;
        if (refused <= most_shown || a_.explain)
          std::printf("REFUSED by the judge: %s %s\n  %s\n", name.c_str(), told.refused.front().c_str(),
                      repeat(name).c_str());
        if (list) list << name << "\trefused\t" << told.refused.front() << '\n';
      }
      const bool is_known = known.contains(name) && !told.crashed && told.other_eager == 0;
      num_known += is_known;
      if (is_known && told.differences.empty()) {
        ++wrong;
        std::printf("WRONG %s: it is answered right now: take it out of tests/programs/known.txt\n", name.c_str());
      }
      if (told.differences.empty() || is_known) continue;
      if (!told.crashed) ++wrong;
      std::map<std::string, bool> seen;
      for (const Difference& d : told.differences)
        if (const std::string how = d.where.substr(0, d.where.find(", call ")) + ": " + d.kind;
            seen.emplace(how, true).second) {
          ++kinds[how];
          if (list) list << name << '\t' << d.kind << '\t' << d.where << '\t' << d.what << '\n';
        }
      if (wrong + crashes > most_shown) continue;
      std::printf("%s %s\n", told.crashed ? "CRASHED" : "WRONG", name.c_str());
      std::map<std::string, size_t> lines;
      for (const Difference& d : told.differences)
        if (++lines[d.kind] == 1) std::printf("  %s: %s: %s\n", d.where.c_str(), d.kind.c_str(), d.what.c_str());
      for (const auto& [kind, count] : lines)
        if (count > 1) std::printf("  ... and %zu more: %s\n", count - 1, kind.c_str());
      print_source(name);
      std::printf("  %s\n", repeat(name).c_str());
    }
    if (wrong + crashes > most_shown)
      std::printf("... and %zu more; --list=FILE names them all\n", wrong + crashes - most_shown);
    for (const auto& [kind, count] : kinds) std::printf("%6zu programs: %s\n", count, kind.c_str());
    if (a_.table) print_table(names);
    std::printf("whole: %zu programs ran without an eager operator\n", whole);
    if (a_.times) {
      std::printf("seconds of compiling:");
      for (const auto& [stage, seconds] : seconds_) std::printf(" %s %.1f", stage.c_str(), seconds);
      std::printf("\n");
    }
    if (other > 0)
      std::printf("other: %zu programs have layouts that PyTorch itself answers otherwise on this device than on the CPU\n", other);
    if (num_known > 0) std::printf("known: %zu programs of tests/programs/known.txt are answered otherwise\n", num_known);
    std::string upper = a_.kind;
    std::transform(upper.begin(), upper.end(), upper.begin(), [](unsigned char c) { return std::toupper(c); });
    std::printf("%s programs=%zu compiled=%zu judge_refused=%zu wrong=%zu crashes=%zu\n", upper.c_str(), names.size(),
                compiled, refused, wrong, crashes);
    test::trust_count(a_.kind, static_cast<int64_t>(names.size()), static_cast<int64_t>(wrong),
                      static_cast<int64_t>(crashes));
    constexpr size_t kMany = 100, kOneIn = 50;
    const bool judged = names.size() < kMany || refused * kOneIn <= names.size();
    if (!judged) std::printf("the judge refused more than one program in %zu: what it says of them stands above\n", kOneIn);
    return wrong == 0 && crashes == 0 && compiled > 0 && judged ? 0 : 1;
  }

  std::string repeat(const std::string& name) const {
    std::string out = "programs --cases=" + a_.cases + " --only=" + name;
    for (const auto& [plugin, folder] : plugins_of(a_)) out += " --" + plugin + "=" + folder;
    if (a_.device != "cpu") out += " --device=" + a_.device;
    if (a_.threads != "1") out += " --threads=" + a_.threads;
    if (a_.wrapped) out += " --wrapped";
    if (a_.contiguous_only) out += " --contiguous-only";
    return out;
  }

  // The text of the program, out of its JSON without a reader of JSON: "source" and "note" are strings with \n and \"
  // in them.
  void print_source(const std::string& name) const {
    std::ifstream file(folder_ + "/" + name + ".json");
    std::stringstream all;
    all << file.rdbuf();
    const std::string text = all.str();
    for (const std::string key : {"\"note\":\"", "\"source\":\""}) {
      const size_t at = text.find(key);
      if (at == std::string::npos) continue;
      std::string out = "    ";
      for (size_t i = at + key.size(); i < text.size() && text[i] != '"'; ++i) {
        if (text[i] != '\\')
          out += text[i];
        else if (text[++i] == 'n')
          out += "\n    ";
        else
          out += text[i];
      }
      while (!out.empty() && (out.back() == ' ' || out.back() == '\n')) out.pop_back();
      std::printf("%s\n", out.c_str());
    }
  }

  // By the name before the first dot, which for opdb's cases is the operator.
  void print_table(const std::vector<std::string>& names) {
    struct Row {
      size_t cases = 0, whole = 0, partly = 0, wrong = 0, refused = 0;
      std::string why;
    };
    std::map<std::string, Row> rows;
    for (const std::string& name : names) {
      const Told& told = told_[name];
      Row& row = rows[name.substr(0, name.find('.'))];
      ++row.cases;
      row.whole += told.compiled && told.nodes_compiled == told.nodes;
      row.partly += told.compiled && told.nodes_compiled < told.nodes;
      row.wrong += !told.differences.empty();
      row.refused += !told.refused.empty();
      if (row.why.empty() && (!told.compiled || told.nodes_compiled < told.nodes) && !told.reasons.empty())
        row.why = told.reasons.front().substr(0, 110);
    }
    size_t whole = 0, partly = 0;
    std::printf(
        "| operator | cases | whole | partly | refused | wrong | why not whole |\n|---|---|---|---|---|---|---|\n");
    for (const auto& [name, row] : rows) {
      std::printf("| %s | %zu | %zu | %zu | %zu | %zu | %s |\n", name.c_str(), row.cases, row.whole, row.partly,
                  row.refused, row.wrong, row.why.c_str());
      whole += row.whole == row.cases, partly += row.whole < row.cases && row.whole + row.partly > 0;
    }
    std::printf("%zu operators: %zu compiled wholly in all cases, %zu in some or in part, %zu eager\n", rows.size(),
                whole, partly, rows.size() - whole - partly);
    print_missing(names);
  }

  // Operators that are not compiled, as the reports name them: "eager: 2 x aten::erfinv: not in the operator table".
  void print_missing(const std::vector<std::string>& names) {
    static constexpr std::string_view kTimes = " x aten::";
    struct Missing {
      size_t cases = 0;
      std::string why;
    };
    std::map<std::string, Missing> operators;
    for (const std::string& name : names)
      for (const std::string& reason : told_[name].reasons) {
        const size_t from = reason.find(kTimes), to = from == std::string::npos ? from : reason.find(": ", from);
        if (to == std::string::npos) continue;
        Missing& missing = operators[reason.substr(from + 3, to - from - 3)];
        if (missing.cases++ == 0) missing.why = reason.substr(to + 2);
      }
    std::vector<std::pair<std::string, Missing>> sorted(operators.begin(), operators.end());
    std::stable_sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) { return a.second.cases > b.second.cases; });
    std::printf("\n| not compiled | cases | why, in the first of them |\n|---|---|---|\n");
    for (const auto& [name, missing] : sorted)
      std::printf("| `%s` | %zu | %s |\n", name.c_str(), missing.cases, missing.why.substr(0, 150).c_str());
  }

  Arguments a_;
  const test::TempFolder scratch_;
  std::string folder_;
  size_t batches_ = 0;
  std::map<std::string, Told> told_;
  std::map<std::string, double> seconds_;  // of compiling, by stage, all processes together
};

int run(int argc, char** argv) {
  Arguments a;
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    if (arg == "--contiguous-only")
      a.contiguous_only = true;
    else if (arg == "--wrapped")
      a.wrapped = true;
    else if (arg == "--table")
      a.table = true;
    else if (arg == "--explain")
      a.explain = true;
    else if (arg == "--times")
      a.times = true;
    else if (!read_option(arg, "cases", a.cases) && !read_option(arg, "cpu", a.cpu) &&
             !read_option(arg, "reference", a.reference) && !read_option(arg, "cuda", a.cuda) && !read_option(arg, "rocm", a.rocm) &&
             !read_option(arg, "device", a.device) && !read_option(arg, "only", a.only) &&
             !read_option(arg, "first", a.first) && !read_option(arg, "count", a.count) &&
             !read_option(arg, "every", a.every) && !read_option(arg, "jobs", a.jobs) &&
             !read_option(arg, "threads", a.threads) && !read_option(arg, "shown", a.shown) &&
             !read_option(arg, "kind", a.kind) && !read_option(arg, "list", a.list) &&
             !read_option(arg, "batch", a.batch) && !read_option(arg, "results", a.results))
      return std::fprintf(stderr, "programs: unknown argument %s\n", arg.c_str()), 2;
  }
  if (a.cases.empty()) return std::fprintf(stderr, "programs: name the cases: --cases=FOLDER or --cases=ARCHIVE\n"), 2;
  if (plugins_of(a).empty())
    return std::fprintf(stderr, "programs: name the folder of a plugin: --cpu=, --reference= or --cuda=\n"), 2;
  if (!a.batch.empty()) return run_batch(a);
  return Parent(std::move(a)).run();
}

}  // namespace
}  // namespace keirin::programs

int main(int argc, char** argv) { return keirin::programs::run(argc, argv); }
