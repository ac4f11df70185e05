// SPDX-License-Identifier: Apache-2.0
//
// C: from the entry to the end of the process.
#include <malloc.h>
#include <stdlib.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <filesystem>

#include "tests/certify/trial.h"

namespace keirin::certify {
namespace {

using Clock = std::chrono::steady_clock;

size_t entries_of(const char* folder) {
  size_t count = 0;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) count += !entry.path().empty();
  return count;
}

void entry_repeats(Trial& t) {
  const krn_answer first = t.answer();
  const std::string version = text_of(first.version), build = text_of(first.build_id);
  const Trial::Entry entry = t.entry();
  const krn_offer offer = t.host.offer();
  for (int i = 0; i < 1000; ++i) {
    auto answer = make_struct<krn_answer>();
    t.must("krn_plugin_entry", [&](krn_err* err) { return entry(&offer, &answer, err); });
    expect(std::memcmp(&answer.guid, &first.guid, sizeof first.guid) == 0 && answer.capabilities == first.capabilities &&
               text_of(answer.version) == version && text_of(answer.build_id) == build,
           "call {} of the entry answers otherwise than the first", i + 2);
  }
}

void entry_is_quick(Trial& t) {
  const auto begin = Clock::now();
  t.answer();
  const auto ms = std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
  // Loading is in it as well; what a library of 40 MB takes for that is a third of this.
  expect(ms < 150, "loading and the entry took {:.0f} ms; the entry has 50", ms);
}

void initializes(Trial& t) { t.handle(); }

void shuts_down(Trial& t) {
  t.device();
  t.shut_down();
}

void cycles(Trial& t) {
  for (int i = 0; i < 5; ++i) {
    t.opened();
    t.shut_down();
    t.initialize_again();
  }
}

void works_after_a_cycle(Trial& t) {
  t.opened();
  t.shut_down();
  t.initialize_again();
  t.try_once(t.base());
}

void outlived(Trial& t) {
  krn_exec* const exec = t.make(t.base());
  t.shut_down();
  t.release(exec);
}

void ends_without_shutdown(Trial& t) {
  krn_exec* const exec = t.make(t.base());
  (void)t.needs(exec);
  t.ends_by_exit = true;  // whoever waits for this process sees how that goes
}

void two_copies(Trial& t) {
  t.try_once(t.base());
  namespace fs = std::filesystem;
  std::string folder = (fs::temp_directory_path() / "keirin-certify-XXXXXX").string();
  if (!::mkdtemp(folder.data())) throw NotOffered{"there is no folder for a copy of the library"};
  std::error_code error;
  const fs::path library = t.request().library, copy = fs::path(folder) / library.filename();
  for (const auto& entry : fs::directory_iterator(library.parent_path(), error))  // with what lies beside it
    if (entry.path() != library) fs::create_symlink(entry.path(), fs::path(folder) / entry.path().filename(), error);
  fs::copy_file(library, copy, error);
  Trial::Request request = t.request();
  request.library = copy.string();
  Trial other(request, [](const char*) {});
  struct Gone {
    std::string folder;
    ~Gone() {
      std::error_code ignored;
      fs::remove_all(folder, ignored);
    }
  } const gone{folder};
  try {
    other.try_once(other.base());
  } catch (const Failed& failed) {
    fail("a second copy beside the first: {}", failed.what);
  } catch (const NotOffered& nothing) {
    fail("a second copy beside the first: {}", nothing.why);
  }
  t.try_once(t.base());
}

void joins_threads(Trial& t) {
  t.load();
  if (Gpu::here()) {  // the threads of libraries that it opens stay with the process: only what a second life adds is its own
    t.opened();
    t.shut_down();
  }
  const size_t before = entries_of("/proc/self/task");
  t.opened();
  t.shut_down();
  expect(entries_of("/proc/self/task") <= before, "a thread of it still runs after shutdown");
}

void closes_files(Trial& t) {
  t.opened();  // what is opened once for a process stays
  t.shut_down();
  const size_t before = entries_of("/proc/self/fd");
  for (int i = 0; i < 3; ++i) {
    t.initialize_again();
    t.opened();
    t.shut_down();
  }
  expect(entries_of("/proc/self/fd") <= before, "after shutdown more files are open than before");
}

void describes_itself(Trial& t) {
  if (!t.plugin().describe) throw NotOffered{"no krn.plugin.describe"};
  t.device();
  t.shut_down();
  std::string told;
  const krn_sink sink{[](void* ctx, const void* data, uint64_t size) -> krn_code {
                        static_cast<std::string*>(ctx)->append(static_cast<const char*>(data), size);
                        return KRN_STATUS_ok;
                      },
                      &told};
  t.must("krn.plugin.describe", [&](krn_err* err) { return t.plugin().describe(&sink, err); });
  expect(told.find('=') != std::string::npos, "krn.plugin.describe tells no line of the form key=value");
}

void gives_back(Trial& t) {
  const auto cycle = [&] {
    t.initialize_again();
    t.opened();
    t.shut_down();
  };
  t.opened();
  t.shut_down();
  for (int i = 0; i < 3; ++i) cycle();
  const size_t before = ::mallinfo2().uordblks;
  constexpr int kCycles = 20;
  for (int i = 0; i < kCycles; ++i) cycle();
  const auto grown = static_cast<int64_t>(::mallinfo2().uordblks) - static_cast<int64_t>(before);
  expect(grown < kCycles * 4096, "a cycle of initialize and shutdown keeps {} bytes", grown / kCycles);
}

constexpr Check kChecks[] = {
    {"C/entry_repeats", "gives the same answer to a thousand offers", Rung::kEntry, entry_repeats},
    {"C/entry_is_quick", "is loaded and answers in no time", Rung::kEntry, entry_is_quick},
    {"C/initialize", "can be initialised, or says why not", Rung::kTables, initializes, Rung::kInitialized},
    {"C/shutdown", "can be shut down", Rung::kDescribed, shuts_down, Rung::kShutDown},
    {"C/cycles", "can be initialised again after shutdown", Rung::kOpened, cycles, Rung::kCycled},
    {"C/works_after_a_cycle", "computes after it was shut down and initialised again", Rung::kRan, works_after_a_cycle},
    {"C/outlived", "is shut down while an executable lives, which is released later", Rung::kCompiled, outlived},
    {"C/ends_without_shutdown", "lets the process end without shutdown", Rung::kCompiled, ends_without_shutdown},
    {"C/two_copies", "works beside a second copy of itself", Rung::kRan, two_copies},
    {"C/joins_threads", "joins its threads in shutdown", Rung::kOpened, joins_threads},
    {"C/closes_files", "closes its files in shutdown", Rung::kCycled, closes_files},
    {"C/describes_itself", "describes itself, also after shutdown", Rung::kShutDown, describes_itself},
    {"C/gives_back", "gives its memory back in shutdown", Rung::kCycled, gives_back},
};

}  // namespace

std::span<const Check> life_checks() { return kChecks; }

}  // namespace keirin::certify
