// SPDX-License-Identifier: Apache-2.0
//
// A folder of launches for a simulator (docs/launches.md).
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

namespace keirin::test {

const char* simulator_type(uint8_t dtype);
double simulator_tolerance(uint8_t dtype, double loosen);
std::string hex_of(const void* data, size_t bytes);

class LaunchWriter {
 public:
  // Throws std::runtime_error where nothing compiles for `arch`.
  LaunchWriter(std::filesystem::path folder, std::string arch);
  const std::string& arch() const { return arch_; }
  std::filesystem::path path_of(const std::string& name) const { return folder_ / name; }

  // A linked code object, and bytes: their files' names. Throws std::runtime_error.
  std::string code(const std::string& text);
  std::string file(const void* data, size_t bytes);
  // Good until the next one.
  nlohmann::json& launch(const std::string& code, const std::string& symbol, const std::string& label, int64_t blocks, int threads);
  nlohmann::json* last() { return launches_.empty() ? nullptr : &launches_.back(); }
  void finish();
  size_t size() const { return launches_.size(); }

 private:
  std::filesystem::path folder_;
  std::string arch_, compiler_;
  nlohmann::json launches_ = nlohmann::json::array();
  int num_modules_ = 0, num_files_ = 0;
};

}  // namespace keirin::test
