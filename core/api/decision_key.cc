// SPDX-License-Identifier: Apache-2.0
#include "core/api/decision_key.h"

#include <stdlib.h>

#include <set>

#include "abi/planted.h"

namespace keirin {

CacheKey decision_key(const Hash& graph, const Options& options, const std::map<std::string, std::string>& library) {
  CacheKey key;
  key.add("what", "ledger 4").add("graph", hex(graph));
  for (const OptionRow& row : option_rows()) {
    if (!row.decides || (KRN_PLANTED(ledger_without_numerics) && row.name == "numerics")) continue;
    // Of a list neither order nor repetition means anything.
    std::string value;
    const std::vector<std::string> words = row.get(options);
    for (const std::string& word : std::set<std::string>(words.begin(), words.end()))
      value += (value.empty() ? "" : "\n") + word;
    key.add("option " + row.name, value);
  }
  for (const VariableRow& row : variable_rows())
    if (const char* value = row.decides ? secure_getenv(row.name) : nullptr)
      key.add("variable " + std::string(row.name), value);
  for (const auto& [name, value] : library) key.add("torch " + name, value);
  return key;
}

}  // namespace keirin
