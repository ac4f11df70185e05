// SPDX-License-Identifier: Apache-2.0
#include "rocm/clang.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "abi/plugin.h"
#include "plugins/kit/error.h"
#include "rocm/device.h"
#include "rocm/hiprtc.h"

namespace keirin::rocm {
namespace {

namespace fs = std::filesystem;

std::string device_library() {
  for (const char* folder : {"/usr/lib/x86_64-linux-gnu/amdgcn/bitcode", "/usr/lib/aarch64-linux-gnu/amdgcn/bitcode",
                             "/opt/rocm/amdgcn/bitcode", "/usr/lib/llvm-19/lib/clang/19/amdgcn/bitcode"})
    if (fs::exists(std::string(folder) + "/ocml.bc")) return folder;
  return "";
}

// What the library's functions may use. One older than the instruction set has no part for it: then that of the nearest set before.
std::string isa_part(const std::string& library, const std::string& arch) {
  const std::string part = "oclc_isa_version_";
  const std::string own = part + arch.substr(3);
  return fs::exists(library + "/" + own + ".bc") ? own : part + (wave_of(arch) == 64 ? "940" : "1030");
}

bool runs(const std::string& command) { return std::system((command + " > /dev/null 2>&1").c_str()) == 0; }

std::string contents(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

}  // namespace

// Each release knows the sets of its time: gfx950 came with 20.
std::string clang_for(const std::string& arch, std::string& why_not) {
  if (device_library().empty()) return why_not = "no device library of ROCm (package rocm-device-libs)", "";
  std::string others;
  for (const char* name : {"clang-19", "clang-22", "clang"}) {
    if (!runs(std::string(name) + " --version")) continue;
    if (runs(std::string(name) + " --target=amdgcn-amd-amdhsa -nogpulib -mcpu=" + arch + " -x c -c /dev/null -o /dev/null")) return name;
    others += (others.empty() ? "" : " and ") + std::string(name);
  }
  return why_not = others.empty() ? "clang-19 is not installed" : others + " does not know " + arch + " (package clang-22)", "";
}

std::vector<char> compile_by_clang(const std::string& text, const gpu::CodeTarget& target) {
  std::string why_not;
  const std::string clang = clang_for(target.arch, why_not), library = device_library();
  if (clang.empty()) throw kit::Error(KRN_STATUS_unsupported, why_not);
  std::string folder = (fs::temp_directory_path() / "keirin-code-XXXXXX").string();
  if (!mkdtemp(folder.data())) throw kit::Error(KRN_STATUS_exhausted, "no temporary folder for a kernel's text");
  const std::string source = folder + "/text.hip", object = folder + "/code.co", log = folder + "/log";
  std::ofstream(source) << text;
  std::string command = clang + " -x hip --cuda-device-only --no-gpu-bundle-output -nogpuinc -nogpulib --offload-arch=" + target.arch;
  for (const std::string& option : options_of(target)) command += " " + option;
  const std::string wide = wave_of(target.arch) == 64 ? "on" : "off";
  for (const std::string& part :
       {std::string("ocml"), std::string("ockl"), std::string("oclc_daz_opt_off"), std::string("oclc_unsafe_math_off"),
        std::string("oclc_finite_only_off"), std::string("oclc_correctly_rounded_sqrt_on"), "oclc_wavefrontsize64_" + wide,
        isa_part(library, target.arch), std::string("oclc_abi_version_500")})
    command += " -Xclang -mlink-builtin-bitcode -Xclang " + library + "/" + part + ".bc";
  const bool done = std::system((command + " -o " + object + " " + source + " 2> " + log).c_str()) == 0;
  const std::string code = contents(object), words = contents(log);
  std::error_code ignored;
  fs::remove_all(folder, ignored);
  if (!done || code.empty())
    throw kit::Error(KRN_STATUS_internal, clang + " refused generated text for " + target.arch + ": " + words.substr(0, 2000));
  return {code.begin(), code.end()};
}

}  // namespace keirin::rocm
