// SPDX-License-Identifier: Apache-2.0
//
// How a front door throws what the core returns: keirin::Error, or what LibTorch raised as it was.
#pragma once

#include <exception>
#include <utility>

#include "core/api/keirin.h"
#include "core/base/status.h"

namespace keirin {

[[noreturn]] inline void raise(const Status& status) {
  if (status.cause()) std::rethrow_exception(status.cause());
  throw Error(static_cast<int>(status.code()), status.text());
}

template <class T>
T take(Result<T> result) {
  if (!result.ok()) raise(result.status());
  return std::move(*result);
}

}  // namespace keirin
