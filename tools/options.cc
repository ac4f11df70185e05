// SPDX-License-Identifier: Apache-2.0
#include "tools/options.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <stop_token>
#include <thread>

namespace keirin::tools {
namespace fs = std::filesystem;
namespace {

// Folders that may hold the zoo: named by the user, or Keirin's own.
std::vector<fs::path> zoo_folders(const std::string& size) {
  std::vector<fs::path> folders;
  if (const char* named = secure_getenv("KEIRIN_ZOO")) folders.push_back(fs::path(named) / size);
  folders.push_back(data_folder("zoo") / size);
  return folders;
}

// What --help says of it.
std::string help_of(const OptionRow& row) {
  std::string text = flag_text(row);
  switch (row.values.kind) {
    case OptionValues::kWords:
    case OptionValues::kDevice:
    case OptionValues::kPass: text += " (" + allowed_text(row) + ")"; break;
    default: break;
  }
  return row.variable.empty() ? text : text + " [$" + row.variable + "]";
}

template <class T>
void add_option(CLI::App& app, Options& options, const OptionRow& row, T& field) {
  if (row.flag.empty()) return;
  if constexpr (std::is_same_v<T, bool>) {
    app.add_flag(row.flag, field, help_of(row));
  } else {
    CLI::Option* option = nullptr;
    if constexpr (std::is_enum_v<T>) {
      const auto take = [&](const std::string& word) { (void)set_option(row, options, word); };  // checked below
      option = app.add_option_function<std::string>(row.flag, take, help_of(row));
    } else {
      option = app.add_option(row.flag, field, help_of(row));
    }
    // The host takes no relative path, for it may come from a file or the environment; this one was typed here.
    if (row.values.kind == OptionValues::kPath)
      option->transform([](const std::string& path) {
        return path.empty() ? path : fs::absolute(path).lexically_normal().string();
      });
    option->check([&](const std::string& word) {
      const Status status = check_word(row, word);
      return status.ok() ? std::string() : status.message().what + "\n" + status.message().advice;
    });
    const std::vector<std::string> plain = row.get(options);
    if (!row.list && !plain[0].empty()) option->default_str(plain[0]);
  }
}

// A log has no line to write over: what is being done is said every 10 s, by a thread of its own, because a stage may last longer.
class SlowProgress {
 public:
  void now(const std::string& stage, double done) {
    const std::lock_guard lock(mutex_);
    stage_ = fmt::format("{}  {:3.0f} %", stage, done * 100);
    if (!teller_.joinable()) teller_ = std::jthread([this](std::stop_token stop) { tell(stop); });
  }
  // Nothing is under way until the next stage.
  void rest() {
    const std::lock_guard lock(mutex_);
    stage_.clear();
  }
  static SlowProgress& instance() {
    static SlowProgress progress;
    return progress;
  }

 private:
  void tell(const std::stop_token& stop) {
    const auto begin = std::chrono::steady_clock::now();
    std::unique_lock lock(mutex_);
    while (!wake_.wait_for(lock, stop, std::chrono::seconds(10), [] { return false; }) && !stop.stop_requested())
      if (!stage_.empty())
        fmt::print(stderr, "  {}, {:.0f} s\n", stage_, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }

  std::mutex mutex_;
  std::condition_variable_any wake_;
  std::string stage_;
  std::jthread teller_;  // last: it uses what stands above
};

}  // namespace

fs::path data_folder(const std::string& name) {
  std::error_code error;
  const fs::path self = fs::read_symlink("/proc/self/exe", error).parent_path();
  const fs::path built = self / "share/keirin" / name;
  return fs::exists(built, error) ? built : self.parent_path() / "share/keirin" / name;
}

void add_options(CLI::App& app, Options& options, std::initializer_list<std::string_view> fields) {
#define KRN_OPTION(field, type, initial, values, flag, variable, decides, where, text)         \
  if (fields.size() == 0 || std::find(fields.begin(), fields.end(), #field) != fields.end()) \
    add_option(app, options, option_row(#field), options.field);
#include "core/api/options.def"
#undef KRN_OPTION
}

std::vector<std::string> command_words(const Options& options) {
  static const Options kPlain;
  std::vector<std::string> out;
  for (const OptionRow& row : option_rows()) {
    const std::vector<std::string> words = row.get(options);
    if (row.flag.empty() || words == row.get(kPlain)) continue;
    for (const std::string& word : words) {
      out.push_back(flag_name(row));
      if (row.values.kind != OptionValues::kSwitch) out.push_back(word);
    }
  }
  return out;
}

void add_json(CLI::App& app, std::string& json) {
  app.add_option("--json", json, "also write the result as JSON to this file; - is standard output, which then holds nothing else");
}

void add_size(CLI::App& app, std::string& size) {
  app.add_option("--size", size, "which zoo: small (2 cores), full, others (breadth), or tiny (an emulator)")
      ->check(CLI::IsMember({"tiny", "small", "full", "others"}))
      ->capture_default_str();
}

std::FILE* text_out(const std::string& json) { return json == "-" ? stderr : stdout; }

size_t table_width(bool wide) {
  if (wide) return 0;
  if (const char* columns = std::getenv("COLUMNS"))
    if (const long width = std::strtol(columns, nullptr, 10); width > 0 && width < 10000) return static_cast<size_t>(width);
  winsize window{};
  return ioctl(STDOUT_FILENO, TIOCGWINSZ, &window) == 0 ? window.ws_col : 0;
}

void CommonOptions::add_to(CLI::App& app) {
  app.add_option("--inputs", inputs,
                 "a .safetensors file with tensors named by position (0, 1, ...) or by the names that `keirin inspect` shows");
  app.add_option("--input", named_inputs,
                 "NAME=FILE: the tensor for one input, by name or position, alone in a .safetensors file; repeat it for more");
  add_json(app, json);
  add_size(app, size);
  app.add_flag("--quiet", quiet, "no progress, no table of `run`: warnings and results only");
  app.add_flag("--wide", wide, "all columns of tables, however wide the terminal is");
  add_options(app, runtime);
}

void CommonOptions::add_machine_to(CLI::App& app) {
  add_json(app, json);
  add_options(app, runtime,
              {"device", "threads", "plugin_paths", "plugins", "load_libraries", "cache_dir", "use_cache", "compile_in", "run_in"});
}

void tell_plugins(const Options& options) {
  for (const char* name : {"imagine", "launches_dir"}) {
    const OptionRow& row = option_row(name);
    if (const std::string value = row.get(options)[0]; !value.empty()) ::setenv(row.variable.c_str(), value.c_str(), 1);
  }
}

void CommonOptions::finish() {
  tell_plugins(runtime);
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
  if (!isatty(STDERR_FILENO)) {
    return [](const std::string& stage, double done, double) { SlowProgress::instance().now(stage, done); };
  }
  return [](const std::string& stage, double done, double seconds_left) {
    std::string left = seconds_left > 0 ? fmt::format("  {:.0f} s left", seconds_left) : "";
    fmt::print(stderr, "\r\033[K  {}  {:3.0f} %{}", stage, done * 100, left);
    std::fflush(stderr);
  };
}

void end_progress_line() {
  if (isatty(STDERR_FILENO)) fmt::print(stderr, "\r\033[K");
  else SlowProgress::instance().rest();
}

}  // namespace keirin::tools
