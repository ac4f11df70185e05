// SPDX-License-Identifier: Apache-2.0
//
// hipRTC's functions over the host's compiler. Every option that the AMD plugin gives is understood or refused; code is a library of the
// host, which hip.cc loads.
#include <cstdlib>
#include <string>
#include <vector>

#include "tests/emulator/host_code.h"
#include "tests/standin/emulated/words.h"
#include "tests/standin/hiprtc_program.h"

namespace {

// What the options say of the waves and of the instruction set, and the words to define before the text.
struct Options {
  int wave = 0;
  std::string arch, defines;

  // False for one that is not known. Whether products and sums may be contracted and how exact quotients are is the host compiler's.
  bool take(const std::string& option) {
    if (option == "-O3" || option == "-w" || option == "-std=c++17" || option == "-ffp-contract=fast" || option == "-ffp-contract=off" ||
        option == "-fno-hip-fp32-correctly-rounded-divide-sqrt")
      return true;
    if (option.rfind("--offload-arch=", 0) == 0) return arch = option.substr(15), true;
    if (option.rfind("-DKRN_WAVE=", 0) == 0) wave = std::atoi(option.c_str() + 11);
    if (option.rfind("-D", 0) != 0) return false;
    const size_t equals = option.find('=');
    defines += "#define " + option.substr(2, equals - 2) + " " + (equals == std::string::npos ? "1" : option.substr(equals + 1)) + "\n";
    return true;
  }
  bool agree() const {
    return (arch == "gfx942" && wave == 64) || (arch == "gfx1100" && wave == 32);
  }
};

// What a launch calls, and with how many threads: for each `KRN_KERNEL..(threads) name(` of the text.
std::string entries(const std::string& text) {
  std::string out;
  for (size_t at = 0; (at = text.find("\nKRN_KERNEL", at)) != std::string::npos; ++at) {
    const size_t open = text.find('(', at), close = text.find(')', open), end = text.find('(', close);
    if (end == std::string::npos) break;
    const std::string name = text.substr(close + 2, end - close - 2),
                      threads = text.substr(open + 1, text.find_first_of(",)", open) - open - 1);
    out += "extern \"C\" { void standin_call_" + name + "(void** arguments) { standin_call(&" + name +
           ", arguments); }\n  extern const int standin_threads_" + name + " = (" + threads +
           ");\n  extern const StandinSizes<decltype(&" + name + ")> standin_sizes_" + name + " = {}; }\n";
  }
  return out;
}

std::string for_the_host(std::string text, const Options& options) {
  const std::string from = "__builtin_amdgcn_", to = "standin_amdgcn_";
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size()) text.replace(at, from.size(), to);
  return options.defines + std::string(keirin::standin::emulated::words) + text + "\n" + entries(text);
}

int compile_program(Program& program, const std::vector<std::string>& options) {
  Options taken;
  for (const std::string& option : options)
    if (!taken.take(option)) return program.log = "no stand-in for the option " + option, kInvalidOption;
  if (!taken.agree()) return program.log = "no stand-in for " + taken.arch + " in waves of " + std::to_string(taken.wave), kInvalidOption;
  program.code = keirin::test::compile_for_host(for_the_host(program.text, taken), program.log);
  return program.code.empty() ? kCompilation : kOk;
}

}  // namespace
