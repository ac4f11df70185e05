// SPDX-License-Identifier: Apache-2.0
//
// Planted bugs, the tests of the tests: KRN_PLANTED(id) is true where the build has KEIRIN_PLANTED and the environment variable of
// that name holds the id; then the code around it does something wrong on purpose. tests/planted/planted.txt lists the ids and
// tests/planted/run.py tries them. In every other build it is the word `false`, and nothing of it is compiled.
#pragma once

#ifdef KEIRIN_PLANTED

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

namespace keirin {

// Leaves the id in the file that KEIRIN_PLANTED_REACHED names: a bug in code that no test reaches is another finding than one
// that no test sees.
inline bool is_planted(const char* id) {
  const char* chosen = getenv("KEIRIN_PLANTED");
  if (chosen == nullptr || strcmp(chosen, id) != 0) return false;
  const char* path = getenv("KEIRIN_PLANTED_REACHED");
  if (FILE* file = path == nullptr ? nullptr : fopen(path, "a")) {
    fprintf(file, "%s\n", id);
    fclose(file);
  }
  return true;
}

// How much of it, where a bug has a size: what KEIRIN_PLANTED_PERCENT says, else all.
inline double planted_share() {
  const char* percent = getenv("KEIRIN_PLANTED_PERCENT");
  return percent == nullptr ? 1 : atof(percent) / 100;
}

// Another bug is another build: code that was made with one is not loaded without it.
inline const char* planted_build() {
  static char text[128];
  const char* chosen = getenv("KEIRIN_PLANTED");
  if (chosen != nullptr) snprintf(text, sizeof text, "+%.90s:%g", chosen, planted_share());
  return text;
}

}  // namespace keirin

#define KRN_PLANTED_BUILD() ::keirin::planted_build()
#define KRN_PLANTED_SHARE() ::keirin::planted_share()
#define KRN_PLANTED(id)                                      \
  ([] {                                                      \
    static const bool planted = ::keirin::is_planted(#id);   \
    return planted;                                          \
  }())

#else
#define KRN_PLANTED(id) false
#define KRN_PLANTED_SHARE() 0.0
#define KRN_PLANTED_BUILD() ""
#endif
