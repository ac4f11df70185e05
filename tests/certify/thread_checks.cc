// SPDX-License-Identifier: Apache-2.0
//
// I: several threads, as the plugin declares and as the contract says anyway.
#include <dlfcn.h>
#include <pthread.h>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <mutex>
#include <thread>

#include "tests/certify/trial.h"

namespace {
std::atomic<int> g_threads_made{0};
}

// In front of the C library's for everything in this process: how many threads were started, by whomever.
extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*body)(void*), void* argument) noexcept {
  static const auto real = reinterpret_cast<decltype(&pthread_create)>(::dlsym(RTLD_NEXT, "pthread_create"));
  ++g_threads_made;
  return real(thread, attributes, body, argument);
}

namespace keirin::certify {
namespace {

// Runs body(i) on `n` threads at once; the first failure is thrown here.
void at_once(int n, const std::function<void(int)>& body) {
  std::barrier start(n);
  std::mutex mutex;
  std::string failed;
  std::vector<std::thread> threads;
  for (int i = 0; i < n; ++i)
    threads.emplace_back([&, i] {
      start.arrive_and_wait();
      try {
        body(i);
      } catch (const Failed& f) {
        const std::lock_guard guard(mutex);
        failed = f.what;
      }
    });
  for (std::thread& thread : threads) thread.join();
  if (!failed.empty()) throw Failed{failed};
}

void run_quietly(Trial& t, krn_exec* exec, Arguments& arguments) {
  const krn_code code = t.exec().run(exec, &arguments.ready(), nullptr);
  expect(code == KRN_STATUS_ok, "krn.exec.run answers {}", code_name(code));
  arguments.expect_right();
}

void other_thread(Trial& t) {
  const Region& region = t.base();
  krn_exec* const exec = t.make(region);
  Arguments arguments(region, t.needs(exec));
  arguments.feed(region.row, 1);
  at_once(1, [&](int) { run_quietly(t, exec, arguments); });
  at_once(1, [&](int) { t.compile().release(exec); });
}

void concurrent_runs(Trial& t) {
  const Region& region = t.sized({64, 256});
  krn_exec* const exec = t.make(region);
  if (!(t.info(exec).flags & KRN_EXEC_CONCURRENT)) throw NotOffered{"its executables are run by one thread at a time"};
  const krn_needs needs = t.needs(exec);
  at_once(4, [&](int thread) {
    Arguments arguments(region, needs);
    for (int i = 0; i < 10; ++i) {
      arguments.feed(region.row, thread * 10 + i);
      run_quietly(t, exec, arguments);
    }
  });
}

void two_executables(Trial& t) {
  const Region &one = t.sized({64, 256}), &other = t.sized({32, 256});
  krn_exec* const execs[] = {t.make(one), t.make(other)};
  const krn_needs needs[] = {t.needs(execs[0]), t.needs(execs[1])};
  at_once(2, [&](int thread) {
    const Region& region = thread == 0 ? one : other;
    Arguments arguments(region, needs[thread]);
    for (int i = 0; i < 20; ++i) {
      arguments.feed(region.row, i);
      run_quietly(t, execs[thread], arguments);
    }
  });
}

void concurrent_compiles(Trial& t) {
  if (!(t.answer().capabilities & KRN_CAP_CONCURRENT_COMPILE)) throw NotOffered{"it compiles one region at a time"};
  std::vector<const Region*> regions;
  for (int64_t i = 0; i < 4; ++i) regions.push_back(&t.sized({16, 8 + i}));
  at_once(4, [&](int thread) {
    const krn_region view = regions[static_cast<size_t>(thread)]->view();
    const krn_policy policy = Trial::policy();
    const krn_options options = Trial::options();
    for (int i = 0; i < 5; ++i) {
      krn_exec* made = nullptr;
      const krn_code code = t.compile().compile(t.opened(), &view, &policy, &options, &made, nullptr);
      expect(code == KRN_STATUS_ok && made, "beside other compiles krn.compile.compile answers {}", code_name(code));
      t.compile().release(made);
    }
  });
}

void retained(Trial& t) {
  if (!t.compile().retain) throw NotOffered{"no krn.compile.retain"};
  const Region& region = t.base();
  krn_exec* const exec = t.make(region);
  Arguments arguments(region, t.needs(exec));
  arguments.feed(region.row, 1);
  at_once(4, [&](int) {
    for (int i = 0; i < 500; ++i) t.compile().retain(exec), t.compile().release(exec);
  });
  t.compile().retain(exec);
  t.release(exec);
  t.run(exec, arguments.ready());
  arguments.expect_right();
  t.release(exec);
}

void stops_when_cancelled(Trial& t) {
  const Region& region = t.base();
  t.release(t.make(region));  // what is done once is done
  const Region& other = t.sized({8, 17});
  t.host.cancels = true;
  krn_options options = Trial::options();
  options.cancel_token = 1;
  const krn_region view = other.view();
  const krn_policy policy = Trial::policy();
  krn_exec* made = nullptr;
  const auto begin = std::chrono::steady_clock::now();
  const krn_code code =
      t.call("krn.compile.compile", [&](krn_err* err) { return t.compile().compile(t.opened(), &view, &policy, &options, &made, err); });
  const auto ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
  expect(code == KRN_STATUS_ok || code == KRN_STATUS_cancelled || code == KRN_STATUS_timeout, "a cancelled compile answers {}",
         code_name(code));
  expect(ms < 200, "a compile that was cancelled before it began takes {:.0f} ms", ms);
}

void no_own_threads(Trial& t) {
  const Region& region = t.sized({64, 256});
  krn_exec* const exec = t.make(region);
  Arguments arguments(region, t.needs(exec));
  arguments.feed(region.row, 1);
  const krn_run& run = arguments.ready();
  if (Gpu::here()) t.run(exec, run);  // a GPU's driver may start what it likes when it is first used
  const int before = g_threads_made;
  for (int i = 0; i < 3; ++i) t.run(exec, run);
  expect(g_threads_made == before, "run starts threads of its own; the host has krn.host.threads");
}

void any_slices(Trial& t) {
  const Region& region = t.sized({64, 256});
  krn_exec* const exec = t.make(region);
  Arguments arguments(region, t.needs(exec));
  int64_t calls = 0;
  t.host.slices = [&](int64_t n, int64_t grain, TrialHost::Slice fn, void* ctx) {
    ++calls;
    const int64_t step = std::max<int64_t>(grain, 1);
    std::vector<std::pair<int64_t, int64_t>> slices;
    for (int64_t at = 0; at < n; at += step) slices.push_back({at, std::min(n, at + step)});
    std::reverse(slices.begin(), slices.end());
    std::thread([&] {  // and not by the caller
      for (const auto& [begin, end] : slices) fn(ctx, begin, end, 1);
    }).join();
  };
  arguments.feed(region.row, 1);
  t.run(exec, arguments.ready());
  arguments.expect_right();
  if (calls == 0) throw NotOffered{"it does not use krn.host.threads here"};
}

constexpr Check kChecks[] = {
    {"I/other_thread", "runs and is released on another thread than it was compiled on", Rung::kRan, other_thread, Rung::kThreads},
    {"I/concurrent_runs", "is run by several threads at once, as it declares", Rung::kThreads, concurrent_runs},
    {"I/two_executables", "runs two executables at once", Rung::kThreads, two_executables},
    {"I/concurrent_compiles", "compiles by several threads at once, as it declares", Rung::kThreads, concurrent_compiles},
    {"I/retained", "counts who holds an executable", Rung::kThreads, retained},
    {"I/stops_when_cancelled", "stops compiling within 200 ms", Rung::kRan, stops_when_cancelled},
    {"I/no_own_threads", "starts no thread in run", Rung::kRan, no_own_threads},
    {"I/any_slices", "takes slices in any order and on any thread", Rung::kThreads, any_slices},
};

}  // namespace

std::span<const Check> thread_checks() { return kChecks; }

}  // namespace keirin::certify
