// SPDX-License-Identifier: Apache-2.0
//
// A vendor's compiler of texts at run time, of the kind whose functions vendors have alike under other names: create a program, compile it
// with options as words, ask for its log or its code. `Calls` names them as in table_driver.h, and says what things are called.
//
//   struct Calls {
//     using Table = Nvrtc;
//     using Program = NvrtcProgram;
//     KRN_SEAM(create, nvrtcCreateProgram) KRN_SEAM(compile, nvrtcCompileProgram) ..
//     static constexpr const char *kName = "NVRTC", *kFile = "keirin.cu";
//   };
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "abi/plugin.h"
#include "plugins/gpu/table_driver.h"
#include "plugins/kit/error.h"

namespace keirin::gpu {

// Throws kit::Error with the compiler's log. `arch` is for people; the options name it.
template <class Calls>
std::vector<char> compile_at_run_time(const typename Calls::Table& api, const std::string& text, const std::vector<std::string>& options,
                                      const std::string& arch) {
  const std::string name = Calls::kName;
  typename Calls::Program program = nullptr;
  if (const int result = (api.*Calls::create)(&program, text.c_str(), Calls::kFile, 0, nullptr, nullptr); result != 0)
    throw kit::Error(KRN_STATUS_internal, name + " gives no program: " + (api.*Calls::words)(result));
  const auto end = [&api](typename Calls::Program* p) { (api.*Calls::destroy)(p); };
  const std::unique_ptr<typename Calls::Program, decltype(end)> owner(&program, end);
  std::vector<const char*> words;
  for (const std::string& option : options) words.push_back(option.c_str());
  size_t size = 0;
  if (const int result = (api.*Calls::compile)(program, static_cast<int>(words.size()), words.data()); result != 0) {
    (api.*Calls::log_size)(program, &size);
    std::string log(size, '\0');
    if (size) (api.*Calls::log)(program, log.data());
    throw kit::Error(KRN_STATUS_internal,
                     name + " refused generated text for " + arch + ": " + (api.*Calls::words)(result) + "\n" + log.substr(0, 4000));
  }
  if ((api.*Calls::code_size)(program, &size) != 0 || size == 0) throw kit::Error(KRN_STATUS_internal, name + " gave no code for " + arch);
  std::vector<char> code(size);
  if ((api.*Calls::code)(program, code.data()) != 0) throw kit::Error(KRN_STATUS_internal, name + " kept its code for " + arch);
  return code;
}

}  // namespace keirin::gpu
