// SPDX-License-Identifier: Apache-2.0
//
// What the AMD plugin's kernels become without an AMD GPU.
//
//   rocm_table                                   a table: every case under every schedule and every hand-written
//                                                kernel, for each target
//   rocm_table --launches DIR ARCH               the same as launches with expected results, for a simulator of the
//                                                instruction set (docs/launches.md); of the generated kernels those of
//                                                two lengths
//
// `parked` counts kernels that hold scalar registers in lanes of vector registers; spills are words in memory. Ends
// with 1 if a generated kernel has one.
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "rocm/device.h"
#include "tests/unit/rocm/kernel_texts.h"
#include "tests/unit/rocm/launches.h"
#include "tests/unit/rocm/object_compiler.h"

namespace keirin::test {
namespace {

struct Row {
  int kernels = 0, spills = 0, parked = 0, scratch = 0, shared = 0, most_registers = 0, least_waves = 99;
  std::vector<int> registers;

  void add(const KernelFacts& f, const std::string& arch) {
    ++kernels;
    spills += f.spills;
    parked += f.parked > 0;
    scratch = std::max(scratch, f.scratch_bytes);
    shared = std::max(shared, f.shared_bytes);
    registers.push_back(f.vgprs);
    most_registers = std::max(most_registers, f.vgprs);
    least_waves = std::min(least_waves, waves_by_registers(arch, f.vgprs));
  }
  void print(const std::string& arch, const std::string& compiler, const char* which) {
    if (registers.empty()) return;
    std::sort(registers.begin(), registers.end());
    std::printf("%-8s %-11s %-13s %7d %9d %9d %7d %7d %8d %7d %6d\n", arch.c_str(), compiler.c_str(), which, kernels,
                registers[registers.size() / 2], most_registers, spills, parked, scratch, shared, least_waves);
  }
};

int table(const std::filesystem::path& folder) {
  std::printf("%-8s %-11s %-13s %7s %9s %9s %7s %7s %8s %7s %6s\n", "target", "compiler", "kernels", "number",
              "registers", "most", "spills", "parked", "scratch", "shared", "waves");
  int failures = 0;
  for (const rocm::Target& target : rocm::targets()) {
    const std::string arch = target.arch;
    std::string why_not;
    const std::string compiler = object_compiler(arch, why_not);
    if (compiler.empty()) {
      std::printf("%-8s left out: %s\n", arch.c_str(), why_not.c_str());
      continue;
    }
    std::vector<ModuleText> modules = generated_texts(arch, 515, true);
    for (ModuleText& own : own_texts(arch)) modules.push_back(std::move(own));
    Row rows[2];
    const std::string path = folder / (arch + ".co");
    for (const ModuleText& m : modules) {
      if (const std::string wrong = compile_object_file(m.text, arch, compiler, path); !wrong.empty())
        std::printf("%s %s: %s\n", arch.c_str(), m.symbols[0].c_str(), wrong.c_str()), ++failures;
      else
        for (const KernelFacts& f : facts_of(path)) rows[!m.generated].add(f, arch);
    }
    rows[0].print(arch, compiler, "generated");
    rows[1].print(arch, compiler, "by hand");
    failures += rows[0].spills > 0;
  }
  return failures == 0 ? 0 : 1;
}

}  // namespace
}  // namespace keirin::test

int main(int argc, char** argv) {
  using namespace keirin::test;
  if (argc == 4 && std::string(argv[1]) == "--launches") return write_launches(argv[2], argv[3]);
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("keirin-table-" + std::to_string(getpid()));
  std::filesystem::create_directories(folder);
  const int result = table(folder);
  std::filesystem::remove_all(folder);
  return result;
}
