// SPDX-License-Identifier: Apache-2.0
//
// One runtime without a cache for a test program: plugins are probed and opened once. `threads` counts in the first call; 0: as many as
// LibTorch has.
#pragma once

#include <gtest/gtest.h>

#include <memory>

#include "core/api/session.h"

namespace keirin::test {

inline Runtime& shared_runtime(int threads = 0) {
  static const std::unique_ptr<Runtime> instance = [threads] {
    Options options;
    options.use_cache = false;
    options.threads = threads;
    auto opened = Runtime::open(options);
    EXPECT_TRUE(opened.ok()) << opened.status().text();
    return std::move(*opened);
  }();
  return *instance;
}

}  // namespace keirin::test
