// SPDX-License-Identifier: Apache-2.0
//
// keirin matrix bisect: which commit made something slower. git bisects; each commit that it asks about is built and
// compared with the good one in a sitting of its own (bisect.sh is all of it). What is undecided is skipped.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/base/status.h"

namespace keirin::tools::matrix {

struct BisectPlan {
  std::string command;  // this keirin
  std::string repository = ".", good, bad = "HEAD";
  std::string build;            // a shell's, run in a checkout
  std::string built = "build";  // in the checkout, as find_command takes it
  std::string store;
  std::vector<std::string> words;  // for `keirin matrix compare`
};

// This process becomes the search, and its exit code the search's: 0 found, 4 not decided, as the words of `keirin
// options` otherwise. It returns only if no shell could be started: `exhausted`.
Status bisect(const BisectPlan& plan);

// bisect.sh, as cmake/embed_text.cmake names it.
namespace script_text {
extern const std::string_view bisect;
}

}  // namespace keirin::tools::matrix
