// SPDX-License-Identifier: Apache-2.0
#include "tools/matrix/bisect.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

namespace keirin::tools::matrix {

Status bisect(const BisectPlan& plan) {
  std::vector<std::string> words = {"sh",       "-c",         std::string(script_text::bisect),
                                    "keirin",   plan.command, plan.repository,
                                    plan.good,  plan.bad,     plan.build,
                                    plan.built, plan.store};
  words.insert(words.end(), plan.words.begin(), plan.words.end());
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  ::execvp("sh", arguments.data());
  return Status(Code::k_exhausted,
                {std::string("no shell could be started: ") + ::strerror(errno), {}, "nothing was built", {}});
}

}  // namespace keirin::tools::matrix
