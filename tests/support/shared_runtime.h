// SPDX-License-Identifier: Apache-2.0
//
// One runtime without a cache for a test program: plugins are probed and opened once.
#pragma once

#include <gtest/gtest.h>

#include <memory>

#include "core/api/session.h"

namespace keirin::test {

inline Runtime& shared_runtime() {
  static const std::unique_ptr<Runtime> instance = [] {
    Options options;
    options.use_cache = false;
    auto opened = Runtime::open(options);
    EXPECT_TRUE(opened.ok()) << opened.status().text();
    return std::move(*opened);
  }();
  return *instance;
}

}  // namespace keirin::test
