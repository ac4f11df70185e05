// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/rocm/object_compiler.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <sstream>

#include "rocm/clang.h"
#include "rocm/device.h"
#include "rocm/hiprtc.h"

namespace keirin::test {
namespace {

struct Isa {
  const char* arch;
  int registers, granule, most_waves;  // of a lane, of an allocation, of a vector unit
};
constexpr Isa kIsas[] = {{"gfx90a", 512, 8, 8},    {"gfx942", 512, 8, 8},    {"gfx950", 512, 8, 8},
                         {"gfx1030", 1024, 8, 16}, {"gfx1100", 1536, 24, 16}, {"gfx1201", 1536, 24, 16}};

const Isa* isa_of(const std::string& arch) {
  for (const Isa& isa : kIsas)
    if (arch == isa.arch) return &isa;
  return nullptr;
}

gpu::CodeTarget target_of(const std::string& arch) {
  gpu::CodeTarget target;
  target.arch = arch;
  return target;
}

std::string read(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream words;
  words << in.rdbuf();
  return words.str();
}

// In a child: a hipRTC that does not know what it is asked for ends the process.
std::string in_child(const std::string& text, const std::string& arch, bool by_clang, const std::string& path) {
  const pid_t child = fork();
  if (child == 0) {
    std::string failure;
    try {
      const std::vector<char> code = by_clang ? rocm::compile_by_clang(text, target_of(arch)) : rocm::compile_object(text, target_of(arch));
      std::ofstream(path, std::ios::binary).write(code.data(), static_cast<std::streamsize>(code.size()));
    } catch (const std::exception& error) {
      failure = error.what();
    }
    std::ofstream(path + ".log") << failure;
    _exit(failure.empty() ? 0 : 1);
  }
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child) return "no child";
  if (WIFSIGNALED(status)) return "the compiler ended the child by signal " + std::to_string(WTERMSIG(status));
  return WEXITSTATUS(status) == 0 ? "" : read(path + ".log").substr(0, 2000);
}

}  // namespace

std::string object_compiler(const std::string& arch, std::string& why_not) {
  if (!isa_of(arch)) return why_not = "no row for " + arch, "";
  if (rocm::Hiprtc::get(why_not) && rocm::compiles_for(arch, why_not)) return "hiprtc " + rocm::hip_version();
  std::string why_no_clang;
  std::string clang = rocm::clang_for(arch, why_no_clang);
  if (clang.empty()) why_not += "; " + why_no_clang;
  return clang;
}

std::string compile_object_file(const std::string& text, const std::string& arch, const std::string& compiler,
                                const std::string& path) {
  return in_child(text, arch, compiler.rfind("clang", 0) == 0, path);
}

std::vector<KernelFacts> facts_of(const std::string& path) {
  std::vector<KernelFacts> out;
  std::FILE* in = popen(("llvm-readelf-19 --notes " + path + " 2> /dev/null").c_str(), "r");
  if (!in) return out;
  KernelFacts now;
  char line[1024];
  const auto number = [&](const char* key, int& to) {
    if (const char* at = std::strstr(line, key)) to = std::atoi(at + std::strlen(key));
  };
  while (std::fgets(line, sizeof line, in)) {
    number(".group_segment_fixed_size:", now.shared_bytes);
    number(".private_segment_fixed_size:", now.scratch_bytes);
    number(".sgpr_count:", now.sgprs);
    number(".vgpr_count:", now.vgprs);
    number(".vgpr_spill_count:", now.spills);
    number(".sgpr_spill_count:", now.parked);
    if (const char* at = std::strstr(line, ".symbol:")) {
      now.symbol = at + 8;
      std::erase_if(now.symbol, [](char c) { return c == ' ' || c == '\n' || c == '\''; });
    }
    number(".wavefront_size:", now.wave);
    if (now.wave == 0) continue;
    out.push_back(now);
    now = {};
  }
  pclose(in);
  return out;
}

int waves_by_registers(const std::string& arch, int vgprs) {
  const Isa* isa = isa_of(arch);
  const int taken = std::max(1, (vgprs + isa->granule - 1) / isa->granule) * isa->granule;
  return std::min(isa->most_waves, isa->registers / taken);
}

}  // namespace keirin::test
