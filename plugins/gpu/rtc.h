// SPDX-License-Identifier: Apache-2.0
//
// A vendor's compiler of texts at run time, of the kind whose functions vendors spell alike but for a prefix: create a program, compile it
// with options as words, ask for its log or its code. A vendor states its table (KRN_RTC and what it has besides) and `Calls`:
//
//   struct Calls {
//     using Table = Nvrtc;  // static const Table* get(std::string& why_not)
//     using Program = NvrtcProgram;
//     KRN_RTC_SEAM(nvrtc, CUBIN)
//     static constexpr const char *kName = "NVRTC", *kFile = "keirin.cu", *kAdvice = "install it or ..";
//   };
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "abi/plugin.h"
#include "plugins/gpu/table_driver.h"
#include "plugins/kit/error.h"

// X(function, type) for each function of prefix P; Code is what the vendor calls code in its getters' names.
#define KRN_RTC(X, P, Code, Program)                                                                            \
  X(P##Version, int (*)(int*, int*))                                                                            \
  X(P##CreateProgram, int (*)(Program*, const char*, const char*, int, const char* const*, const char* const*)) \
  X(P##CompileProgram, int (*)(Program, int, const char* const*))                                               \
  X(P##GetProgramLogSize, int (*)(Program, size_t*))                                                            \
  X(P##GetProgramLog, int (*)(Program, char*))                                                                  \
  X(P##Get##Code##Size, int (*)(Program, size_t*))                                                              \
  X(P##Get##Code, int (*)(Program, char*))                                                                      \
  X(P##DestroyProgram, int (*)(Program*))                                                                       \
  X(P##GetErrorString, const char* (*)(int))

#define KRN_RTC_SEAM(P, Code)                                                                     \
  KRN_SEAM(create, P##CreateProgram) KRN_SEAM(compile, P##CompileProgram)                         \
  KRN_SEAM(log_size, P##GetProgramLogSize) KRN_SEAM(log, P##GetProgramLog)                        \
  KRN_SEAM(code_size, P##Get##Code##Size) KRN_SEAM(code, P##Get##Code)                            \
  KRN_SEAM(destroy, P##DestroyProgram) KRN_SEAM(words, P##GetErrorString)

namespace keirin::gpu {

// The table; throws kit::Error that says what is missing and how to get it.
template <class Calls>
const typename Calls::Table& compiler_of() {
  std::string why_not;
  const auto* table = Calls::Table::get(why_not);
  if (!table)
    throw kit::Error(KRN_STATUS_unsupported,
                     std::string("no ") + Calls::kName + " to compile kernels with: " + why_not + "; " + Calls::kAdvice);
  return *table;
}

// Throws kit::Error with the compiler's log. `arch` is for people; the options name it.
template <class Calls>
std::vector<char> compile_at_run_time(const std::string& text, const std::vector<std::string>& options, const std::string& arch) {
  const typename Calls::Table& api = compiler_of<Calls>();
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
