// SPDX-License-Identifier: Apache-2.0
//
// hipRTC's functions around a program, for the stand-ins of the library, each of which is one source that includes this. It compiles by
// `compile_program`, which the source defines; numbers are HIP's, from its documentation.
#pragma once

#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

#define STANDIN extern "C" __attribute__((visibility("default")))

namespace {

enum : int { kOk = 0, kInvalidInput = 3, kInvalidProgram = 4, kInvalidOption = 5, kCompilation = 6, kInternal = 11 };

struct Program {
  std::string text, log;
  std::vector<char> code;
};

// Of an option that is not known it says so in the log.
int compile_program(Program& program, const std::vector<std::string>& options);

}  // namespace

STANDIN int hiprtcVersion(int* major, int* minor) { return *major = 7, *minor = 0, kOk; }
STANDIN int hiprtcCreateProgram(Program** program, const char* text, const char*, int headers, const char**, const char**) {
  if (!text || headers != 0) return kInvalidInput;
  *program = new Program{text, {}, {}};
  return kOk;
}
STANDIN int hiprtcCompileProgram(Program* program, int count, const char** options) {
  return program ? compile_program(*program, {options, options + count}) : kInvalidProgram;
}
STANDIN int hiprtcGetProgramLogSize(Program* program, size_t* bytes) { return *bytes = program->log.size() + 1, kOk; }
STANDIN int hiprtcGetProgramLog(Program* program, char* log) { return std::strcpy(log, program->log.c_str()), kOk; }
STANDIN int hiprtcGetCodeSize(Program* program, size_t* bytes) { return *bytes = program->code.size(), kOk; }
STANDIN int hiprtcGetCode(Program* program, char* code) { return std::memcpy(code, program->code.data(), program->code.size()), kOk; }
STANDIN int hiprtcDestroyProgram(Program** program) {
  delete *program;
  return *program = nullptr, kOk;
}
STANDIN const char* hiprtcGetErrorString(int result) {
  switch (result) {
    case kOk: return "success";
    case kInvalidOption: return "an option is not known";
    case kCompilation: return "the text does not compile";
    default: return "failed";
  }
}
