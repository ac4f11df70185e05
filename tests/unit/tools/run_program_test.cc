// SPDX-License-Identifier: Apache-2.0
//
// Programs run to their end: every way to end, what they find in their environment, and where what they print goes.
#include "tools/program.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include "tests/support/temp_folder.h"
#include "tools/files.h"

namespace keirin::tools {
namespace {

ProgramRun shell(const std::string& script) { return {.program = "/bin/sh", .words = {"sh", "-c", script}}; }

TEST(Program, EndsByItselfWithItsCode) {
  EXPECT_EQ(run_program(shell("exit 0")).code, 0);
  const ProgramEnd end = run_program(shell("exit 3"));
  EXPECT_EQ(end.code, 3);
  EXPECT_EQ(end.how, "ended with exit code 3");
}

TEST(Program, EndedByASignalHasNoCode) {
  const ProgramEnd end = run_program(shell("kill -SEGV $$"));
  EXPECT_EQ(end.code, -1);
  EXPECT_EQ(end.how, "was ended by signal 11 (Segmentation fault)");
}

TEST(Program, IsKilledWhenItsDiaryStandsStill) {
  test::TempFolder folder;
  ProgramRun run = shell("for i in 1 2 3 4 5 6; do echo $i >> '" + folder.path() + "/diary'; sleep 0.3; done; exec sleep 60");
  run.diary = folder.path() + "/diary";
  run.patience = 1;
  const ProgramEnd end = run_program(run);
  EXPECT_EQ(end.how, "was killed, because it did nothing more for 1 s");
  EXPECT_EQ(end.code, -1);
  EXPECT_EQ(test::slurp(run.diary), "1\n2\n3\n4\n5\n6\n");  // as long as it got on, it was let
}

TEST(Program, ThatIsNotThereHasNoCode) {
  const ProgramEnd end = run_program({.program = "/nowhere/program", .words = {"program"}});
  EXPECT_EQ(end.code, -1);
  EXPECT_EQ(end.how, "could not be started: No such file or directory");
}

TEST(Program, SettingsStandInPlaceOfThisProcessesOwn) {
  ::setenv("KRN_TEST_ONE", "old", 1);
  ::setenv("KRN_TEST_ONE_MORE", "kept", 1);
  // A variable that stood twice would be read as the first: count them too.
  ProgramRun run = shell("test \"$KRN_TEST_ONE/$KRN_TEST_ONE_MORE\" = new/kept && test $(env | grep -c '^KRN_TEST_ONE=') = 1");
  EXPECT_NE(run_program(run).code, 0);
  run.settings = {"KRN_TEST_ONE=new"};
  EXPECT_EQ(run_program(run).code, 0);
}

TEST(Program, WhatItPrintsGoesToTheFiles) {
  Result<ScratchFolder> folder = ScratchFolder::make("program-test");
  ASSERT_TRUE(folder.ok()) << folder.status().text();
  const std::string out = folder->path() + "/out", errors = folder->path() + "/errors";
  ProgramRun run = shell("echo a; echo b >&2; cat");  // reads nothing, so it ends
  run.out = out;
  ASSERT_EQ(run_program(run).code, 0);
  EXPECT_EQ(*read_file(out), "a\nb\n");
  run.errors = errors;
  ASSERT_EQ(run_program(run).code, 0);
  EXPECT_EQ(*read_file(out), "a\n");
  EXPECT_EQ(*read_file(errors), "b\n");
}

}  // namespace
}  // namespace keirin::tools
