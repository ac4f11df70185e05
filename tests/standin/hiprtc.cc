// SPDX-License-Identifier: Apache-2.0
//
// hipRTC's functions over NVRTC. Every option that the AMD plugin gives is understood or refused; code is for the GPU that is there, or
// for sm_90.
#include "cuda/driver.h"
#include "cuda/nvrtc.h"
#include "tests/standin/hiprtc_program.h"
#include "tests/standin/words.h"

namespace {

using namespace keirin;

std::string architecture() {
  std::string ignored;
  const cuda::DriverApi* driver = cuda::DriverApi::get(ignored);
  int major = 9, minor = 0;
  CUdevice device = 0;
  if (driver && driver->cuDeviceGet(&device, 0) == CUDA_SUCCESS) {
    driver->cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device);
    driver->cuDeviceGetAttribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device);
  }
  return "sm_" + std::to_string(10 * major + minor);
}

// NVRTC's options for one of hipRTC's; false for one that is not known.
bool translate(const std::string& option, std::vector<std::string>& out) {
  if (option == "-O3" || option == "-w") return true;
  if (option == "-std=c++17") return out.push_back("--std=c++17"), true;
  if (option == "-ffp-contract=fast") return out.push_back("--fmad=true"), true;
  if (option == "-ffp-contract=off") return out.push_back("--fmad=false"), true;
  if (option == "-fno-hip-fp32-correctly-rounded-divide-sqrt") {
    out.insert(out.end(), {"--prec-div=false", "--prec-sqrt=false"});
    return true;
  }
  if (option == "--offload-arch=gfx1100") return out.push_back("--gpu-architecture=" + architecture()), true;
  if (option == "-DKRN_WAVE=64" || option.rfind("-D", 0) != 0) return false;
  return out.push_back("--define-macro=" + option.substr(2)), true;
}

std::string with_words(std::string text) {
  const std::string from = "__builtin_", to = "standin_";
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size()) text.replace(at, from.size(), to);
  return std::string(standin::text::words) + text;
}

int compile_program(Program& program, const std::vector<std::string>& given) {
  std::vector<std::string> options = {"-default-device"};
  for (const std::string& option : given)
    if (!translate(option, options)) return program.log = "no stand-in for the option " + option, kInvalidOption;
  std::string why_not;
  const cuda::Nvrtc* api = cuda::Nvrtc::get(why_not);
  if (!api) return program.log = why_not, kInternal;
  cuda::NvrtcProgram made = nullptr;
  if (api->nvrtcCreateProgram(&made, with_words(program.text).c_str(), "standin.cu", 0, nullptr, nullptr) != 0) return kInternal;
  std::vector<const char*> words;
  for (const std::string& option : options) words.push_back(option.c_str());
  const int result = api->nvrtcCompileProgram(made, static_cast<int>(words.size()), words.data());
  size_t size = 0;
  api->nvrtcGetProgramLogSize(made, &size);
  program.log.resize(size);
  if (size) api->nvrtcGetProgramLog(made, program.log.data());
  if (result == 0 && api->nvrtcGetCUBINSize(made, &size) == 0) {
    program.code.resize(size);
    api->nvrtcGetCUBIN(made, program.code.data());
  }
  api->nvrtcDestroyProgram(&made);
  return result == 0 && !program.code.empty() ? kOk : kCompilation;
}

}  // namespace
