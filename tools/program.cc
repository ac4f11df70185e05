// SPDX-License-Identifier: Apache-2.0
#include "tools/program.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <string_view>

extern char** environ;

namespace keirin::tools {
namespace {

// posix_spawn takes them as char*, and writes to none.
char* as_argument(const std::string& text) { return const_cast<char*>(text.c_str()); }

bool is_replaced(std::string_view variable, const std::vector<std::string>& settings) {
  return std::any_of(settings.begin(), settings.end(),
                     [&](const std::string& setting) { return variable.starts_with(setting.substr(0, setting.find('=') + 1)); });
}

}  // namespace

ProgramEnd run_program(const ProgramRun& run) {
  std::vector<char*> arguments, environment;
  for (const std::string& word : run.words) arguments.push_back(as_argument(word));
  arguments.push_back(nullptr);
  for (const std::string& setting : run.settings) environment.push_back(as_argument(setting));
  for (char** each = environ; each != nullptr && *each != nullptr; ++each)  // null: clearenv
    if (!is_replaced(*each, run.settings)) environment.push_back(*each);
  environment.push_back(nullptr);
  const int create = O_WRONLY | O_CREAT | O_TRUNC;
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&files, STDOUT_FILENO, run.out.c_str(), create, 0600);
  if (run.errors.empty()) posix_spawn_file_actions_adddup2(&files, STDOUT_FILENO, STDERR_FILENO);
  else posix_spawn_file_actions_addopen(&files, STDERR_FILENO, run.errors.c_str(), create, 0600);
  pid_t child = 0;
  const int failed = posix_spawn(&child, run.program.c_str(), &files, nullptr, arguments.data(), environment.data());
  posix_spawn_file_actions_destroy(&files);
  if (failed) return {-1, fmt::format("could not be started: {}", strerror(failed))};
  int status = 0;
  bool killed = false;
  off_t size = -1;
  const auto now = [] { return std::chrono::steady_clock::now(); };
  for (auto moved = now();;) {
    const pid_t ended = waitpid(child, &status, run.patience > 0 && !killed ? WNOHANG : 0);
    if (ended == child) break;
    if (ended < 0 && errno != EINTR) return {-1, fmt::format("could not be waited for: {}", strerror(errno))};
    if (ended != 0) continue;
    struct stat diary {};
    if (::stat(run.diary.c_str(), &diary) == 0 && diary.st_size != size) size = diary.st_size, moved = now();
    killed = now() - moved > std::chrono::duration<double>(run.patience);
    if (killed) ::kill(child, SIGKILL);
    else ::usleep(20000);
  }
  if (killed) return {-1, fmt::format("was killed, because it did nothing more for {:.0f} s", run.patience)};
  if (WIFSIGNALED(status)) return {-1, fmt::format("was ended by signal {} ({})", WTERMSIG(status), strsignal(WTERMSIG(status)))};
  return {WEXITSTATUS(status), fmt::format("ended with exit code {}", WEXITSTATUS(status))};
}

}  // namespace keirin::tools
