// SPDX-License-Identifier: Apache-2.0
//
// What a plugin does in this process: a crash there takes the process along, and the journal makes the next start avoid the pair;
// a thread that it leaves changed is put back and counted.
#include <fcntl.h>
#include <locale.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <functional>

#include "core/host/guard/thread_state.h"
#include "tests/faults/fault_fixture.h"

namespace keirin {
namespace {

namespace fs = std::filesystem;
using test::has;
using test::relu_region;
using test::report_of;

class RunFaults : public test::PluginFaults {
 protected:
  static Result<std::shared_ptr<Executable>> make(PluginDevice& device, int64_t n) {
    const RegionBytes region = relu_region(n, false);
    return device.compile({region.bytes, region.hash, {}}, {}, {});
  }
  static Status run(Executable& executable, int64_t n) {
    const TensorRef in = test::tensor_of(DType::k_f32, {n}, std::vector<float>(n, 1)),
                    out = test::tensor_of(DType::k_f32, {n}, std::vector<float>(n, -1));
    const krn_tensor input = view_of(*in, KRN_TENSOR_READ_ONLY), output = view_of(*out);
    return executable.run(&input, 1, &output, 1, nullptr, 0);
  }
  // How a process that does this ends: the signal, or 0.
  static int signal_of(const std::function<void()>& act) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      act();
      ::_exit(0);
    }
    int status = 0;
    ::waitpid(pid, &status, 0);
    return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  }
};

TEST_F(RunFaults, ACrashInARunIsFoundByTheNextStart) {
  for (const int64_t n : {8, 9}) {
    EXPECT_EQ(signal_of([&] {
                const auto host = open(kept_options({"switched_run"}));
                const auto executable = make(*host->devices()[0], n);
                if (!executable.ok() || !run(**executable, n).ok()) ::_exit(3);
                turn("crash");
                (void)run(**executable, n);
              }),
              SIGSEGV);
    fs::remove(switch_);
    const auto host = open(kept_options({"switched_run"}));
    const std::vector<std::string> told = host->take_incidents();
    ASSERT_EQ(told.size(), 1u) << "said once, by the start that finds it";
    std::printf("run crash          %s\n", told[0].c_str());
    EXPECT_TRUE(has(told[0], "switched_run: took its process down in krn.exec.run")) << told[0];
    const auto again = make(*host->devices()[0], n);
    EXPECT_TRUE(has(again.status().text(), "quarantined")) << again.status().text();
    EXPECT_TRUE(make(*host->devices()[0], 100).ok()) << "other regions are still the plugin's";
  }
  const auto later = open(kept_options({"switched_run"}));
  EXPECT_TRUE(later->take_incidents().empty());
  EXPECT_EQ(report_of(*later, "switched_run")->quarantined.size(), 2u);
  EXPECT_TRUE(cache_->check().empty());
}

TEST_F(RunFaults, ACrashWhileAnArtifactIsLoadedIsFoundToo) {
  EXPECT_EQ(signal_of([&] {
              const auto host = open(kept_options({"crash_load"}));
              const RegionBytes region = relu_region(8, false);
              (void)host->devices()[0]->load({region.bytes, region.hash, {}}, {"relu", "12345678"});
            }),
            SIGSEGV);
  const auto host = open(kept_options({"crash_load"}));
  const auto told = host->take_incidents();
  ASSERT_EQ(told.size(), 1u);
  EXPECT_TRUE(has(told[0], "krn.artifact.load")) << told[0];
}

TEST_F(RunFaults, AProcessThatEndsWellAccusesNobody) {
  EXPECT_EQ(signal_of([&] {
              const auto host = open(kept_options({"good"}));
              const auto executable = make(*host->devices()[0], 8);
              if (!run(**executable, 8).ok()) ::_exit(3);
              ::_exit(0);  // without closing anything
            }),
            0);
  const auto host = open(kept_options({"good"}));
  EXPECT_TRUE(host->take_incidents().empty());
  size_t journals = 0;
  for (const auto& entry : fs::directory_iterator(dir_ + "/cache/journal")) journals += entry.path().filename() != "lock";
  EXPECT_EQ(journals, 1u) << "only this process's own";
}

TEST_F(RunFaults, AThreadIsAsItWasAfterARudeCall) {
  const std::string folder = fs::current_path();
  for (const char* name : {"rude_compile", "rude_run", "rude_slice"}) {
    SCOPED_TRACE(name);
    std::vector<std::string> log;
    HostOptions o = kept_options({name});
    o.log = [&](int, std::string_view text) { log.emplace_back(text); };
    const auto host = open(o);
    const ThreadState thread;
    const ProcessState process;
    const auto executable = make(*host->devices()[0], 1000);
    ASSERT_TRUE(executable.ok()) << executable.status().text();
    for (int i = 0; i < 20; ++i) ASSERT_TRUE(run(**executable, 1000).ok());
    EXPECT_EQ(thread.restore() + process.restore(), "") << "something was left changed";
    EXPECT_EQ(fs::current_path(), folder);
    if (std::string(name) != "rude_slice") {
      ASSERT_EQ(log.size(), 1u);
      std::printf("%-18s %s\n", name, log[0].c_str());
      EXPECT_TRUE(has(log[0], "floating-point mode, signal mask, locale, current folder")) << log[0];
    }
    if (std::string(name) == "rude_compile") continue;  // once is not yet too often
    const auto refused = make(*host->devices()[0], 8);
    EXPECT_TRUE(has(refused.status().text(), "left threads changed")) << refused.status().text();
    EXPECT_EQ(host->take_incidents().size(), 1u);
  }
}

}  // namespace
}  // namespace keirin
