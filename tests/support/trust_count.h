// SPDX-License-Identifier: Apache-2.0
//
// What a suite of the trust lane did, told to ci/trust: lines `kind count wrong crashes` in the folder that KEIRIN_TRUST_COUNTS
// names, one file per process. It judges nothing: a count is what was really run, and a suite that dies has told what came before.
#pragma once

#include <stdlib.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <string>

namespace keirin::test {

// `wrong`: of the counted ones, those that did not end as promised. `crashes`: processes that died by what they should survive.
inline void trust_count(const std::string& kind, int64_t count, int64_t wrong = 0, int64_t crashes = 0) {
  const char* folder = ::getenv("KEIRIN_TRUST_COUNTS");
  if (folder == nullptr || *folder == '\0') return;
  std::ofstream file(std::string(folder) + "/" + std::to_string(::getpid()), std::ios::app);
  file << kind << ' ' << count << ' ' << wrong << ' ' << crashes << std::endl;
  if (!file) ::abort();  // a count that is lost must not look like a suite that did less
}

}  // namespace keirin::test
