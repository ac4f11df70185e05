// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/rocm/object_compiler.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "rocm/device.h"
#include "rocm/gpu_driver.h"
#include "rocm/hiprtc.h"

namespace keirin::test {
namespace {

// The device library of 5.2 is older than some sets: the nearest one before decides what its functions may use.
struct Isa {
  const char *arch, *library;
  int registers, granule, most_waves;  // of a lane, of an allocation, of a vector unit
};
constexpr Isa kIsas[] = {{"gfx90a", "90a", 512, 8, 8},      {"gfx942", "940", 512, 8, 8},
                         {"gfx950", "940", 512, 8, 8},      {"gfx1030", "1030", 1024, 8, 16},
                         {"gfx1100", "1030", 1536, 24, 16}, {"gfx1201", "1030", 1536, 24, 16}};

const Isa* isa_of(const std::string& arch) {
  for (const Isa& isa : kIsas)
    if (arch == isa.arch) return &isa;
  return nullptr;
}

std::string device_library() {
  for (const char* folder : {"/usr/lib/x86_64-linux-gnu/amdgcn/bitcode", "/opt/rocm/amdgcn/bitcode",
                             "/usr/lib/llvm-19/lib/clang/19/amdgcn/bitcode"})
    if (std::filesystem::exists(std::string(folder) + "/ocml.bc")) return folder;
  return "";
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

std::string by_clang(const std::string& text, const std::string& arch, const std::string& path) {
  const std::string source = path + ".hip", log = path + ".log", library = device_library();
  std::ofstream(source) << text;
  std::string command =
      "clang-19 -x hip --cuda-device-only --no-gpu-bundle-output -nogpuinc -nogpulib --offload-arch=" + arch;
  for (const std::string& option : rocm::options_of(target_of(arch))) command += " " + option;
  const std::string wide = rocm::wave_of(arch) == 64 ? "on" : "off";
  for (const std::string& part :
       {std::string("ocml"), std::string("ockl"), std::string("oclc_daz_opt_off"), std::string("oclc_unsafe_math_off"),
        std::string("oclc_finite_only_off"), std::string("oclc_correctly_rounded_sqrt_on"),
        "oclc_wavefrontsize64_" + wide, "oclc_isa_version_" + std::string(isa_of(arch)->library),
        std::string("oclc_abi_version_500")})
    command += " -Xclang -mlink-builtin-bitcode -Xclang " + library + "/" + part + ".bc";
  if (std::system((command + " -o " + path + " " + source + " 2> " + log).c_str()) != 0)
    return "clang-19: " + read(log).substr(0, 2000);
  return "";
}

std::string by_hiprtc(const std::string& text, const std::string& arch, const std::string& path) {
  const pid_t child = fork();
  if (child == 0) {
    std::string failure;
    try {
      const std::vector<char> code = rocm::compile_object(text, target_of(arch));
      std::ofstream(path, std::ios::binary).write(code.data(), static_cast<std::streamsize>(code.size()));
    } catch (const std::exception& error) {
      failure = error.what();
    }
    std::ofstream(path + ".log") << failure;
    _exit(failure.empty() ? 0 : 1);
  }
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child) return "no child";
  if (WIFSIGNALED(status)) return "hipRTC ended the child by signal " + std::to_string(WTERMSIG(status));
  return WEXITSTATUS(status) == 0 ? "" : read(path + ".log").substr(0, 2000);
}

}  // namespace

std::string object_compiler(const std::string& arch, std::string& why_not) {
  if (!isa_of(arch)) return why_not = "no row for " + arch, "";
  if (rocm::Hiprtc::get(why_not) && rocm::compiles_for(arch, why_not)) return "hiprtc " + rocm::hip_version();
  if (std::system("clang-19 --version > /dev/null 2>&1") != 0) return why_not += "; clang-19 is not installed", "";
  if (device_library().empty()) return why_not += "; no device library (package rocm-device-libs)", "";
  const std::string probe = "clang-19 --target=amdgcn-amd-amdhsa -nogpulib -mcpu=" + arch +
                            " -x c -c /dev/null -o /dev/null > /dev/null 2>&1";
  if (std::system(probe.c_str()) != 0) return why_not += "; clang-19 does not know it either", "";
  return "clang-19";
}

std::string compile_object_file(const std::string& text, const std::string& arch, const std::string& compiler,
                                const std::string& path) {
  return compiler == "clang-19" ? by_clang(text, arch, path) : by_hiprtc(text, arch, path);
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
