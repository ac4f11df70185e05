// SPDX-License-Identifier: Apache-2.0
//
// Damaged inputs for readers, and the loops that try and count them. What a reader promises is told by the test's own `judge`; this
// adds that no input takes long or much memory. The same seed gives the same mutants everywhere.
#pragma once

#include <gtest/gtest.h>

#include <ctime>
#include <random>
#include <string>

#include "tests/support/peak_memory.h"
#include "tests/support/trust_count.h"

namespace keirin::test {

// One to three edits: a changed byte, a removed or repeated piece, a number or word that parsers dislike.
inline std::string mutate(std::string text, std::mt19937& random) {
  static const char* const kWords[] = {
      "-1",      "9223372036854775807", "9223372036854775808", "1e308", "null",       "true", "\"\"", "[]", "{}", "NaN",
      "\\u0000", "{\"as_none\": true}", "\"as_graph\"",        "oo",    "Integer(0)", "Pow("};
  int edits = 1 + static_cast<int>(random() % 3);
  for (int i = 0; i < edits && !text.empty(); ++i) {
    size_t at = random() % text.size(), length = 1 + random() % 24;
    switch (random() % 5) {
      case 0:
        text[at] = static_cast<char>(random());
        break;
      case 1:
        text[at] = static_cast<char>(text[at] ^ (1 << (random() % 8)));
        break;
      case 2:
        text.erase(at, length);
        break;
      case 3:
        text.insert(random() % text.size(), text.substr(at, length));
        break;
      default: {
        size_t digit = text.find_first_of("0123456789", at);
        size_t end = digit == std::string::npos ? digit : text.find_first_not_of("0123456789", digit);
        if (digit == std::string::npos) digit = at, end = at + 1;
        text.replace(digit, end - digit, kWords[random() % std::size(kWords)]);
      }
    }
  }
  return text;
}

// Counts the inputs that one test tried, and tells ci/trust when the test ends.
class MalformedInputs {
 public:
  ~MalformedInputs() { trust_count("malformed", tried_, ::testing::Test::HasFailure() ? 1 : 0); }

  template <class Input, class Judge>
  void try_one(const Input& input, Judge&& judge) {
    const PeakMemory memory;
    const std::clock_t begin = std::clock();
    judge(input);
    const double seconds = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
    EXPECT_LT(seconds, 1 + static_cast<double>(input.size()) / (1 << 20)) << "of processor time, for " << input.size() << " bytes";
    EXPECT_LE(memory.risen_bytes(), 4 * static_cast<int64_t>(input.size()) + (64 << 20)) << "of memory, for " << input.size() << " bytes";
    ++tried_;
  }

  template <class Judge>
  void try_mutants(const std::string& good, int count, Judge&& judge) {
    for (int i = 0; i < count && !::testing::Test::HasFatalFailure(); ++i) try_one(mutate(good, random_), judge);
  }

  template <class Judge>
  void try_truncations(const std::string& good, Judge&& judge) {
    for (size_t n = 0; n < good.size() && !::testing::Test::HasFatalFailure(); ++n) try_one(good.substr(0, n), judge);
  }

 private:
  std::mt19937 random_{1};
  int64_t tried_ = 0;
};

}  // namespace keirin::test
