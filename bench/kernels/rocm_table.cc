// SPDX-License-Identifier: Apache-2.0
//
// What the AMD plugin's kernels become without an AMD GPU.
//
//   rocm_table [--targets A,B] [--every N] [GRAPH.ir ...]
//       a table for each target: the kernels of the tests' cases under every schedule (`cases`), of the sheet of operators
//       (tests/conformance; `sheet`), of those graphs (`models`), and those written by hand. Each kernel counts once
//       in a row. --every takes one in so many of the cases and of the sheet, and a schedule for each case
//   rocm_table --launches DIR ARCH
//       launches with expected results, for a simulator of the instruction set (docs/launches.md): every case of two
//       lengths under every schedule, and the hand-written kernels
//
//   KEIRIN_DUMP=dir keirin explain MODEL     writes dir/NN-write_bodies.ir, the graph as plugins see it
//
// `spills` are words in memory, `parked` counts kernels that hold scalar registers in lanes of vector registers,
// `waves` is how many fit on a vector unit by registers, the median and the least. The last line counts; it ends with 1 if a
// generated kernel has spills or a text is refused.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "core/ir/text.h"
#include "core/ir/rows.h"
#include "rocm/device.h"
#include "tests/conformance/case.h"
#include "tests/unit/rocm/graph_texts.h"
#include "tests/unit/rocm/kernel_texts.h"
#include "tests/unit/rocm/launches.h"
#include "tests/unit/rocm/object_compiler.h"

namespace keirin::test {
namespace {

struct Options {
  std::vector<std::string> targets, graphs;
  size_t every = 1;
};

struct Sums {
  int targets = 0, cases = 0, kernels = 0, generated_spills = 0, refused = 0;
};

class Row {
 public:
  void add(const KernelFacts& f, const std::string& arch) {
    spills_ += f.spills;
    parked_ += f.parked > 0;
    scratch_ = std::max(scratch_, f.scratch_bytes);
    shared_ = std::max(shared_, f.shared_bytes);
    registers_.push_back(f.vgprs);
    waves_.push_back(waves_by_registers(arch, f.vgprs));
  }
  int kernels() const { return static_cast<int>(registers_.size()); }
  int spills() const { return spills_; }
  void print(const std::string& arch, const std::string& compiler, const char* which) {
    if (registers_.empty()) return;
    std::sort(registers_.begin(), registers_.end());
    std::sort(waves_.begin(), waves_.end());
    const size_t middle = registers_.size() / 2;
    std::printf("%-8s %-11s %-8s %7d %9d %5d %6d %6d %7d %7d %6d %5d\n", arch.c_str(), compiler.c_str(), which, kernels(),
                registers_[middle], registers_.back(), spills_, parked_, scratch_, shared_, waves_[middle], waves_[0]);
  }

 private:
  int spills_ = 0, parked_ = 0, scratch_ = 0, shared_ = 0;
  std::vector<int> registers_, waves_;
};

struct Compiler {
  std::string arch, name;
  std::filesystem::path folder;
};

// The kernels that hipRTC or clang makes of the modules, several at a time; what is refused and what spills is printed and counted.
std::pair<Row, Row> compiled(const std::vector<ModuleText>& modules, const Compiler& by, const char* which, Sums& sums) {
  Row generated, own;
  std::mutex mutex;
  std::atomic<size_t> next = 0;
  const auto work = [&](size_t worker) {
    const std::string path = by.folder / (by.arch + "." + std::to_string(worker) + ".co");
    for (size_t i = next++; i < modules.size(); i = next++) {
      const ModuleText& m = modules[i];
      const std::string wrong = compile_object_file(m.text, by.arch, by.name, path);
      const std::vector<KernelFacts> facts = wrong.empty() ? facts_of(path) : std::vector<KernelFacts>();
      const std::lock_guard<std::mutex> lock(mutex);
      if (facts.size() < m.symbols.size()) {
        std::printf("%s %s: %s\n", by.arch.c_str(), m.symbols[0].c_str(), wrong.empty() ? "kernels without metadata" : wrong.c_str());
        ++sums.refused;
      }
      for (const KernelFacts& f : facts) {
        (m.generated ? generated : own).add(f, by.arch);
        if (m.generated && f.spills > 0)
          std::printf("%s %s %s: %d words spilled, %d registers\n", by.arch.c_str(), which, f.symbol.c_str(), f.spills, f.vgprs);
      }
    }
  };
  std::vector<std::thread> workers;
  for (size_t w = 0; w < std::max(1u, std::thread::hardware_concurrency()); ++w) workers.emplace_back(work, w);
  for (std::thread& worker : workers) worker.join();
  sums.kernels += generated.kernels() + own.kernels();
  sums.generated_spills += generated.spills();
  return {std::move(generated), std::move(own)};
}

// How many of the cases are claimed.
int add_sheet(GraphTexts& out, size_t every) {
  size_t number = 0;
  int claimed = 0;
  for (uint16_t id = 1; id != UINT16_MAX; ++id) {  // ids are sparse
    if (!find_row(static_cast<OpCode>(id))) continue;
    for (const conformance::Case& c : conformance::cases_of(static_cast<OpCode>(id)))
      if (number++ % every == 0) claimed += out.add_case(c.graph);
  }
  return claimed;
}

Graph graph_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  Result<Graph> graph = parse(std::string(std::istreambuf_iterator<char>(file), {}));
  if (!graph.ok()) throw std::runtime_error(path + ": " + graph.status().text());
  return std::move(*graph);
}

void print_target(const Compiler& by, const Options& options, const std::vector<Graph>& models, Sums& sums) {
  std::vector<ModuleText> cases;
  size_t number = 0;
  for (ModuleText& module : generated_texts(by.arch, 515, options.every == 1))
    if (number++ % options.every == 0) cases.push_back(std::move(module));
  std::vector<ModuleText> own = own_texts(by.arch);
  GraphTexts graphs(by.arch);
  sums.cases += add_sheet(graphs, options.every);
  std::vector<ModuleText> sheet = graphs.take();
  for (const Graph& model : models) graphs.add_model(model);
  std::vector<ModuleText> zoo = graphs.take();
  for (std::vector<ModuleText>* from : {&sheet, &zoo}) {
    const auto hand = std::stable_partition(from->begin(), from->end(), [](const ModuleText& m) { return m.generated; });
    own.insert(own.end(), std::make_move_iterator(hand), std::make_move_iterator(from->end()));
    from->erase(hand, from->end());
  }
  ++sums.targets;
  compiled(cases, by, "cases", sums).first.print(by.arch, by.name, "cases");
  compiled(sheet, by, "sheet", sums).first.print(by.arch, by.name, "sheet");
  compiled(zoo, by, "models", sums).first.print(by.arch, by.name, "models");
  compiled(own, by, "by hand", sums).second.print(by.arch, by.name, "by hand");
  std::fflush(stdout);
}

int table(const Options& options, const std::filesystem::path& folder) {
  const auto begin = std::chrono::steady_clock::now();
  std::vector<Graph> models;
  for (const std::string& path : options.graphs) models.push_back(graph_of(path));
  std::printf("%-8s %-11s %-8s %7s %9s %5s %6s %6s %7s %7s %6s %5s\n", "target", "compiler", "kernels", "number", "registers", "most",
              "spills", "parked", "scratch", "shared", "waves", "least");
  Sums sums;
  for (const rocm::Target& target : rocm::targets()) {
    const std::string arch = target.arch;
    if (!options.targets.empty() && std::find(options.targets.begin(), options.targets.end(), arch) == options.targets.end()) continue;
    std::string why_not;
    const std::string compiler = object_compiler(arch, why_not);
    if (compiler.empty())
      std::printf("%-8s left out: %s\n", arch.c_str(), why_not.c_str());
    else
      print_target({arch, compiler, folder}, options, models, sums);
  }
  std::printf("COMPILED targets=%d cases=%d kernels=%d spills=%d refused=%d seconds=%.0f\n", sums.targets, sums.cases, sums.kernels,
              sums.generated_spills, sums.refused, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  return sums.generated_spills == 0 && sums.refused == 0 ? 0 : 1;
}

// False: an argument that is not understood.
bool read(int argc, char** argv, Options& out) {
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--every" && i + 1 < argc) {
      out.every = std::strtoul(argv[++i], nullptr, 10);
    } else if (word == "--targets" && i + 1 < argc) {
      std::string list = argv[++i];
      for (char* name = std::strtok(list.data(), ","); name; name = std::strtok(nullptr, ",")) out.targets.push_back(name);
    } else if (word.starts_with("--")) {
      return false;
    } else {
      out.graphs.push_back(word);
    }
  }
  for (const std::string& arch : out.targets)
    if (!rocm::target_named(arch)) return false;
  return out.every > 0;
}

}  // namespace
}  // namespace keirin::test

int main(int argc, char** argv) try {
  using namespace keirin::test;
  if (argc == 4 && std::string(argv[1]) == "--launches") return write_launches(argv[2], argv[3]);
  Options options;
  if (!read(argc, argv, options)) {
    std::fprintf(stderr, "usage: %s [--targets A,B] [--every N] [GRAPH.ir ...] | --launches DIR ARCH\n", argv[0]);
    return 2;
  }
  const std::filesystem::path folder = std::filesystem::temp_directory_path() / ("keirin-table-" + std::to_string(getpid()));
  std::filesystem::create_directories(folder);
  const int result = table(options, folder);
  std::filesystem::remove_all(folder);
  return result;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 2;
}
