// SPDX-License-Identifier: Apache-2.0
//
// What `keirin certify` makes of the programs that try a plugin on a GPU: their shares add up, a program that the plugin ended goes on
// behind the case that ended it, one that stands still is killed, and what a machine cannot ask is not run. The programs are scripts here,
// in place of a GPU.
#include <gtest/gtest.h>

#include <filesystem>
#include <thread>

#include "tests/support/temp_folder.h"
#include "tools/certify/group.h"

namespace keirin::tools::certify {
namespace {

class CertifyGroups : public testing::Test {
 protected:
  // `checks` answers for the device, `cases` stands for the program of operators and bytes; $log, $after, $first, $every are its options.
  std::vector<Group> run(const std::string& device, const std::string& outcome, const std::string& cases, const std::string& graphs,
                         Words words) {
    Programs programs;
    programs.checks = script("checks", R"(
for word; do case $word in --json=*) echo '{"device": ")" + device + R"(", "checks": [{"name": "D/describe", "asks": "", "outcome": ")" +
                                           outcome + R"(", "reason": "no such hardware", "seconds": 0}]}' > ${word#--json=};; esac; done)");
    programs.conformance = script("conformance", R"(after= first=0 every=1
for word; do case $word in
  --log=*) log=${word#--log=};; --after=*) after=${word#--after=};; --first=*) first=${word#--first=};; --every=*) every=${word#--every=};;
esac; done
case_() { echo "try $1" >> "$log"; }
)" + cases);
    programs.graphs = script("graphs", R"(first=0
for word; do case $word in --first=*) first=${word#--first=};; --count=*) count=${word#--count=};; esac; done
)" + graphs);
    programs.worker = "/bin/true";
    Subject subject;
    subject.manifest.name = "acme";
    subject.why_no_memory = [this](const std::string&) { return why_no_memory_; };
    return run_groups(subject, programs, words, scratch_.path(), device_);
  }

  std::string why_no_memory_, device_;

 private:
  std::string script(const std::string& name, const std::string& text) {
    const std::string path = folder_.path() + "/" + name;
    test::spill(path, "#!/bin/bash\n" + text + "\n");
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
    return path;
  }
  test::TempFolder folder_, scratch_;
};

constexpr const char* kAllRight = "case_ add/$first/a; echo 'passed add f32' >> $log; echo end >> $log";

TEST_F(CertifyGroups, SharesOfAGpuAddUp) {
  // Of three shares each says which it is by the number of its first case.
  const auto groups = run("pci:0000:03:00.0", "passed",
                          "for ((i = 0; i <= first; ++i)); do case_ add/$i; echo \"passed add f32\" >> $log; done; test $every = 3 && "
                          "echo end >> $log",
                          "", {.only = "operators", .jobs = 3});
  ASSERT_EQ(groups.size(), 1u);
  EXPECT_EQ(device_, "pci:0000:03:00.0");
  EXPECT_EQ(groups[0].passed, 1 + 2 + 3);
  EXPECT_TRUE(groups[0].right()) << groups[0].ended;
  ASSERT_EQ(groups[0].operators.size(), 1u);
  EXPECT_EQ(groups[0].operators[0].passed, 6);
}

TEST_F(CertifyGroups, AProcessorsPluginHasOneShare) {
  const auto groups = run("cpu:0", "passed", std::string("test $every = 1 || exit 9\n") + kAllRight, "", {.only = "operators", .jobs = 3});
  EXPECT_EQ(groups[0].passed, 1);
}

TEST_F(CertifyGroups, ACrashIsAFailedCaseAndTheOthersStillRun) {
  const auto groups = run("pci:0000:03:00.0", "passed", R"(
if [ -z "$after" ]; then case_ add/one; echo 'passed add f32' >> $log; case_ mul/two; echo 'its last words'; kill -SEGV $$; fi
[ "$after" = mul/two ] && case_ neg/three && echo 'passed neg f32' >> $log && echo end >> $log)",
                          "", {.only = "operators", .jobs = 1});
  EXPECT_EQ(groups[0].passed, 2);
  EXPECT_EQ(groups[0].failed, 1);
  EXPECT_EQ(groups[0].ended, "");
  ASSERT_EQ(groups[0].failures.size(), 1u);
  EXPECT_EQ(groups[0].failures[0].which, "operators/mul/two/any");
  EXPECT_EQ(groups[0].failures[0].reason, "the process that ran it was ended by signal 11 (Segmentation fault): its last words");
}

TEST_F(CertifyGroups, ALostDeviceWasToldByTheCaseThatLostIt) {
  const auto groups = run("pci:0000:03:00.0", "passed", R"(
if [ -z "$after" ]; then case_ mul/two; echo 'failed mul f32' >> $log; exit 17; fi
case_ neg/three; echo 'passed neg f32' >> $log; echo end >> $log)",
                          "", {.only = "operators", .jobs = 1});
  EXPECT_EQ(groups[0].failed, 1);
  EXPECT_EQ(groups[0].passed, 1);
  EXPECT_EQ(groups[0].ended, "");
}

TEST_F(CertifyGroups, ThreeEndsOfAShareAreEnough) {
  const auto groups = run("pci:0000:03:00.0", "passed", "case_ mul/x$after; kill -SEGV $$", "", {.only = "operators", .jobs = 1});
  EXPECT_EQ(groups[0].failed, 3);
  EXPECT_NE(groups[0].ended.find("ended its process 3 times"), std::string::npos) << groups[0].ended;
  EXPECT_FALSE(groups[0].right());
}

TEST_F(CertifyGroups, WhatStandsStillIsKilled) {
  const auto groups = run("pci:0000:03:00.0", "passed", R"(
if [ -z "$after" ]; then case_ mul/two; exec sleep 60; fi
case_ neg/three; echo 'passed neg f32' >> $log; echo end >> $log)",
                          "", {.only = "operators", .deadline = 0.5, .jobs = 1});
  EXPECT_EQ(groups[0].passed, 1);
  ASSERT_EQ(groups[0].failures.size(), 1u);
  EXPECT_NE(groups[0].failures[0].reason.find("was killed, because it did nothing more for 2 s"), std::string::npos)
      << groups[0].failures[0].reason;
}

TEST_F(CertifyGroups, GraphsGoOnWithTheNextSeed) {
  const auto groups = run("pci:0000:03:00.0", "passed", "", R"(
if [ $first = 0 ]; then echo 'at seed 0'; echo 'at seed 1'; kill -SEGV $$; fi
echo "at seed $first"; echo "GRAPHS graphs=$count ops=9 compiled=9 failed=0 passed=$count")",
                          {.only = "graphs", .jobs = 1, .quick = true});
  EXPECT_EQ(groups[0].passed, 58);
  EXPECT_EQ(groups[0].failed, 1);
  ASSERT_EQ(groups[0].failures.size(), 1u);
  EXPECT_EQ(groups[0].failures[0].which, "graphs/1");
}

TEST_F(CertifyGroups, WithoutADeviceNothingIsAPass) {
  const auto groups = run("", "not run", kAllRight, "", {});
  ASSERT_EQ(groups.size(), 4u);  // D, and three sheets
  EXPECT_EQ(groups[0].not_run, 1);
  for (const Group& group : groups) {
    EXPECT_EQ(group.passed, 0) << group.name;
    EXPECT_EQ(group.not_run, 1) << group.name;
  }
  EXPECT_EQ(groups[1].not_run_because, "no such hardware");
}

TEST_F(CertifyGroups, SheetsNeedLibTorchsMemory) {
  why_no_memory_ = "this LibTorch drives no such device";
  const auto groups = run("pci:0000:03:00.0", "passed", kAllRight, "", {});
  ASSERT_EQ(groups.size(), 4u);
  EXPECT_EQ(groups[0].passed, 1);
  EXPECT_EQ(groups[1].not_run_because, why_no_memory_);
  EXPECT_EQ(groups[1].passed, 0);
}

}  // namespace
}  // namespace keirin::tools::certify
