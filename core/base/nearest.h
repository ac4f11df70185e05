// SPDX-License-Identifier: Apache-2.0
//
// The known word that is nearest to what somebody typed, for messages. Not a spelling checker: it always names one.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace keirin {

// Letters to insert, drop, replace or swap with their neighbour until one is the other; capitals count as small
// letters. Any thread.
size_t letters_apart(std::string_view a, std::string_view b);

// The first of those that are fewest letters apart; empty if nothing is known.
std::string nearest_word(std::string_view typed, const std::vector<std::string>& known);

}  // namespace keirin
