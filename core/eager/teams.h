// SPDX-License-Identifier: Apache-2.0
//
// A thread that ran an operator in parallel keeps a team of OpenMP's until it ends. GNU's OpenMP counts the threads of all teams of the
// process, and where they are more than the processors, a team sleeps at once after each loop, whoever it belongs to: every later call in
// the process pays a wake-up for each operator.
#pragma once

namespace keirin {

// Ends the team of this thread, if it has one: for a thread that runs nothing for a while. Its next operator makes another, in some 0.1 ms.
void let_go_of_team();

}  // namespace keirin
