// SPDX-License-Identifier: Apache-2.0
//
// Forks, signals and hostile surroundings, one row each: a fresh process is put into them, opens cache and plugins, compiles in the
// child, runs, publishes and closes; it must end with right numbers (or, where a row says so, with a clean refusal), within a minute,
// and leave nothing behind. Rows that this machine does not allow print why.
#include <fcntl.h>
#include <fenv.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <locale.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <functional>
#include <thread>

#include "core/cache/bad_records.h"
#include "core/cache/cache.h"
#include "core/host/call/tensor_view.h"
#include "core/host/plugins.h"
#include "core/ir/bytes.h"
#include "tests/support/relu_region.h"
#include "tests/support/temp_folder.h"
#include "tests/support/trust_count.h"
#include "tests/support/world.h"
#include "tests/unit/host/heap_services.h"

namespace keirin {
namespace {

using test::relu_region;

namespace fs = std::filesystem;
using std::chrono::milliseconds;

// What a row answers: nothing if all was right; "skip: why"; else what was wrong.
using Problem = std::string;

constexpr char kSkip[] = "skip: ";

Problem run_relu(Executable& executable, int64_t n) {
  std::vector<float> values(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) values[static_cast<size_t>(i)] = static_cast<float>(i % 7 - 3);
  const TensorRef in = test::tensor_of(DType::k_f32, {n}, values),
                  out = test::tensor_of(DType::k_f32, {n}, std::vector<float>(values.size(), -1));
  const krn_tensor input = view_of(*in, KRN_TENSOR_READ_ONLY), output = view_of(*out);
  if (const Status status = executable.run(&input, 1, &output, 1, nullptr, 0); !status.ok()) return "run: " + status.text();
  for (int64_t i = 0; i < n; ++i)
    if (static_cast<const float*>(out->data())[i] != std::max(0.0f, values[static_cast<size_t>(i)])) return "a wrong number";
  return {};
}

// Cache, plugins and child of one process, opened in that order.
struct Service {
  explicit Service(std::string dir, const std::string& fault = "good", bool default_cache = false) {
    CacheOptions c;
    if (!default_cache) c.dir = dir + "/cache";
    c.warn = [this](std::string_view text) { warnings.emplace_back(text); };
    cache = std::make_unique<Cache>(c);
    HostOptions o;
    o.paths = {dir + "/plugin"};
    if (fault != "good") o.paths.push_back(std::string(KEIRIN_FAULTS_DIR) + "/" + fault);
    o.search = false;
    if (cache->usable()) o.cache_dir = cache->dir();
    o.worker = KEIRIN_WORKER;
    static auto* const services = new test::HeapServices;
    o.services = services;
    o.quarantine = open_quarantine(cache.get());
    o.compile_in = CompileIn::kChild;
    o.compile_deadline = milliseconds(20000);
    auto opened = PluginHost::open(o);
    if (opened.ok()) host = std::move(*opened);
  }
  PluginDevice* device(const std::string& plugin = "good") const {
    if (host)
      for (PluginDevice* d : host->devices())
        if (d->plugin_name() == plugin) return d;
    return nullptr;
  }
  std::string why_not() const {
    std::string why = "no device:";
    for (const PluginReport& r : host->reports()) why += " " + r.name + ": " + r.reason;
    return why;
  }
  Result<std::shared_ptr<Executable>> compile(int64_t n, const CompileOptions& options = {}, const std::string& plugin = "good") {
    PluginDevice* const d = device(plugin);
    if (!d) return Status(Code::k_unsupported, why_not());
    const RegionBytes region = relu_region(n);
    const PluginRegion view{region.bytes, region.hash, {}};
    KRN_TRY_LET(const ClaimResult claims, d->claim(view, {}));
    if (claims.claims.size() != 1) return Status(Code::k_internal, "not claimed");
    return d->compile(view, {}, options);
  }
  Problem work(int64_t n = 64) {
    const auto made = compile(n);
    return made.ok() ? run_relu(**made, n) : made.status().text();
  }
  // Publishes and reads back, if there is a cache.
  Problem keep() {
    const CacheKey key = CacheKey().add("name", "row");
    if (!cache->usable()) return {};
    if (!cache->publish(EntryKind::kArtifact, key, "body")) return "not published: " + (warnings.empty() ? "" : warnings[0]);
    return cache->read(EntryKind::kArtifact, key) == "body" && cache->check().empty() ? Problem()
                                                                                      : "the cache does not hold what was published";
  }

  std::vector<std::string> warnings;
  std::unique_ptr<Cache> cache;
  std::unique_ptr<PluginHost> host;
};

Problem good_work(const std::string& dir) {
  Service s(dir);
  if (!s.cache->usable()) return "no cache: " + (s.warnings.empty() ? "" : s.warnings[0]);
  if (Problem p = s.work(); !p.empty()) return p;
  for (const std::string& told : s.host->take_incidents()) return "told: " + told;
  return s.keep();
}

// ---- the rows

struct Row {
  const char* kind;
  const char* name;
  std::function<Problem(const std::string& dir)> act;
};

// A namespace of one's own for mounts; false where it is not allowed.
bool own_mounts() {
  const auto same = [](unsigned id) { return std::to_string(id) + " " + std::to_string(id) + " 1"; };
  const uid_t user = ::geteuid();
  const gid_t group = ::getegid();
  const auto map = [](const char* file, const std::string& text) { return bool(std::ofstream(file) << text << std::flush); };
  return ::unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0 && map("/proc/self/setgroups", "deny") && map("/proc/self/uid_map", same(user)) &&
         map("/proc/self/gid_map", same(group)) && ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0;
}

// Answers `error` for a system call from now on, in this process and its children.
bool forbid(int number, int error) {
  sock_filter filter[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
                          BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<unsigned>(number), 0, 1),
                          BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<unsigned>(error)),
                          BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  const sock_fprog program{4, filter};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

// What a forked copy of this process answers.
Problem in_a_fork(const std::function<Problem()>& act) {
  int ends[2];
  if (::pipe(ends) != 0) return "no pipe";
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::alarm(30);
    const Problem p = act();
    (void)!::write(ends[1], p.data(), p.size());
    ::_exit(p.empty() ? 0 : 1);
  }
  ::close(ends[1]);
  Problem p;
  char buffer[4096];
  for (ssize_t n; (n = ::read(ends[0], buffer, sizeof(buffer))) != 0;)
    if (n > 0) p.append(buffer, static_cast<size_t>(n));
    else if (errno != EINTR) break;
  ::close(ends[0]);
  int status = -1;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (p.empty() && status != 0) return "the fork ended with status " + std::to_string(status) + (status == SIGALRM ? " (it hung)" : "");
  return p.empty() ? p : "in the fork: " + p;
}

// A forked copy may refuse, because what it shares with its parent cannot be told apart; it may not hang, crash or answer wrong.
Problem right_or_refused(Service& s, int64_t n) {
  const auto made = s.compile(n);
  if (!made.ok()) return made.status().code() == Code::k_unsupported ? Problem() : made.status().text();
  return run_relu(**made, n);
}

pid_t a_child_of_mine() {
  pid_t child = 0;
  std::ifstream("/proc/self/task/" + std::to_string(::gettid()) + "/children") >> child;
  return child;
}

volatile sig_atomic_t g_signals = 0;
void count_signal(int) { g_signals = g_signals + 1; }
void reap_all(int) {
  const int before = errno;
  while (::waitpid(-1, nullptr, WNOHANG) > 0) {
  }
  errno = before;
}
void handle(int signal, void (*handler)(int), int flags = 0) {
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = flags;
  ::sigaction(signal, &action, nullptr);
}

std::vector<Row> fork_rows() {
  return {
      {"fork", "before anything is opened", [](const std::string& dir) { return in_a_fork([&] { return good_work(dir); }); }},
      {"fork", "after a host was opened: the fork opens its own", [](const std::string& dir) {
         Service s(dir);
         const Problem p = in_a_fork([&] {
           Service own(dir);  // of plugins that its parent has loaded
           return right_or_refused(own, 64);
         });
         return p.empty() ? s.work() : p;
       }},
      {"fork", "the fork uses what its parent compiled", [](const std::string& dir) {
         Service s(dir);
         const auto made = s.compile(64);
         if (!made.ok()) return made.status().text();
         const Problem p = in_a_fork([&] { return run_relu(**made, 64); });
         return p.empty() ? run_relu(**made, 64) : p;
       }},
      {"fork", "the fork asks its parent's warm child", [](const std::string& dir) {
         Service s(dir);
         if (Problem p = s.work(64); !p.empty()) return p;
         const Problem p = in_a_fork([&] { return right_or_refused(s, 65); });
         return p.empty() ? s.work(66) : p;
       }},
      {"fork", "while a thread compiles", [](const std::string& dir) {
         Service s(dir, "hang_compile");
         std::atomic<bool> cancel{false};
         CompileOptions options;
         options.cancel = &cancel;
         std::thread compiling([&] { (void)s.compile(65, options, "hang_compile"); });
         std::this_thread::sleep_for(milliseconds(200));
         Problem p = in_a_fork([&] {
           const auto made = s.compile(66, {}, "hang_compile");  // whose lock the thread held
           return made.ok() || made.status().code() != Code::k_unsupported ? "not refused: " + made.status().text()
                                                                           : right_or_refused(s, 67);
         });
         cancel = true;
         compiling.join();
         return p.empty() ? s.work(68) : p;
       }},
      {"fork", "while a thread runs", [](const std::string& dir) {
         Service s(dir);
         const auto made = s.compile(4096);
         if (!made.ok()) return made.status().text();
         std::atomic<bool> stop{false};
         std::thread running([&] {
           while (!stop) (void)run_relu(**made, 4096);
         });
         Problem p;
         for (int i = 0; i < 20 && p.empty(); ++i)
           p = in_a_fork([&] {  // the executable's own lock may have been held: refused then
             const Problem q = run_relu(**made, 4096);
             return q.find("forked") != std::string::npos ? Problem() : q;
           });
         stop = true;
         running.join();
         return p.empty() ? run_relu(**made, 4096) : p;
       }},
      {"fork", "the fork closes its copy, the parent goes on", [](const std::string& dir) {
         auto s = std::make_unique<Service>(dir);
         if (Problem p = s->work(64); !p.empty()) return p;
         const pid_t worker = a_child_of_mine();
         const Problem p = in_a_fork([&] {
           s.reset();
           return Problem();
         });
         if (!p.empty()) return p;
         if (worker > 0 && ::kill(worker, 0) != 0) return Problem("the parent's compile child is gone");
         size_t journals = 0;
         for (const auto& file : fs::directory_iterator(dir + "/cache/journal")) journals += file.path().filename() != "lock";
         if (journals != 1) return Problem("the parent's journal is gone");
         return s->work(65);
       }},
      {"fork", "and exec: no descriptor goes along", [](const std::string& dir) {
         Service s(dir);
         if (Problem p = s.work(64); !p.empty()) return p;
         return in_a_fork([&] {
           for (const auto& entry : fs::directory_iterator("/proc/self/fd")) {
             const int fd = std::stoi(entry.path().filename());
             char target[256] = {};
             (void)!::readlink(entry.path().c_str(), target, sizeof(target) - 1);
             const std::string text = target;
             const bool ours =
                 text.find(dir) != std::string::npos || text.find("memfd:keirin") != std::string::npos || text.find("socket:") == 0;
             if (fd > 2 && ours && !(::fcntl(fd, F_GETFD) & FD_CLOEXEC)) return "inherited: " + text;
           }
           return Problem();
         });
       }},
  };
}

std::vector<Row> signal_rows() {
  return {
      {"signal", "a timer that interrupts every call", [](const std::string& dir) {
         handle(SIGALRM, count_signal);  // without SA_RESTART
         const itimerval often{{0, 500}, {0, 500}}, never{};
         ::setitimer(ITIMER_REAL, &often, nullptr);
         const Problem p = good_work(dir);
         ::setitimer(ITIMER_REAL, &never, nullptr);
         return p.empty() && g_signals < 5 ? "interrupted " + std::to_string(g_signals) + " times only" : p;
       }},
      {"signal", "SIGINT during a compile ends it soon", [](const std::string& dir) {
         Service s(dir, "hang_compile");
         static std::atomic<bool> cancel{false};
         handle(SIGINT, [](int) { cancel = true; });
         CompileOptions options;
         options.cancel = &cancel;
         std::thread later([] {
           std::this_thread::sleep_for(milliseconds(300));
           ::kill(::getpid(), SIGINT);
         });
         Code code = Code::k_ok;
         std::chrono::steady_clock::time_point end;
         std::thread compiling([&] {
           code = s.compile(64, options, "hang_compile").status().code();
           end = std::chrono::steady_clock::now();
         });
         later.join();
         const auto told = std::chrono::steady_clock::now();
         compiling.join();
         if (code != Code::k_cancelled) return Problem("not cancelled");
         if (end - told > milliseconds(300)) return "it took " + std::to_string((end - told) / milliseconds(1)) + " ms";
         return s.work();
       }},
      {"signal", "SIGPIPE where the child died between two questions", [](const std::string& dir) {
         handle(SIGPIPE, SIG_DFL);
         Service s(dir);
         if (Problem p = s.work(64); !p.empty()) return p;
         const pid_t worker = a_child_of_mine();
         if (worker <= 0) return Problem(std::string(kSkip) + "this kernel does not list children");
         ::kill(worker, SIGKILL);
         std::this_thread::sleep_for(milliseconds(50));
         (void)s.work(65);  // what the child's death costs: at most this one
         return s.work(66);
       }},
      {"signal", "SIGCHLD is ignored", [](const std::string& dir) {
         handle(SIGCHLD, SIG_IGN);
         return good_work(dir);
       }},
      {"signal", "SIGCHLD has a handler that reaps everything", [](const std::string& dir) {
         handle(SIGCHLD, reap_all);
         if (Problem p = good_work(dir); !p.empty()) return p;
         Service s(dir, "crash_compile");
         return s.compile(64, {}, "crash_compile").status().code() == Code::k_crashed ? s.work() : Problem("a crash was not seen");
       }},
      {"signal", "everything is blocked", [](const std::string& dir) {
         sigset_t all;
         ::sigfillset(&all);
         ::pthread_sigmask(SIG_SETMASK, &all, nullptr);
         Service s(dir, "abort_compile");
         if (s.compile(64, {}, "abort_compile").status().code() != Code::k_crashed) return Problem("a crash was not seen");
         return s.work();
       }},
  };
}

std::vector<Row> surroundings_rows() {
  return {
      {"hostile", "no HOME",
       [](const std::string& dir) {
         for (const char* name : {"HOME", "XDG_CACHE_HOME", "KEIRIN_CACHE"}) ::unsetenv(name);
         Service s(dir, "good", true);
         if (s.cache->usable() || s.warnings.size() != 1) return Problem("a cache without a folder, or no warning");
         return s.work();
       }},
      {"hostile", "no PATH",
       [](const std::string& dir) {
         ::unsetenv("PATH");
         return good_work(dir);
       }},
      {"hostile", "no environment at all",
       [](const std::string& dir) {
         ::clearenv();
         return good_work(dir);
       }},
      {"hostile", "TMPDIR is nowhere",
       [](const std::string& dir) {
         ::setenv("TMPDIR", "/nowhere/at/all", 1);
         return good_work(dir);
       }},
      {"hostile", "TMPDIR forbids programs (noexec)",
       [](const std::string& dir) {
         const std::string tmp = dir + "/tmp";
         fs::create_directory(tmp);
         if (!own_mounts() || ::mount("none", tmp.c_str(), "tmpfs", MS_NOEXEC, nullptr) != 0)
           return Problem(std::string(kSkip) + "mounts are not allowed here");
         ::setenv("TMPDIR", tmp.c_str(), 1);
         return good_work(dir);
       }},
      {"hostile", "the home is read-only",
       [](const std::string& dir) {
         const std::string home = dir + "/home";
         fs::create_directory(home);
         if (!own_mounts() || ::mount("none", home.c_str(), "tmpfs", MS_RDONLY, nullptr) != 0)
           return Problem(std::string(kSkip) + "mounts are not allowed here");
         for (const char* name : {"XDG_CACHE_HOME", "KEIRIN_CACHE"}) ::unsetenv(name);
         ::setenv("HOME", home.c_str(), 1);
         Service s(dir, "good", true);
         if (s.cache->usable() || s.warnings.size() != 1) return Problem("a cache on a read-only home, or no warning");
         return s.work();
       }},
      {"hostile", "the cache became read-only",
       [](const std::string& dir) {
         if (Problem p = good_work(dir); !p.empty()) return p;
         const std::string cache = dir + "/cache";
         if (!own_mounts() || ::mount(cache.c_str(), cache.c_str(), nullptr, MS_BIND, nullptr) != 0 ||
             ::mount(nullptr, cache.c_str(), nullptr, MS_BIND | MS_REMOUNT | MS_RDONLY, nullptr) != 0)
           return Problem(std::string(kSkip) + "mounts are not allowed here");
         Service s(dir);
         if (s.cache->usable() && s.cache->read(EntryKind::kArtifact, CacheKey().add("name", "row")) != "body")
           return Problem("what is there is not read");
         if (s.cache->publish(EntryKind::kArtifact, CacheKey().add("name", "other"), "x"))
           return Problem("published where nothing can be written");
         return s.work();
       }},
      {"hostile", "the current folder was deleted",
       [](const std::string& dir) {
         fs::create_directory(dir + "/gone");
         (void)!::chdir((dir + "/gone").c_str());
         fs::remove(dir + "/gone");
         return good_work(dir);
       }},
      {"hostile", "libraries planted in the current folder",
       [](const std::string& dir) {
         fs::create_directory(dir + "/planted");
         (void)!::chdir((dir + "/planted").c_str());
         for (const char* name : {"libfault_good.so", "manifest.toml", "keirin-worker", "worker", "libstdc++.so.6", "libc.so.6"})
           std::ofstream(name) << "planted";
         return good_work(dir);
       }},
      {"hostile", "standard input, output and error are closed",
       [](const std::string& dir) {
         for (const int fd : {0, 1, 2}) ::close(fd);
         const Problem p = good_work(dir);
         return p;
       }},
      {"hostile", "20 descriptors",
       [](const std::string& dir) {
         const rlimit few{20, 20};
         ::setrlimit(RLIMIT_NOFILE, &few);
         return good_work(dir);
       }},
      {"hostile", "no descriptor left",
       [](const std::string& dir) {
         Service s(dir);
         const auto made = s.compile(64);
         if (!made.ok()) return made.status().text();
         const rlimit none{3, 20};
         ::setrlimit(RLIMIT_NOFILE, &none);
         Problem p = run_relu(**made, 64);  // needs none
         (void)s.compile(65);               // may be refused
         const rlimit some{20, 20};
         ::setrlimit(RLIMIT_NOFILE, &some);
         return p.empty() ? run_relu(**made, 64) : p;
       }},
      {"hostile", "a stack of 256 KiB",
       [](const std::string& dir) {
         struct Call {
           const std::string& dir;
           Problem problem;
         } call{dir, {}};
         pthread_attr_t small;
         ::pthread_attr_init(&small);
         ::pthread_attr_setstacksize(&small, 256 << 10);
         pthread_t thread;
         if (::pthread_create(&thread, &small, [](void* at) -> void* {
               static_cast<Call*>(at)->problem = good_work(static_cast<Call*>(at)->dir);
               return nullptr;
             }, &call) != 0)
           return Problem("no thread");
         ::pthread_join(thread, nullptr);
         return call.problem;
       }},
      {"hostile", "a locale with a decimal comma",
       [](const std::string& dir) {
         const std::string made = dir + "/locales";
         fs::create_directory(made);
         (void)!std::system(("localedef -i de_DE -f UTF-8 " + made + "/de_DE.UTF-8 >/dev/null 2>&1").c_str());
         ::setenv("LOCPATH", made.c_str(), 1);
         if (!::setlocale(LC_ALL, "de_DE.UTF-8")) return Problem(std::string(kSkip) + "there is no German locale and no localedef");
         if (std::string(::localeconv()->decimal_point) != ",") return Problem("the locale has no comma");
         const Problem p = good_work(dir);
         return p.empty() && std::string(::localeconv()->decimal_point) != "," ? "the host's locale was changed" : p;
       }},
      {"hostile", "paths with a blank, quotes, $(), a line break and an emoji",
       [](const std::string& dir) {
         const std::string odd = dir + "/a b'\"$(touch x)\n\xf0\x9f\x9a\xb4";
         fs::create_directory(odd);
         fs::permissions(odd, fs::perms::owner_all);
         fs::copy(dir + "/plugin", odd + "/plugin");
         fs::permissions(odd + "/plugin", fs::perms::owner_all);
         return good_work(odd);
       }},
      {"hostile", "one processor",
       [](const std::string& dir) {
         cpu_set_t one;
         CPU_ZERO(&one);
         CPU_SET(::sched_getcpu(), &one);
         ::sched_setaffinity(0, sizeof(one), &one);
         return good_work(dir);
       }},
      {"hostile", "no /proc",
       [](const std::string& dir) {
         if (!own_mounts() || ::mount("none", "/proc", "tmpfs", 0, nullptr) != 0)
           return Problem(std::string(kSkip) + "mounts are not allowed here");
         return good_work(dir);
       }},
      {"hostile", "no /sys",
       [](const std::string& dir) {
         if (!own_mounts() || ::mount("none", "/sys", "tmpfs", 0, nullptr) != 0)
           return Problem(std::string(kSkip) + "mounts are not allowed here");
         return good_work(dir);
       }},
      {"hostile", "exec is forbidden, the plugin is known",
       [](const std::string& dir) {
         if (Problem p = good_work(dir); !p.empty()) return p;
         if (!forbid(SYS_execve, EACCES)) return Problem(std::string(kSkip) + "filters are not allowed here");
         Service s(dir);
         if (Problem p = s.work(); !p.empty()) return p;  // in this process
         const auto told = s.host->take_incidents();
         return told.size() == 1 && told[0].find("compiles in this process") != std::string::npos ? s.keep() : Problem("it was not said");
       }},
      {"hostile", "exec is forbidden, the plugin is unknown: refused",
       [](const std::string& dir) {
         if (!forbid(SYS_execve, EACCES)) return Problem(std::string(kSkip) + "filters are not allowed here");
         Service s(dir);
         if (s.device()) return Problem("a plugin was taken that nobody looked at");
         return s.why_not().find("cannot be started") != std::string::npos ? s.keep() : s.why_not();
       }},
      {"hostile", "no memory files",
       [](const std::string& dir) {
         if (!forbid(SYS_memfd_create, ENOSYS)) return Problem(std::string(kSkip) + "filters are not allowed here");
         Service s(dir);
         if (s.device()) return s.work();
         return s.why_not().find("memory file") != std::string::npos ? s.keep() : s.why_not();
       }},
      {"hostile", "denormals are flushed by the host",
       [](const std::string& dir) {
#if defined(__x86_64__)
         _mm_setcsr(_mm_getcsr() | 0x8040);
         const Problem p = good_work(dir);
         return p.empty() && (_mm_getcsr() & 0x8040) != 0x8040 ? "the host's mode was changed" : p;
#else
         (void)dir;
         return Problem(std::string(kSkip) + "x86-64 only");
#endif
       }},
      {"hostile", "the host rounds upward",
       [](const std::string& dir) {
         ::fesetround(FE_UPWARD);
         const Problem p = good_work(dir);
         return p.empty() && ::fegetround() != FE_UPWARD ? "the host's mode was changed" : p;
       }},
      {"hostile", "umask 0",
       [](const std::string& dir) {
         ::umask(0);
         if (Problem p = good_work(dir); !p.empty()) return p;
         for (const auto& file : fs::recursive_directory_iterator(dir + "/cache"))
           if ((file.status().permissions() & (fs::perms::group_all | fs::perms::others_all)) != fs::perms::none)
             return "others may touch " + file.path().string();
         return Problem();
       }},
      {"hostile", "relative paths in the variables",
       [](const std::string& dir) {
         for (const char* name : {"HOME", "XDG_CACHE_HOME", "KEIRIN_CACHE"}) ::setenv(name, "relative", 1);
         ::setenv("KEIRIN_PLUGIN_PATH", "plugin", 1);
         (void)!::chdir(dir.c_str());
         Service s(dir, "good", true);
         return s.cache->usable() || fs::exists("relative") ? Problem("a relative cache") : s.work();
       }},
      {"hostile", "files may not grow",
       [](const std::string& dir) {
         handle(SIGXFSZ, SIG_IGN);
         const rlimit nothing{0, RLIM_INFINITY};
         ::setrlimit(RLIMIT_FSIZE, &nothing);
         Service s(dir);
         return s.cache->usable() ? Problem("a cache whose key cannot be written") : s.device() ? s.work() : Problem();
       }},
      {"hostile", "entries from the future",
       [](const std::string& dir) {
         if (Problem p = good_work(dir); !p.empty()) return p;
         const timespec later[2] = {{4102444800, 0}, {4102444800, 0}};
         for (const auto& file : fs::recursive_directory_iterator(dir + "/cache")) ::utimensat(AT_FDCWD, file.path().c_str(), later, 0);
         return good_work(dir);
       }},
  };
}

// ---- running them

class Rows : public testing::TestWithParam<Row> {};

TEST_P(Rows, EndsRight) {
  const Row& row = GetParam();
  const test::World world;
  Problem problem;
  {
    const test::TempFolder folder;
    fs::create_directory(folder.path() + "/plugin");
    for (const char* file : {"manifest.toml", "libfault_good.so"})
      fs::copy_file(std::string(KEIRIN_FAULTS_DIR) + "/good/" + file, folder.path() + "/plugin/" + file);
    for (const auto& file : fs::recursive_directory_iterator(folder.path())) fs::permissions(file, fs::perms::owner_all);
    // The answer goes through a file: the row may close every descriptor.
    const std::string answer = folder.path() + "/answer";
    const int out = ::open(answer.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    const int high = ::fcntl(out, F_DUPFD_CLOEXEC, 10);
    ::close(out);
    const pid_t pid = ::fork();
    if (pid == 0) {
      ::setpgid(0, 0);
      const Problem p = "done " + row.act(folder.path());
      const rlimit much{1 << 20, RLIM_INFINITY};
      ::setrlimit(RLIMIT_FSIZE, &much);
      (void)!::write(high, p.data(), p.size());
      ::_exit(p == "done " ? 0 : 1);
    }
    int status = -1;
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (::waitpid(pid, &status, WNOHANG) == 0) {
      if (std::chrono::steady_clock::now() > end) ::kill(-pid, SIGKILL), ADD_FAILURE() << "it hung";
      std::this_thread::sleep_for(milliseconds(2));
    }
    ::close(high);
    const std::string said = test::slurp(answer);
    if (WIFSIGNALED(status)) problem = "it died by signal " + std::to_string(WTERMSIG(status));
    else if (said.rfind("done ", 0) == 0) problem = said.substr(5);
    else problem = WEXITSTATUS(status) == 0 ? "" : "exit status " + std::to_string(WEXITSTATUS(status));
  }
  std::printf("| %s | %s | %s |\n", row.kind, row.name, problem.empty() ? "right" : problem.c_str());
  const bool skipped = problem.rfind(kSkip, 0) == 0;
  for (const std::string& change : world.changes()) ADD_FAILURE() << change;
  if (skipped) GTEST_SKIP() << problem;
  EXPECT_EQ(problem, "") << row.name;
  test::trust_count("surroundings", 1, HasFailure() ? 1 : 0);
}

std::string name_of(const testing::TestParamInfo<Row>& info) {
  std::string name;
  bool upper = true;
  for (const char* at = info.param.name; *at; ++at) {
    if (isalnum(static_cast<unsigned char>(*at))) name += upper ? static_cast<char>(toupper(*at)) : *at;
    upper = !isalnum(static_cast<unsigned char>(*at));
  }
  return name;
}

INSTANTIATE_TEST_SUITE_P(Fork, Rows, testing::ValuesIn(fork_rows()), name_of);
INSTANTIATE_TEST_SUITE_P(Signals, Rows, testing::ValuesIn(signal_rows()), name_of);
INSTANTIATE_TEST_SUITE_P(Surroundings, Rows, testing::ValuesIn(surroundings_rows()), name_of);

}  // namespace
}  // namespace keirin
