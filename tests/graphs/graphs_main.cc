// SPDX-License-Identifier: Apache-2.0
//
// Random graphs over the real plugins. A failing one is shrunk and printed as text with the command that repeats it; a crash
// prints its seed.
//
// Each seed gives two graphs: the second makes the same choices with other sizes.
//
//   graphs --cpu=FOLDER --reference=FOLDER | --cuda=FOLDER [--first=N] [--count=N] [--seed=N [--other-sizes]] [--print] [--no-shrink]
//          [--most-failures=N] [--ir=FILE --cut=cpu|reference|cuda|mixed [--specials]] [--worker=PROGRAM] [--run-in=worker] [--tell-seeds]
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>

#include "core/eager/tensor_services.h"
#include "core/host/find/discovery.h"
#include "core/ir/text.h"
#include "core/ir/verify.h"
#include "core/tune/shrink.h"
#include "tests/graphs/random_graph.h"
#include "tests/graphs/trial.h"
#include "tests/support/trust_count.h"

namespace keirin::graphs {
namespace {

struct Options {
  std::string cpu, reference, cuda, first = "0", count = "300", seed, ir, cut, most_failures = "5", worker = find_worker(),
                                    run_in = "process";
  bool specials = false, shrink = true, print = false, other_sizes = false, tells_seeds = false;
};

char now_running[80] = "";

void on_crash(int signal) {
  const char text[] = "\ncrashed at ";
  (void)!write(2, text, sizeof text - 1);
  (void)!write(2, now_running, strlen(now_running));
  ::signal(signal, SIG_DFL);
  raise(signal);
}

std::vector<Plugins::Source> sources_of(const Options& o) {
  std::vector<Plugins::Source> out;
  for (const auto& [cut, folder] : {std::pair{Cut::kCpu, o.cpu}, std::pair{Cut::kReference, o.reference}, std::pair{Cut::kCuda, o.cuda}})
    if (!folder.empty()) out.push_back({cut, folder});
  return out;
}

// Every other graph holds special values; of four pairs of graphs two go to the first plugin, one to all of them and eager by
// chance, one to the last.
Setting setting_of(uint64_t seed, const std::vector<Plugins::Source>& sources) {
  const Cut cuts[] = {sources.front().cut, Cut::kMixed, sources.front().cut, sources.back().cut};
  return {cuts[seed / 2 % 4], seed % 2 == 0, seed};
}

class Runner {
 public:
  Runner(const Options& options, std::unique_ptr<Plugins> plugins)
      : options_(options), sources_(sources_of(options)), plugins_(std::move(plugins)) {}

  int run() {
    if (!options_.ir.empty()) return run_text();
    const uint64_t first = std::strtoull((options_.seed.empty() ? options_.first : options_.seed).c_str(), nullptr, 10);
    const uint64_t count = options_.seed.empty() ? std::strtoull(options_.count.c_str(), nullptr, 10) : 1;
    const uint64_t most_failures = std::strtoull(options_.most_failures.c_str(), nullptr, 10);
    for (uint64_t seed = first; seed < first + count && failed_ < most_failures; ++seed) run_seed(seed);
    const auto number = [](uint64_t n) { return static_cast<unsigned long long>(n); };
    std::printf("other sizes: %llu kernels, code was made for %llu of them\n", number(kernels_of_other_), number(generated_for_other_));
    std::printf("GRAPHS graphs=%llu ops=%llu compiled=%llu failed=%llu passed=%llu\n", number(tried_), number(ops_), number(compiled_),
                number(failed_), number(passed_));
    test::trust_count("graphs", static_cast<int64_t>(tried_), static_cast<int64_t>(failed_));
    return failed_ == 0 && compiled_ > 0 ? 0 : 1;
  }

 private:
  // Twice: kernels are made for a structure and take sizes as arguments, so the second graph mostly runs what was made for the first.
  void run_seed(uint64_t seed) {
    if (run_sizes(seed, Sizes::kFirst)) run_sizes(seed, Sizes::kOther);
  }

  bool run_sizes(uint64_t seed, Sizes sizes) {
    const bool other = sizes == Sizes::kOther;
    if (!options_.seed.empty() && other != options_.other_sizes) return true;
    const Setting setting = setting_of(seed, sources_);
    std::snprintf(now_running, sizeof now_running, "--seed=%llu%s (%s)\n", static_cast<unsigned long long>(seed),
                  other ? " --other-sizes" : "", cut_name(setting.cut));
    if (options_.tells_seeds) std::printf("at seed %llu\n", static_cast<unsigned long long>(seed)), std::fflush(stdout);
    const Graph graph = draw_graph(seed, setting.finite, sizes);
    if (graph.outputs.empty()) return true;
    ++tried_;
    if (options_.print) std::printf("%s", print(graph).c_str()), std::fflush(stdout);
    ops_ += graph.ops.size();
    const Verdict verdict = plugins_->try_graph(graph, setting);
    compiled_ += static_cast<uint64_t>(verdict.compiled);
    if (other)
      kernels_of_other_ += static_cast<uint64_t>(verdict.kernels), generated_for_other_ += static_cast<uint64_t>(verdict.generated);
    if (verdict.right) {
      if (verdict.compiled > 0) ++passed_;
      return true;
    }
    ++failed_;
    std::printf("FAILED seed %llu (%s, %s, %zu ops): %s\n  graphs", static_cast<unsigned long long>(seed), cut_name(setting.cut),
                setting.finite ? "finite" : "specials", graph.ops.size(), verdict.reason.c_str());
    for (const Plugins::Source& s : sources_) std::printf(" --%s=%s", cut_name(s.cut), s.folder.c_str());
    std::printf(" --seed=%llu%s\n", static_cast<unsigned long long>(seed), other ? " --other-sizes" : "");
    if (!options_.shrink) return false;
    // A wrong number stays a wrong number, an error an error.
    const auto fails = [&](const Graph& g) {
      if (!verify(g).ok()) return false;
      const Verdict tried = plugins_->try_graph(g, setting);
      return !tried.right && tried.reason.starts_with("output") == verdict.reason.starts_with("output");
    };
    const Graph small = shrink(graph, fails);
    std::printf("shrunk to %zu ops: %s\n%s", small.ops.size(), plugins_->try_graph(small, setting).reason.c_str(), print(small).c_str());
    std::fflush(stdout);
    return false;
  }

  int run_text() {
    std::ifstream file(options_.ir);
    std::stringstream text;
    text << file.rdbuf();
    const Result<Graph> graph = parse(text.str());
    if (!graph.ok()) return std::fprintf(stderr, "%s: %s\n", options_.ir.c_str(), graph.status().text().c_str()), 2;
    Setting setting{sources_.front().cut, !options_.specials, std::strtoull(options_.seed.c_str(), nullptr, 10)};
    for (Cut cut : {Cut::kCpu, Cut::kReference, Cut::kCuda, Cut::kMixed})
      if (options_.cut == cut_name(cut)) setting.cut = cut;
    const Verdict verdict = plugins_->try_graph(graph.value(), setting);
    std::printf("%s, %d ops compiled. %s\n", verdict.right ? "right" : "FAILED", verdict.compiled, verdict.reason.c_str());
    return verdict.right ? 0 : 1;
  }

  const Options& options_;
  const std::vector<Plugins::Source> sources_;
  std::unique_ptr<Plugins> plugins_;
  uint64_t tried_ = 0, ops_ = 0, compiled_ = 0, failed_ = 0, passed_ = 0;  // passed_: right, and something in it was a plugin's
  uint64_t kernels_of_other_ = 0, generated_for_other_ = 0;  // of the graphs with other sizes
};

bool read_option(const std::string& arg, const std::string& key, std::string& to) {
  if (arg.rfind("--" + key + "=", 0) != 0) return false;
  to = arg.substr(key.size() + 3);
  return true;
}

int run(int argc, char** argv) {
  Options o;
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    if (arg == "--specials") o.specials = true;
    else if (arg == "--other-sizes") o.other_sizes = true;
    else if (arg == "--no-shrink") o.shrink = false;
    else if (arg == "--print") o.print = true;
    else if (arg == "--tell-seeds") o.tells_seeds = true;
    else if (!read_option(arg, "cpu", o.cpu) && !read_option(arg, "reference", o.reference) && !read_option(arg, "cuda", o.cuda) &&
             !read_option(arg, "first", o.first) && !read_option(arg, "count", o.count) && !read_option(arg, "seed", o.seed) &&
             !read_option(arg, "ir", o.ir) && !read_option(arg, "cut", o.cut) && !read_option(arg, "worker", o.worker) &&
             !read_option(arg, "run-in", o.run_in) && !read_option(arg, "most-failures", o.most_failures))
      return std::fprintf(stderr, "unknown argument %s\n", arg.c_str()), 2;
  }
  for (int signal : {SIGSEGV, SIGABRT, SIGFPE, SIGBUS}) ::signal(signal, on_crash);
  const std::unique_ptr<TensorServices> services = make_tensor_services();
  if (sources_of(o).empty()) return std::fprintf(stderr, "graphs: name the folder of a plugin: --cpu=, --reference= or --cuda=\n"), 2;
  Result<std::unique_ptr<Plugins>> plugins =
      Plugins::open(sources_of(o), o.worker, *services, o.run_in == "worker" ? RunIn::kWorker : RunIn::kProcess);
  if (!plugins.ok()) return std::fprintf(stderr, "graphs: %s\n", plugins.status().text().c_str()), 2;
  return Runner(o, std::move(plugins).value()).run();
}

}  // namespace
}  // namespace keirin::graphs

int main(int argc, char** argv) { return keirin::graphs::run(argc, argv); }
