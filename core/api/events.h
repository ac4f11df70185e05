// SPDX-License-Identifier: Apache-2.0
//
// How an event reaches the caller's function: what it throws goes no further, because it is not the model's failure.
#pragma once

#include <functional>

#include "core/api/keirin.h"

namespace keirin {

// Event::level
inline constexpr int kError = 0, kWarning = 1, kNote = 2, kDetail = 3;

inline void send(const std::function<void(const Event&)>& to, const Event& event) {
  if (!to) return;
  try {
    to(event);
  } catch (...) {  // a user's callback does not throw into the core
  }
}

}  // namespace keirin
