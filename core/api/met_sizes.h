// SPDX-License-Identifier: Apache-2.0
//
// Which kinds of calls a session has met: dtypes, sizes, strides and alignment of the inputs. Each is new once, and no
// more than so many are new at all: what comes after them is not decided. Internal to core/api.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <vector>

#include "core/api/met_call.h"
#include "core/base/services.h"

namespace keirin {

// Not thread-safe: who shares one has a lock for it.
class MetSizes {
 public:
  enum class Answer { kKnown, kNew, kTooMany };
  explicit MetSizes(size_t most) : most_(most) {}

  Answer meet(const std::vector<TensorRef>& inputs);
  Answer meet(const MetCall& call);

 private:
  using Key = std::vector<int64_t>;
  Answer meet(Key key);

  const size_t most_;
  std::set<Key> met_;
};

}  // namespace keirin
