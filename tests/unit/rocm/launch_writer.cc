// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/rocm/launch_writer.h"

#include <fstream>
#include <stdexcept>

#include "tests/unit/cpu/kernel_interpreter.h"
#include "tests/unit/cpu/kernel_maker.h"
#include "tests/unit/rocm/object_compiler.h"

namespace keirin::test {

using nlohmann::json;

const char* simulator_type(uint8_t dtype) {
  switch (dtype) {
    case kBool:
    case kU8:
      return "u8";
    case kI8:
      return "i8";
    case kI16:
      return "i16";
    case kI32:
      return "i32";
    case kI64:
      return "i64";
    case kF16:
      return "f16";
    case kBf16:
      return "bf16";
    case kF32:
      return "f32";
    default:
      return "f64";
  }
}

double simulator_tolerance(uint8_t dtype, double loosen) {
  if (!is_real(dtype)) return 0;
  return loosen * (dtype == kBf16 ? 1.0 / 128 : dtype == kF16 ? 1.0 / 1024 : dtype == kF64 ? 1e-9 : 5e-6);
}

std::string hex_of(const void* data, size_t bytes) {
  static const char digits[] = "0123456789abcdef";
  std::string out;
  for (size_t i = 0; i < bytes; ++i)
    out += digits[static_cast<const uint8_t*>(data)[i] >> 4], out += digits[static_cast<const uint8_t*>(data)[i] & 15];
  return out;
}

LaunchWriter::LaunchWriter(std::filesystem::path folder, std::string arch) : folder_(std::move(folder)), arch_(std::move(arch)) {
  std::filesystem::create_directories(folder_);
  std::string why_not;
  compiler_ = object_compiler(arch_, why_not);
  if (compiler_.empty()) throw std::runtime_error(arch_ + ": " + why_not);
}

std::string LaunchWriter::code(const std::string& text) {
  const std::string name = "m" + std::to_string(num_modules_++) + ".co";
  if (const std::string wrong = compile_object_file(text, arch_, compiler_, folder_ / name); !wrong.empty())
    throw std::runtime_error(wrong);
  return name;
}

std::string LaunchWriter::file(const void* data, size_t bytes) {
  const std::string name = "b" + std::to_string(num_files_++) + ".bin";
  std::ofstream(folder_ / name, std::ios::binary).write(static_cast<const char*>(data), static_cast<std::streamsize>(bytes));
  return name;
}

json& LaunchWriter::launch(const std::string& code, const std::string& symbol, const std::string& label, int64_t blocks, int threads) {
  launches_.push_back({{"code", code},
                       {"arch", arch_},
                       {"kernel", symbol},
                       {"label", label},
                       {"grid", {blocks, 1, 1}},
                       {"block", {threads, 1, 1}},
                       {"lds_bytes", 0},
                       {"args", json::array()},
                       {"expect", json::array()}});
  return launches_.back();
}

void LaunchWriter::finish() { std::ofstream(folder_ / "launches.json") << json{{"launches", launches_}}.dump(1) << "\n"; }

}  // namespace keirin::test
