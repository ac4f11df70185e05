// SPDX-License-Identifier: Apache-2.0
#include "tools/matrix/cases.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <fnmatch.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>
#include <string_view>

#include "core/api/options.h"
#include "core/base/sha256.h"
#include "tools/options.h"

namespace keirin::tools::matrix {
namespace fs = std::filesystem;
namespace {

Status wrong_part(const std::string& text, const char* part, const std::string& value,
                  const std::vector<std::string>& allowed) {
  return Status(Code::k_invalid_input,
                {fmt::format("\"{}\" cannot be the {} of a case", value, part), text, "nothing was measured",
                 fmt::format("give one of: {}", fmt::join(allowed, ", "))});
}

// A whole number that the environment says; nothing if it says none.
std::optional<uint64_t> number_of(const char* text) {
  if (!text) return {};
  uint64_t value = 0;
  const char* const end = text + std::string_view(text).size();
  const auto [at, error] = std::from_chars(text, end, value);
  return error == std::errc() && at == end && at != text ? std::optional(value) : std::nullopt;
}

Result<Shard> shard_of_engine() {
  std::optional<uint64_t> number = number_of(std::getenv("SLURM_ARRAY_TASK_ID")),
                          count = number_of(std::getenv("SLURM_ARRAY_TASK_COUNT"));
  const uint64_t first = number_of(std::getenv("SLURM_ARRAY_TASK_MIN")).value_or(0);
  if (number) number = *number >= first ? *number - first : std::numeric_limits<uint64_t>::max() - 1;
  if (!number) number = number_of(std::getenv("JOB_COMPLETION_INDEX")), count = number_of(std::getenv("KEIRIN_SHARDS"));
  if (number && count && *number < *count) return Shard{*number + 1, *count};
  return Status(Code::k_invalid_input,
                {"which shard this is was not found", "--shard auto", "nothing was measured",
                 "run it in an array of Slurm whose steps are 1, or in an indexed job of Kubernetes with "
                 "KEIRIN_SHARDS set; elsewhere give 3/8"});
}

// "4x64"; nothing if it is none.
std::optional<std::vector<int64_t>> numbers_of(const std::string& text) {
  std::vector<int64_t> out;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, 'x');) {
    const std::optional<uint64_t> value = number_of(part.c_str());
    if (!value || *value > INT32_MAX) return {};
    out.push_back(static_cast<int64_t>(*value));
  }
  return out.empty() || text.back() == 'x' ? std::nullopt : std::optional(out);
}

constexpr std::string_view kCallers = "callers-";

}  // namespace

std::string Case::text() const { return fmt::format("{}/{}/{}/{}/{}/{}", model, sizes, dtype, work, scenario, mode); }
std::string Case::zoo() const { return sizes.substr(0, sizes.find('@')); }
std::vector<int64_t> Case::free_sizes() const {
  const size_t at = sizes.find('@');
  return at == std::string::npos ? std::vector<int64_t>() : numbers_of(sizes.substr(at + 1)).value_or(std::vector<int64_t>());
}
int Case::callers() const {
  return scenario.starts_with(kCallers) ? static_cast<int>(number_of(scenario.c_str() + kCallers.size()).value_or(1)) : 1;
}

Case Case::warm() const {
  Case out = *this;
  if (starts()) out.scenario = "single";
  return out;
}

bool Case::has(const std::string& variant) const {
  if (starts() && (variant == "replay" || variant.starts_with("peer:"))) return false;
  return !trains() || (variant != "replay" && !variant.starts_with(kCompiled));
}

Result<Case> parse_case(const std::string& text) {
  std::vector<std::string> parts;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, '/');) parts.push_back(part);
  if (parts.size() != 6 || std::any_of(parts.begin(), parts.end(), [](const std::string& p) { return p.empty(); }))
    return Status(Code::k_invalid_input, {"a case has six parts: model/sizes/dtype/work/scenario/mode", text,
                                          "nothing was measured", "for instance bert/small/f32/infer/single/default"});
  Case item{parts[0], parts[1], parts[2], parts[3], parts[4], parts[5]};
  const auto check = [&](const char* part, const std::string& value, const std::vector<std::string>& allowed) {
    return std::find(allowed.begin(), allowed.end(), value) != allowed.end() ? Status()
                                                                             : wrong_part(text, part, value, allowed);
  };
  KRN_TRY(check("sizes", item.zoo(), {"tiny", "small", "full", "others"}));
  if (item.sizes.find('@') != std::string::npos && item.free_sizes().empty())
    return wrong_part(text, "sizes", item.sizes, {"tiny", "small", "full", "others", "one of them with free sizes: small@4x64"});
  KRN_TRY(check("work", item.work, {"infer", "train"}));
  if (item.trains() && item.sizes != item.zoo()) return wrong_part(text, "sizes", item.sizes, {item.zoo()});
  const int callers = item.callers();
  if (item.trains()) KRN_TRY(check("scenario", item.scenario, {"single"}));
  const bool calls_at_once =
      callers >= 2 && callers <= kMostCallers && item.scenario == fmt::format("{}{}", kCallers, callers);
  if (item.scenario != "single" && !item.starts() && !calls_at_once) {
    std::vector<std::string> allowed = {"single", fmt::format("callers-2 to callers-{}", kMostCallers)};
    for (const Measure& each : kStartTimes) allowed.emplace_back(each.scenario);
    return wrong_part(text, "scenario", item.scenario, allowed);
  }
  KRN_TRY(check("mode", item.mode, option_row("mode").values.words));
  return item;
}

Result<std::vector<Case>> grid_of(const std::vector<Case>& cases, const std::vector<std::string>& shapes,
                                  const std::vector<int>& callers) {
  std::vector<Case> out;
  for (const Case& item : cases) {
    if (item.trains() || item.starts()) {
      out.push_back(item);
      continue;
    }
    for (size_t s = 0; s < std::max<size_t>(shapes.size(), 1); ++s)
      for (size_t c = 0; c < std::max<size_t>(callers.size(), 1); ++c) {
        Case one = item;
        if (!shapes.empty()) one.sizes = item.zoo() + "@" + shapes[s];
        if (!callers.empty()) one.scenario = callers[c] == 1 ? "single" : fmt::format("{}{}", kCallers, callers[c]);
        KRN_TRY_LET(one, parse_case(one.text()));
        out.push_back(std::move(one));
      }
  }
  return out;
}

std::vector<Case> with_starts(const std::vector<Case>& cases) {
  std::vector<Case> out = cases;
  for (const Case& item : cases)
    for (const Measure& measure : kStartTimes) {
      Case start = item;
      start.scenario = measure.scenario;
      const bool there = std::any_of(out.begin(), out.end(), [&](const Case& each) { return each.text() == start.text(); });
      if (!item.trains() && item.scenario == "single" && !there) out.push_back(std::move(start));
    }
  return out;
}

Result<std::vector<Case>> read_case_set(const std::string& name) {
  std::error_code error;
  fs::path path = name;
  if (name.find('/') == std::string::npos && !fs::is_regular_file(path, error)) path = data_folder("cases") / name;
  std::ifstream file(path);
  if (!file)
    return Status(Code::k_invalid_input, {fmt::format("no set of cases is called \"{}\"", name), path.string(),
                                          "nothing was measured", "give smoke, ci, full, shapes, or the path of a file"});
  std::vector<Case> cases;
  for (std::string line; std::getline(file, line);) {
    line = line.substr(0, line.find('#'));
    line.erase(line.find_last_not_of(" \t\r") + 1);
    if (line.empty()) continue;
    Result<Case> item = parse_case(line);
    if (!item.ok()) return std::move(item).status().at(path.string());
    cases.push_back(std::move(*item));
  }
  return cases;
}

Result<Shard> parse_shard(const std::string& text) {
  if (text == "auto") return shard_of_engine();
  Shard shard;
  const char* const end = text.data() + text.size();
  const auto number = std::from_chars(text.data(), end, shard.number);
  std::from_chars_result count{number.ptr, std::errc::invalid_argument};
  if (number.ec == std::errc() && number.ptr != end && *number.ptr == '/')
    count = std::from_chars(number.ptr + 1, end, shard.count);
  if (count.ec != std::errc() || count.ptr != end || shard.number < 1 || shard.number > shard.count)
    return Status(Code::k_invalid_input, {fmt::format("\"{}\" is not a shard", text),
                                          {},
                                          "nothing was measured",
                                          "give its number and how many there are, from 1/8 to 8/8"});
  return shard;
}

bool in_shard(const Case& item, const Shard& shard) {
  const std::string text = item.warm().text();  // a model's starts are timed together
  const Hash hash = sha256(text.data(), text.size());
  uint64_t value = 0;
  for (size_t i = 0; i < 8; ++i) value = value << 8 | hash[i];
  return value % shard.count == shard.number - 1;
}

bool matches(const Case& item, const std::string& pattern) {
  return pattern.empty() || ::fnmatch(pattern.c_str(), item.text().c_str(), 0) == 0;
}

}  // namespace keirin::tools::matrix
