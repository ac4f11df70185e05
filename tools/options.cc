// SPDX-License-Identifier: Apache-2.0
#include "tools/options.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>

namespace keirin::tools {
namespace fs = std::filesystem;
namespace {

// Folders that may hold the zoo: named by the user, installed beside the program, or the source tree it was built from.
std::vector<fs::path> zoo_folders(const std::string& size) {
  std::vector<fs::path> folders;
  if (const char* named = secure_getenv("KEIRIN_ZOO")) folders.push_back(fs::path(named) / size);
  std::error_code error;
  fs::path self = fs::read_symlink("/proc/self/exe", error);
  if (!error) folders.push_back(self.parent_path().parent_path() / "share/keirin/zoo" / size);
  if (!error) folders.push_back(self.parent_path().parent_path() / "bench/zoo/models" / size);
  folders.push_back(fs::path(KEIRIN_ZOO_SOURCE) / size);
  return folders;
}

}  // namespace

void add_plugin_option(CLI::App& app, std::vector<std::string>& paths) {
  app.add_option("--plugin", paths, "a plugin library or a folder of plugins, beside those found")
      // The host takes no relative path, for it may come from a file or the environment; this one was typed here.
      ->transform([](const std::string& path) { return fs::absolute(path).lexically_normal().string(); });
}

void CommonOptions::add_to(CLI::App& app) {
  app.add_option("--device", runtime.device, "cpu, cuda, cuda:N or all")->capture_default_str();
  app.add_option("--threads", runtime.threads, "CPU threads; 0 leaves LibTorch's default")->check(CLI::NonNegativeNumber);
  app.add_option("--mode", runtime.mode, "default, reduce-overhead, max-autotune or max-performance")
      ->check(CLI::IsMember({"default", "reduce-overhead", "max-autotune", "max-performance"}))
      ->capture_default_str();
  app.add_option("--budget", runtime.budget_seconds, "seconds of tuning beyond the heuristics")->check(CLI::NonNegativeNumber);
  app.add_option("--race-limit", runtime.race_seconds, "seconds that one race may take")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--sample-rate", runtime.sample_rate, "after the first 3 calls of a shape, compare 1 in so many with eager; 0: none")
      ->capture_default_str();
  app.add_option("--inputs", inputs, "a .safetensors file with tensors named by position: 0, 1, ...");
  app.add_option("--json", json, "also write the result as JSON to this file; - is standard output");
  app.add_option("--fallback", fallback, "what to do about eager steps: allow, warn or forbid")
      ->check(CLI::IsMember({"allow", "warn", "forbid"}))
      ->capture_default_str();
  app.add_option("--numerics", numerics, "default, strict or fast")
      ->check(CLI::IsMember({"default", "strict", "fast"}))
      ->capture_default_str();
  app.add_option("--error-budget", runtime.error_budget, "of numerics fast: error that a plan may have, relative to the largest element")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--memory-limit", runtime.memory_limit, "a plan may take so much more memory than a process that runs eager, as a share of it")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--size", size, "which zoo: small (2 cores), full, or others (breadth)")
      ->check(CLI::IsMember({"small", "full", "others"}))
      ->capture_default_str();
  add_plugin_option(app, runtime.plugin_paths);
  app.add_option("--only-plugin", runtime.plugins, "let only plugins of this name compile");
  app.add_option("--load-library", runtime.load_libraries, "a library that registers operators, opened before the model");
  app.add_option("--cache", runtime.cache_dir, "cache folder; default $KEIRIN_CACHE or the user's cache folder");
  app.add_flag("!--no-cache", runtime.use_cache, "neither read nor write the cache");
  app.add_option("--compile-in", runtime.compile_in, "child or process: where plugins compile; default $KEIRIN_COMPILE_IN, else child")
      ->check(CLI::IsMember({"child", "process"}));
  app.add_option("--run-in", runtime.run_in, "process or worker: where compiled regions run; default $KEIRIN_RUN_IN, else process")
      ->check(CLI::IsMember({"process", "worker"}));
  app.add_option("--run-deadline", runtime.run_deadline_seconds, "seconds after which a run of a region hangs: calls go elsewhere then, a worker is ended")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--compile-deadline", runtime.compile_deadline_seconds, "seconds that a plugin has for one region in the child")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_flag("--background", runtime.background, "compile at the lowest priority, beside whatever else this machine does");
  app.add_flag("!--no-verify", runtime.verify, "skip verification; shown in the report");
  app.add_option("--force", runtime.force, "eager or compiled, for tests; shown in the report")
      ->check(CLI::IsMember({"eager", "compiled"}));
  app.add_option("--disable-pass", runtime.disabled_passes, "names of passes to leave out");
  app.add_option("--repro", runtime.repro_dir, "folder for wrong answers, which `keirin repro` takes; default $KEIRIN_REPRO, else none");
  app.add_option("--dump", runtime.dump_dir, "folder for the numbered dump of every stage");
  app.add_flag("--quiet", quiet, "no progress");
}

void CommonOptions::finish() {
  runtime.fallback = fallback == "forbid" ? Fallback::kForbid : fallback == "warn" ? Fallback::kWarn : Fallback::kAllow;
  runtime.numerics = numerics == "strict" ? Numerics::kStrict : numerics == "fast" ? Numerics::kFast : Numerics::kDefault;
  if (!quiet) runtime.progress = progress_line();
}

std::vector<std::string> zoo_names(const std::string& size) {
  for (const fs::path& folder : zoo_folders(size)) {
    std::error_code error;
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder, error))
      if (entry.path().extension() == ".pt2") names.push_back(entry.path().stem().string());
    if (names.empty()) continue;
    std::sort(names.begin(), names.end());
    return names;
  }
  return {};
}

Result<std::string> find_model(const std::string& name, const std::string& size) {
  std::error_code error;
  if (fs::exists(name, error)) return name;
  if (name.find('/') == std::string::npos)
    for (const fs::path& folder : zoo_folders(size))
      if (fs::path file = folder / (name + ".pt2"); fs::exists(file, error)) return file.string();
  std::string known;
  for (const std::string& each : zoo_names(size)) known += (known.empty() ? "" : " ") + each;
  return Status(Code::k_invalid_input, {fmt::format("no file and no zoo model is called \"{}\"", name), {}, "nothing was run",
                                        "give the path of a .pt2 file, or one of: " + known});
}

int fail(const Status& status) {
  end_progress_line();
  fmt::print(stderr, "keirin: {}\n", status.text());
  switch (status.code()) {
    case Code::k_invalid_input: return kUsage;
    case Code::k_exhausted:
    case Code::k_device_lost: return kEnvironment;
    default: return kFailed;
  }
}

Status write_text(const std::string& path, const std::string& text) {
  if (path == "-") {
    fmt::print("{}", text);
    return {};
  }
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (!file) return Status(Code::k_exhausted, {"could not write " + path, {}, {}, "check the folder and the free space"});
  return {};
}

std::function<void(const std::string&, double, double)> progress_line() {
  if (!isatty(STDERR_FILENO)) return {};
  return [](const std::string& stage, double done, double seconds_left) {
    std::string left = seconds_left > 0 ? fmt::format("  {:.0f} s left", seconds_left) : "";
    fmt::print(stderr, "\r\033[K  {}  {:3.0f} %{}", stage, done * 100, left);
    std::fflush(stderr);
  };
}

void end_progress_line() {
  if (isatty(STDERR_FILENO)) fmt::print(stderr, "\r\033[K");
}

}  // namespace keirin::tools
