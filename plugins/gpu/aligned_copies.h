// SPDX-License-Identifier: Apache-2.0
//
// For libraries that take every address for a multiple of 16 bytes, and whose engines fault elsewhere. What starts
// elsewhere (a view of the caller's) is copied for the run; the result's copy begins as what is there, because its gaps
// are copied back too.
#pragma once

#include <span>
#include <vector>

#include "plugins/gpu/plan.h"

namespace keirin::gpu {

class AlignedCopies {
 public:
  AlignedCopies(const Driver& driver, std::span<void* const> addresses, Stream stream);
  ~AlignedCopies();
  AlignedCopies(const AlignedCopies&) = delete;

  // Enqueues. False if memory ran out.
  bool make(const std::vector<const ConvTensor*>& tensors);
  bool give_back(size_t result) const;
  std::span<void* const> addresses() const { return all_; }

 private:
  struct Copy {
    size_t place;
    void *at, *from;
    size_t bytes;
  };
  const Driver& driver_;
  Stream stream_;
  std::vector<void*> all_;
  std::vector<Copy> copies_;
};

}  // namespace keirin::gpu
